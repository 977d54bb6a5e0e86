#include "platform/daemon/http_connections.h"

#include <sys/socket.h>

#include <utility>

#include "platform/base/clock.h"
#include "platform/daemon/http_server.h"

namespace gpushm::http {

// A thread that waits for its bytes then sees end-of-file.
void Connections::Cut(Connection* connection) {
  connection->cut = true;
  shutdown(connection->socket.get(), SHUT_RDWR);
}

bool Connections::MakeRoom() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && all_.size() >= places_) {
    Connection* slowest = nullptr;
    bool leaving = false;
    for (Connection& one : all_) {
      leaving = leaving || one.cut;
      if (one.in_handler || one.cut) continue;
      if (slowest == nullptr || one.moved_ns < slowest->moved_ns) slowest = &one;
    }
    if (!leaving && slowest != nullptr) {
      LogCutOff(slowest->socket.get(), "others wait for its place");
      Cut(slowest);
    }
    changed_.wait(lock);  // Until one leaves or a handler returns: all have deadlines.
  }
  return !stopping_;
}

void Connections::Add(UniqueFd socket) {
  {
    const std::lock_guard lock(mutex_);
    all_.push_back({.socket = std::move(socket), .moved_ns = MonotonicNs()});
    waiting_.push_back(std::prev(all_.end()));
    if (stopping_) Cut(&all_.back());
  }
  changed_.notify_all();
}

std::optional<Connections::Place> Connections::Take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (waiting_.empty()) return std::nullopt;
  const Place place = waiting_.front();
  waiting_.pop_front();
  return place;
}

void Connections::Remove(Place place) {
  {
    const std::lock_guard lock(mutex_);
    all_.erase(place);
  }
  changed_.notify_all();
}

void Connections::Moved(Place place) {
  const std::lock_guard lock(mutex_);
  place->moved_ns = MonotonicNs();
}

void Connections::SetInHandler(Place place, bool in_handler) {
  {
    const std::lock_guard lock(mutex_);
    place->in_handler = in_handler;
    place->moved_ns = MonotonicNs();
  }
  changed_.notify_all();
}

void Connections::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Connection& one : all_) Cut(&one);
  }
  changed_.notify_all();
}

}  // namespace gpushm::http
