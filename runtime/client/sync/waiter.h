// One descriptor, and one wait, for several names, rings and signals. docs/design/waiting.md says
// who wakes whom.
//
// Threads: any thread may call any function.
//
// Invariants
//   (1) An alarm is in the epoll instance before the state that it announces is looked at.
//   (2) The descriptor stays readable from a Wait that returned events to one that returned none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/registry/record.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "runtime/client/client.h"
#include "runtime/client/handles.h"
#include "runtime/client/sync/rings.h"
#include "runtime/client/sync/signals.h"

namespace gpushm::client {

class Waiter final : public ClientObject {
 public:
  enum Kind : uint32_t { kName = 1, kRing = 2, kSignal = 3 };
  struct Event {
    Kind kind = Kind::kName;
    uint64_t tag = 0;
    std::optional<Code> failure{};  // Of the call for which the program waits.
    uint64_t generation = 0;
    BufferState state{};
  };

  static Result<std::unique_ptr<Waiter>> Make(Client* client);
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  Client* client() const { return client_; }
  const Handle& handle() const { return handle_; }
  int descriptor() const { return epoll_.get(); }

  // Reports changes after what the program knows: `generation`, in the state that it has now.
  Result<void> AddName(std::string_view name, uint64_t generation, uint64_t tag);
  Result<void> AddRing(std::shared_ptr<Ring> ring, uint64_t tag);
  // Reported once.
  Result<void> AddSignal(std::shared_ptr<Signal> signal, uint64_t value, uint64_t tag);
  // kNotFound: there is nothing with that tag.
  Result<void> Remove(uint64_t tag);

  // Waits for events: at least one, or none at the deadline.
  Result<std::vector<Event>> Wait(size_t capacity, const Deadline& deadline);

 private:
  struct Item {
    Kind kind = Kind::kName;
    uint64_t tag = 0;
    std::string name{};
    bool exists = false;  // The name, as reported last; also the next two.
    uint64_t generation = 0;
    BufferState state{};
    std::shared_ptr<Ring> ring{};
    bool end_reported = false;
    std::shared_ptr<Signal> signal{};
    uint64_t value = 0;
    UniqueFd alarm{};
    uint64_t connection = 0;  // The one on which it got its alarm.
    int64_t next_ns = 0;      // When to look without an alarm.
    int64_t step_ns = 0;      // 0: it is not looked at by the timer.
  };
  // The failure is that of the call for which the program waits.
  using Looked = std::expected<sync::LookAgain, Code>;

  explicit Waiter(Client* client) : client_(client) {}
  Result<void> Watch(const UniqueFd& fd, uint32_t events);
  void Unwatch(UniqueFd* fd);
  Result<void> Add(Item item);

  // All of these require mutex_.
  void TakeEdges();
  void KeepConnected(int64_t now_ns);
  bool Connect(const Deadline& deadline);
  bool Hear(Item* item, const Deadline& deadline);
  std::vector<Event> Collect(size_t capacity, int64_t now_ns);
  bool Look(Item* item, int64_t now_ns, std::vector<Event>* events);
  Looked LookAtName(Item* item) const;
  void Arm(bool readable, int64_t now_ns);

  Client* const client_;
  const Handle handle_{HandleKind::kWaiter, this};
  UniqueFd epoll_;
  UniqueFd timer_;
  UniqueFd readable_;  // An eventfd: the descriptor must be readable.

  std::mutex mutex_;
  // All of these are guarded by mutex_.
  std::list<Item> items_;
  UniqueFd socket_;          // Of the connection that is watched.
  uint64_t connection_ = 0;  // Its number; 0: none.
  bool is_lost_ = true;      // It has ended, or there was none.
  int64_t retry_ns_ = 0;     // When to try again to reach the broker.
};

}  // namespace gpushm::client
