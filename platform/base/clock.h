// Deadlines on CLOCK_MONOTONIC. Every wait in the project takes one; no wait is unbounded.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace gpushm {

// Nanoseconds of CLOCK_MONOTONIC; not affected by changes of the wall clock.
int64_t MonotonicNs();

// Nanoseconds since 1970 of CLOCK_REALTIME: for people to read, and as the lower bound of
// generations.
int64_t UnixNs();

class Deadline {
 public:
  static Deadline After(std::chrono::nanoseconds wait);
  static Deadline AfterMs(int64_t wait_ms) { return After(std::chrono::milliseconds(wait_ms)); }

  bool Passed() const { return RemainingNs() == 0; }
  // 0 once the deadline has passed.
  int64_t RemainingNs() const;
  // For poll(). Rounded up, so that a wait never ends early and spins; 0 once the deadline has
  // passed.
  int RemainingMs() const;

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace gpushm
