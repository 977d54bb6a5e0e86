// A way to hand a tensor from a producer to consumers on the same GPU. To add one, write a Giver, a
// Taker, and a line in Ways() (ways.cc).
//
// What is timed for hand-over `sequence`, with any way:
//
//   producer   Make   bytes written, stream empty | t0 | Give                     Reclaim
//   consumer   Arm    (ready, waiting)                   Take, read 8 bytes | t1 | Release
//
// Make and Release are timed by themselves ("before", "after"). Sequence numbers only grow, over
// all ways of a run. So what a way leaves on the board never looks like the next one's.
//
// Threads: an endpoint has one.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/driver/device.h"
#include "tests/bench/handover/board.h"
#include "tests/bench/harness.h"

namespace gpushm::bench::handover {

// Host memory that producer and consumers map, for ways that copy. One mapping is registered with
// the driver and the other is not: a copy from `pageable` is as slow as from any malloc'ed memory.
class StagingRegion {
 public:
  static Result<UniqueFd> Make(uint64_t size_bytes);
  static Result<StagingRegion> Map(const CudaApi& api, int fd, uint64_t size_bytes);
  std::byte* pageable() const { return pageable_; }
  // Registered at the first call.
  Result<std::byte*> Pinned();

  StagingRegion(StagingRegion&& other) noexcept;
  StagingRegion& operator=(StagingRegion&&) = delete;
  StagingRegion(const StagingRegion&) = delete;
  StagingRegion& operator=(const StagingRegion&) = delete;
  ~StagingRegion();

 private:
  StagingRegion(const CudaApi& api, uint64_t size_bytes, UniqueFd fd, std::byte* pageable)
      : api_(&api), size_bytes_(size_bytes), fd_(std::move(fd)), pageable_(pageable) {}
  const CudaApi* api_;
  uint64_t size_bytes_;
  UniqueFd fd_;
  std::byte* pageable_;
  std::byte* pinned_ = nullptr;
};

// What an endpoint has with any way.
struct Stage {
  const CudaApi* api = nullptr;
  CUdevice device = 0;
  CUstream stream = nullptr;
  Board* board = nullptr;
  CUdeviceptr signal = 0;           // Address of board->signal, for streams.
  gpushm_client* client = nullptr;  // Connected to the run's broker.
  // Valid for the cell:
  uint64_t size_bytes = 0;
  StagingRegion* region = nullptr;  // Null if no way of the cell copies.
  // Valid for the block:
  uint64_t serial = 0;          // Unique in the run: for names.
  std::vector<Channel*> links;  // The producer has one for each consumer; a consumer has one.
};

// The producer's end.
class Giver {
 public:
  virtual ~Giver() = default;
  // Returns where to write the tensor; the memory has the stage's size.
  virtual Result<CUdeviceptr> Make(uint64_t sequence) = 0;
  // The bytes are written and the stream is empty: this tells the consumers.
  virtual Result<void> Give(uint64_t sequence) = 0;
  // Every consumer has released the tensor.
  virtual Result<void> Reclaim(uint64_t) { return {}; }
};

// A consumer's end.
class Taker {
 public:
  virtual ~Taker() = default;
  // Called before the tensor is there. If the consumer knows the address beforehand and can make
  // its stream wait, it returns the address; Take is then not called.
  virtual Result<std::optional<CUdeviceptr>> Arm(uint64_t) { return std::nullopt; }
  // Waits for the tensor; later work of the stream sees its bytes.
  virtual Result<CUdeviceptr> Take(uint64_t, const Deadline&) {
    return Fail(Code::kInternal, "this way has no Take: its Arm returns the address");
  }
  virtual Result<void> Release(uint64_t) { return {}; }
};

enum class Kind {
  kHeld,  // The consumer keeps the memory over all hand-overs.
  kNew,   // For each tensor, the consumer opens new memory.
  kCopy,  // The bytes are copied through host memory.
};
std::string_view KindName(Kind kind);

struct Way {
  std::string_view name;   // Used in rows.
  std::string_view title;  // Used in tables.
  Kind kind;
  Result<std::unique_ptr<Giver>> (*give)(const Stage&);
  Result<std::unique_ptr<Taker>> (*take)(const Stage&);
};
// All ways; a filter and the machine select some of them.
std::span<const Way> Ways();
const Way* FindWay(std::string_view name);

// --- One pair for each way; the files are named after the ways. ---
Result<std::unique_ptr<Giver>> GiveByIpcEvents(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeByIpcEvents(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveByIpcOpen(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeByIpcOpen(const Stage& stage);
Result<std::unique_ptr<Giver>> GivePinned(const Stage& stage);
Result<std::unique_ptr<Taker>> TakePinned(const Stage& stage);
Result<std::unique_ptr<Giver>> GivePageable(const Stage& stage);
Result<std::unique_ptr<Taker>> TakePageable(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveRawHeld(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeRawHeld(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveRawNew(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeRawNew(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveGpushmHeld(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeGpushmHeld(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveGpushmSignal(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeGpushmSignal(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveGpushmRing(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeGpushmRing(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveGpushmNew(const Stage& stage);
Result<std::unique_ptr<Taker>> TakeGpushmNew(const Stage& stage);
Result<std::unique_ptr<Giver>> GiveGpushmOffer(const Stage& stage);
// Its consumer is TakeGpushmNew.

// --- Used by several ways. ---

// How much the broker may allocate: half of the card.
uint64_t PoolBytes();

// cuMemAlloc memory, freed at the end.
class PlainMemory {
 public:
  static Result<PlainMemory> Allocate(const CudaApi& api, uint64_t size_bytes);
  CUdeviceptr address() const { return address_; }

  PlainMemory(PlainMemory&& other) noexcept
      : api_(other.api_), address_(std::exchange(other.address_, 0)) {}
  PlainMemory& operator=(PlainMemory&&) = delete;
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;
  ~PlainMemory();

 private:
  PlainMemory(const CudaApi& api, CUdeviceptr address) : api_(&api), address_(address) {}
  const CudaApi* api_;
  CUdeviceptr address_;
};

// The stream sets, or waits for, the word of the signal's page.
Result<void> WriteSignal(const Stage& stage, uint64_t sequence);
Result<void> AwaitSignal(const Stage& stage, uint64_t sequence);
// The host waits for a word.
Result<void> AwaitWord(const std::atomic<uint64_t>& word, uint64_t sequence,
                       const Deadline& deadline);

}  // namespace gpushm::bench::handover
