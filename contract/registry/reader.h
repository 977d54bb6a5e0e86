// The library's and the plugin's side of the registry: look-ups on a read-only mapping.
//
// Threads: all functions may run on any thread at the same time. Find is lock-free on a hit and
// makes no system call. A miss takes a lock of this object, never one in shared memory. Nothing
// here waits for the writer, which may be dead or stopped at any point.
//
// Whatever the bytes of the segment are, and whenever they change, calls end after a bounded number
// of steps, access nothing outside the mapping, and return kCorrupt or kContended at worst. Every
// record that leaves this class was copied first and validated afterwards.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "contract/registry/name_map.h"
#include "contract/registry/record.h"
#include "contract/registry/segment.h"
#include "contract/registry/slot.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::registry {

// A record as it was at one time. It belongs to one reader; another segment's refs have no meaning
// for it.
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
  // Takes the memfd of a broker: checks seals and size, maps it, validates the header.
  static Result<std::unique_ptr<RegistryReader>> Open(UniqueFd fd);

  // For tests and fuzzers: reads memory that the caller owns, aligned to a page.
  static Result<std::unique_ptr<RegistryReader>> OverMemory(const void* address, size_t bytes);

  RegistryReader(const RegistryReader&) = delete;
  RegistryReader& operator=(const RegistryReader&) = delete;
  ~RegistryReader();

  // The buffer of that name. kNotFound; kInvalidArgument if it is not a valid name; kContended if
  // it was replaced during every attempt; kCorrupt if its record, or one that could be its record,
  // is broken.
  Result<Found> Find(std::string_view name) const;

  // Why a buffer that Find found has no content: what its load waits for, or why it failed; one
  // line of text. Empty if its record has no reason (ReasonCode), or was replaced since.
  std::string ReasonOf(const Found& found) const;

  // False once the record of `ref` was replaced or withdrawn. Costs one load.
  bool IsCurrent(const Ref& ref) const {
    // Pairs with the release store of PublishSlot and WithdrawSlot.
    return ref.slot < slot_count_ &&
           Version(ref.slot).load(std::memory_order_acquire) == ref.version;
  }

  // The word that IsCurrent loads, for callers that check often: the version of the slot in a Ref,
  // or of slot 0. Valid as long as this object or the result of addresses(). After this object's
  // end it reads 0, which no Ref has.
  const Word& VersionOf(uint32_t slot) const { return Version(slot); }
  std::shared_ptr<const void> addresses() const { return mapping_; }

  // All live records, by slot. Each is consistent; together they are not a snapshot. kCorrupt or
  // kContended if one could not be read.
  Result<std::vector<BufferRecord>> List() const;

  // Changes with every change. To miss no change, read it, then call List() or Find(), then call
  // WaitForChange() with the value read.
  uint64_t table_version() const { return header_->table_version.load(std::memory_order_acquire); }

  // True as soon as the table version is not `seen`. False at the deadline or after kWaitSliceMs,
  // whichever is first, so that the caller can do its other duties and call again.
  bool WaitForChange(uint64_t seen, const Deadline& deadline) const;
  static constexpr int kWaitSliceMs = 50;

  // The broker shut this segment down in good order and offers another one.
  bool retired() const { return header_->state.load(std::memory_order_acquire) != kStateReady; }
  // Whether that GPU of the pod is unhealthy; false for a number that no pod has.
  bool device_lost(uint32_t gpu_number) const {
    return gpu_number < limits::kPodGpus && (LostGpus() >> gpu_number & 1) != 0;
  }
  // Whether the record's GPU is. A sync page needs any GPU, and so does a name without a record.
  bool IsLost(const BufferRecord* record) const {
    if (record == nullptr || (record->flags & kRecordPage) != 0) return all_devices_lost();
    return device_lost(record->gpu_number);
  }
  // Whether none of the pod's GPUs is healthy.
  bool all_devices_lost() const {
    const uint32_t gpus =
        std::clamp(header_->gpus.load(std::memory_order_relaxed), 1U, limits::kPodGpus);
    const uint32_t all = (uint32_t{1} << gpus) - 1;
    return (LostGpus() & all) == all;
  }

  const std::array<uint64_t, 2>& segment_id() const { return constants_.segment_id; }
  const HeaderConstants& constants() const { return constants_; }
  uint32_t slot_count() const { return slot_count_; }

 private:
  RegistryReader(Mapping mapping, const void* address, const HeaderConstants& constants);

  uint32_t LostGpus() const { return header_->device_lost.load(std::memory_order_acquire); }
  const std::byte* Slot(uint32_t slot) const { return slots_ + size_t{slot} * slot_stride_; }
  const Word& Version(uint32_t slot) const { return *reinterpret_cast<const Word*>(Slot(slot)); }
  const Word* Copies(uint32_t slot) const {
    return reinterpret_cast<const Word*>(Slot(slot) + kSlotCopiesOffset);
  }
  const Word* Reasons(uint32_t slot) const {
    return reinterpret_cast<const Word*>(Slot(slot_count_) + size_t{slot} * kReasonsStride);
  }
  SlotRead ReadWords(uint32_t slot, uint64_t* words, uint64_t* version) const;
  SlotRead ReadRecord(uint32_t slot, Found* found, const char** problem) const;

  enum class Probe { kFound, kNone, kContended, kCorrupt };
  Probe ProbeFor(const Name& name, uint64_t hash, size_t max_probes, Found* found) const;
  Result<Found> FindSlow(const Name& name, uint64_t hash) const;
  std::string ProblemOf(uint32_t slot) const;  // Of a slot whose record was broken.
  void CatchUp() const;                        // With mutex_ held.
  bool CatchUpFromLog(uint64_t to) const;      // With mutex_ held. False: the log is too short.
  void Refresh(uint32_t slot) const;           // With mutex_ held.

  const std::shared_ptr<Mapping> mapping_;
  const SegmentHeader* header_;
  const std::byte* slots_;
  HeaderConstants constants_;
  uint32_t slot_count_;
  uint32_t slot_stride_;
  uint32_t record_words_;

  mutable NameMap map_;
  // By slot: the last version whose checksum was verified, so that look-ups compute each only once.
  mutable std::vector<std::atomic<uint64_t>> valid_;
  mutable std::mutex mutex_;
  // mutex_ guards these: what the map was built from.
  mutable std::vector<uint64_t> seen_;  // By slot: the version that the map reflects.
  mutable std::vector<bool> corrupt_;   // By slot: its record fails validation.
  mutable uint32_t corrupt_count_ = 0;
  mutable uint64_t scanned_ = 0;   // Table version that the map reflects.
  mutable bool complete_ = false;  // False: a slot was contended, or nothing was read yet.
};

}  // namespace gpushm::registry
