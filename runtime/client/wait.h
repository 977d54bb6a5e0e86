// What a call's `timeout_ms` means inside the library: how long to wait for the requested
// condition, and how long for the broker's answer. Only the first can be "not at all".
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::client {

// A healthy broker answers within microseconds. GPUSHM_DONT_WAIT allows a busy one this much.
inline constexpr int64_t kAnswerMs = 1000;
// A whole transfer, unless its caller sets another limit: ten minutes.
inline constexpr int64_t kTransferMs = int64_t{10} * 60 * 1000;
// Longer waits are cut to this: three hundred years do not fit a 64-bit count of nanoseconds.
inline constexpr int64_t kLongestMs = int64_t{365} * 24 * 3600 * 1000;

// For a side task of a call whose deadline is `call_deadline`.
inline Deadline AnswerWithin(const Deadline& call_deadline) {
  return Deadline::After(
      std::chrono::nanoseconds(std::min(call_deadline.RemainingNs(), kAnswerMs * 1'000'000)));
}

struct Wait {
  Deadline condition;  // Already passed with GPUSHM_DONT_WAIT.
  Deadline answer;
  bool dont_wait;
  int64_t again_ms = -1;  // For a condition in the middle of the call; -1: until `answer`.

  static Wait ForMs(int64_t wait_ms) {
    const Deadline deadline = Deadline::AfterMs(std::min(wait_ms, kLongestMs));
    return Wait{deadline, deadline, false};
  }
  // Without waiting, as a step of a call that may wait: within that call's time.
  Wait Once() const { return Wait{Deadline::AfterMs(0), AnswerWithin(answer), true}; }
  // For what must be waited for again, in the middle of a call that may wait.
  Wait Again() const {
    if (again_ms < 0) return Wait{answer, answer, false};
    const int64_t left_ns = std::min(answer.RemainingNs(), again_ms * 1'000'000);
    return Wait{Deadline::After(std::chrono::nanoseconds(left_ns)), answer, false};
  }
  static Wait None() { return Wait{Deadline::AfterMs(0), Deadline::AfterMs(kAnswerMs), true}; }

  // `timeout_ms` as gpushm.h defines it.
  static Result<Wait> From(int64_t timeout_ms, int64_t default_ms) {
    if (timeout_ms == 0) return ForMs(default_ms);
    if (timeout_ms == -1) return None();
    if (timeout_ms < 0) {
      return Fail(Code::kInvalidArgument, Concat("invalid timeout_ms ", timeout_ms),
                  "use milliseconds, 0 for the default, or GPUSHM_DONT_WAIT");
    }
    return ForMs(timeout_ms);
  }

  // For a load or save, whose own time differs from the wait for its buffer: see
  // gpushm_transfer_options.timeout_ms.
  static Result<Wait> ForTransfer(int64_t timeout_ms, int64_t default_ms) {
    Result<Wait> wait = From(timeout_ms, default_ms);
    if (wait && timeout_ms <= 0) {
      wait->answer = Deadline::AfterMs(kTransferMs);
      wait->again_ms = default_ms;
    }
    return wait;
  }
};

}  // namespace gpushm::client
