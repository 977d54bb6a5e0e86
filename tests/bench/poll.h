// How a process of a benchmark waits for a word that another process, or the GPU, stores in shared
// memory.
//
// Threads: any.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "platform/base/clock.h"

namespace gpushm::bench {

// One pause between two loads of a polling loop.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Polls, because hand-overs take microseconds, and yields in between: there may be more processes
// than processors. False once the deadline has passed.
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

// Pairs with the release store of the process that increments the word.
inline bool Reached(const std::atomic<uint64_t>& word, uint64_t sequence) {
  return word.load(std::memory_order_acquire) >= sequence;
}

}  // namespace gpushm::bench
