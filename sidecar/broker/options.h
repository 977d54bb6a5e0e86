// What the broker is told by flags, environment and file, in this order of precedence.
#pragma once

#include <string>
#include <vector>

#include "platform/base/status.h"
#include "sidecar/broker/broker.h"

namespace gpushm::broker {

// Parses the command line. Fails with kInvalidArgument, naming the flag, variable or line, the
// reason and a correct example. `exit_code` is set instead (and an empty result returned) when the
// command line asked for help or the version, which was printed.
Result<std::optional<BrokerOptions>> ParseOptions(int argc, char** argv, int* exit_code);

}  // namespace gpushm::broker
