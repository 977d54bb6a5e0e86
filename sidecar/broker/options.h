// The broker's settings from flags, environment and file, in this order of precedence.
#pragma once

#include <string>
#include <vector>

#include "platform/base/status.h"
#include "sidecar/broker/broker.h"

namespace gpushm::broker {

// Parses the command line. Fails with kInvalidArgument; the error names the flag, variable or line,
// the reason and a correct example. If the command line requests help or the version, that is
// printed, `exit_code` is set, and nullopt is returned.
Result<std::optional<BrokerOptions>> ParseOptions(int argc, char** argv, int* exit_code);

}  // namespace gpushm::broker
