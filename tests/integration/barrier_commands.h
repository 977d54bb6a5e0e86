// A worker's commands about barriers (processes.h); it has one barrier at a time:
//   barrier open NAME PARTICIPANTS TIMEOUT_MS   VALUE: generation
//   barrier wait TIMEOUT_MS    VALUE: the point that was passed; with GPUSHM_TIMEOUT the client
//                              that is named first as missing
//   barrier pump               passes points until that fails; VALUE: how many
//   barrier await NUMBER       on a stream of signal_commands.h, which has `sync`, `put` and `get`
//   barrier check | joined | close
#pragma once

#include <sstream>

#include "runtime/include/gpushm/sync.h"
#include "tests/integration/processes.h"
#include "tests/integration/signal_commands.h"

namespace gpushm::integration {

class BarrierCommands {
 public:
  BarrierCommands(gpushm_client* client, SignalCommands& streams)
      : client_(client), streams_(streams) {}
  Answer Do(std::istringstream& in);

 private:
  Answer Open(std::istringstream& in);
  Answer Wait(int64_t timeout_ms);
  Answer Pump();
  gpushm_barrier_info Info() const;

  gpushm_client* const client_;
  SignalCommands& streams_;
  gpushm_barrier* barrier_ = nullptr;
};

}  // namespace gpushm::integration
