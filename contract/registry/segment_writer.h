// Every store into a registry segment, in its order. Only the writer uses it, from one thread. It
// knows nothing about descriptors, names and limits; RegistryWriter does.
//
// Order of a change (a kill between any two steps leaves a segment that every reader can use)
//   1. the change log's entry for the next table version: a hint that nobody reads yet
//   2. the slot's copies of reason and record, then its version (slot.h): readers of the slot see
//      the change
//   3. table_version, release: look-ups by name see the change
//   4. wake_word, then FUTEX_WAKE of all waiters. If a kill prevents it, nothing is lost: waiters
//      sleep in slices
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "contract/registry/checksum.h"
#include "contract/registry/layout.h"
#include "contract/registry/slot.h"

namespace gpushm::registry {

template <typename Hooks = NoHooks>
class BasicSegmentWriter {
 public:
  BasicSegmentWriter() = default;

  // Uses zeroed memory of SegmentBytes(constants) bytes, page-aligned and owned by the caller.
  // Writes the header, with the state word last. Computes the constants' checksum.
  BasicSegmentWriter(void* memory, HeaderConstants constants)
      : base_(static_cast<std::byte*>(memory)), constants_(constants) {
    constants_.checksum =
        Checksum(std::span(reinterpret_cast<const uint64_t*>(&constants_),
                           offsetof(HeaderConstants, checksum) / sizeof(uint64_t)));
    header_ = reinterpret_cast<SegmentHeader*>(base_);
    header_->constants = constants_;
    header_->state.store(kStateReady, std::memory_order_release);
  }

  // `record` holds record_words words, `reason` kReasonWords. Null: the record says that it has
  // none.
  uint64_t Publish(uint32_t slot, const uint64_t* record, const uint64_t* reason = nullptr) {
    Announce(slot);
    if (reason != nullptr) FillSlot<Hooks>(*Version(slot), Reasons(slot), kReasonWords, reason);
    const uint64_t version =
        PublishSlot<Hooks>(*Version(slot), Copies(slot), constants_.record_words, record);
    Commit();
    return version;
  }

  void Withdraw(uint32_t slot) {
    Announce(slot);
    WithdrawSlot<Hooks>(*Version(slot));
    Commit();
  }

  void Retire() { StoreHeaderWord(header_->state, kStateRetired); }
  // Before anybody reads it.
  void SetGpus(uint32_t count) { header_->gpus.store(count, std::memory_order_relaxed); }
  void SetLostGpus(uint32_t bits) { StoreHeaderWord(header_->device_lost, bits); }

  uint64_t table_version() const { return header_->table_version.load(std::memory_order_relaxed); }
  const HeaderConstants& constants() const { return constants_; }

 private:
  std::byte* Slot(uint32_t slot) const {
    return base_ + constants_.header_size + size_t{slot} * constants_.slot_stride;
  }
  Word* Version(uint32_t slot) const { return reinterpret_cast<Word*>(Slot(slot)); }
  Word* Copies(uint32_t slot) const {
    return reinterpret_cast<Word*>(Slot(slot) + kSlotCopiesOffset);
  }
  Word* Reasons(uint32_t slot) const {
    return reinterpret_cast<Word*>(Slot(constants_.slot_count) + size_t{slot} * kReasonsStride);
  }

  void StoreHeaderWord(std::atomic<uint32_t>& word, uint32_t value) {
    Announce(kNoSlot);
    Hooks::BeforeStore();
    word.store(value, std::memory_order_release);
    Commit();
  }

  void Announce(uint32_t slot) {
    if (constants_.change_log_entries == 0) return;
    // The overwritten entry belongs to the version `change_log_entries` ago. Pairs with the acquire
    // fence of RegistryReader: a reader of the new entry sees that table_version is past the old
    // one.
    std::atomic_thread_fence(std::memory_order_release);
    Hooks::BeforeStore();
    header_->change_log[(table_version() + 1) % constants_.change_log_entries].store(
        slot, std::memory_order_relaxed);
  }

  void Commit() {
    Hooks::BeforeStore();
    header_->table_version.store(table_version() + 1, std::memory_order_release);
    Hooks::BeforeStore();
    header_->wake_word.fetch_add(1, std::memory_order_release);
    Hooks::BeforeStore();
    syscall(SYS_futex, &header_->wake_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  std::byte* base_ = nullptr;
  SegmentHeader* header_ = nullptr;
  HeaderConstants constants_{};
};

using SegmentWriter = BasicSegmentWriter<>;

}  // namespace gpushm::registry
