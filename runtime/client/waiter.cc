#include "runtime/client/waiter.h"

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

namespace gpushm::client {
namespace {

constexpr int64_t kFirstStepNs = 50'000;
constexpr int64_t kLongestFastStepNs = 2'000'000;
constexpr int64_t kLongestSlowStepNs = 10'000'000;
// With an alarm, in case that nobody could ring it.
constexpr int64_t kSafetyNs = 1'000'000'000;
constexpr int64_t kRetryNs = 100'000'000;
constexpr int64_t kBrokerMs = 100;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What an epoll event is about.
constexpr uint64_t kConnection = 1;
constexpr uint64_t kOther = 2;

}  // namespace

Result<std::unique_ptr<Waiter>> Waiter::Make(Client* client) {
  std::unique_ptr<Waiter> waiter(new Waiter(client));
  waiter->epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!waiter->epoll_) return FailSystem(errno, "epoll_create1");
  waiter->timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!waiter->timer_) return FailSystem(errno, "timerfd_create");
  waiter->readable_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!waiter->readable_) return FailSystem(errno, "eventfd");
  const Result<int> connection = client->ConnectionAlarm();
  if (!connection) return std::unexpected(connection.error());
  if (auto done = waiter->Watch(*connection, EPOLLIN | EPOLLET, kConnection); !done) {
    return std::unexpected(done.error());
  }
  for (const UniqueFd* own : {&waiter->timer_, &waiter->readable_}) {
    if (auto done = waiter->Watch(own->get(), EPOLLIN, kOther); !done) {
      return std::unexpected(done.error());
    }
  }
  return waiter;
}

Result<void> Waiter::Watch(int fd, uint32_t events, uint64_t what) {
  epoll_event event{.events = events, .data = {.u64 = what}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return FailSystem(errno, "epoll_ctl EPOLL_CTL_ADD");
}

// Closing it is not enough: the broker and other participants have the same description.
void Waiter::Unwatch(const UniqueFd& fd) {
  if (fd) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
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
  const Result<registry::Found> found = client_->Lookup(name);
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
  if (value > signal::kMaxValue) {
    return Fail(Code::kInvalidArgument, Concat("a signal cannot reach the value ", value),
                "use a value of at most 2^62");
  }
  return Add({.kind = Kind::kSignal, .tag = tag, .signal = std::move(signal), .value = value});
}

Result<void> Waiter::Remove(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const size_t removed = items_.remove_if([&](const Item& item) {
    if (item.tag == tag) Unwatch(item.alarm);
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
    for (size_t i = 0; i < count; ++i) changed_ |= events[i].data.u64 == kConnection;
  } while (count == events.size());
}

// One deadline for everything: a broker that does not answer holds nobody up for long.
void Waiter::KeepConnected(int64_t now_ns) {
  if (now_ns < retry_ns_) return;
  const Deadline deadline = Deadline::AfterMs(kBrokerMs);
  bool done = true;
  if (changed_ || connection_ != client_->connections()) {
    // Whoever ends or begins a connection rings, but nobody notices that the broker has died.
    const auto connected = client_->Connect(
        [&](uint64_t number, int socket) {
          return number == connection_ || Watch(socket, EPOLLET, kConnection).has_value();
        },
        deadline);
    done = connected.has_value();
    if (connected) connection_ = *connected;
    changed_ = !done;
  }
  for (auto item = items_.begin(); done && item != items_.end(); ++item) {
    done = Enlist(&*item, deadline);
  }
  if (!done) retry_ns_ = MonotonicNs() + kRetryNs;
}

bool Waiter::Hear(Result<UniqueFd> got, UniqueFd* alarm) {
  Unwatch(*alarm);
  alarm->Reset();
  if (!got) {
    // What is closed or unknown gets none: the timer is enough.
    const Code code = got.error().code();
    return code == Code::kOrphaned || code == Code::kNotFound;
  }
  if (!Watch(got->get(), EPOLLIN | EPOLLET, kOther)) return false;
  *alarm = std::move(*got);
  return true;
}

bool Waiter::Enlist(Item* item, const Deadline& deadline) {
  uint64_t* const on = item->kind == Kind::kName ? &names_connection_ : &item->connection;
  if (*on == connection_) return true;
  bool done = false;
  if (item->kind == Kind::kName) {
    auto got =
        client_->GetAlarm(Lease(), protocol::AlarmUse::kNames, signal::News::kOfFirst, deadline);
    done = got ? Hear(std::move(got->descriptor), &names_alarm_)
               : Hear(std::unexpected(got.error()), &names_alarm_);
  } else {
    done = Hear(item->ring ? item->ring->AlarmOf(connection_, deadline)
                           : item->signal->AlarmOf(connection_, deadline),
                &item->alarm);
  }
  if (done) *on = connection_;
  return done;
}

// ---- looking

std::vector<Waiter::Event> Waiter::Collect(size_t capacity, int64_t now_ns) {
  std::vector<Event> events;
  for (size_t left = items_.size(); left > 0 && events.size() < capacity; --left) {
    // The others come first next time.
    items_.splice(items_.end(), items_, items_.begin());
    Item& item = items_.back();
    if (Look(&item, now_ns, &events) == After::kKeep) continue;
    Unwatch(item.alarm);
    items_.pop_back();
  }
  return events;
}

// What is reported is what the program knows from then on.
Sight Waiter::LookAtName(Item* item) const {
  const Result<registry::Found> found = client_->Lookup(item->name);
  if (!found) {
    if (found.error().code() != Code::kNotFound) return {.pace = Pace::kFast};  // It is changing.
    return {.ready = std::exchange(item->exists, false), .failure = Code::kNotFound};
  }
  const registry::BufferRecord& record = found->record;
  const bool changed = record.generation > item->generation ||
                       (record.generation == item->generation && record.state != item->state);
  if (!changed) return {};
  item->exists = true;
  item->generation = record.generation;
  item->state = record.state;
  return {.ready = true};
}

Waiter::After Waiter::Look(Item* item, int64_t now_ns, std::vector<Event>* events) {
  const bool is_name = item->kind == Kind::kName;
  Sight sight = is_name      ? LookAtName(item)
                : item->ring ? item->ring->Look()
                             : item->signal->Look(item->value);
  if (sight.closed) return After::kRemove;
  if (sight.ready && !(item->end_reported && sight.failure)) {
    item->end_reported = item->ring && sight.failure;
    item->pace = Pace::kAlarm;  // The next look decides anew.
    item->next_ns = kNever;     // The descriptor stays readable.
    events->push_back({.kind = item->kind,
                       .tag = item->tag,
                       .failure = sight.failure,
                       .generation = item->generation,
                       .state = item->state});
    return item->kind == Kind::kSignal ? After::kRemove : After::kKeep;
  }
  const bool listens = !changed_ && (is_name ? names_connection_ == connection_ && names_alarm_
                                             : item->connection == connection_ && item->alarm);
  if (!listens && sight.pace == Pace::kAlarm) sight.pace = Pace::kSlow;
  if (sight.ready) {  // The end of a ring, which was reported.
    item->next_ns = kNever;
    sight.pace = Pace::kAlarm;
  } else if (sight.pace == Pace::kAlarm) {
    item->next_ns = now_ns + kSafetyNs;
  } else if (sight.pace != item->pace || now_ns >= item->next_ns) {
    const int64_t longest_ns = sight.pace == Pace::kFast ? kLongestFastStepNs : kLongestSlowStepNs;
    const int64_t step_ns = sight.pace != item->pace ? 0 : item->step_ns * 3 / 2;
    item->step_ns = std::clamp(step_ns, kFirstStepNs, longest_ns);
    item->next_ns = now_ns + item->step_ns;
  }
  item->pace = sight.pace;
  return After::kKeep;
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
