#include "platform/base/per_process.h"

#include <pthread.h>

namespace gpushm {

constinit std::atomic<uint32_t> internal::fork_depth{0};

namespace {

// Runs in the child before fork() returns there: one store, which is async-signal-safe.
void CountFork() { internal::fork_depth.fetch_add(1, std::memory_order_relaxed); }
[[gnu::constructor]] void WatchForks() { pthread_atfork(nullptr, nullptr, CountFork); }

}  // namespace
}  // namespace gpushm
