/// gpushm for C++, waiting for several things: an owner over the C functions of wait.h. The
/// comments in wait.h are the contract.
///
///     auto waiter = gpushm::Waiter::Open(*client);
///     waiter->AddName("weights", info.generation, /*tag=*/1);
///     waiter->AddRing(ring, /*tag=*/2);
///     // When an event loop reports waiter->descriptor() as readable, until there are none:
///     auto events = waiter->Wait(gpushm::Timeout::DontWait());
///     for (const gpushm::Event& event : *events) ...
///
/// Threads: any thread may use a waiter; at its destruction, no other thread may.
#ifndef GPUSHM_WAIT_HPP_
#define GPUSHM_WAIT_HPP_

#include <vector>

#include "gpushm.hpp"
#include "sync.hpp"
#include "wait.h"

namespace gpushm {
inline namespace v0 {

using Event = gpushm_event;

/// The destructor closes the waiter and its descriptor: remove the descriptor from the event loop
/// first. What was added stays open.
class Waiter {
 public:
  Waiter() = default;
  Waiter(Waiter&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Waiter& operator=(Waiter&& other) noexcept {
    if (this != &other) {
      gpushm_waiter_close(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() { gpushm_waiter_close(handle_); }

  static Result<Waiter> Open(const Client& client) {
    Waiter waiter;
    if (gpushm_waiter_open(client.get(), &waiter.handle_) != GPUSHM_OK) return Error::Last();
    return waiter;
  }

  explicit operator bool() const { return handle_ != nullptr; }
  gpushm_waiter* get() const { return handle_; }
  /// Readable from an event on, until Wait returns none.
  int descriptor() const { return gpushm_waiter_descriptor(handle_); }

  Result<void> AddName(const std::string& name, uint64_t generation, uint64_t tag) {
    return detail::ToResult(gpushm_waiter_add_name(handle_, name.c_str(), generation, tag));
  }
  Result<void> AddRing(const Ring& ring, uint64_t tag) {
    return detail::ToResult(gpushm_waiter_add_ring(handle_, ring.get(), tag));
  }
  Result<void> AddSignal(const Signal& signal, uint64_t value, uint64_t tag) {
    return detail::ToResult(gpushm_waiter_add_signal(handle_, signal.get(), value, tag));
  }
  Result<void> Remove(uint64_t tag) { return detail::ToResult(gpushm_waiter_remove(handle_, tag)); }

  /// At most `capacity` events; none after the timeout.
  Result<std::vector<Event>> Wait(Timeout timeout = {}, size_t capacity = 64) {
    std::vector<Event> events(capacity);
    if (capacity > 0) events[0] = detail::Sized<Event>();
    size_t count = 0;
    if (gpushm_waiter_wait(handle_, events.data(), capacity, &count, timeout.ms()) != GPUSHM_OK) {
      return Error::Last();
    }
    events.resize(count);
    return events;
  }

 private:
  gpushm_waiter* handle_ = nullptr;
};

}  // namespace v0
}  // namespace gpushm

#endif  // GPUSHM_WAIT_HPP_
