#include "runtime/client/signals.h"

#include <algorithm>
#include <array>

namespace gpushm::client {

using signal::CellState;

// ---- opening

Result<std::unique_ptr<Signal>> Signal::Open(Client* client, std::string_view name,
                                             const Options& options, const Wait& wait) {
  if (options.role == Role::kWaiter) return OpenWaiter(client, name, wait);
  return UntilOpen(wait, Concat("to write \"", name, '"'),
                   "one process writes a signal: end the other one, or wait longer",
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
    // After that, for the word goes with the writer.
    if (!signal::Read(page->cell(0)).ended()) {
      return std::unique_ptr<Signal>(new Signal(std::move(*page), Role::kWaiter, std::move(word)));
    }
    attach.min_generation = page->generation() + 1;
  }
}

Result<std::unique_ptr<Signal>> Signal::TryWrite(Client* client, std::string_view name,
                                                 const Options& options, const Wait& wait) {
  // Looked at through a mapping that reads: to have one that writes is to be its writer.
  AttachOptions attach{.page = true};
  const auto looked = OpenPage::Attach(client, name, attach, {signal::Kind::kSignal}, wait.Once());
  if (!looked) {
    if (looked.error().code() == Code::kNotFound) return Make(client, name, options, 0, wait);
    return std::unexpected(looked.error());
  }
  if (signal::Read(looked->cell(0)).ended()) {
    return Make(client, name, options, looked->generation(), wait);
  }
  // One that the pod declares, which nobody has written yet.
  if (options.device_memory && looked->page().word_generation() == 0 &&
      signal::Read(looked->cell(0)).state == CellState::kFree) {
    return Fail(Code::kUnsupported,
                Concat("the pod declares \"", name, "\", with its counter in host memory"),
                "leave GPUSHM_DEVICE_MEMORY out, or take another name");
  }
  attach.access = Access::kReadWrite;
  attach.generation = looked->generation();
  auto page = OpenPage::Attach(client, name, attach, {signal::Kind::kSignal}, wait.Once());
  if (!page) return std::unexpected(page.error());
  if (!signal::Claim(page->cell(0), page->lease(), /*again=*/false)) {
    return Fail(Code::kBusy, Concat('"', name, "\" has its writer already"),
                "one process writes a signal: wait until it ends");
  }
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
    auto made = DeviceWord::Make(client, name, options.writers_all, wait);
    if (!made) {
      // A pool without room for a second one has it when the former one's waiters have gone.
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
    return Fail(Code::kBusy, "a stream of this process waits for it",
                "synchronise the stream, then close it");
  }
  if (role_ == Role::kWriter) {
    const std::lock_guard lock(mutex_);
    const signal::Reading reading = Read();
    if (reading.ended() ? page_.HasPendingStores() : reading.value < recorded_) {
      return Fail(Code::kBusy,
                  Concat("a stream is still to record ", recorded_, ", it is at ", reading.value),
                  "synchronise the stream, then close it");
    }
    signal::EndCell(cell(), page_.lease(), CellState::kLeft);
    signal::KeepPoison(cell());
  }
  if (word != nullptr) {
    if (role_ == Role::kWriter) (void)word->Delete();  // Else its successor does it.
    (void)word->Detach();
  }
  return page_.Detach();
}

uint64_t Signal::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

// With mutex_.
Result<void> Signal::CheckNext(uint64_t value) const {
  if (role_ != Role::kWriter) {
    return Fail(Code::kInvalidArgument, "this process waits for the signal, it does not write it",
                "open it with the role GPUSHM_WRITER");
  }
  const signal::Reading reading = Read();
  // Kernels and nodes of graphs store as well.
  const uint64_t last = std::max(recorded_, reading.value);
  if (value <= last || value > signal::kMaxValue) {
    return Fail(Code::kInvalidArgument,
                Concat("the signal was given ", last, " already, ", value, " does not follow"),
                "a signal only goes up, to 2^62 at most");
  }
  if (page_.attachment().orphaned() || reading.ended()) {
    return Fail(Code::kOrphaned, "the broker does not know this process as its writer any more",
                "close it and open it again: waiters get a new generation");
  }
  return {};
}

Result<void> Signal::Record(CUstream stream, uint64_t value) {
  if (auto usable = page_.CheckStream(stream); !usable) return usable;
  // Held over the call: what threads record comes into the streams in the order of the values.
  const std::lock_guard lock(mutex_);
  if (auto next = CheckNext(value); !next) return next;
  auto done =
      in_device_memory() ? StoreBoth(stream, value) : page_.Store(stream, {&cell().value, value});
  if (done) recorded_ = value;
  return done;
}

// The word first, for which somebody is in a hurry. So what the page has says what is done: Close
// needs that.
Result<void> Signal::StoreBoth(CUstream stream, uint64_t value) {
  const CUstreamBatchMemOpParams word = StoreOf((*word_)->address(), value);
  return page_.Store(stream, {&cell().value, value}, &word);
}

Result<void> Signal::Set(uint64_t value) {
  const std::lock_guard lock(mutex_);
  if (auto next = CheckNext(value); !next) return next;
  if (in_device_memory()) {
    return Fail(Code::kUnsupported, "it is in device memory, where hosts cannot store",
                "gpushm_signal_record, or open it without GPUSHM_DEVICE_MEMORY");
  }
  const uint64_t now = Read().value;
  if (now < recorded_) {
    return Fail(Code::kBusy, Concat("a stream is still to record ", recorded_, ", it is at ", now),
                "synchronise the stream first, or record this value there, too");
  }
  cell().value.store(value, std::memory_order_release);
  recorded_ = value;
  return {};
}

Result<void> Signal::WaitOnStream(CUstream stream, uint64_t value) {
  if (auto usable = page_.CheckStream(stream); !usable) return usable;
  if (page_.IsOwn(cell())) {
    return Fail(Code::kInvalidArgument, "its writer is this process",
                "let the stream wait for an event: cuStreamWaitEvent");
  }
  if (value > signal::kMaxValue) {
    return Fail(Code::kInvalidArgument, Concat("no signal gets to ", value), "2^62 at most");
  }
  const signal::Reading reading = Read();
  if (auto ended = signal::EndedBefore(reading, value)) return std::unexpected(*ended);
  if (reading.value >= value) return {};
  // Nobody would end the wait for a writer that never comes.
  if (reading.state == CellState::kFree) {
    return Fail(Code::kBusy, "nobody writes it yet",
                "wait for its first value on the host: gpushm_signal_wait");
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
  // A stream can be past the word before the page has the value. It was not the poison that let it
  // go on, if the page, which ends before the word does, has not ended by then: hence the order.
  const bool passed = word_ && *word_ != nullptr && (*word_)->HasPassed(value);
  const signal::Reading reading = Read();
  if (reading.value >= value || (passed && !reading.ended())) return {};
  if (auto ended = signal::EndedBefore(reading, value)) return std::unexpected(*ended);
  return Fail(Code::kBusy, Concat("it is at ", reading.value, ", not yet at ", value),
              "wait: gpushm_signal_wait");
}

Result<CUdeviceptr> Signal::DeviceAddress() {
  if (!word_) return std::unexpected(word_.error());
  if (*word_ != nullptr) return (*word_)->address();
  return page_.OnGpu(cell().value);
}

}  // namespace gpushm::client
