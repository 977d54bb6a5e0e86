// One entry of the registry: a record that one writer replaces and that any number of read-only
// mappings copy. No lock, no system call, no store by the reader.
//
// Invariants
//   (1) The version is the only word that publishes. 0: never used. Even: live. Odd: withdrawn.
//   (2) A commit fills the copy that the version does not select, then stores the next even
//       version. The selected copy is never written, so a writer killed between any two stores
//       leaves the previous record intact. (A plain seqlock lacks this: a writer killed while its
//       count is odd blocks every reader permanently.)
//   (3) The version only grows, so a reader that remembers it cannot suffer ABA.
//
// Hooks are for tests: they die, or switch to the other side, between any two accesses. In
// production they are NoHooks and generate no instruction.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "contract/limits.h"
#include "contract/registry/layout.h"

namespace gpushm::registry {

struct NoHooks {
  static void BeforeLoad() {}
  static void BeforeStore() {}
};

enum class SlotRead { kLive, kNotLive, kContended };

using Word = std::atomic<uint64_t>;

// Copies the first `take` words of the slot's record, which has `words`, to `out` (8 * take bytes)
// and its version to *version. Any thread, any process. `out` is undefined unless kLive.
// kContended: the record was replaced during each of limits::kReadAttempts attempts.
template <typename Hooks = NoHooks>
inline SlotRead ReadSlot(const Word& slot_version, const Word* copies, size_t words, size_t take,
                         void* out, uint64_t* version) {
  for (int attempt = 0; attempt < limits::kReadAttempts; ++attempt) {
    Hooks::BeforeLoad();
    // Pairs with the release store of PublishSlot: the copy that it selects is complete.
    const uint64_t selected = slot_version.load(std::memory_order_acquire);
    *version = selected;
    if (selected == 0 || selected % 2 == 1) return SlotRead::kNotLive;
    const Word* copy = copies + selected / 2 % 2 * words;
#pragma GCC unroll 32
    for (size_t i = 0; i < take; ++i) {
      Hooks::BeforeLoad();
      const uint64_t word = copy[i].load(std::memory_order_relaxed);
      std::memcpy(static_cast<std::byte*>(out) + i * sizeof word, &word, sizeof word);
    }
    // Pairs with the release fence of PublishSlot: if any word above came from a later commit to
    // the same copy, the next load sees that the version has moved.
    std::atomic_thread_fence(std::memory_order_acquire);
    Hooks::BeforeLoad();
    if (slot_version.load(std::memory_order_relaxed) == selected) return SlotRead::kLive;
  }
  return SlotRead::kContended;
}

// Writer only. Fills the copy that the next version selects, and returns that version. What is
// beside the record (its reason) is filled first, then PublishSlot commits both.
template <typename Hooks = NoHooks>
inline uint64_t FillSlot(const Word& slot_version, Word* copies, size_t words, const uint64_t* in) {
  const uint64_t next = (slot_version.load(std::memory_order_relaxed) | 1) + 1;
  Word* copy = copies + next / 2 % 2 * words;
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < words; ++i) {
    Hooks::BeforeStore();
    copy[i].store(in[i], std::memory_order_relaxed);
  }
  return next;
}

// Writer only. Returns the version that the commit stores.
template <typename Hooks = NoHooks>
inline uint64_t PublishSlot(Word& slot_version, Word* copies, size_t words, const uint64_t* in) {
  const uint64_t next = FillSlot<Hooks>(slot_version, copies, words, in);
  Hooks::BeforeStore();
  slot_version.store(next, std::memory_order_release);
  return next;
}

// Writer only. A withdrawn slot stays withdrawn.
template <typename Hooks = NoHooks>
inline uint64_t WithdrawSlot(Word& slot_version) {
  const uint64_t withdrawn = slot_version.load(std::memory_order_relaxed) | 1;
  Hooks::BeforeStore();
  slot_version.store(withdrawn, std::memory_order_release);
  return withdrawn;
}

// The same with the record's size known to the compiler. Initialised with 0, it is "never used".
template <uint32_t kWords, typename Hooks = NoHooks>
class alignas(64) BasicSlot {
 public:
  using Record = std::array<uint64_t, kWords>;

  SlotRead Read(Record* record, uint64_t* version) const {
    return ReadSlot<Hooks>(version_, copies_.data(), kWords, kWords, record->data(), version);
  }
  bool IsCurrent(uint64_t version) const {
    return version_.load(std::memory_order_acquire) == version;
  }
  uint64_t Publish(const Record& record) {
    return PublishSlot<Hooks>(version_, copies_.data(), kWords, record.data());
  }
  uint64_t Withdraw() { return WithdrawSlot<Hooks>(version_); }

 private:
  Word version_{0};
  alignas(kSlotCopiesOffset) std::array<Word, size_t{2} * kWords> copies_{};
};
static_assert(sizeof(BasicSlot<kRecordWords>) == SlotStride(kRecordWords));
static_assert(sizeof(BasicSlot<3>) == SlotStride(3));

}  // namespace gpushm::registry
