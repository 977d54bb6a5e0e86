// Goal: a broker that is killed at any point loses nothing that it had stated, and what is kept is
// the real memory. Method: brokers in separate processes, SIGKILL, and the simulated driver.
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"
#include "plugin/keeper/testing/keeper_fixture.h"

namespace gpushm::plugin::testing {
namespace {

#ifdef GPUSHM_SANITIZED
constexpr int kRounds = 15;
#else
constexpr int kRounds = 100;
#endif

// A counter that parent and child share.
class SharedCounter {
 public:
  SharedCounter()
      : page_(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        value_(new(page_) std::atomic<uint32_t>(0)) {}
  ~SharedCounter() { munmap(page_, 4096); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  std::atomic<uint32_t>& operator*() const { return *value_; }

 private:
  void* page_;
  std::atomic<uint32_t>* value_;
};

struct Step {
  Body body;
  int descriptor = -1;
};

// The life of a pod: valid statements, and what must be kept after some of them.
class Story {
 public:
  Story(uint64_t seed, size_t steps) : random_(seed) {
    pidfds_.push_back(PidfdOf(getpid()));
    pidfds_.push_back(PidfdOf(getppid()));
    while (steps_.size() < steps) {
      Step step{.body = RandomBody(random_)};
      if (!Fit(&step.body)) continue;
      if (std::holds_alternative<protocol::LinkClient>(step.body)) {
        step.descriptor = pidfds_[Pick(random_, 0, pidfds_.size() - 1)].get();
      } else if (TakesDescriptor(step.body)) {
        memory_.push_back(Memfd());
        step.descriptor = memory_.back().get();
      }
      if (!model_.Apply(step.body, TagOf(step.descriptor))) continue;
      steps_.push_back(step);
    }
  }
  const std::vector<Step>& steps() const { return steps_; }
  std::vector<std::string> KeptAfter(size_t steps) const {
    Model model;
    for (size_t i = 0; i < steps; ++i) model.Apply(steps_[i].body, TagOf(steps_[i].descriptor));
    return model.Dump();
  }
  Random& random() { return random_; }

 private:
  // As a broker does it: a number is used once, and a buffer's generations exist.
  bool Fit(Body* body) {
    if (auto* generation = std::get_if<protocol::LinkGeneration>(body)) {
      const bool known = model_.generations().contains(generation->generation);
      *generation = known ? model_.generations().at(generation->generation).first
                          : RandomGeneration(random_, ++last_generation_);
      if (known) generation->publisher_client = Pick(random_, 0, 6);
    } else if (auto* buffer = std::get_if<protocol::LinkBuffer>(body)) {
      buffer->current = OneOf([&](const auto& stated) { return stated.name == buffer->name; });
      buffer->pending = 0;
    } else if (auto* lease = std::get_if<protocol::LinkLease>(body)) {
      lease->generation = OneOf([](const auto&) { return true; });
      return lease->generation != 0;
    } else if (auto* drop = std::get_if<protocol::LinkDrop>(body); drop && drop->what == 3) {
      drop->id = OneOf([](const auto&) { return true; });
      return drop->id != 0;
    }
    return true;
  }
  // The number of an existing generation; 0: there is none.
  uint64_t OneOf(const std::function<bool(const protocol::LinkGeneration&)>& which) {
    std::vector<uint64_t> numbers = {};
    for (const auto& [number, generation] : model_.generations()) {
      if (which(generation.first)) numbers.push_back(number);
    }
    return numbers.empty() ? 0 : numbers[Pick(random_, 0, numbers.size() - 1)];
  }

  Random random_;
  uint64_t last_generation_ = 12;
  Model model_;
  std::vector<UniqueFd> pidfds_;
  std::vector<UniqueFd> memory_;
  std::vector<Step> steps_;
};

// Gets what is kept and states it again, as a restarted broker does.
bool TakeOver(FakeBroker* broker, uint64_t epoch) {
  if (!broker->Greet(true, epoch)) return false;
  std::vector<protocol::Message> messages;
  for (;;) {
    Result<protocol::Message> message = broker->Next();
    if (!message) return false;
    const auto header = protocol::ParseLinkHeader(message->span());
    if (!header) return false;
    if (header->kind == static_cast<uint16_t>(protocol::LinkKind::kEnd)) break;
    messages.push_back(std::move(*message));
  }
  if (!broker->Registry(epoch)) return false;
  for (const protocol::Message& message : messages) {
    const int fd = message.descriptors.empty() ? -1 : message.descriptors[0].get();
    if (!protocol::Send(broker->socket(), message.span(), {&fd, fd >= 0 ? 1u : 0u},
                        Deadline::AfterMs(kSoonMs))) {
      return false;
    }
  }
  return broker->End().has_value();
}

// Continues where the previous brokers were stopped; ends itself after `until` statements.
void LiveOn(const Story& story, const std::string& socket, uint64_t epoch, size_t from,
            size_t until, std::atomic<uint32_t>* said) {
  FakeBroker broker(socket);
  if (!TakeOver(&broker, epoch)) return;
  for (size_t i = from; i < until; ++i) {
    const Step& step = story.steps()[i];
    if (!broker.Say(step.body, step.descriptor)) return;
    said->store(static_cast<uint32_t>(i + 1), std::memory_order_release);
  }
}

// Three brokers, one after the other, each of which kills itself after a statement of its choice.
TEST_F(KeeperTest, NothingIsLostWhereverABrokerIsKilled) {
  for (int round = 0; round < kRounds; ++round) {
    Story story(static_cast<uint64_t>(round), 60);
    const std::string name = Concat("m", round);
    Open(name);
    const SharedCounter said;
    size_t at = 0;
    for (uint64_t life = 1; life <= 3; ++life) {
      const size_t until = Pick(story.random(), at, story.steps().size());
      Process broker([&] { LiveOn(story, folder_.Socket(name), life, at, until, &*said); });
      ASSERT_TRUE(broker.WaitForEnd());
      ASSERT_EQ((*said).load(std::memory_order_acquire), until);
      at = until;
    }
    FakeBroker last(folder_.Socket(name));
    ASSERT_TRUE(last.Greet(true, 9));
    const auto kept = last.TakeKept();
    ASSERT_TRUE(kept);
    ASSERT_EQ(*kept, story.KeptAfter(at)) << "round " << round << ", after " << at;
    keeper_->Close(name);
  }
}

// The same with SIGKILL from outside, at any instruction. All completed statements are kept, and
// possibly the one in progress.
TEST_F(KeeperTest, NothingIsLostWheneverABrokerIsKilled) {
  int midway = 0;
  for (int round = 0; round < kRounds; ++round) {
    Story story(1000 + static_cast<uint64_t>(round), 600);
    const std::string name = Concat("m", round);
    Open(name);
    const SharedCounter said;
    for (uint64_t life = 1; life <= 3; ++life) {
      const size_t from = *said;
      // A broker that was killed during a statement may have made it. Its successor repeats it,
      // which must have no effect.
      Process broker([&] {
        LiveOn(story, folder_.Socket(name), life, from, story.steps().size(), &*said);
        WaitToBeKilled();
      });
      const auto goal = static_cast<uint32_t>(Pick(story.random(), from, from + 200));
      const Deadline deadline = Deadline::AfterMs(kSoonMs);
      while (*said < goal && *said < story.steps().size() && !deadline.Passed()) {
      }
      broker.Kill();
    }
    FakeBroker last(folder_.Socket(name));
    ASSERT_TRUE(last.Greet(true, 9));
    const auto kept = last.TakeKept();
    ASSERT_TRUE(kept);
    const size_t at = *said;
    midway += at < story.steps().size() ? 1 : 0;
    const bool one_more = at < story.steps().size() && *kept == story.KeptAfter(at + 1);
    ASSERT_TRUE(*kept == story.KeptAfter(at) || one_more) << "round " << round << ", after " << at;
    keeper_->Close(name);
  }
  EXPECT_GT(midway, 0) << "no broker was killed before its end, so this test shows nothing";
  RecordProperty("killed_midway", midway);
}

// ---- real memory, of the simulated driver

uint64_t UsedBytes() {
  const auto api = NvmlApi::Load(DriverFolderFromEnvironment());
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory{};
  if (!api || (*api)->nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS ||
      (*api)->nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) {
    ADD_FAILURE() << "NVML does not answer";
    return 0;
  }
  return memory.used;
}

// In a child: allocates on the card and states it; afterwards only the keeper has it.
void AllocateAndState(const std::string& socket) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  if (!api || !(*api)->Init()) return;
  const auto memory = DeviceMemory::Create(**api, 0, 64 * kMiB);
  const auto exported = memory ? memory->Export() : std::unexpected(memory.error());
  if (!exported) return;
  FakeBroker broker(socket);
  if (!broker.Greet(true)) return;
  (void)broker.Say(BufferOf("weights", 7));
  (void)broker.Say(GenerationOf("weights", 7, 64 * kMiB), exported->get());
}

TEST_F(KeeperTest, MemoryStaysOnTheCardUntilItIsDropped) {
  const char* const state = std::getenv("GPUSHM_SIM_DIR");
  ASSERT_NE(state, nullptr) << "ctest must set it";
  std::filesystem::create_directories(state);
  StartKeeper({.memory = MemoryKind::Of(state)});
  Open("m0000");
  const uint64_t before = UsedBytes();
  Process broker([&] { AllocateAndState(folder_.Socket("m0000")); });
  ASSERT_TRUE(broker.WaitForEnd());
  ASSERT_TRUE(events_.Wait("m0000", false));
  EXPECT_EQ(Look("m0000").kept.pooled_bytes, 64 * kMiB);
  EXPECT_EQ(UsedBytes(), before + 64 * kMiB) << "its process has ended";
  // A successor can use it.
  const SharedCounter imported;
  Process successor([&] {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    FakeBroker next(folder_.Socket("m0000"));
    if (!api || !(*api)->Init() || !next.Greet(true, 2)) return;
    (void)next.Next();
    const auto generation = next.Next();
    if (!generation || generation->descriptors.size() != 1) return;
    if (DeviceMemory::Import(**api, generation->descriptors[0].get())) *imported = 1;
  });
  ASSERT_TRUE(successor.WaitForEnd());
  EXPECT_EQ(*imported, 1u);
  ASSERT_TRUE(events_.Wait("m0000", false, 2));
  EXPECT_EQ(UsedBytes(), before + 64 * kMiB);
  keeper_->Drop({"m0000"});
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == before; }));
}

}  // namespace
}  // namespace gpushm::plugin::testing
