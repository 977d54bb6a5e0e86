#include "platform/daemon/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace gpushm {
namespace {

constexpr int kEventsPerWake = 64;
constexpr int kMaxSleepMs = 60'000;

// epoll_event::data: the descriptor's number in the low half, the low half of the watch's id in the
// high half.
uint64_t KeyOf(int fd, uint64_t id) { return (id << 32) | static_cast<uint32_t>(fd); }

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return FailSystem(errno, "epoll_create1");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return FailSystem(errno, "eventfd");
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(wake)));
  EventLoop* const self = loop.get();
  const Result<void> watched = loop->Watch(self->wake_.get(), EPOLLIN, [self](uint32_t) {
    uint64_t count = 0;
    if (read(self->wake_.get(), &count, sizeof count) > 0) self->RunPosted();
  });
  if (!watched) return std::unexpected(watched.error());
  return loop;
}

Result<void> EventLoop::Watch(int fd, uint32_t events, Callback callback) {
  const uint64_t id = next_watch_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = KeyOf(fd, id);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return FailSystem(errno, "epoll_ctl");
  watched_.insert_or_assign(fd, Watched{id, std::make_shared<Callback>(std::move(callback))});
  return {};
}

void EventLoop::Change(int fd, uint32_t events) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = KeyOf(fd, found->second.id);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) == 0) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

uint64_t EventLoop::After(int64_t wait_ms, Task task) {
  const uint64_t id = next_timer_++;
  timers_.emplace(MonotonicNs() + wait_ms * 1'000'000, Timer{id, std::move(task)});
  return id;
}

void EventLoop::Cancel(uint64_t timer) {
  const auto found = std::find_if(timers_.begin(), timers_.end(),
                                  [&](const auto& item) { return item.second.id == timer; });
  if (found != timers_.end()) timers_.erase(found);
}

void EventLoop::Post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  // Fails only when the eventfd's counter is full; then the loop is about to wake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void EventLoop::Stop() {
  Post([this] { stopping_ = true; });
}

int EventLoop::NextTimeoutMs() const {
  if (timers_.empty()) return kMaxSleepMs;
  const int64_t wait_ns = std::max<int64_t>(timers_.begin()->first - MonotonicNs(), 0);
  return static_cast<int>(std::min<int64_t>((wait_ns + 999'999) / 1'000'000, kMaxSleepMs));
}

void EventLoop::RunTimers() {
  while (!timers_.empty() && timers_.begin()->first <= MonotonicNs()) {
    const Task task = std::move(timers_.begin()->second.task);
    timers_.erase(timers_.begin());
    task();
  }
}

void EventLoop::RunPosted() {
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Task& task : tasks) task();
}

void EventLoop::Run() {
  std::array<epoll_event, kEventsPerWake> events{};
  while (!stopping_) {
    awake_since_ns_.store(0, std::memory_order_relaxed);
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerWake, NextTimeoutMs());
    awake_since_ns_.store(MonotonicNs(), std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      const int fd = static_cast<int>(static_cast<uint32_t>(event.data.u64));
      const auto found = watched_.find(fd);
      if (found == watched_.end() || KeyOf(fd, found->second.id) != event.data.u64) continue;
      const std::shared_ptr<Callback> callback = found->second.callback;  // It may unwatch itself.
      (*callback)(event.events);
    }
    RunTimers();
  }
  awake_since_ns_.store(0, std::memory_order_relaxed);
}

int64_t EventLoop::BusyMs() const {
  const int64_t since_ns = awake_since_ns_.load(std::memory_order_relaxed);
  return since_ns == 0 ? 0 : (MonotonicNs() - since_ns) / 1'000'000;
}

}  // namespace gpushm
