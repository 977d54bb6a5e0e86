// The minimum: the driver's calls by hand, with nothing around them.
#include <memory>
#include <optional>

#include "contract/protocol/channel.h"
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

DeviceMapping MapDescriptor(const Stage& stage, int fd) {
  const DeviceMemory memory = Must(DeviceMemory::Import(*stage.api, fd));
  return Must(
      DeviceMapping::Map(*stage.api, memory, stage.size_bytes, stage.device, Access::kRead));
}

// Exports the memory and sends the descriptor to every consumer.
void SendOut(const Stage& stage, const DeviceMemory& memory) {
  const UniqueFd fd = Must(memory.Export());
  for (Channel* link : stage.links) link->Say("memory", fd.get());
}

}  // namespace

// ---------------------------------------------------------------- mapped once

Giver GiveRawHeld(const Stage& stage) {
  const auto mapped = std::make_shared<Mapped>(MakeMapped(stage));
  SendOut(stage, mapped->memory);
  return {.make = [mapped](uint64_t) { return mapped->mapping.address(); },
          .give = [&stage](uint64_t sequence) { WriteSignal(stage, sequence); }};
}

Taker TakeRawHeld(const Stage& stage) {
  const Heard heard = Must(stage.links.front()->Hear(Deadline::AfterMs(kStepMs)));
  const auto mapping =
      std::make_shared<DeviceMapping>(MapDescriptor(stage, heard.descriptor.get()));
  return {.arm = [mapping, &stage](uint64_t sequence) {
    AwaitSignal(stage, sequence);
    return mapping->address();
  }};
}

// ---------------------------------------------------------------- each tensor by itself

Giver GiveRawNew(const Stage& stage) {
  const auto mapped = std::make_shared<std::optional<Mapped>>();
  return {.make =
              [mapped, &stage](uint64_t) {
                mapped->emplace(MakeMapped(stage));
                return (*mapped)->mapping.address();
              },
          .give = [mapped, &stage](uint64_t) { SendOut(stage, (*mapped)->memory); },
          .reclaim = [mapped](uint64_t) { mapped->reset(); }};
}

Taker TakeRawNew(const Stage& stage) {
  const auto mapping = std::make_shared<std::optional<DeviceMapping>>();
  return {.take =
              [mapping, &stage](uint64_t, const Deadline& deadline) {
                protocol::Message message;
                // Polled, like the flags of the other ways: otherwise this way alone would include
                // a wake-up.
                const int socket = stage.links.front()->socket();
                const bool in_time = WaitUntil(
                    [&] { return Must(protocol::TryReceive(socket, &message)); }, deadline);
                if (!in_time || message.descriptors.size() != 1) {
                  throw Failure(Code::kTimeout, "no descriptor arrived in time");
                }
                mapping->emplace(MapDescriptor(stage, message.descriptors.front().get()));
                return (*mapping)->address();
              },
          .release = [mapping](uint64_t) { mapping->reset(); }};
}

}  // namespace gpushm::bench::handover
