#include "sidecar/broker/budget.h"

#include <algorithm>
#include <utility>

namespace gpushm::broker {
namespace {

// Host memory comes in pages of this size.
constexpr uint64_t kHostPageBytes = 4096;

uint64_t DescriptionPages(uint64_t bytes) { return RoundUp(bytes, kHostPageBytes); }

}  // namespace

Budget::Budget(std::vector<LedgerGpu> gpus, uint64_t pool_bytes, uint64_t granularity)
    : gpus_(std::move(gpus)), pool_bytes_(pool_bytes), granularity_(granularity) {
  GPUSHM_ASSERT(!gpus_.empty());
}

std::string Budget::NameOfGpu(uint32_t gpu, const char* only) const {
  return gpus_.size() == 1 ? only : Concat("GPU ", gpu);
}

uint64_t Budget::MappedBytes(uint64_t size_bytes, bool page) const {
  return RoundUp(size_bytes, page ? kHostPageBytes : granularity_);
}

Result<void> Budget::Reserve(std::string_view name, uint32_t gpu, uint64_t mapped_bytes,
                             bool has_old) {
  uint64_t& used_bytes = gpus_.at(gpu).used_bytes;
  const uint64_t free_bytes = pool_bytes_ - std::min(used_bytes, pool_bytes_);
  if (mapped_bytes > free_bytes) {
    return Fail(Code::kExhausted,
                Concat('"', name, "\" needs ", mapped_bytes, " bytes, but the pool",
                       gpus_.size() == 1 ? "" : Concat(" on GPU ", gpu), " has ", free_bytes,
                       " of ", pool_bytes_, " left"),
                !has_old ? "raise gpushm.io/pool-extra, or delete buffers that are not needed"
                         : "allow the buffer another generation (generations: 2, or room in "
                           "gpushm.io/pool-extra), or detach the old one");
  }
  used_bytes += mapped_bytes;
  return {};
}

// Pages are made at once, so no page is ever in progress.
Result<void> Budget::HasRoomForPage(uint64_t mapped_bytes) const {
  if (mapped_bytes <= limits::kAllPagesBytes - std::min(page_bytes_, limits::kAllPagesBytes)) {
    return {};
  }
  return Fail(Code::kExhausted,
              Concat("the pod's signals, barriers and rings use ", page_bytes_, " of ",
                     limits::kAllPagesBytes, " bytes of host memory, but ", mapped_bytes,
                     " more are needed"),
              "delete some; see docs/reference/limits.md");
}

// Whoever counts a GPU's memory believes the size that an application gives, so the size is limited
// to what the GPU has.
Result<void> Budget::HasRoomForOffer(std::string_view name, const Memory& memory) const {
  const LedgerGpu& gpu = gpus_.at(memory.gpu);
  if (memory.mapped_bytes > gpu.total_bytes) {
    return Fail(Code::kInvalidArgument,
                Concat("size: the allocation offered as \"", name, "\" has ", memory.mapped_bytes,
                       " bytes, but its GPU has ", gpu.total_bytes),
                "give the size that cuMemGetAddressRange returns, for example 2097152");
  }
  const uint64_t wanted_bytes = memory.offered_bytes();
  if (wanted_bytes <= gpu.total_bytes - gpu.offered_bytes) return {};
  return Fail(Code::kExhausted,
              Concat('"', name, "\" offers ", wanted_bytes,
                     " bytes, but other offers of the pod already have ", gpu.offered_bytes,
                     gpus_.size() == 1 ? "" : " on it", " and ", NameOfGpu(memory.gpu, "their GPU"),
                     " has ", gpu.total_bytes),
              "delete offers that are not used; see docs/reference/limits.md");
}

Result<void> Budget::HasRoomForDescription(uint64_t former_bytes, uint64_t bytes) const {
  const uint64_t others = description_bytes_ - DescriptionPages(former_bytes);
  if (DescriptionPages(bytes) <= limits::kAllDescriptionsBytes - others) return {};
  return Fail(Code::kExhausted,
              Concat("the other descriptions of the pod have ", others, " of ",
                     limits::kAllDescriptionsBytes, " bytes, so one of ", bytes, " does not fit"),
              "detach or delete old generations; see docs/reference/limits.md");
}

std::string Budget::Problem(const Memory& memory) const {
  if (memory.gpu >= gpus_.size()) {
    return Concat("its GPU is number ", memory.gpu, ", but the pod has ", gpus_.size());
  }
  if (memory.is_page()) return {};
  const LedgerGpu& gpu = gpus_[memory.gpu];
  if (!memory.pooled) {
    if (memory.mapped_bytes > gpu.total_bytes) {
      return Concat("it is larger than ", NameOfGpu(memory.gpu, "the GPU"), ": ",
                    memory.mapped_bytes, " of ", gpu.total_bytes, " bytes");
    }
    const uint64_t offered = memory.offered_bytes();
    if (offered <= gpu.total_bytes - gpu.offered_bytes) return {};
    return Concat("more memory is offered than ", NameOfGpu(memory.gpu, "the GPU"),
                  " has: ", offered, " bytes in addition to ", gpu.offered_bytes, " of ",
                  gpu.total_bytes);
  }
  const uint64_t wanted = MappedBytes(memory.size_bytes, /*page=*/false);
  if (memory.mapped_bytes != wanted) {
    return Concat("this broker never makes memory of this size: ", memory.mapped_bytes,
                  " bytes instead of ", wanted, " for ", memory.size_bytes);
  }
  if (memory.mapped_bytes <= pool_bytes_ - gpu.used_bytes) return {};
  return Concat("the pool", gpus_.size() == 1 ? "" : Concat(" on GPU ", memory.gpu),
                " has no room for it: it needs ", memory.mapped_bytes, " bytes, and ",
                pool_bytes_ - gpu.used_bytes, " of ", pool_bytes_, " are free");
}

void Budget::Add(const Memory& memory) {
  LedgerGpu& gpu = gpus_.at(memory.gpu);
  if (memory.pooled) gpu.used_bytes += memory.mapped_bytes;
  if (memory.is_page()) page_bytes_ += memory.mapped_bytes;
  gpu.offered_bytes += memory.offered_bytes();
  block_count_ += memory.blocks.size();
}

void Budget::Remove(const Memory& memory) {
  LedgerGpu& gpu = gpus_.at(memory.gpu);
  if (memory.pooled) gpu.used_bytes -= memory.mapped_bytes;
  if (memory.is_page()) page_bytes_ -= memory.mapped_bytes;
  gpu.offered_bytes -= memory.offered_bytes();
  block_count_ -= memory.blocks.size();
}

void Budget::ChangeDescription(uint64_t former_bytes, uint64_t bytes) {
  description_bytes_ += DescriptionPages(bytes) - DescriptionPages(former_bytes);
}

}  // namespace gpushm::broker
