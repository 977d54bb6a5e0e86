#include "platform/daemon/closing.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "platform/daemon/descriptor.h"

namespace gpushm {
namespace {

bool IsSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

}  // namespace

Closing::~Closing() {
  if (proven_pending() > 0) proven_.Abandon();
  for (Lanes& lanes : foreign_) {
    if (lanes.sockets.backlog() > 0) lanes.sockets.Abandon();
    if (lanes.files.backlog() > 0) lanes.files.Abandon();
  }
}

void Closing::Close(std::vector<UniqueFd> fds) {
  std::erase_if(fds, [](const UniqueFd& fd) { return !fd; });
  if (fds.empty()) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->proven += fds.size();
  }
  proven_.Run([shared = shared_, owned = std::make_shared<std::vector<UniqueFd>>(std::move(fds))] {
    for (UniqueFd& fd : *owned) {
      fd.Reset();
      const std::lock_guard lock(shared->mutex);
      --shared->proven;
      if (shared->proven == 0) shared->changed.notify_all();
    }
  });
}

void Closing::Close(UniqueFd fd) {
  std::vector<UniqueFd> one;
  one.push_back(std::move(fd));
  Close(std::move(one));
}

void Closing::CloseForeign(UniqueFd fd) {
  std::vector<UniqueFd> one;
  one.push_back(std::move(fd));
  CloseForeign(std::move(one));
}

void Closing::CloseForeign(std::vector<UniqueFd> fds) {
  for (UniqueFd& fd : fds) {
    if (!fd) continue;
    if (!MayHoldUpItsCloser(fd.get())) {
      Close(std::move(fd));
      continue;
    }
    const bool is_socket = IsSocket(fd.get());
    uint64_t id = 0;
    {
      const std::lock_guard lock(shared_->mutex);
      id = shared_->next_id++;
      shared_->foreign[id] = {.holder = holder_,
                              .is_socket = is_socket,
                              .device = is_socket ? 0 : FileSystemOf(fd.get()),
                              .since_ns = MonotonicNs(),
                              .thread = -1};
    }
    Worker& lane = is_socket ? foreign_.back().sockets : foreign_.back().files;
    lane.Run([shared = shared_, id, owned = std::make_shared<UniqueFd>(std::move(fd))] {
      CloseOne(shared.get(), id, std::move(*owned));
    });
  }
}

// Runs on a thread of its lane.
void Closing::CloseOne(Shared* shared, uint64_t id, UniqueFd fd) {
  {
    const std::lock_guard lock(shared->mutex);
    shared->foreign.at(id).thread = gettid();
  }
  // Has no effect on other descriptors than sockets. The socket's maker may set it again meanwhile,
  // so the lane is still needed.
  const linger none{};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  fd.Reset();
  const std::lock_guard lock(shared->mutex);
  shared->foreign.erase(id);
  if (shared->foreign.empty()) shared->changed.notify_all();
}

void Closing::NewHolder() {
  ++holder_;
  std::erase_if(foreign_, [](const Lanes& lanes) {
    return lanes.sockets.backlog() + lanes.files.backlog() == 0;
  });
  foreign_.emplace_back();
}

size_t Closing::pending() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->proven + shared_->foreign.size();
}

size_t Closing::proven_pending() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->proven;
}

size_t Closing::foreign_pending() const {
  const std::lock_guard lock(shared_->mutex);
  return static_cast<size_t>(std::ranges::count_if(
      shared_->foreign, [&](const auto& item) { return item.second.holder == holder_; }));
}

bool Closing::HasForeignFile() const {
  const std::lock_guard lock(shared_->mutex);
  return std::ranges::any_of(shared_->foreign, [&](const auto& item) {
    return item.second.holder == holder_ && !item.second.is_socket;
  });
}

bool Closing::WaitForProven(const Deadline& deadline) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                                   [&] { return shared_->proven == 0; });
}

bool Closing::WaitForAll(const Deadline& deadline) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                                   [&] { return shared_->proven + shared_->foreign.size() == 0; });
}

std::string Closing::Held::Where() const {
  return is_socket ? "socket" : Concat(major(device), ":", minor(device));
}

std::vector<Closing::Held> Closing::HeldUp(int64_t for_ms) const {
  const std::lock_guard lock(shared_->mutex);
  const int64_t before_ns = MonotonicNs() - for_ms * 1'000'000;
  std::vector<Held> held;
  for (const auto& [id, foreign] : shared_->foreign) {
    if (foreign.since_ns <= before_ns)
      held.push_back({id, foreign.is_socket, foreign.device, foreign.thread});
  }
  return held;
}

}  // namespace gpushm
