// A descriptor that wakes everybody who has it in an epoll instance, edge-triggered: a timerfd that
// expires at once. It suits processes that do not trust each other. Unlike a write to an eventfd or
// a pipe, ringing never waits: nothing can be full, and O_NONBLOCK, which any holder can clear, has
// no effect on it. Nobody reads the descriptor.
//
// Threads and processes: any.
#pragma once

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

Result<UniqueFd> MakeAlarm();
// Costs one system call. False: `fd` is not an alarm.
bool RingAlarm(int fd);

}  // namespace gpushm
