// A worker's commands about rings (processes.h); it has one ring at a time:
//   ring write NAME POLICY FRAMES FRAME_BYTES TIMEOUT_MS   POLICY: oldest, pressure, queue
//   ring read NAME TIMEOUT_MS                              VALUE of both: generation
//   ring put WORD                  one frame, filled with WORD by a stream; VALUE: its number
//   ring begin TIMEOUT_MS          a frame to read; VALUE: its number
//   ring lost | delivery   VALUE: of that frame
//   ring look                      VALUE: the word with which it is filled; if the words are not
//                                  all equal, STATUS 99: torn
//   ring end                       ends that frame
//   ring open | abandon            begins a write, and gives it up
//   ring pump COUNT                puts frames 1 to COUNT, each when the last is complete; 0: as
//                                  fast as it can, without end
//   ring drain COUNT               reads until frame COUNT or the end; VALUE: frames read; STATUS
//                                  99: a frame that ended successfully was torn
//   ring close
#pragma once

#include <cuda.h>

#include <sstream>

#include "platform/driver/cuda_api.h"
#include "runtime/include/gpushm/sync.h"
#include "tests/integration/processes.h"

namespace gpushm::integration {

class RingCommands {
 public:
  RingCommands(gpushm_client* client, const CudaApi& api) : client_(client), api_(api) {}
  Answer Do(std::istringstream& in);
  gpushm_ring* ring() const { return ring_; }

 private:
  static constexpr int kTorn = 99;

  Answer Open(bool writes, std::istringstream& in);
  Answer Put(uint32_t word);  // Prints no errors.
  Answer Begin(int64_t timeout_ms);
  Answer Look();
  Answer Pump(uint64_t count);
  Answer Drain(uint64_t count);
  CUstream stream();

  gpushm_client* const client_;
  const CudaApi& api_;
  gpushm_ring* ring_ = nullptr;
  gpushm_frame frame_{};
  CUstream stream_ = nullptr;
  uint32_t* words_ = nullptr;  // Pinned.
};

}  // namespace gpushm::integration
