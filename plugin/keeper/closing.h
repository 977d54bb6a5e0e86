// Descriptors of one link on their way out: closed on the worker's threads, because whoever made
// them may hold their closer up, and counted, because GPU memory is only free once they are closed.
//
// Threads: any.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/daemon/worker.h"

namespace gpushm::plugin {

class Closing {
 public:
  explicit Closing(Worker* worker) : worker_(worker), shared_(std::make_shared<Shared>()) {}

  void Close(std::vector<UniqueFd> fds) {
    std::erase_if(fds, [](const UniqueFd& fd) { return !fd; });
    if (fds.empty()) return;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->pending += fds.size();
    }
    worker_->Run(
        [shared = shared_, owned = std::make_shared<std::vector<UniqueFd>>(std::move(fds))] {
          for (UniqueFd& fd : *owned) {
            // No effect on what is no socket. Its maker may set it again meanwhile: hence the
            // threads.
            const linger none{};
            setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
            fd.Reset();
            const std::lock_guard lock(shared->mutex);
            --shared->pending;
            if (shared->pending == 0) shared->changed.notify_all();
          }
        });
  }
  void Close(UniqueFd fd) {
    std::vector<UniqueFd> one;
    one.push_back(std::move(fd));
    Close(std::move(one));
  }

  size_t pending() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->pending;
  }
  // False at the deadline.
  bool Wait(const Deadline& deadline) const {
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                                     [&] { return shared_->pending == 0; });
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    size_t pending = 0;
  };
  Worker* worker_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace gpushm::plugin
