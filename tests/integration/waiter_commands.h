// A worker's commands about its waiter (processes.h):
//   waiter name NAME GENERATION TAG
//   waiter ring TAG | waiter signal VALUE TAG    the worker's ring or signal
//   waiter remove TAG
//   waiter next TIMEOUT_MS     sleeps in poll() until there is an event; STATUS: the event's;
//                              VALUE: its tag. Without one: STATUS GPUSHM_TIMEOUT; VALUE: how often
//                              poll() found the descriptor readable
//   waiter kind | generation | state    VALUE: of the last event
//   waiter readable            VALUE: whether the descriptor is readable
//   waiter threads             VALUE: threads of this process
//   waiter descriptors         VALUE: open descriptors of this process
//   waiter reopen
#pragma once

#include <sstream>

#include "runtime/include/gpushm/wait.h"
#include "tests/integration/processes.h"
#include "tests/integration/ring_commands.h"
#include "tests/integration/signal_commands.h"

namespace gpushm::integration {

class WaiterCommands {
 public:
  WaiterCommands(gpushm_client* client, RingCommands* rings, SignalCommands* signals)
      : client_(client), rings_(rings), signals_(signals) {}
  Answer Do(std::istringstream& in);

 private:
  Answer Next(int64_t timeout_ms);
  Answer Wait(int64_t timeout_ms);

  gpushm_client* const client_;
  RingCommands* const rings_;
  SignalCommands* const signals_;
  gpushm_waiter* waiter_ = nullptr;
  gpushm_event event_{};
};

}  // namespace gpushm::integration
