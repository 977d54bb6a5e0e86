// A reader's private map from names to slots: open addressing over atomics, so that look-ups need
// no lock while one thread at a time changes it.
//
// The map is only a hint, which keeps it simple: an answer may be outdated, and a look-up during a
// change may miss an entry. Callers verify an answer against the slot. Before they conclude that
// there is no entry, they look again under the lock that guards changes.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpushm::registry {

class NameMap {
 public:
  // For slots [0, slot_count), slot_count <= 65,536.
  explicit NameMap(uint32_t slot_count)
      : entries_(std::bit_ceil(size_t{2} * slot_count + 2)),
        mask_(entries_.size() - 1),
        hashes_(slot_count, 0) {}

  // Calls accept(slot) for each candidate until it returns true; false if none was accepted or
  // after `max_probes` entries. Any thread.
  template <typename Accept>
  bool Find(uint64_t hash, size_t max_probes, Accept accept) const {
    const uint32_t tag = TagOf(hash);
    for (size_t i = 0, at = hash & mask_; i < max_probes; ++i, at = (at + 1) & mask_) {
      const uint32_t entry = entries_[at].load(std::memory_order_relaxed);
      if (entry == 0) return false;
      if ((entry & kTagMask) == tag && accept(SlotOf(entry))) return true;
    }
    return false;
  }

  // Makes `slot` a candidate for `hash` only; with hash 0, for none. One thread at a time.
  void Set(uint32_t slot, uint64_t hash) {
    if (hashes_[slot] == hash) return;
    if (hashes_[slot] != 0) Remove(slot);
    hashes_[slot] = hash;
    if (hash == 0) return;
    size_t at = hash & mask_;
    while (Load(at) != 0) at = (at + 1) & mask_;
    entries_[at].store(TagOf(hash) | (slot + 1), std::memory_order_relaxed);
  }

  bool Has(uint32_t slot) const { return hashes_[slot] != 0; }
  size_t capacity() const { return entries_.size(); }

 private:
  static constexpr uint32_t kSlotMask = (1u << 17) - 1;  // Slot + 1, so that 0 is "empty".
  static constexpr uint32_t kTagMask = ~kSlotMask;

  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) & kTagMask; }
  static uint32_t SlotOf(uint32_t entry) { return (entry & kSlotMask) - 1; }
  uint32_t Load(size_t at) const { return entries_[at].load(std::memory_order_relaxed); }

  // Closes the gap by moving later entries of the run up. So there are no tombstones and no
  // rebuilding.
  void Remove(uint32_t slot) {
    size_t gap = hashes_[slot] & mask_;
    while (SlotOf(Load(gap)) != slot) gap = (gap + 1) & mask_;
    for (size_t at = (gap + 1) & mask_; Load(at) != 0; at = (at + 1) & mask_) {
      const size_t home = hashes_[SlotOf(Load(at))] & mask_;
      if (((at - home) & mask_) < ((at - gap) & mask_)) continue;  // It may not be before home.
      entries_[gap].store(Load(at), std::memory_order_relaxed);
      gap = at;
    }
    entries_[gap].store(0, std::memory_order_relaxed);
  }

  std::vector<std::atomic<uint32_t>> entries_;  // {tag 15 bits | slot + 1}
  size_t mask_;
  std::vector<uint64_t> hashes_;  // By slot; for changes only.
};

}  // namespace gpushm::registry
