// The minimum: the driver's calls by hand, with nothing around them.
#include <memory>
#include <utility>

#include "contract/protocol/channel.h"
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

struct Mapped {
  DeviceMemory memory;
  DeviceMapping mapping;
};

Result<Mapped> MakeMapped(const Stage& stage) {
  Result<DeviceMemory> memory = DeviceMemory::Create(*stage.api, stage.device, stage.size_bytes);
  if (!memory) return std::unexpected(memory.error());
  Result<DeviceMapping> mapping =
      DeviceMapping::Map(*stage.api, *memory, stage.size_bytes, stage.device, Access::kReadWrite);
  if (!mapping) return std::unexpected(mapping.error());
  return Mapped{std::move(*memory), std::move(*mapping)};
}

Result<DeviceMapping> MapDescriptor(const Stage& stage, int fd) {
  const Result<DeviceMemory> memory = DeviceMemory::Import(*stage.api, fd);
  if (!memory) return std::unexpected(memory.error());
  return DeviceMapping::Map(*stage.api, *memory, stage.size_bytes, stage.device, Access::kRead);
}

// Exports the memory and sends the descriptor to every consumer.
Result<void> SendOut(const Stage& stage, const DeviceMemory& memory) {
  const Result<UniqueFd> fd = memory.Export();
  if (!fd) return std::unexpected(fd.error());
  for (Channel* link : stage.links) {
    if (auto r = link->Say("memory", fd->get()); !r) return r;
  }
  return {};
}

// ---------------------------------------------------------------- mapped once

class HeldGiver : public Giver {
 public:
  HeldGiver(const Stage& stage, Mapped mapped) : stage_(stage), mapped_(std::move(mapped)) {}
  Result<CUdeviceptr> Make(uint64_t) override { return mapped_.mapping.address(); }
  Result<void> Give(uint64_t sequence) override { return WriteSignal(stage_, sequence); }

 private:
  const Stage& stage_;
  Mapped mapped_;
};

class HeldTaker : public Taker {
 public:
  HeldTaker(const Stage& stage, DeviceMapping mapping)
      : stage_(stage), mapping_(std::move(mapping)) {}
  Result<std::optional<CUdeviceptr>> Arm(uint64_t sequence) override {
    if (auto r = AwaitSignal(stage_, sequence); !r) return std::unexpected(r.error());
    return mapping_.address();
  }

 private:
  const Stage& stage_;
  DeviceMapping mapping_;
};

// ---------------------------------------------------------------- each tensor by itself

class NewGiver : public Giver {
 public:
  explicit NewGiver(const Stage& stage) : stage_(stage) {}
  Result<CUdeviceptr> Make(uint64_t) override {
    Result<Mapped> mapped = MakeMapped(stage_);
    if (!mapped) return std::unexpected(mapped.error());
    mapped_.emplace(std::move(*mapped));
    return mapped_->mapping.address();
  }
  Result<void> Give(uint64_t) override { return SendOut(stage_, mapped_->memory); }
  Result<void> Reclaim(uint64_t) override {
    mapped_.reset();
    return {};
  }

 private:
  const Stage& stage_;
  std::optional<Mapped> mapped_;
};

class NewTaker : public Taker {
 public:
  explicit NewTaker(const Stage& stage) : stage_(stage) {}
  Result<CUdeviceptr> Take(uint64_t, const Deadline& deadline) override {
    protocol::Message message;
    Result<bool> came = false;
    // Polled, like the flags of the other ways: otherwise this way alone would include a wake-up.
    const bool in_time = WaitUntil(
        [&] {
          came = protocol::TryReceive(stage_.links.front()->socket(), &message);
          return !came || *came;
        },
        deadline);
    if (!came) return std::unexpected(came.error());
    if (!in_time || message.descriptors.size() != 1) {
      return Fail(Code::kTimeout, "no descriptor arrived in time");
    }
    Result<DeviceMapping> mapping = MapDescriptor(stage_, message.descriptors.front().get());
    if (!mapping) return std::unexpected(mapping.error());
    mapping_.emplace(std::move(*mapping));
    return mapping_->address();
  }
  Result<void> Release(uint64_t) override {
    mapping_.reset();
    return {};
  }

 private:
  const Stage& stage_;
  std::optional<DeviceMapping> mapping_;
};

}  // namespace

Result<std::unique_ptr<Giver>> GiveRawHeld(const Stage& stage) {
  Result<Mapped> mapped = MakeMapped(stage);
  if (!mapped) return std::unexpected(mapped.error());
  if (auto r = SendOut(stage, mapped->memory); !r) return std::unexpected(r.error());
  return std::make_unique<HeldGiver>(stage, std::move(*mapped));
}

Result<std::unique_ptr<Taker>> TakeRawHeld(const Stage& stage) {
  const Result<Heard> heard = stage.links.front()->Hear(Deadline::AfterMs(kStepMs));
  if (!heard) return std::unexpected(heard.error());
  Result<DeviceMapping> mapping = MapDescriptor(stage, heard->descriptor.get());
  if (!mapping) return std::unexpected(mapping.error());
  return std::make_unique<HeldTaker>(stage, std::move(*mapping));
}

Result<std::unique_ptr<Giver>> GiveRawNew(const Stage& stage) {
  return std::make_unique<NewGiver>(stage);
}

Result<std::unique_ptr<Taker>> TakeRawNew(const Stage& stage) {
  return std::make_unique<NewTaker>(stage);
}

}  // namespace gpushm::bench::handover
