// Starting this program again as a short-lived child, for what needs a context.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace gpushm::broker {

// `descriptors` become 3, 4 ... of the child, which has no others but the standard ones. They stay
// the caller's. `command` is its program and first arguments.
Result<pid_t> StartChild(const std::vector<std::string>& command,
                         const std::vector<std::string>& arguments,
                         std::span<const int> descriptors);

}  // namespace gpushm::broker
