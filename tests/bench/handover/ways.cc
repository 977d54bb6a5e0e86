// The list of ways, and the parts that several of them use.
#include <array>
#include <utility>

#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kHeld:
      return "held";
    case Kind::kNew:
      return "new";
    case Kind::kCopy:
      return "copy";
  }
  return "?";
}

std::span<const Way> Ways() {
  static constexpr std::array kWays = {
      Way{"gpushm-signal", "gpushm: attached once, its signal", Kind::kHeld, GiveGpushmSignal,
          TakeGpushmSignal},
      Way{"gpushm-ring", "gpushm: frames of a ring", Kind::kHeld, GiveGpushmRing, TakeGpushmRing},
      Way{"gpushm-held", "gpushm: attached once, stream memops", Kind::kHeld, GiveGpushmHeld,
          TakeGpushmHeld},
      Way{"raw-held", "raw driver: mapped once, stream memops", Kind::kHeld, GiveRawHeld,
          TakeRawHeld},
      Way{"cuipc-events", "cuIpc memory and events, opened once (simpleIPC)", Kind::kHeld,
          GiveByIpcEvents, TakeByIpcEvents},
      Way{"gpushm-new", "gpushm: attach of each tensor", Kind::kNew, GiveGpushmNew, TakeGpushmNew},
      Way{"gpushm-offer", "gpushm: offer and attach of each tensor", Kind::kNew, GiveGpushmOffer,
          TakeGpushmNew},
      Way{"raw-new", "raw driver: export, send, import, map of each tensor", Kind::kNew, GiveRawNew,
          TakeRawNew},
      Way{"cuipc-open", "cuIpc memory and event, opened for each tensor", Kind::kNew, GiveByIpcOpen,
          TakeByIpcOpen},
      Way{"pinned", "copied over pinned shared memory", Kind::kCopy, GivePinned, TakePinned},
      Way{"pageable", "copied over pageable shared memory", Kind::kCopy, GivePageable,
          TakePageable},
  };
  return kWays;
}

const Way* FindWay(std::string_view name) {
  for (const Way& way : Ways()) {
    if (way.name == name) return &way;
  }
  return nullptr;
}

std::byte* StagingRegion::Pinned() {
  if (pinned_ == nullptr) {
    auto mapped = MapShared(memory_.get(), size_bytes_);
    Must(api_.Check(api_.cuMemHostRegister(mapped.get(), size_bytes_, 0), "cuMemHostRegister"));
    pinned_ = std::move(mapped);
  }
  return static_cast<std::byte*>(pinned_.get());
}

uint64_t PoolBytes() { return ThisMachine().device.total_bytes / 2; }

OwnedMemory Own(CUdeviceptr address, std::function<void(CUdeviceptr)> release) {
  return {new CUdeviceptr(address), [release = std::move(release)](const CUdeviceptr* owned) {
            release(*owned);
            delete owned;
          }};
}

OwnedMemory AllocateMemory(const Stage& stage) {
  CUdeviceptr address = 0;
  Must(stage.api->Check(stage.api->cuMemAlloc(&address, stage.size_bytes), "cuMemAlloc"));
  return Own(address, stage.api->cuMemFree);
}

Mapped MakeMapped(const Stage& stage) {
  DeviceMemory memory = Must(DeviceMemory::Create(*stage.api, stage.device, stage.size_bytes));
  DeviceMapping mapping = Must(
      DeviceMapping::Map(*stage.api, memory, stage.size_bytes, stage.device, Access::kReadWrite));
  return {std::move(memory), std::move(mapping)};
}

void WriteSignal(const Stage& stage, uint64_t sequence) {
  Must(stage.api->Check(stage.api->cuStreamWriteValue64(stage.stream, stage.signal, sequence, 0),
                        "cuStreamWriteValue64"));
}

void AwaitSignal(const Stage& stage, uint64_t sequence) {
  Must(stage.api->Check(stage.api->cuStreamWaitValue64(stage.stream, stage.signal, sequence,
                                                       CU_STREAM_WAIT_VALUE_GEQ),
                        "cuStreamWaitValue64"));
}

void AwaitWord(const std::atomic<uint64_t>& word, uint64_t sequence, const Deadline& deadline) {
  if (WaitUntil([&] { return Reached(word, sequence); }, deadline)) return;
  throw Failure(Code::kTimeout, Concat("hand-over ", sequence, " did not arrive in time"));
}

}  // namespace gpushm::bench::handover
