#include "platform/base/clock.h"

#include <algorithm>
#include <limits>

namespace gpushm {
namespace {

int64_t ReadClock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int64_t MonotonicNs() { return ReadClock(CLOCK_MONOTONIC); }
int64_t UnixNs() { return ReadClock(CLOCK_REALTIME); }

Deadline Deadline::After(std::chrono::nanoseconds wait) {
  const int64_t now = MonotonicNs();
  const int64_t wait_ns = std::max<int64_t>(wait.count(), 0);
  const bool overflows = wait_ns > std::numeric_limits<int64_t>::max() - now;
  return Deadline(overflows ? std::numeric_limits<int64_t>::max() : now + wait_ns);
}

int64_t Deadline::RemainingNs() const { return std::max<int64_t>(at_ns_ - MonotonicNs(), 0); }

int Deadline::RemainingMs() const {
  const int64_t remaining_ms = (RemainingNs() + 999'999) / 1'000'000;
  return static_cast<int>(std::min<int64_t>(remaining_ms, std::numeric_limits<int>::max()));
}

}  // namespace gpushm
