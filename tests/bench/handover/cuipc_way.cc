// CUDA's own means: cuIpc memory handles and interprocess events. The host flag says that the event
// was recorded, because an imported event that was not yet recorded counts as done.
#include <cstring>
#include <memory>
#include <utility>

#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

struct Handles {
  CUipcMemHandle memory;
  CUipcEventHandle event;
};
static_assert(sizeof(Handles) <= kNoteBytes);

// An event of this process, or one opened from another process; destroyed at the end.
class Event {
 public:
  static Result<Event> Create(const CudaApi& api) {
    CUevent event = nullptr;
    if (auto r =
            api.Check(api.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                      "cuEventCreate");
        !r) {
      return std::unexpected(r.error());
    }
    return Event(api, event);
  }
  static Result<Event> Open(const CudaApi& api, const CUipcEventHandle& handle) {
    CUevent event = nullptr;
    if (auto r = api.Check(api.cuIpcOpenEventHandle(&event, handle), "cuIpcOpenEventHandle"); !r) {
      return std::unexpected(r.error());
    }
    return Event(api, event);
  }
  CUevent get() const { return event_; }

  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) api_->cuEventDestroy(event_);
  }

 private:
  Event(const CudaApi& api, CUevent event) : api_(&api), event_(event) {}
  const CudaApi* api_;
  CUevent event_;
};

// Another process's memory; closed at the end.
class OpenedMemory {
 public:
  static Result<OpenedMemory> Open(const CudaApi& api, const CUipcMemHandle& handle) {
    CUdeviceptr address = 0;
    if (auto r =
            api.Check(api.cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                      "cuIpcOpenMemHandle");
        !r) {
      return std::unexpected(r.error());
    }
    return OpenedMemory(api, address);
  }
  CUdeviceptr address() const { return address_; }

  OpenedMemory(OpenedMemory&& other) noexcept
      : api_(other.api_), address_(std::exchange(other.address_, 0)) {}
  OpenedMemory& operator=(OpenedMemory&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(address_, other.address_);
    return *this;
  }
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  ~OpenedMemory() {
    if (address_ != 0) api_->cuIpcCloseMemHandle(address_);
  }

 private:
  OpenedMemory(const CudaApi& api, CUdeviceptr address) : api_(&api), address_(address) {}
  const CudaApi* api_;
  CUdeviceptr address_;
};

Result<Handles> HandlesOf(const CudaApi& api, CUdeviceptr address, CUevent event) {
  Handles handles{};
  if (auto r = api.Check(api.cuIpcGetMemHandle(&handles.memory, address), "cuIpcGetMemHandle");
      !r) {
    return std::unexpected(r.error());
  }
  if (auto r = api.Check(api.cuIpcGetEventHandle(&handles.event, event), "cuIpcGetEventHandle");
      !r) {
    return std::unexpected(r.error());
  }
  return handles;
}

Result<void> Record(const Stage& stage, const Event& event) {
  return stage.api->Check(stage.api->cuEventRecord(event.get(), stage.stream), "cuEventRecord");
}

Result<void> StreamWaits(const Stage& stage, const Event& event) {
  return stage.api->Check(stage.api->cuStreamWaitEvent(stage.stream, event.get(), 0),
                          "cuStreamWaitEvent");
}

void RaiseFlag(const Stage& stage, uint64_t sequence) {
  stage.board->flag.store(sequence, std::memory_order_release);
}

// ---------------------------------------------------------------- opened once

class EventsGiver : public Giver {
 public:
  EventsGiver(const Stage& stage, PlainMemory memory, Event event)
      : stage_(stage), memory_(std::move(memory)), event_(std::move(event)) {}
  Result<CUdeviceptr> Make(uint64_t) override { return memory_.address(); }
  Result<void> Give(uint64_t sequence) override {
    if (auto r = Record(stage_, event_); !r) return r;
    RaiseFlag(stage_, sequence);
    return {};
  }

 private:
  const Stage& stage_;
  PlainMemory memory_;
  Event event_;
};

class EventsTaker : public Taker {
 public:
  EventsTaker(const Stage& stage, OpenedMemory memory, Event event)
      : stage_(stage), memory_(std::move(memory)), event_(std::move(event)) {}
  Result<CUdeviceptr> Take(uint64_t sequence, const Deadline& deadline) override {
    if (auto r = AwaitWord(stage_.board->flag, sequence, deadline); !r) {
      return std::unexpected(r.error());
    }
    if (auto r = StreamWaits(stage_, event_); !r) return std::unexpected(r.error());
    return memory_.address();
  }

 private:
  const Stage& stage_;
  OpenedMemory memory_;
  Event event_;
};

// ---------------------------------------------------------------- opened for each tensor

// The method of torch.multiprocessing below its queue. Its allocator reuses an allocation, and each
// sent tensor gets a new event. The receiver opens both, and closes them when it releases the
// tensor.
class OpenGiver : public Giver {
 public:
  OpenGiver(const Stage& stage, PlainMemory memory) : stage_(stage), memory_(std::move(memory)) {}
  Result<CUdeviceptr> Make(uint64_t) override { return memory_.address(); }
  Result<void> Give(uint64_t sequence) override {
    Result<Event> event = Event::Create(*stage_.api);
    if (!event) return std::unexpected(event.error());
    if (auto r = Record(stage_, *event); !r) return r;
    const Result<Handles> handles = HandlesOf(*stage_.api, memory_.address(), event->get());
    if (!handles) return std::unexpected(handles.error());
    std::memcpy(stage_.board->note.data(), &*handles, sizeof *handles);
    RaiseFlag(stage_, sequence);
    event_.emplace(std::move(*event));
    return {};
  }
  Result<void> Reclaim(uint64_t) override {
    event_.reset();
    return {};
  }

 private:
  const Stage& stage_;
  PlainMemory memory_;
  std::optional<Event> event_;
};

class OpenTaker : public Taker {
 public:
  explicit OpenTaker(const Stage& stage) : stage_(stage) {}
  Result<CUdeviceptr> Take(uint64_t sequence, const Deadline& deadline) override {
    if (auto r = AwaitWord(stage_.board->flag, sequence, deadline); !r) {
      return std::unexpected(r.error());
    }
    Handles handles{};
    std::memcpy(&handles, stage_.board->note.data(), sizeof handles);
    Result<OpenedMemory> memory = OpenedMemory::Open(*stage_.api, handles.memory);
    if (!memory) return std::unexpected(memory.error());
    Result<Event> event = Event::Open(*stage_.api, handles.event);
    if (!event) return std::unexpected(event.error());
    if (auto r = StreamWaits(stage_, *event); !r) return std::unexpected(r.error());
    memory_.emplace(std::move(*memory));
    event_.emplace(std::move(*event));
    return memory_->address();
  }
  Result<void> Release(uint64_t) override {
    event_.reset();
    memory_.reset();
    return {};
  }

 private:
  const Stage& stage_;
  std::optional<OpenedMemory> memory_;
  std::optional<Event> event_;
};

}  // namespace

Result<std::unique_ptr<Giver>> GiveByIpcEvents(const Stage& stage) {
  Result<PlainMemory> memory = PlainMemory::Allocate(*stage.api, stage.size_bytes);
  if (!memory) return std::unexpected(memory.error());
  Result<Event> event = Event::Create(*stage.api);
  if (!event) return std::unexpected(event.error());
  const Result<Handles> handles = HandlesOf(*stage.api, memory->address(), event->get());
  if (!handles) return std::unexpected(handles.error());
  const std::string_view text(reinterpret_cast<const char*>(&*handles), sizeof *handles);
  for (Channel* link : stage.links) {
    if (auto r = link->Say(text); !r) return std::unexpected(r.error());
  }
  return std::make_unique<EventsGiver>(stage, std::move(*memory), std::move(*event));
}

Result<std::unique_ptr<Taker>> TakeByIpcEvents(const Stage& stage) {
  const Result<Heard> heard = stage.links.front()->Hear(Deadline::AfterMs(kStepMs));
  if (!heard) return std::unexpected(heard.error());
  Handles handles{};
  if (heard->text.size() != sizeof handles) return Fail(Code::kCorrupt, "no cuIpc handles");
  std::memcpy(&handles, heard->text.data(), sizeof handles);
  Result<OpenedMemory> memory = OpenedMemory::Open(*stage.api, handles.memory);
  if (!memory) return std::unexpected(memory.error());
  Result<Event> event = Event::Open(*stage.api, handles.event);
  if (!event) return std::unexpected(event.error());
  return std::make_unique<EventsTaker>(stage, std::move(*memory), std::move(*event));
}

Result<std::unique_ptr<Giver>> GiveByIpcOpen(const Stage& stage) {
  Result<PlainMemory> memory = PlainMemory::Allocate(*stage.api, stage.size_bytes);
  if (!memory) return std::unexpected(memory.error());
  return std::make_unique<OpenGiver>(stage, std::move(*memory));
}

Result<std::unique_ptr<Taker>> TakeByIpcOpen(const Stage& stage) {
  return std::make_unique<OpenTaker>(stage);
}

}  // namespace gpushm::bench::handover
