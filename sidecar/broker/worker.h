// A thread for what may block: calls of libcuda (a sick GPU hangs them), and closing descriptors
// that came from clients (a socket with SO_LINGER holds its closer up for seconds).
//
// Threads: Run from any thread; tasks run one after the other, in order, on the worker's own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace gpushm::broker {

class Worker {
 public:
  using Task = std::function<void()>;

  Worker() : shared_(std::make_shared<Shared>()), thread_([shared = shared_] { Loop(*shared); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  // Waits for the tasks to end, but not for one that hangs: see Abandon.
  ~Worker() {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->stopping = true;
    }
    shared_->changed.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void Run(Task task) {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->tasks.push_back(std::move(task));
    }
    shared_->changed.notify_all();
  }

  // Closes `fd` there. Any descriptor that a client may have made goes this way.
  void Close(UniqueFd fd) {
    if (!fd) return;
    Run([owned = std::make_shared<UniqueFd>(std::move(fd))] { owned->Reset(); });
  }

  // Leaves a thread that hangs in the driver behind; only before the process exits.
  void Abandon() { thread_.detach(); }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool stopping = false;
  };

  static void Loop(Shared& shared) {
    std::unique_lock lock(shared.mutex);
    for (;;) {
      shared.changed.wait(lock, [&] { return shared.stopping || !shared.tasks.empty(); });
      if (shared.tasks.empty()) return;
      const Task task = std::move(shared.tasks.front());
      shared.tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace gpushm::broker
