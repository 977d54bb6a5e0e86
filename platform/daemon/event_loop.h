// One thread that sleeps in epoll and runs callbacks. A callback must not block.
//
// Threads: everything runs on the loop's thread, except Post, Stop and BusyMs, which any thread may
// call.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

class EventLoop {
 public:
  using Callback = std::function<void(uint32_t events)>;
  using Task = std::function<void()>;

  static Result<std::unique_ptr<EventLoop>> Create();

  // Watches `fd` (not owned) for `events` (EPOLLIN ...), level-triggered. A callback may unwatch
  // its own or other descriptors: events that were already collected for those are dropped.
  Result<void> Watch(int fd, uint32_t events, Callback callback);
  void Change(int fd, uint32_t events);
  void Unwatch(int fd);

  // Runs `task` once after `wait_ms`. Returns a number for Cancel.
  uint64_t After(int64_t wait_ms, Task task);
  void Cancel(uint64_t timer);

  // Runs `task` on the loop's thread, soon. Any thread may call this.
  void Post(Task task);

  // How long the loop's current callbacks have been running since it last woke; 0 if it sleeps or
  // does not run. Callbacks do not block, so a long time means that the thread hangs.
  int64_t BusyMs() const;

  // Returns after Stop().
  void Run();
  void Stop();

 private:
  EventLoop(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  int NextTimeoutMs() const;
  void RunTimers();
  void RunPosted();

  UniqueFd epoll_;
  UniqueFd wake_;  // eventfd
  bool stopping_ = false;
  // MonotonicNs of the last wake-up; 0: asleep. It pairs with nothing: no other data is published
  // with it.
  std::atomic<int64_t> awake_since_ns_ = 0;

  struct Watched {
    uint64_t id;  // Tells a new watch of a reused descriptor number from the old one.
    std::shared_ptr<Callback> callback;
  };
  std::unordered_map<int, Watched> watched_;
  uint64_t next_watch_ = 1;

  struct Timer {
    uint64_t id;
    Task task;
  };
  std::multimap<int64_t, Timer> timers_;  // Key: MonotonicNs.
  uint64_t next_timer_ = 1;

  std::mutex mutex_;
  std::vector<Task> posted_;  // Guarded by mutex_.
};

}  // namespace gpushm
