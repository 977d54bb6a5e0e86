// The list of ways, and the parts that several of them use.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>

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

// ---------------------------------------------------------------- StagingRegion

namespace {

std::byte* MapAll(int fd, uint64_t size_bytes) {
  void* const at = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Result<UniqueFd> StagingRegion::Make(uint64_t size_bytes) {
  UniqueFd fd(memfd_create("gpushm-bench-staging", MFD_CLOEXEC));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return FailSystem(errno, "memfd_create");
  }
  return fd;
}

Result<StagingRegion> StagingRegion::Map(const CudaApi& api, int fd, uint64_t size_bytes) {
  UniqueFd kept(dup(fd));
  std::byte* const pageable = kept ? MapAll(kept.get(), size_bytes) : nullptr;
  if (pageable == nullptr) return FailSystem(errno, "mapping the staging region");
  return StagingRegion(api, size_bytes, std::move(kept), pageable);
}

Result<std::byte*> StagingRegion::Pinned() {
  if (pinned_ != nullptr) return pinned_;
  std::byte* const at = MapAll(fd_.get(), size_bytes_);
  if (at == nullptr) return FailSystem(errno, "mapping the staging region");
  if (auto r = api_->Check(api_->cuMemHostRegister(at, size_bytes_, 0), "cuMemHostRegister"); !r) {
    munmap(at, size_bytes_);
    return std::unexpected(r.error());
  }
  return pinned_ = at;
}

StagingRegion::StagingRegion(StagingRegion&& other) noexcept
    : api_(other.api_),
      size_bytes_(other.size_bytes_),
      fd_(std::move(other.fd_)),
      pageable_(std::exchange(other.pageable_, nullptr)),
      pinned_(std::exchange(other.pinned_, nullptr)) {}

StagingRegion::~StagingRegion() {
  if (pinned_ != nullptr) {
    api_->cuMemHostUnregister(pinned_);
    munmap(pinned_, size_bytes_);
  }
  if (pageable_ != nullptr) munmap(pageable_, size_bytes_);
}

// ---------------------------------------------------------------- shared by ways

uint64_t PoolBytes() { return ThisMachine().device.total_bytes / 2; }

Result<PlainMemory> PlainMemory::Allocate(const CudaApi& api, uint64_t size_bytes) {
  CUdeviceptr address = 0;
  if (auto r = api.Check(api.cuMemAlloc(&address, size_bytes), "cuMemAlloc"); !r) {
    return std::unexpected(r.error());
  }
  return PlainMemory(api, address);
}

PlainMemory::~PlainMemory() {
  if (address_ != 0) api_->cuMemFree(address_);
}

Result<void> WriteSignal(const Stage& stage, uint64_t sequence) {
  return stage.api->Check(stage.api->cuStreamWriteValue64(stage.stream, stage.signal, sequence, 0),
                          "cuStreamWriteValue64");
}

Result<void> AwaitSignal(const Stage& stage, uint64_t sequence) {
  return stage.api->Check(stage.api->cuStreamWaitValue64(stage.stream, stage.signal, sequence,
                                                         CU_STREAM_WAIT_VALUE_GEQ),
                          "cuStreamWaitValue64");
}

Result<void> AwaitWord(const std::atomic<uint64_t>& word, uint64_t sequence,
                       const Deadline& deadline) {
  if (WaitUntil([&] { return Reached(word, sequence); }, deadline)) return {};
  return Fail(Code::kTimeout, Concat("hand-over ", sequence, " did not arrive in time"));
}

}  // namespace gpushm::bench::handover
