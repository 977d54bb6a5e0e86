// What libgpushm gave and must get back: clients, attachments, rings, signals, barriers, waiters.
//
// Python objects, arrays and DLPack capsules share a resource by references. The last reference may
// die anywhere: in a garbage collection, in a thread without the GIL, or while a CUDA graph is
// captured, where a CUDA call would break the capture. So nothing is given back at that moment. The
// resource goes to a list, and the next call of the package (Collect) gives it back, once the work
// that its streams had is done.
//
// Threads: any, with or without the GIL. After fork() the list works in the child as well: it takes
// no lock.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace gpushm::python {

class Resource {
 public:
  Resource();
  virtual ~Resource();
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;

  // Gives it back. False: the GPU still uses it; call it again later. May call CUDA.
  virtual bool Release() = 0;

 private:
  friend void Retire(Resource* resource) noexcept;
  friend void CollectReleased() noexcept;
  Resource* next_ = nullptr;
};

// Puts a resource without owners onto the list. Calls nothing else.
void Retire(Resource* resource) noexcept;

// Gives back what is on the list, as far as the GPU has finished with it.
void Collect() noexcept;
// The same for a caller without the GIL, beside captures (BesideCaptures).
void CollectReleased() noexcept;

// Number of resources that are not given back yet, with and without owners.
size_t LiveResources();

template <typename T, typename... Arguments>
std::shared_ptr<T> Share(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            [](T* resource) { Retire(resource); });
}

}  // namespace gpushm::python
