// The bytes go through host memory: the producer copies them to shared memory, and each consumer
// copies them to the GPU. One copy follows the other, as in a program that passes on whole tensors.
// Overlapping them by chunks would save up to half.
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

std::byte* HostMemory(const Stage& stage, bool pinned) {
  if (stage.region == nullptr) throw Failure(Code::kInternal, "no staging region in this cell");
  return pinned ? stage.region->Pinned() : stage.region->pageable();
}

Giver MakeGiver(const Stage& stage, bool pinned) {
  std::byte* const host = HostMemory(stage, pinned);
  const OwnedMemory memory = AllocateMemory(stage);
  return {.make = [memory](uint64_t) { return *memory; },
          .give =
              [memory, host, &stage](uint64_t sequence) {
                const CudaApi& api = *stage.api;
                Must(api.Check(api.cuMemcpyDtoHAsync(host, *memory, stage.size_bytes, stage.stream),
                               "cuMemcpyDtoHAsync"));
                Must(api.Check(api.cuStreamSynchronize(stage.stream), "cuStreamSynchronize"));
                stage.board->flag.store(sequence, std::memory_order_release);
              }};
}

Taker MakeTaker(const Stage& stage, bool pinned) {
  const std::byte* const host = HostMemory(stage, pinned);
  const OwnedMemory memory = AllocateMemory(stage);
  return {.take = [memory, host, &stage](uint64_t sequence, const Deadline& deadline) {
    AwaitWord(stage.board->flag, sequence, deadline);
    const CudaApi& api = *stage.api;
    Must(api.Check(api.cuMemcpyHtoDAsync(*memory, host, stage.size_bytes, stage.stream),
                   "cuMemcpyHtoDAsync"));
    return *memory;
  }};
}

}  // namespace

Giver GivePinned(const Stage& stage) { return MakeGiver(stage, true); }
Taker TakePinned(const Stage& stage) { return MakeTaker(stage, true); }
Giver GivePageable(const Stage& stage) { return MakeGiver(stage, false); }
Taker TakePageable(const Stage& stage) { return MakeTaker(stage, false); }

}  // namespace gpushm::bench::handover
