// The library's and the plugin's side of the registry: look-ups on a read-only mapping.
//
// Threads: all functions from any thread at a time. Find is lock-free on a hit and makes no system
// call; a miss takes a lock of this object (never one in shared memory). Nothing here waits for the
// writer, which may be dead or stopped at any point.
//
// Whatever the bytes of the segment are, and whenever they change, calls end after a bounded number
// of steps, touch nothing outside the mapping, and say kCorrupt or kContended at worst. Values of
// every record that leaves this class were validated after they were copied.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "contract/registry/name_map.h"
#include "contract/registry/record.h"
#include "contract/registry/segment.h"
#include "contract/registry/slot.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::registry {

// A record as it was once read. Of one reader: another segment's refs mean nothing to it.
struct Ref {
  uint64_t version = 0;
  uint32_t slot = 0;
};

struct Found {
  BufferRecord record;
  Ref ref;
};

class RegistryReader {
 public:
  // Takes the memfd of a broker: checks seals and size, maps, validates the header.
  static Result<std::unique_ptr<RegistryReader>> Open(UniqueFd fd);

  // For tests and fuzzers: over memory that the caller keeps, aligned to a page.
  static Result<std::unique_ptr<RegistryReader>> OverMemory(const void* address, size_t bytes);

  RegistryReader(const RegistryReader&) = delete;
  RegistryReader& operator=(const RegistryReader&) = delete;
  ~RegistryReader();

  // The buffer of that name. kNotFound; kInvalidArgument if it cannot be a name; kContended if it
  // was replaced during every attempt; kCorrupt if its record, or one that could be it, is broken.
  Result<Found> Find(std::string_view name) const;

  // False once the record behind `ref` was replaced or withdrawn. One load.
  bool IsCurrent(const Ref& ref) const {
    // Pairs with the release store of PublishSlot and WithdrawSlot.
    return ref.slot < slot_count_ &&
           Version(ref.slot).load(std::memory_order_acquire) == ref.version;
  }

  // What IsCurrent loads, for who asks often: the version of a slot that a Ref named, or slot 0.
  // Valid as long as this object, or addresses() of it. After this object's end it reads 0, which
  // no Ref has.
  const Word& VersionOf(uint32_t slot) const { return Version(slot); }
  std::shared_ptr<const void> addresses() const { return mapping_; }

  // All live records, by slot. Each is whole; together they are no snapshot. kCorrupt or
  // kContended if one could not be read.
  Result<std::vector<BufferRecord>> List() const;

  // Moves with every change. Read it, then List() or Find(), then WaitForChange() with it: no
  // change is missed.
  uint64_t table_version() const { return header_->table_version.load(std::memory_order_acquire); }

  // True as soon as the table version is not `seen`. False at the deadline, but after
  // kWaitSliceMs at the latest, so that the caller sees to its other duties and calls again.
  bool WaitForChange(uint64_t seen, const Deadline& deadline) const;
  static constexpr int kWaitSliceMs = 50;

  // The broker left this segment in good order and offers another one.
  bool retired() const { return header_->state.load(std::memory_order_acquire) != kStateReady; }
  bool device_lost() const { return header_->device_lost.load(std::memory_order_acquire) != 0; }

  const std::array<uint64_t, 2>& segment_id() const { return constants_.segment_id; }
  const HeaderConstants& constants() const { return constants_; }
  uint32_t slot_count() const { return slot_count_; }

 private:
  RegistryReader(Mapping mapping, const void* address, const HeaderConstants& constants);

  const std::byte* Slot(uint32_t slot) const { return slots_ + size_t{slot} * slot_stride_; }
  const Word& Version(uint32_t slot) const { return *reinterpret_cast<const Word*>(Slot(slot)); }
  const Word* Copies(uint32_t slot) const {
    return reinterpret_cast<const Word*>(Slot(slot) + kSlotCopiesOffset);
  }
  SlotRead ReadWords(uint32_t slot, uint64_t* words, uint64_t* version) const;
  SlotRead ReadRecord(uint32_t slot, Found* found, const char** problem) const;

  enum class Probe { kFound, kNone, kContended, kCorrupt };
  Probe ProbeFor(const Name& name, uint64_t hash, size_t max_probes, Found* found) const;
  Result<Found> FindSlow(const Name& name, uint64_t hash) const;
  void CatchUp() const;                    // Under mutex_.
  bool CatchUpFromLog(uint64_t to) const;  // Under mutex_. False: the log does not reach back.
  void Refresh(uint32_t slot) const;       // Under mutex_.

  const std::shared_ptr<Mapping> mapping_;
  const SegmentHeader* header_;
  const std::byte* slots_;
  HeaderConstants constants_;
  uint32_t slot_count_;
  uint32_t slot_stride_;
  uint32_t record_words_;

  mutable NameMap map_;
  // By slot: the version whose checksum was right, so that a look-up computes it once for each.
  mutable std::vector<std::atomic<uint64_t>> valid_;
  mutable std::mutex mutex_;
  // All under mutex_: what the map was made from.
  mutable std::vector<uint64_t> seen_;  // By slot: the version that the map stands for.
  mutable std::vector<bool> corrupt_;   // By slot: its record fails validation.
  mutable uint32_t corrupt_count_ = 0;
  mutable uint64_t scanned_ = 0;   // Table version that the map stands for.
  mutable bool complete_ = false;  // False: a slot was contended, or nothing was read yet.
};

}  // namespace gpushm::registry
