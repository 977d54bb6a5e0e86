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
#include <functional>
#include <memory>
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
  StagingRegion(const CudaApi& api, UniqueFd memory, uint64_t size_bytes)
      : api_(api),
        size_bytes_(size_bytes),
        memory_(std::move(memory)),
        pageable_(MapShared(memory_.get(), size_bytes)) {}
  std::byte* pageable() const { return static_cast<std::byte*>(pageable_.get()); }
  // Registered at the first call.
  std::byte* Pinned();

  StagingRegion(const StagingRegion&) = delete;
  StagingRegion& operator=(const StagingRegion&) = delete;
  ~StagingRegion() {
    if (pinned_ != nullptr) api_.cuMemHostUnregister(pinned_.get());
  }

 private:
  const CudaApi& api_;
  const uint64_t size_bytes_;
  const UniqueFd memory_;
  const std::shared_ptr<void> pageable_;
  std::shared_ptr<void> pinned_;
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

// The producer's end. What its functions keep is released with them.
struct Giver {
  // Returns where to write the tensor; the memory has the stage's size.
  std::function<CUdeviceptr(uint64_t sequence)> make;
  // The bytes are written and the stream is empty: this tells the consumers.
  std::function<void(uint64_t sequence)> give;
  // Every consumer has released the tensor.
  std::function<void(uint64_t sequence)> reclaim = [](uint64_t) {};
};

// A consumer's end. It has one of `arm` and `take`.
struct Taker {
  // Called before the tensor is there: if the consumer knows the address beforehand, and can make
  // its stream wait.
  std::function<CUdeviceptr(uint64_t sequence)> arm = {};
  // Waits for the tensor; later work of the stream sees its bytes.
  std::function<CUdeviceptr(uint64_t sequence, const Deadline& deadline)> take = {};
  std::function<void(uint64_t sequence)> release = [](uint64_t) {};
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
  Giver (*give)(const Stage&);
  Taker (*take)(const Stage&);
};
// All ways; a filter and the machine select some of them.
std::span<const Way> Ways();
const Way* FindWay(std::string_view name);

// --- One pair for each way; the files are named after the ways. ---
Giver GiveByIpcEvents(const Stage& stage);
Taker TakeByIpcEvents(const Stage& stage);
Giver GiveByIpcOpen(const Stage& stage);
Taker TakeByIpcOpen(const Stage& stage);
Giver GivePinned(const Stage& stage);
Taker TakePinned(const Stage& stage);
Giver GivePageable(const Stage& stage);
Taker TakePageable(const Stage& stage);
Giver GiveRawHeld(const Stage& stage);
Taker TakeRawHeld(const Stage& stage);
Giver GiveRawNew(const Stage& stage);
Taker TakeRawNew(const Stage& stage);
Giver GiveGpushmHeld(const Stage& stage);
Taker TakeGpushmHeld(const Stage& stage);
Giver GiveGpushmSignal(const Stage& stage);
Taker TakeGpushmSignal(const Stage& stage);
Giver GiveGpushmRing(const Stage& stage);
Taker TakeGpushmRing(const Stage& stage);
Giver GiveGpushmNew(const Stage& stage);
Taker TakeGpushmNew(const Stage& stage);
Giver GiveGpushmOffer(const Stage& stage);
// Its consumer is TakeGpushmNew.

// --- Used by several ways. ---

// How much the broker may allocate: half of the card.
uint64_t PoolBytes();

// An address that is given back with `release` at the end.
using OwnedMemory = std::shared_ptr<const CUdeviceptr>;
OwnedMemory Own(CUdeviceptr address, std::function<void(CUdeviceptr)> release);
// cuMemAlloc memory of the stage's size.
OwnedMemory AllocateMemory(const Stage& stage);

struct Mapped {
  DeviceMemory memory;
  DeviceMapping mapping;
};
// New memory of the stage's size, in which this process can write.
Mapped MakeMapped(const Stage& stage);

// The stream sets, or waits for, the word of the signal's page.
void WriteSignal(const Stage& stage, uint64_t sequence);
void AwaitSignal(const Stage& stage, uint64_t sequence);
// The host waits for a word.
void AwaitWord(const std::atomic<uint64_t>& word, uint64_t sequence, const Deadline& deadline);

}  // namespace gpushm::bench::handover
