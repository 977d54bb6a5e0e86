// Tries something in a child process with a deadline, so that a hang, a crash or a poisoned CUDA
// context stays in the child.
//
// The caller must not have used the driver before, because a child of fork() cannot use its
// parent's. Threads: one, and no other thread may run while Probe() forks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "contract/limits.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::ctl {

struct ProbeOutput {
  std::string text;       // At most kProbeTextBytes.
  UniqueFd descriptor{};  // May be empty.
};
inline constexpr size_t kProbeTextBytes = limits::kMessageBytes - 1;

// Returns the result of `body` in the child. kTimeout: it did not return in time. The child was
// killed, unless a driver call holds it in the kernel. kDriver: it ended without an answer.
Result<ProbeOutput> Probe(const std::function<Result<ProbeOutput>()>& body, int64_t wait_ms);

}  // namespace gpushm::ctl
