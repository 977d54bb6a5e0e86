// The broker's side of the registry: makes the segment and is its only writer.
//
// Threads: one at a time. Cost: a commit is about 40 stores and one FUTEX_WAKE; with a reason, 32
// stores more.
//
// Invariants
//   (1) A name is live in at most one slot.
//   (2) A slot's version only grows; a freed slot is used again.
//   (3) The table version changes after each successful call below that changes something, and
//       never otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "contract/limits.h"
#include "contract/registry/record.h"
#include "contract/registry/segment.h"
#include "contract/registry/segment_writer.h"
#include "platform/base/status.h"

namespace gpushm::registry {

class RegistryWriter {
 public:
  // `generation_floor`: all generations of this broker are above it; readers can ask for it.
  static Result<RegistryWriter> Create(uint32_t slot_count = limits::kBuffers,
                                       uint64_t generation_floor = 0);

  // The sealed memfd, for SCM_RIGHTS. This object keeps it.
  int fd() const { return segment_.fd.get(); }

  // Makes the buffer visible; returns its slot. `reason`: empty if the record's ReasonCode is 0.
  // kInvalidArgument: the record or the reason is invalid (see record.h). kAlreadyExists: the name
  // is live. kExhausted: all slots are in use.
  Result<uint32_t> Insert(const BufferRecord& record, std::string_view reason = {});

  // Replaces the record of a live slot by one with the same name: a new state, a new generation.
  // Readers see the old record or the new one, and the name is never missing meanwhile.
  Result<void> Update(uint32_t slot, const BufferRecord& record, std::string_view reason = {});

  // Removes the buffer. The next Insert may return the slot's number again.
  Result<void> Withdraw(uint32_t slot);

  // Tells readers that a newer segment is available. This is the last change of a segment.
  void Retire() { writer_.Retire(); }

  // Tells readers that the GPU is lost (or is back).
  // The number of the pod's GPUs; 1 unless set. Before anybody reads it.
  void SetGpus(uint32_t count) { writer_.SetGpus(count); }
  // Bit i: the pod's GPU number i is unhealthy.
  void SetLostGpus(uint32_t bits) { writer_.SetLostGpus(bits); }

  uint64_t table_version() const { return writer_.table_version(); }
  uint32_t slot_count() const { return writer_.constants().slot_count; }
  uint32_t live_count() const { return static_cast<uint32_t>(slots_.size()); }

 private:
  RegistryWriter(WritableSegment segment, const HeaderConstants& constants);
  void Publish(uint32_t slot, const RecordWords& record, std::string_view reason);
  bool IsLive(uint32_t slot) const { return slot < names_.size() && !names_[slot].empty(); }

  WritableSegment segment_;
  SegmentWriter writer_;
  std::vector<Name> names_;                          // By slot; empty: free.
  std::vector<uint32_t> free_;                       // The next one to use is last.
  std::unordered_map<std::string, uint32_t> slots_;  // By name.
};

}  // namespace gpushm::registry
