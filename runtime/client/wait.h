// What a call's `timeout_ms` means inside the library: how long to wait for the world to become as
// the caller wants it, and how long for the broker to answer. Only the first can be "not at all".
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace gpushm::client {

// A healthy broker answers within microseconds; GPUSHM_DONT_WAIT grants a busy one this much.
inline constexpr int64_t kAnswerMs = 1000;
// Longer waits are cut to this: three hundred years do not fit a 64-bit count of nanoseconds.
inline constexpr int64_t kLongestMs = int64_t{365} * 24 * 3600 * 1000;

struct Wait {
  Deadline condition;  // Passed from the start with GPUSHM_DONT_WAIT.
  Deadline answer;
  bool dont_wait;

  static Wait ForMs(int64_t wait_ms) {
    const Deadline deadline = Deadline::AfterMs(std::min(wait_ms, kLongestMs));
    return Wait{deadline, deadline, false};
  }
  static Wait None() { return Wait{Deadline::AfterMs(0), Deadline::AfterMs(kAnswerMs), true}; }

  // `timeout_ms` as gpushm.h defines it.
  static Result<Wait> From(int64_t timeout_ms, int64_t default_ms) {
    if (timeout_ms == 0) return ForMs(default_ms);
    if (timeout_ms == -1) return None();
    if (timeout_ms < 0) {
      return Fail(Code::kInvalidArgument, Concat("timeout_ms is ", timeout_ms),
                  "give milliseconds, 0 for the default, or GPUSHM_DONT_WAIT");
    }
    return ForMs(timeout_ms);
  }
};

}  // namespace gpushm::client
