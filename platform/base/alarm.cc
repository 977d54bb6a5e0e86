#include "platform/base/alarm.h"

#include <sys/timerfd.h>

#include <cerrno>

namespace gpushm {

Result<UniqueFd> MakeAlarm() {
  UniqueFd alarm(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!alarm) return FailSystem(errno, "timerfd_create");
  return alarm;
}

bool RingAlarm(int fd) {
  const itimerspec past{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  return timerfd_settime(fd, TFD_TIMER_ABSTIME, &past, nullptr) == 0;
}

}  // namespace gpushm
