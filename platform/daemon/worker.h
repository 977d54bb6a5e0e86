// A thread for calls that may block: calls of libcuda (an unhealthy GPU hangs them), and closing
// descriptors that came from clients (a socket with SO_LINGER blocks its closer for as long as its
// maker chose). A worker for closing starts more threads when one is blocked.
//
// Threads: any thread may call Run, Close and backlog. Tasks start in order; with one thread they
// also run one after the other. A worker with Threads::kLeave has no thread while it has nothing to
// do, so that each peer can have a worker.
//
// Invariant: while tasks wait and all threads are busy, a spare thread watches, unless there are
// max_threads. It takes a task once none has started for kHeldUp, and ends when none waits. So no
// task waits longer behind one that blocks, and a burst of quick tasks runs on one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "platform/base/unique_fd.h"

namespace gpushm {

class Worker {
 public:
  using Task = std::function<void()>;

  enum class Threads { kStay, kLeave };

  explicit Worker(size_t max_threads = 1, Threads threads = Threads::kStay);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  // Waits for the tasks to end, but not for one that hangs if Abandon was called.
  ~Worker();

  void Run(Task task);

  // Closes `fd` on the worker. Any descriptor that a client may have made is closed this way.
  void Close(UniqueFd fd) {
    std::vector<UniqueFd> one;
    one.push_back(std::move(fd));
    Close(std::move(one));
  }
  // The same for all descriptors that came with a message.
  void Close(std::vector<UniqueFd> fds);

  // Number of tasks that have not ended.
  size_t backlog() const;

  // Leaves hanging threads behind; only before the process exits.
  void Abandon() { abandoned_ = true; }

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
  bool abandoned_ = false;
};

}  // namespace gpushm
