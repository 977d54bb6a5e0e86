#include "platform/daemon/worker.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace gpushm {
namespace {

using Clock = std::chrono::steady_clock;
// If tasks wait and none has started for this long, all threads count as blocked.
constexpr std::chrono::milliseconds kHeldUp{50};

}  // namespace

struct Worker::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  size_t max_threads = 1;
  size_t threads = 0;
  size_t idle = 0;  // Number of idle threads; a spare thread is idle.
  Clock::time_point last_start = Clock::now();
  bool leave = false;
  bool stopping = false;

  // Call with the mutex held. False: the container may have no more threads; the next task tries
  // again.
  static bool Start(const std::shared_ptr<Shared>& shared, bool spare) {
    try {
      std::thread([shared, spare] { Loop(shared, spare); }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    ++shared->threads;
    ++shared->idle;
    return true;
  }

  // Call with the mutex held.
  static void KeepSpare(const std::shared_ptr<Shared>& shared) {
    if (shared->tasks.empty() || shared->idle > 0 || shared->threads == shared->max_threads) return;
    (void)Start(shared, /*spare=*/true);
  }

  static void Loop(const std::shared_ptr<Shared>& shared, bool spare) {
    std::unique_lock lock(shared->mutex);
    const auto may_take = [&] { return shared->stopping || !shared->tasks.empty(); };
    if (spare) {
      const auto due = [&] { return shared->last_start + kHeldUp; };
      while (may_take() && !shared->stopping && Clock::now() < due()) {
        shared->changed.wait_until(lock, due(), [&] { return shared->stopping; });
      }
    } else {
      shared->changed.wait(lock, may_take);
    }
    // From here on a spare thread is like any other.
    while (!shared->tasks.empty()) {
      --shared->idle;
      Task task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
      shared->last_start = Clock::now();
      KeepSpare(shared);
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      ++shared->idle;
      if (!shared->leave) shared->changed.wait(lock, may_take);
    }
    --shared->idle;
    --shared->threads;
    shared->changed.notify_all();
  }
};

Worker::Worker(size_t max_threads, Threads threads) : shared_(std::make_shared<Shared>()) {
  shared_->max_threads = std::max<size_t>(max_threads, 1);
  shared_->leave = threads == Threads::kLeave;
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->leave) (void)Shared::Start(shared_, /*spare=*/false);
}

Worker::~Worker() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  if (!abandoned_) shared_->changed.wait(lock, [&] { return shared_->threads == 0; });
}

void Worker::Run(Task task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.push_back(std::move(task));
  if (shared_->threads == 0) {
    (void)Shared::Start(shared_, /*spare=*/false);
  } else {
    Shared::KeepSpare(shared_);
  }
  shared_->changed.notify_all();
}

void Worker::Close(std::vector<UniqueFd> fds) {
  std::erase_if(fds, [](const UniqueFd& fd) { return !fd; });
  if (fds.empty()) return;
  Run([owned = std::make_shared<std::vector<UniqueFd>>(std::move(fds))] {
    for (UniqueFd& fd : *owned) {
      // Has no effect on other descriptors than sockets. The socket's maker may set it again
      // meanwhile, so the threads are still needed.
      const linger none{};
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
      fd.Reset();
    }
  });
}

size_t Worker::backlog() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->tasks.size() + shared_->threads - shared_->idle;
}

}  // namespace gpushm
