// What the C API gives out instead of pointers: numbers that stand for objects of this process. One
// that is used too late stands for nothing, and the call fails: after the object's end, after its
// client's close, or in a child of fork().
//
// Threads: any. Find takes no lock.
#pragma once

#include <cstdint>

#include "platform/base/status.h"

namespace gpushm::client {

enum class HandleKind : uint8_t { kClient = 1, kAttachment, kSignal, kBarrier, kRing };

// Owner of a handle: from its constructor to Retire, or to its destructor, it stands for `object`.
class Handle {
 public:
  // Throws std::bad_alloc when a million objects live.
  Handle(HandleKind kind, void* object);
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  // Stands for nothing from now on, though the object lives on. Not while another thread calls As.
  void Retire();

  template <typename Opaque>
  Opaque* As() const {
    return reinterpret_cast<Opaque*>(static_cast<uintptr_t>(number_));
  }

  // Null: it stands for no living object of that kind of this process.
  static void* Find(HandleKind kind, const void* handle) noexcept;
  // Why not.
  static Status WhyNot(HandleKind kind, const void* handle);

 private:
  uint64_t number_;  // 0: retired.
};

}  // namespace gpushm::client
