// CUDA's own means: cuIpc memory handles and interprocess events. The host flag says that the event
// was recorded, because an imported event that was not yet recorded counts as done.
#include <cstring>
#include <memory>
#include <string_view>
#include <type_traits>

#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

struct Handles {
  CUipcMemHandle memory;
  CUipcEventHandle event;
};
static_assert(sizeof(Handles) <= kNoteBytes);

// An event of this process, or one opened from another process; destroyed at the end.
using Event = std::shared_ptr<std::remove_pointer_t<CUevent>>;

Event CreateEvent(const CudaApi& api) {
  CUevent event = nullptr;
  Must(api.Check(api.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                 "cuEventCreate"));
  return {event, api.cuEventDestroy};
}

Event OpenEvent(const CudaApi& api, const CUipcEventHandle& handle) {
  CUevent event = nullptr;
  Must(api.Check(api.cuIpcOpenEventHandle(&event, handle), "cuIpcOpenEventHandle"));
  return {event, api.cuEventDestroy};
}

// Another process's memory; closed at the end.
OwnedMemory OpenMemory(const CudaApi& api, const CUipcMemHandle& handle) {
  CUdeviceptr address = 0;
  Must(api.Check(api.cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                 "cuIpcOpenMemHandle"));
  return Own(address, api.cuIpcCloseMemHandle);
}

Handles HandlesOf(const CudaApi& api, CUdeviceptr address, const Event& event) {
  Handles handles{};
  Must(api.Check(api.cuIpcGetMemHandle(&handles.memory, address), "cuIpcGetMemHandle"));
  Must(api.Check(api.cuIpcGetEventHandle(&handles.event, event.get()), "cuIpcGetEventHandle"));
  return handles;
}

void Record(const Stage& stage, const Event& event) {
  Must(stage.api->Check(stage.api->cuEventRecord(event.get(), stage.stream), "cuEventRecord"));
}

void StreamWaits(const Stage& stage, const Event& event) {
  Must(stage.api->Check(stage.api->cuStreamWaitEvent(stage.stream, event.get(), 0),
                        "cuStreamWaitEvent"));
}

void RaiseFlag(const Stage& stage, uint64_t sequence) {
  stage.board->flag.store(sequence, std::memory_order_release);
}

}  // namespace

// ---------------------------------------------------------------- opened once

Giver GiveByIpcEvents(const Stage& stage) {
  const OwnedMemory memory = AllocateMemory(stage);
  const Event event = CreateEvent(*stage.api);
  const Handles handles = HandlesOf(*stage.api, *memory, event);
  const std::string_view text(reinterpret_cast<const char*>(&handles), sizeof handles);
  for (Channel* link : stage.links) link->Say(text);
  return {.make = [memory](uint64_t) { return *memory; },
          .give =
              [event, &stage](uint64_t sequence) {
                Record(stage, event);
                RaiseFlag(stage, sequence);
              }};
}

Taker TakeByIpcEvents(const Stage& stage) {
  const Heard heard = Must(stage.links.front()->Hear(Deadline::AfterMs(kStepMs)));
  Handles handles{};
  if (heard.text.size() != sizeof handles) throw Failure(Code::kCorrupt, "no cuIpc handles");
  std::memcpy(&handles, heard.text.data(), sizeof handles);
  const OwnedMemory memory = OpenMemory(*stage.api, handles.memory);
  const Event event = OpenEvent(*stage.api, handles.event);
  return {.take = [memory, event, &stage](uint64_t sequence, const Deadline& deadline) {
    AwaitWord(stage.board->flag, sequence, deadline);
    StreamWaits(stage, event);
    return *memory;
  }};
}

// ---------------------------------------------------------------- opened for each tensor

// The method of torch.multiprocessing below its queue. Its allocator reuses an allocation, and each
// sent tensor gets a new event. The receiver opens both, and closes them when it releases the
// tensor.
Giver GiveByIpcOpen(const Stage& stage) {
  const OwnedMemory memory = AllocateMemory(stage);
  const auto sent = std::make_shared<Event>();
  return {.make = [memory](uint64_t) { return *memory; },
          .give =
              [memory, sent, &stage](uint64_t sequence) {
                *sent = CreateEvent(*stage.api);
                Record(stage, *sent);
                const Handles handles = HandlesOf(*stage.api, *memory, *sent);
                std::memcpy(stage.board->note.data(), &handles, sizeof handles);
                RaiseFlag(stage, sequence);
              },
          .reclaim = [sent](uint64_t) { sent->reset(); }};
}

Taker TakeByIpcOpen(const Stage& stage) {
  struct Opened {
    OwnedMemory memory;
    Event event;
  };
  const auto opened = std::make_shared<Opened>();
  return {.take =
              [opened, &stage](uint64_t sequence, const Deadline& deadline) {
                AwaitWord(stage.board->flag, sequence, deadline);
                Handles handles{};
                std::memcpy(&handles, stage.board->note.data(), sizeof handles);
                opened->memory = OpenMemory(*stage.api, handles.memory);
                opened->event = OpenEvent(*stage.api, handles.event);
                StreamWaits(stage, opened->event);
                return *opened->memory;
              },
          .release = [opened](uint64_t) { *opened = {}; }};
}

}  // namespace gpushm::bench::handover
