// The handles that the C API returns instead of pointers: numbers that refer to objects of this
// process. A handle becomes invalid at the object's end, at its client's close, and in a child of
// fork(). A call with an invalid handle fails, and touches nothing.
//
// Threads: any. Find takes no lock.
#pragma once

#include <cstdint>

#include "platform/base/status.h"

namespace gpushm::client {

enum class HandleKind : uint8_t {
  kClient = 1,
  kAttachment,
  kSignal,
  kBarrier,
  kRing,
  kDescription,
  kTensors,
  kWaiter
};

// Owns a handle. It refers to `object` from the constructor to Retire or the destructor.
class Handle {
 public:
  // Throws std::bad_alloc if a million objects exist.
  Handle(HandleKind kind, void* object);
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  // Makes the handle invalid, though the object lives on. Not while another thread calls As.
  void Retire();

  template <typename Opaque>
  Opaque* As() const {
    return reinterpret_cast<Opaque*>(static_cast<uintptr_t>(number_));
  }

  // Null if the handle refers to no living object of that kind in this process.
  static void* Find(HandleKind kind, const void* handle) noexcept;
  // The reason why Find returns null.
  static Status WhyNot(HandleKind kind, const void* handle);

 private:
  uint64_t number_;  // 0: retired.
};

}  // namespace gpushm::client
