// gpushm's own ways: a buffer that the consumers keep, with a signal or with the raw page that
// `raw-held` uses, and a buffer for each tensor, with the raw page.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/include/gpushm/sync.h"
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

std::string TensorName(uint64_t sequence) { return Concat("tensor-", sequence); }
std::string HeldName(const Stage& stage) { return Concat("held-", stage.serial); }

// Detached at the end, when no process uses it any more.
using Attachment = std::shared_ptr<gpushm_attachment>;
Attachment Own(gpushm_attachment* made) {
  return {made,
          [](gpushm_attachment* attachment) { gpushm_attachment_detach(attachment, nullptr); }};
}

Attachment Create(const Stage& stage, const std::string& name) {
  gpushm_attachment* made = nullptr;
  Check(gpushm_create(stage.client, name.c_str(), stage.size_bytes, nullptr, &made), "create");
  return Own(made);
}

Attachment Attach(const Stage& stage, const std::string& name) {
  gpushm_attachment* made = nullptr;
  Check(gpushm_attach(stage.client, name.c_str(), nullptr, &made), "attach");
  return Own(made);
}

CUdeviceptr AddressOf(const Attachment& attachment) {
  return gpushm_attachment_address(attachment.get());
}

void Delete(const Stage& stage, const std::string& name) {
  Check(gpushm_delete(stage.client, name.c_str(), nullptr), "delete");
}

// A writer's or a waiter's end of the signal; closed at the end.
std::shared_ptr<gpushm_signal> OpenSignal(const Stage& stage, gpushm_signal_role role) {
  gpushm_signal_options options;
  GPUSHM_INIT(&options);
  options.role = role;
  gpushm_signal* signal = nullptr;
  Check(gpushm_signal_open(stage.client, "ready", &options, &signal), "signal");
  return {signal, gpushm_signal_close};
}

// The buffer of all hand-overs, deleted at the end.
Attachment CreateHeld(const Stage& stage) {
  const std::string name = HeldName(stage);
  const Attachment held = Create(stage, name);
  return {held.get(), [held, name, client = stage.client](gpushm_attachment*) {
            gpushm_delete(client, name.c_str(), nullptr);
          }};
}

}  // namespace

// ---------------------------------------------------------------- attached once

Giver GiveGpushmHeld(const Stage& stage) {
  return {.make = [held = CreateHeld(stage)](uint64_t) { return AddressOf(held); },
          .give = [&stage](uint64_t sequence) { WriteSignal(stage, sequence); }};
}

Taker TakeGpushmHeld(const Stage& stage) {
  const Attachment held = Attach(stage, HeldName(stage));  // This waits for the buffer.
  return {.arm = [held, &stage](uint64_t sequence) {
    AwaitSignal(stage, sequence);
    return AddressOf(held);
  }};
}

// ---------------------------------------------------------------- attached once, with a signal

Giver GiveGpushmSignal(const Stage& stage) {
  Giver giver = GiveGpushmHeld(stage);
  giver.give = [signal = OpenSignal(stage, GPUSHM_SIGNAL_WRITER), &stage](uint64_t sequence) {
    Check(gpushm_signal_record(signal.get(), stage.stream, sequence), "record");
  };
  return giver;
}

Taker TakeGpushmSignal(const Stage& stage) {
  const Attachment held = Attach(stage, HeldName(stage));
  const auto signal = OpenSignal(stage, GPUSHM_SIGNAL_WAITER);
  return {.arm =
              [held, signal, &stage](uint64_t sequence) {
                Check(gpushm_signal_wait_on_stream(signal.get(), stage.stream, sequence), "wait");
                return AddressOf(held);
              },
          .release =
              [signal](uint64_t sequence) {
                Check(gpushm_signal_check(signal.get(), sequence), "check");
              }};
}

// ---------------------------------------------------------------- each tensor by itself

// The buffer is made in the pool before the tensor is written.
Giver GiveGpushmNew(const Stage& stage) {
  const auto made = std::make_shared<Attachment>();
  return {.make =
              [made, &stage](uint64_t sequence) {
                *made = Create(stage, TensorName(sequence));
                return AddressOf(*made);
              },
          .give = [&stage](uint64_t sequence) { WriteSignal(stage, sequence); },
          .reclaim =
              [made, &stage](uint64_t sequence) {
                made->reset();
                Delete(stage, TensorName(sequence));
              }};
}

// The memory is the producer's own, and is offered when the tensor is written.
Giver GiveGpushmOffer(const Stage& stage) {
  const auto own = std::make_shared<std::optional<Mapped>>();
  return {.make =
              [own, &stage](uint64_t) {
                own->emplace(MakeMapped(stage));
                return (*own)->mapping.address();
              },
          .give =
              [own, &stage](uint64_t sequence) {
                Check(gpushm_offer(stage.client, TensorName(sequence).c_str(),
                                   (*own)->mapping.address(), stage.size_bytes, nullptr, nullptr),
                      "offer");
                WriteSignal(stage, sequence);
              },
          .reclaim =
              [own, &stage](uint64_t sequence) {
                Delete(stage, TensorName(sequence));
                own->reset();
              }};
}

// Learns of the tensor from the page, on the host, and then attaches it.
Taker TakeGpushmNew(const Stage& stage) {
  const auto taken = std::make_shared<Attachment>();
  return {.take =
              [taken, &stage](uint64_t sequence, const Deadline& deadline) {
                AwaitWord(stage.board->signal, sequence, deadline);
                *taken = Attach(stage, TensorName(sequence));
                // The tensor has arrived; this orders the stream's reads after the producer's
                // writes.
                AwaitSignal(stage, sequence);
                return AddressOf(*taken);
              },
          .release = [taken](uint64_t) { taken->reset(); }};
}

}  // namespace gpushm::bench::handover
