#include "runtime/client/sync/signals.h"

#include <algorithm>

namespace gpushm::client {

using sync::CellState;

// ---- opening

Result<std::unique_ptr<Signal>> Signal::Open(Client* client, std::string_view name,
                                             const Options& options, const Wait& wait) {
  if (options.role == Role::kWaiter) return OpenWaiter(client, name, wait);
  return UntilOpen(
      wait, Concat("to write signal \"", name, '"'),
      "only one process writes a signal: end the other writer, or use a longer timeout",
      [&] { return TryWrite(client, name, options, wait); });
}

Result<std::unique_ptr<Signal>> Signal::OpenWaiter(Client* client, std::string_view name,
                                                   const Wait& wait) {
  AttachOptions attach{.page = true};
  for (;;) {
    auto page = OpenPage::Attach(client, name, attach, {sync::Kind::kSignal}, wait);
    if (!page) return std::unexpected(page.error());
    if (!sync::Read(page->cell(0)).ended()) {
      return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWaiter));
    }
    attach.min_generation = page->generation() + 1;
  }
}

Result<std::unique_ptr<Signal>> Signal::TryWrite(Client* client, std::string_view name,
                                                 const Options& options, const Wait& wait) {
  // Inspected through a read-only mapping: a process that maps the page to write is its writer.
  AttachOptions attach{.page = true};
  const auto looked = OpenPage::Attach(client, name, attach, {sync::Kind::kSignal}, wait.Once());
  if (!looked) {
    if (looked.error().code() == Code::kNotFound) return Make(client, name, options, 0, wait);
    return std::unexpected(looked.error());
  }
  if (sync::Read(looked->cell(0)).ended()) {
    return Make(client, name, options, looked->generation(), wait);
  }
  attach.access = Access::kReadWrite;
  attach.generation = looked->generation();
  auto page = OpenPage::Attach(client, name, attach, {sync::Kind::kSignal}, wait.Once());
  if (!page) return std::unexpected(page.error());
  if (!sync::Claim(page->cell(0), page->lease(), /*again=*/false)) {
    return Fail(Code::kBusy, Concat('"', name, "\" already has a writer"),
                "only one process writes a signal: wait until the other writer ends");
  }
  page->RingAlarm();
  return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWriter));
}

Result<std::unique_ptr<Signal>> Signal::Make(Client* client, std::string_view name,
                                             const Options& options, uint64_t after_generation,
                                             const Wait& wait) {
  auto page = OpenPage::Make(client, name, {.kind = sync::Kind::kSignal, .cells = 1},
                             {.writers_all = options.writers_all,
                              .one_writer = true,
                              .after_generation = after_generation},
                             wait);
  if (!page) return std::unexpected(page.error());
  sync::Claim(page->cell(0), page->lease(), /*again=*/false);
  if (auto shown = page->Publish(wait); !shown) return std::unexpected(shown.error());
  return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWriter));
}

Result<void> Signal::Close() {
  if (auto none = page_.CheckNoStreamWaits(); !none) return none;
  const std::lock_guard lock(mutex_);
  if (role_ == Role::kWriter) {
    const sync::Reading reading = Read();
    if (reading.ended() ? page_.HasPendingStores() : reading.value < recorded_) {
      return Fail(Code::kBusy,
                  Concat("a stream has not recorded value ", recorded_, " yet: the signal is at ",
                         reading.value),
                  "synchronise the stream, then close the signal");
    }
    sync::EndCell(cell(), page_.lease(), CellState::kLeft);
    sync::KeepPoison(cell());
    page_.RingAlarm();
  }
  closed_ = true;
  return page_.Detach();
}

uint64_t Signal::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

// Requires mutex_.
Result<void> Signal::CheckNext(uint64_t value) const {
  if (role_ != Role::kWriter) {
    return Fail(Code::kInvalidArgument,
                "this process opened the signal as a waiter, so it cannot write",
                "open it with the role GPUSHM_SIGNAL_WRITER");
  }
  const sync::Reading reading = Read();
  // Kernels and graph nodes store values as well.
  const uint64_t last = std::max(recorded_, reading.value);
  if (value <= last || value > sync::kMaxValue) {
    return Fail(Code::kInvalidArgument,
                Concat("the signal has already been given value ", last, ", so it cannot be given ",
                       value, " now"),
                "use a larger value each time, at most 2^62");
  }
  if (page_.attachment().orphaned() || reading.ended()) {
    return Fail(Code::kOrphaned, "the broker no longer knows this process as the signal's writer",
                "close the signal and open it again: waiters then get a new generation");
  }
  return {};
}

Result<void> Signal::Record(CUstream stream, uint64_t value) {
  if (auto usable = page_.CheckStream(stream); !usable) return usable;
  {
    // Held over the call, so that values recorded by several threads enter the streams in order.
    const std::lock_guard lock(mutex_);
    if (auto next = CheckNext(value); !next) return next;
    if (auto done = page_.Store(stream, {&cell().value, value}); !done) return done;
    recorded_ = value;
    ExpectFromGpu(value);
  }
  page_.RingAlarm();
  return {};
}

// Requires mutex_.
void Signal::ExpectFromGpu(uint64_t value) {
  sync::Word& pending = cell().words[sync::kPendingWord];
  if (pending.load(std::memory_order_relaxed) >= value) return;
  pending.store(value, std::memory_order_release);
}

Result<void> Signal::Set(uint64_t value) {
  {
    const std::lock_guard lock(mutex_);
    if (auto next = CheckNext(value); !next) return next;
    const uint64_t now = Read().value;
    if (now < recorded_) {
      return Fail(
          Code::kBusy,
          Concat("a stream has not recorded value ", recorded_, " yet: the signal is at ", now),
          "synchronise the stream first, or record this value on the stream, too");
    }
    cell().value.store(value, std::memory_order_release);
    recorded_ = value;
  }
  page_.RingAlarm();
  return {};
}

Result<UniqueFd> Signal::HearAlarm(uint64_t connection, const Deadline& deadline) const {
  Lease lease;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Fail(Code::kNotFound, "it is closed");
    lease = page_.attachment().lease();
  }
  return page_.HearAlarm(lease, connection, deadline);
}

std::expected<sync::LookAgain, Code> Signal::Look(uint64_t value) const {
  const std::lock_guard lock(mutex_);
  if (closed_) return std::unexpected(Code::kInvalidArgument);
  const sync::Reading reading = Read();
  if (reading.value >= value) return sync::LookAgain::kNow;
  if (reading.ended()) return std::unexpected(reading.end());
  if (page_.attachment().orphaned()) return std::unexpected(Code::kOrphaned);
  const bool pending = cell().words[sync::kPendingWord].load(std::memory_order_acquire) >= value;
  return pending ? sync::LookAgain::kByTimer : sync::LookAgain::kOnAlarm;
}

Result<void> Signal::WaitOnStream(CUstream stream, uint64_t value) {
  if (auto usable = page_.CheckStream(stream); !usable) return usable;
  if (page_.IsOwn(cell())) {
    return Fail(Code::kInvalidArgument, "this process is the signal's writer",
                "make the stream wait for an event with cuStreamWaitEvent");
  }
  if (value > sync::kMaxValue) {
    return Fail(Code::kInvalidArgument, Concat("a signal cannot reach the value ", value),
                "use a value of at most 2^62");
  }
  const sync::Reading reading = Read();
  if (auto ended = sync::EndedBefore(reading, value)) return std::unexpected(*ended);
  if (reading.value >= value) return {};
  // Nothing would end the wait for a writer that never comes.
  if (reading.state == CellState::kFree) {
    return Fail(Code::kBusy, "the signal has no writer yet",
                "wait for the first value on the host with gpushm_signal_wait");
  }
  return page_.Await(stream, {&cell().value, value});
}

Result<void> Signal::WaitOnHost(uint64_t value, const Deadline& deadline) const {
  const Result<sync::Reading> reached = sync::WaitUntil(cell(), value, deadline);
  if (!reached) return std::unexpected(reached.error());
  return {};
}

Result<void> Signal::Check(uint64_t value) const {
  const sync::Reading reading = Read();
  if (reading.value >= value) return {};
  if (auto ended = sync::EndedBefore(reading, value)) return std::unexpected(*ended);
  return Fail(Code::kBusy, Concat("the signal is at value ", reading.value, ", not yet at ", value),
              "wait for it with gpushm_signal_wait");
}

Result<CUdeviceptr> Signal::DeviceAddress() {
  if (role_ == Role::kWriter) {  // From now on, kernels can store values that no host announces.
    {
      const std::lock_guard lock(mutex_);
      ExpectFromGpu(sync::kMaxValue);
    }
    page_.RingAlarm();
  }
  return page_.OnGpu(cell().value);
}

}  // namespace gpushm::client
