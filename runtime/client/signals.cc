#include "runtime/client/signals.h"

#include <algorithm>
#include <array>

namespace gpushm::client {

using signal::CellState;

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
    auto page = OpenPage::Attach(client, name, attach, {signal::Kind::kSignal}, wait);
    if (!page) return std::unexpected(page.error());
    const uint64_t generation = page->page().word_generation();
    Result<std::unique_ptr<DeviceWord>> word = nullptr;
    if (generation != 0) word = DeviceWord::Attach(client, name, generation, wait);
    // Checked after the attach, because the word goes with the writer.
    if (!signal::Read(page->cell(0)).ended()) {
      return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWaiter, std::move(word)));
    }
    attach.min_generation = page->generation() + 1;
  }
}

Result<std::unique_ptr<Signal>> Signal::TryWrite(Client* client, std::string_view name,
                                                 const Options& options, const Wait& wait) {
  // Inspected through a read-only mapping: a process that maps the page to write is its writer.
  AttachOptions attach{.page = true};
  const auto looked = OpenPage::Attach(client, name, attach, {signal::Kind::kSignal}, wait.Once());
  if (!looked) {
    if (looked.error().code() == Code::kNotFound) return Make(client, name, options, 0, wait);
    return std::unexpected(looked.error());
  }
  if (signal::Read(looked->cell(0)).ended()) {
    return Make(client, name, options, looked->generation(), wait);
  }
  // A signal that the pod declares, and that no process has written yet.
  if (options.device_memory && looked->page().word_generation() == 0 &&
      signal::Read(looked->cell(0)).state == CellState::kFree) {
    return Fail(Code::kUnsupported,
                Concat("the pod declares \"", name, "\" as a signal whose value is in host memory"),
                "open it without GPUSHM_SIGNAL_DEVICE_MEMORY, or use another name");
  }
  attach.access = Access::kReadWrite;
  attach.generation = looked->generation();
  auto page = OpenPage::Attach(client, name, attach, {signal::Kind::kSignal}, wait.Once());
  if (!page) return std::unexpected(page.error());
  if (!signal::Claim(page->cell(0), page->lease(), /*again=*/false)) {
    return Fail(Code::kBusy, Concat('"', name, "\" already has a writer"),
                "only one process writes a signal: wait until the other writer ends");
  }
  page->RingAlarm(signal::News::kOfFirst);
  return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWriter));
}

Result<std::unique_ptr<Signal>> Signal::Make(Client* client, std::string_view name,
                                             const Options& options, uint64_t after_generation,
                                             const Wait& wait) {
  auto page = OpenPage::Make(client, name, {.kind = signal::Kind::kSignal, .cells = 1},
                             {.writers_all = options.writers_all,
                              .one_writer = true,
                              .after_generation = after_generation},
                             wait);
  if (!page) return std::unexpected(page.error());
  std::unique_ptr<DeviceWord> word;
  if (options.device_memory) {
    auto made = DeviceWord::Make(client, name, options.writers_all, options.gpu, wait);
    if (!made) {
      // A pool without room for a second generation gets room when the former waiters have gone.
      const bool held = made.error().code() == Code::kExhausted && after_generation != 0;
      if (!held || wait.dont_wait) return std::unexpected(made.error());
      return Fail(Code::kBusy, made.error().what(), made.error().remedy());
    }
    word = std::move(*made);
    std::array<uint64_t, 8> settings{};
    settings[signal::kWordGeneration] = word->generation();
    page->SetSettings(settings);
  }
  signal::Claim(page->cell(0), page->lease(), /*again=*/false);
  if (auto shown = page->Publish(wait); !shown) {
    if (word != nullptr) (void)word->Delete();
    return std::unexpected(shown.error());
  }
  return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWriter, std::move(word)));
}

Result<void> Signal::Close() {
  DeviceWord* const word = word_ ? word_->get() : nullptr;
  if (auto none = page_.CheckNoStreamWaits(); !none) return none;
  if (word != nullptr && word->HasWaits()) {
    return Fail(Code::kBusy, "a stream of this process still waits for the signal",
                "synchronise the stream, then close the signal");
  }
  const std::lock_guard lock(mutex_);
  if (role_ == Role::kWriter) {
    const signal::Reading reading = Read();
    if (reading.ended() ? page_.HasPendingStores() : reading.value < recorded_) {
      return Fail(Code::kBusy,
                  Concat("a stream has not recorded value ", recorded_, " yet: the signal is at ",
                         reading.value),
                  "synchronise the stream, then close the signal");
    }
    signal::EndCell(cell(), page_.lease(), CellState::kLeft);
    signal::KeepPoison(cell());
    page_.RingAlarm(signal::News::kOfFirst);
  }
  closed_ = true;
  if (word != nullptr) {
    if (role_ == Role::kWriter) (void)word->Delete();  // Otherwise the successor deletes it.
    (void)word->Detach();
  }
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
  const signal::Reading reading = Read();
  // Kernels and graph nodes store values as well.
  const uint64_t last = std::max(recorded_, reading.value);
  if (value <= last || value > signal::kMaxValue) {
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
    auto done =
        in_device_memory() ? StoreBoth(stream, value) : page_.Store(stream, {&cell().value, value});
    if (!done) return done;
    recorded_ = value;
    cell().words[signal::kPendingWord].store(value, std::memory_order_release);
  }
  page_.RingAlarm(signal::News::kOfFirst);
  return {};
}

// The word is stored first, because streams wait for it. So the page's value shows what is done,
// which Close needs.
Result<void> Signal::StoreBoth(CUstream stream, uint64_t value) {
  const CUstreamBatchMemOpParams word = StoreOf((*word_)->address(), value);
  return page_.Store(stream, {&cell().value, value}, &word);
}

Result<void> Signal::Set(uint64_t value) {
  {
    const std::lock_guard lock(mutex_);
    if (auto next = CheckNext(value); !next) return next;
    if (in_device_memory()) {
      return Fail(
          Code::kUnsupported, "the signal is in device memory, where the host cannot store",
          "use gpushm_signal_record, or open the signal without GPUSHM_SIGNAL_DEVICE_MEMORY");
    }
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
  page_.RingAlarm(signal::News::kOfFirst);
  return {};
}

Result<UniqueFd> Signal::AlarmOf(uint64_t connection, const Deadline& deadline) const {
  Lease lease;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Fail(Code::kNotFound, "it is closed");
    lease = page_.attachment().lease();
  }
  return page_.AlarmOf(lease, signal::News::kOfFirst, connection, deadline);
}

Sight Signal::Look(uint64_t value) const {
  const std::lock_guard lock(mutex_);
  if (closed_) return {.closed = true};
  const signal::Reading reading = Read();
  if (reading.value >= value) return {.ready = true};
  if (reading.ended()) return {.ready = true, .failure = reading.end()};
  if (page_.attachment().orphaned()) return {.ready = true, .failure = Code::kOrphaned};
  if (reading.state == CellState::kFree) return {};
  const bool pending = cell().words[signal::kPendingWord].load(std::memory_order_acquire) >= value;
  if (pending) return {.pace = Pace::kFast};
  return {.pace = signal::ToldOf(cell()) == signal::Told::kAlways ? Pace::kAlarm : Pace::kSlow};
}

Result<void> Signal::WaitOnStream(CUstream stream, uint64_t value) {
  if (auto usable = page_.CheckStream(stream); !usable) return usable;
  if (page_.IsOwn(cell())) {
    return Fail(Code::kInvalidArgument, "this process is the signal's writer",
                "make the stream wait for an event with cuStreamWaitEvent");
  }
  if (value > signal::kMaxValue) {
    return Fail(Code::kInvalidArgument, Concat("a signal cannot reach the value ", value),
                "use a value of at most 2^62");
  }
  const signal::Reading reading = Read();
  if (auto ended = signal::EndedBefore(reading, value)) return std::unexpected(*ended);
  if (reading.value >= value) return {};
  // Nothing would end the wait for a writer that never comes.
  if (reading.state == CellState::kFree) {
    return Fail(Code::kBusy, "the signal has no writer yet",
                "wait for the first value on the host with gpushm_signal_wait");
  }
  if (!word_) return std::unexpected(word_.error());
  if (*word_ != nullptr) return (*word_)->Await(stream, value);
  return page_.Await(stream, {&cell().value, value});
}

Result<void> Signal::WaitOnHost(uint64_t value, const Deadline& deadline) const {
  const Result<signal::Reading> reached = signal::WaitUntil(cell(), value, deadline);
  if (!reached) return std::unexpected(reached.error());
  return {};
}

Result<void> Signal::Check(uint64_t value) const {
  // A stream can pass the word before the page has the value. The page ends before the word does.
  // So if the page has not ended by now, the poison did not release the stream: hence the order.
  const bool passed = word_ && *word_ != nullptr && (*word_)->HasPassed(value);
  const signal::Reading reading = Read();
  if (reading.value >= value || (passed && !reading.ended())) return {};
  if (auto ended = signal::EndedBefore(reading, value)) return std::unexpected(*ended);
  return Fail(Code::kBusy, Concat("the signal is at value ", reading.value, ", not yet at ", value),
              "wait for it with gpushm_signal_wait");
}

Result<CUdeviceptr> Signal::DeviceAddress() {
  if (!word_) return std::unexpected(word_.error());
  if (role_ == Role::kWriter) {  // From now on, kernels can store values that no host announces.
    cell().told.store(static_cast<uint64_t>(signal::Told::kNotByGpus), std::memory_order_relaxed);
    page_.RingAlarm(signal::News::kOfFirst);
  }
  if (*word_ != nullptr) return (*word_)->address();
  return page_.OnGpu(cell().value);
}

}  // namespace gpushm::client
