// How much memory the buffers of a pod use, and how much they may use. Only numbers: it owns
// nothing, and every Add() is followed by a Remove() of the same memory.
//
// Invariants
//   (1) On each GPU, used_bytes is the sum of the rounded sizes of the pooled memory that was
//   added,
//       plus what is reserved for allocations in progress. It never exceeds the GPU's pool.
//   (2) Offered memory, which is the offerer's, never exceeds what its GPU has, see
//       protocol::OfferedBytes.
//   (3) Pages, descriptions and blocks never exceed their limits in limits.h.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "platform/base/status.h"
#include "platform/driver/device.h"
#include "sidecar/broker/memory.h"

namespace gpushm::broker {

// One of the pod's GPUs.
struct LedgerGpu {
  GpuUuid uuid;
  uint64_t total_bytes = limits::kBufferBytes;
  uint64_t used_bytes = 0;     // Of the pool.
  uint64_t offered_bytes = 0;  // By applications.
};

class Budget {
 public:
  // `gpus`: in the order of their numbers, at least one. `pool_bytes`: on each.
  Budget(std::vector<LedgerGpu> gpus, uint64_t pool_bytes, uint64_t granularity);

  const LedgerGpu& gpu(uint32_t number) const { return gpus_.at(number); }
  uint32_t gpu_count() const { return static_cast<uint32_t>(gpus_.size()); }
  uint64_t pool_bytes() const { return pool_bytes_; }
  size_t block_count() const { return block_count_; }
  // What a buffer or page of that size takes.
  uint64_t MappedBytes(uint64_t size_bytes, bool page) const;

  // Takes room in the pool for an allocation. `has_old`: an old generation of that name has room
  // there. All of these are kExhausted, and name what is there and what to do.
  Result<void> Reserve(std::string_view name, uint32_t gpu, uint64_t mapped_bytes, bool has_old);
  void Unreserve(uint32_t gpu, uint64_t mapped_bytes) { gpus_.at(gpu).used_bytes -= mapped_bytes; }
  Result<void> HasRoomForPage(uint64_t mapped_bytes) const;
  // kInvalidArgument if it is larger than its GPU.
  Result<void> HasRoomForOffer(std::string_view name, const Memory& memory) const;
  // In the place of one of `former_bytes`.
  Result<void> HasRoomForDescription(uint64_t former_bytes, uint64_t bytes) const;
  // Why memory that an earlier broker had does not fit; empty if it does.
  std::string Problem(const Memory& memory) const;

  void Add(const Memory& memory);
  void Remove(const Memory& memory);
  void ChangeDescription(uint64_t former_bytes, uint64_t bytes);

 private:
  // "GPU 1", or `only` if the pod has one.
  std::string NameOfGpu(uint32_t gpu, const char* only) const;

  std::vector<LedgerGpu> gpus_;
  uint64_t pool_bytes_;
  uint64_t granularity_;
  uint64_t page_bytes_ = 0;
  size_t block_count_ = 0;
  uint64_t description_bytes_ = 0;  // Each in whole memory pages.
};

}  // namespace gpushm::broker
