// The bytes go through host memory: the producer copies them to shared memory, and each consumer
// copies them to the GPU. One copy follows the other, as in a program that passes on whole tensors.
// Overlapping them by chunks would save up to half.
#include <memory>
#include <utility>

#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

class StagingGiver : public Giver {
 public:
  StagingGiver(const Stage& stage, PlainMemory memory, std::byte* host)
      : stage_(stage), memory_(std::move(memory)), host_(host) {}
  Result<CUdeviceptr> Make(uint64_t) override { return memory_.address(); }
  Result<void> Give(uint64_t sequence) override {
    const CudaApi& api = *stage_.api;
    if (auto r = api.Check(
            api.cuMemcpyDtoHAsync(host_, memory_.address(), stage_.size_bytes, stage_.stream),
            "cuMemcpyDtoHAsync");
        !r) {
      return r;
    }
    if (auto r = api.Check(api.cuStreamSynchronize(stage_.stream), "cuStreamSynchronize"); !r) {
      return r;
    }
    stage_.board->flag.store(sequence, std::memory_order_release);
    return {};
  }

 private:
  const Stage& stage_;
  PlainMemory memory_;
  std::byte* host_;
};

class StagingTaker : public Taker {
 public:
  StagingTaker(const Stage& stage, PlainMemory memory, const std::byte* host)
      : stage_(stage), memory_(std::move(memory)), host_(host) {}
  Result<CUdeviceptr> Take(uint64_t sequence, const Deadline& deadline) override {
    if (auto r = AwaitWord(stage_.board->flag, sequence, deadline); !r) {
      return std::unexpected(r.error());
    }
    const CudaApi& api = *stage_.api;
    if (auto r = api.Check(
            api.cuMemcpyHtoDAsync(memory_.address(), host_, stage_.size_bytes, stage_.stream),
            "cuMemcpyHtoDAsync");
        !r) {
      return std::unexpected(r.error());
    }
    return memory_.address();
  }

 private:
  const Stage& stage_;
  PlainMemory memory_;
  const std::byte* host_;
};

struct Ends {
  PlainMemory memory;
  std::byte* host;
};

Result<Ends> MakeEnds(const Stage& stage, bool pinned) {
  if (stage.region == nullptr) return Fail(Code::kInternal, "no staging region in this cell");
  std::byte* host = stage.region->pageable();
  if (pinned) {
    const Result<std::byte*> registered = stage.region->Pinned();
    if (!registered) return std::unexpected(registered.error());
    host = *registered;
  }
  Result<PlainMemory> memory = PlainMemory::Allocate(*stage.api, stage.size_bytes);
  if (!memory) return std::unexpected(memory.error());
  return Ends{std::move(*memory), host};
}

Result<std::unique_ptr<Giver>> MakeGiver(const Stage& stage, bool pinned) {
  Result<Ends> ends = MakeEnds(stage, pinned);
  if (!ends) return std::unexpected(ends.error());
  return std::make_unique<StagingGiver>(stage, std::move(ends->memory), ends->host);
}

Result<std::unique_ptr<Taker>> MakeTaker(const Stage& stage, bool pinned) {
  Result<Ends> ends = MakeEnds(stage, pinned);
  if (!ends) return std::unexpected(ends.error());
  return std::make_unique<StagingTaker>(stage, std::move(ends->memory), ends->host);
}

}  // namespace

Result<std::unique_ptr<Giver>> GivePinned(const Stage& stage) { return MakeGiver(stage, true); }
Result<std::unique_ptr<Taker>> TakePinned(const Stage& stage) { return MakeTaker(stage, true); }
Result<std::unique_ptr<Giver>> GivePageable(const Stage& stage) { return MakeGiver(stage, false); }
Result<std::unique_ptr<Taker>> TakePageable(const Stage& stage) { return MakeTaker(stage, false); }

}  // namespace gpushm::bench::handover
