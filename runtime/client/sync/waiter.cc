#include "runtime/client/sync/waiter.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "runtime/client/names.h"

namespace gpushm::client {
namespace {

using sync::LookAgain;

constexpr int64_t kFirstLookNs = 50'000;
constexpr int64_t kLongestLookNs = 2'000'000;
// In case that nobody could ring an alarm.
constexpr int64_t kSafetyNs = 1'000'000'000;
constexpr int64_t kRetryNs = 100'000'000;
constexpr int64_t kBrokerMs = 100;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

Result<std::unique_ptr<Waiter>> Waiter::Make(Client* client) {
  std::unique_ptr<Waiter> waiter(new Waiter(client));
  waiter->epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!waiter->epoll_) return FailSystem(errno, "epoll_create1");
  waiter->timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!waiter->timer_) return FailSystem(errno, "timerfd_create");
  waiter->readable_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!waiter->readable_) return FailSystem(errno, "eventfd");
  for (const UniqueFd* own : {&waiter->timer_, &waiter->readable_}) {
    if (auto done = waiter->Watch(*own, EPOLLIN); !done) return std::unexpected(done.error());
  }
  return waiter;
}

Result<void> Waiter::Watch(const UniqueFd& fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd.get()}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0) return {};
  return FailSystem(errno, "epoll_ctl EPOLL_CTL_ADD");
}

// Closing alone is not enough: the broker and others have the same description.
void Waiter::Unwatch(UniqueFd* fd) {
  if (*fd) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd->get(), nullptr);
  fd->Reset();
}

// ---- what is waited for

Result<void> Waiter::Add(Item item) {
  const std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
  Arm(/*readable=*/true, MonotonicNs());  // A thread that waits looks at it now.
  return {};
}

Result<void> Waiter::AddName(std::string_view name, uint64_t generation, uint64_t tag) {
  Item item{.kind = Kind::kName, .tag = tag, .name = std::string(name), .generation = generation};
  const Result<registry::Found> found = Lookup(*client_, name);
  if (!found && found.error().code() == Code::kInvalidArgument) {
    return std::unexpected(found.error());
  }
  item.exists = generation != 0;
  if (found && found->record.generation == generation) item.state = found->record.state;
  return Add(std::move(item));
}

Result<void> Waiter::AddRing(std::shared_ptr<Ring> ring, uint64_t tag) {
  return Add({.kind = Kind::kRing, .tag = tag, .ring = std::move(ring)});
}

Result<void> Waiter::AddSignal(std::shared_ptr<Signal> signal, uint64_t value, uint64_t tag) {
  if (value > sync::kMaxValue) {
    return Fail(Code::kInvalidArgument, Concat("a signal cannot reach the value ", value),
                "use a value of at most 2^62");
  }
  return Add({.kind = Kind::kSignal, .tag = tag, .signal = std::move(signal), .value = value});
}

Result<void> Waiter::Remove(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const size_t removed = items_.remove_if([&](Item& item) {
    if (item.tag == tag) Unwatch(&item.alarm);
    return item.tag == tag;
  });
  if (removed != 0) return {};
  return Fail(Code::kNotFound, Concat("the waiter has nothing with tag ", tag),
              "signals are removed when their value is reported, rings when they are closed");
}

// ---- waiting

Result<std::vector<Waiter::Event>> Waiter::Wait(size_t capacity, const Deadline& deadline) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      const int64_t now_ns = MonotonicNs();
      TakeEdges();
      KeepConnected(now_ns);
      std::vector<Event> events = Collect(capacity, now_ns);
      Arm(/*readable=*/!events.empty(), now_ns);
      if (!events.empty() || deadline.Passed()) return events;
    }
    pollfd sleeper{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    // Rounded up, so that the deadline has passed afterwards.
    if (poll(&sleeper, 1, deadline.RemainingMs()) < 0 && errno != EINTR) {
      return FailSystem(errno, "poll");
    }
  }
}

// Afterwards, the epoll instance reports only what happens from here on.
void Waiter::TakeEdges() {
  std::array<epoll_event, 64> events;
  size_t count = 0;
  do {
    const int taken = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
    count = static_cast<size_t>(std::max(taken, 0));
    for (size_t i = 0; i < count; ++i) is_lost_ |= events[i].data.fd == socket_.get();
  } while (count == events.size());
}

// One deadline for everything: a broker that does not answer holds nobody up for long.
void Waiter::KeepConnected(int64_t now_ns) {
  if (now_ns < retry_ns_) return;
  const Deadline deadline = Deadline::AfterMs(kBrokerMs);
  bool done = !is_lost_ || Connect(deadline);
  for (auto item = items_.begin(); done && item != items_.end(); ++item) {
    done = Hear(&*item, deadline);
  }
  if (!done) retry_ns_ = MonotonicNs() + kRetryNs;
}

bool Waiter::Connect(const Deadline& deadline) {
  auto connected = client::Connect(client_, deadline);
  if (!connected) return false;
  Unwatch(&socket_);
  socket_ = std::move(connected->socket);
  // Only its end is reported.
  if (!Watch(socket_, EPOLLET)) return false;
  connection_ = connected->number;
  is_lost_ = false;
  return true;
}

bool Waiter::Hear(Item* item, const Deadline& deadline) {
  if (item->connection == connection_) return true;
  Unwatch(&item->alarm);
  auto got = item->kind == Kind::kName
                 ? client_->names_alarm().Hear(client_, Lease(), connection_, deadline)
             : item->ring ? item->ring->HearAlarm(connection_, deadline)
                          : item->signal->HearAlarm(connection_, deadline);
  if (got) {
    if (!Watch(*got, EPOLLIN | EPOLLET)) return false;
    item->alarm = std::move(*got);
  } else if (got.error().code() != Code::kOrphaned && got.error().code() != Code::kNotFound) {
    return false;  // What is closed or unknown gets none, and is reported when it is looked at.
  }
  item->connection = connection_;
  return true;
}

// ---- looking

std::vector<Waiter::Event> Waiter::Collect(size_t capacity, int64_t now_ns) {
  std::vector<Event> events;
  for (size_t left = items_.size(); left > 0 && events.size() < capacity; --left) {
    // The others come first next time.
    items_.splice(items_.end(), items_, items_.begin());
    Item& item = items_.back();
    if (Look(&item, now_ns, &events)) continue;
    Unwatch(&item.alarm);
    items_.pop_back();
  }
  return events;
}

// What is reported is what the program knows from then on.
Waiter::Looked Waiter::LookAtName(Item* item) const {
  const Result<registry::Found> found = Lookup(*client_, item->name);
  if (!found) {
    if (found.error().code() != Code::kNotFound) return LookAgain::kByTimer;  // It is changing.
    if (!std::exchange(item->exists, false)) return LookAgain::kOnAlarm;
    return std::unexpected(Code::kNotFound);
  }
  const registry::BufferRecord& record = found->record;
  const bool changed = record.generation > item->generation ||
                       (record.generation == item->generation && record.state != item->state);
  if (!changed) return LookAgain::kOnAlarm;
  item->exists = true;
  item->generation = record.generation;
  item->state = record.state;
  return LookAgain::kNow;
}

// False: the item is done with.
bool Waiter::Look(Item* item, int64_t now_ns, std::vector<Event>* events) {
  const Looked looked = item->kind == Kind::kName ? LookAtName(item)
                        : item->ring              ? item->ring->Look()
                                                  : item->signal->Look(item->value);
  const auto failure = looked ? std::nullopt : std::optional(looked.error());
  if (failure == Code::kInvalidArgument) return false;  // This process has closed it.
  const bool is_news = failure ? !item->end_reported : *looked == LookAgain::kNow;
  if (is_news) {
    item->end_reported = item->ring && failure;
    events->push_back({.kind = item->kind,
                       .tag = item->tag,
                       .failure = failure,
                       .generation = item->generation,
                       .state = item->state});
  }
  if (!looked || *looked != LookAgain::kByTimer) {
    item->step_ns = 0;
    // After news the descriptor stays readable, and after an end nothing comes.
    item->next_ns = is_news || failure ? kNever : now_ns + kSafetyNs;
  } else if (item->step_ns == 0 || now_ns >= item->next_ns) {
    item->step_ns = std::clamp(item->step_ns * 3 / 2, kFirstLookNs, kLongestLookNs);
    item->next_ns = now_ns + item->step_ns;
  }
  return !(is_news && item->kind == Kind::kSignal);
}

void Waiter::Arm(bool readable, int64_t now_ns) {
  uint64_t count = 1;
  if (readable) {
    (void)!write(readable_.get(), &count, sizeof count);
  } else {
    (void)!read(readable_.get(), &count, sizeof count);
  }
  int64_t next_ns = kNever;
  for (const Item& item : items_) next_ns = std::min(next_ns, item.next_ns);
  // Without a broker, everything is looked at with the timer until there is one.
  if (retry_ns_ > now_ns) next_ns = std::min(next_ns, retry_ns_);
  itimerspec when{};  // Zero: never.
  if (next_ns != kNever && !readable) {
    when.it_value = {.tv_sec = next_ns / 1'000'000'000, .tv_nsec = next_ns % 1'000'000'000};
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace gpushm::client
