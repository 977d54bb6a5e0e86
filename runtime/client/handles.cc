#include "runtime/client/handles.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include "platform/base/per_process.h"

namespace gpushm::client {
namespace {

// From the lowest bit: the slot's index, the kind, the depth of forks, the number of earlier uses
// of the slot, and a mark that no address has. A number repeats after 2^24 uses of its slot.
constexpr uint32_t kIndexBits = 20;
constexpr uint32_t kKindShift = kIndexBits;
constexpr uint32_t kDepthShift = kKindShift + 4;
constexpr uint32_t kUseShift = kDepthShift + 8;
constexpr uint32_t kUseMask = 0xffffff;
constexpr uint32_t kMarkShift = kUseShift + 24;
constexpr uint64_t kMark = 'g';
constexpr uint32_t kChunkBits = 10;
constexpr uint32_t kChunkSlots = 1U << kChunkBits;
constexpr uint32_t kChunks = 1U << (kIndexBits - kChunkBits);

uint64_t NumberOf(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }
bool IsOfKind(uint64_t number, HandleKind kind) {
  return number >> kMarkShift == kMark &&
         (number >> kKindShift & 0xf) == static_cast<uint8_t>(kind);
}
bool IsOfThisProcess(uint64_t number) {
  return (number >> kDepthShift & 0xff) == (ForkDepth() & 0xff);
}

struct Slot {
  std::atomic<uint64_t> number{0};  // 0: free.
  std::atomic<void*> object{nullptr};
  uint32_t uses = 0;       // Under the table's mutex.
  uint32_t next_free = 0;  // Under the table's mutex.
};

class Table {
 public:
  uint64_t Add(HandleKind kind, void* object) {
    const std::lock_guard lock(mutex_);
    uint32_t index = first_free_;
    if (index == kNone) {
      if (used_ == kChunks * kChunkSlots) throw std::bad_alloc();
      if (used_ % kChunkSlots == 0) {
        chunks_[used_ / kChunkSlots].store(new Chunk, std::memory_order_release);
      }
      index = used_++;
    } else {
      first_free_ = At(index).next_free;
    }
    Slot& slot = At(index);
    const uint64_t number = kMark << kMarkShift | uint64_t{slot.uses++ & kUseMask} << kUseShift |
                            uint64_t{ForkDepth() & 0xff} << kDepthShift |
                            uint64_t{static_cast<uint8_t>(kind)} << kKindShift | index;
    slot.object.store(object, std::memory_order_relaxed);
    slot.number.store(number, std::memory_order_release);  // Pairs with Find.
    return number;
  }

  void Remove(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const uint32_t index = number % (1U << kIndexBits);
    Slot& slot = At(index);
    slot.number.store(0, std::memory_order_relaxed);
    slot.next_free = first_free_;
    first_free_ = index;
  }

  void* Find(uint64_t number) const {
    const uint32_t index = number % (1U << kIndexBits);
    const Chunk* const chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const Slot& slot = (*chunk)[index % kChunkSlots];
    if (slot.number.load(std::memory_order_acquire) != number) return nullptr;
    return slot.object.load(std::memory_order_relaxed);
  }

 private:
  using Chunk = std::array<Slot, kChunkSlots>;
  static constexpr uint32_t kNone = UINT32_MAX;

  Slot& At(uint32_t index) {
    return (*chunks_[index / kChunkSlots].load(std::memory_order_relaxed))[index % kChunkSlots];
  }

  std::mutex mutex_;
  uint32_t used_ = 0;            // Under mutex_.
  uint32_t first_free_ = kNone;  // Under mutex_.
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

constinit PerProcess<Table> table;

}  // namespace

Handle::Handle(HandleKind kind, void* object) : number_(table.Get().Add(kind, object)) {}

void Handle::Retire() {
  if (number_ != 0 && IsOfThisProcess(number_)) table.Get().Remove(number_);
  number_ = 0;
}

Handle::~Handle() { Retire(); }

void* Handle::Find(HandleKind kind, const void* handle) noexcept {
  const uint64_t number = NumberOf(handle);
  if (!IsOfKind(number, kind)) return nullptr;
  const Table* const of_this_process = table.Peek();
  return of_this_process == nullptr ? nullptr : of_this_process->Find(number);
}

Status Handle::WhyNot(HandleKind kind, const void* handle) {
  constexpr std::array kNames = {"",        "client",        "attachment",  "signal",
                                 "barrier", "ring or queue", "description", "set of tensors",
                                 "waiter"};
  const char* const what = kNames[static_cast<size_t>(kind)];
  if (handle == nullptr) return Status(Code::kInvalidArgument, Concat(what, " is NULL"));
  if (!IsOfKind(NumberOf(handle), kind)) {
    return Status(Code::kInvalidArgument,
                  Concat("this is not the handle of a ", what, ": ", handle),
                  Concat("pass a handle that gpushm returned for a ", what));
  }
  if (!IsOfThisProcess(NumberOf(handle))) {
    return Status(Code::kForked,
                  Concat("this ", what,
                         " belongs to the parent process: it was opened before fork(): ", handle),
                  "open a client in this process with gpushm_open, and use its handles");
  }
  return Status(
      Code::kInvalidArgument,
      Concat("this ", what,
             " is no longer open: it was closed or detached, or its client was closed: ", handle),
      "do not use a handle after its close or detach, and close the client last");
}

}  // namespace gpushm::client
