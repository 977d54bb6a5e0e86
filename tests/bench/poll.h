// How a benchmark's process waits for a word that another one, or the GPU, stores in shared memory.
//
// Threads: any.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "platform/base/clock.h"

namespace gpushm::bench {

// What a polling loop does between two looks.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Polls, as whoever waits for a hand-over in microseconds does, and lets others run in between:
// there may be more processes than processors. False once the deadline has passed.
template <typename Ready>
bool WaitUntil(const Ready& ready, const Deadline& deadline) {
  constexpr int kSpins = 20;
  for (int spins = 0; !ready(); ++spins) {
    if (spins < kSpins) {
      Relax();
    } else {
      if (deadline.Passed()) return false;
      sched_yield();
    }
  }
  return true;
}

// Pairs with the release store of whoever counts it up.
inline bool Reached(const std::atomic<uint64_t>& word, uint64_t sequence) {
  return word.load(std::memory_order_acquire) >= sequence;
}

}  // namespace gpushm::bench
