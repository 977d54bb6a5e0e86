// Goal: the C++ owners of signals, barriers and rings end what they own, and only when that is
// safe. Method: one process with a real broker and streams of the driver.
#include "gpushm/sync.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/driver/cuda_api.h"
#include "runtime/driver/device.h"
#include "tests/integration/processes.h"

namespace gpushm::integration {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kFrameBytes = 65536;

// The driver of a process knows one simulated machine: all tests share it, and a broker.
class SyncHppTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (std::filesystem::temp_directory_path() / "gpushm-hpp-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    setenv("GPUSHM_SIM_DIR", (folder_ + "/sim").c_str(), 1);
    std::filesystem::create_directory(folder_ + "/run");
    broker_.emplace(folder_ + "/run", "64Mi");
  }
  static void TearDownTestSuite() {
    broker_.reset();
    std::filesystem::remove_all(folder_);
  }
  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    api_ = *api;
    auto context = PrimaryContext::Retain(*api_, 0);
    ASSERT_TRUE(context && context->MakeCurrent());
    context_.emplace(std::move(*context));
    ASSERT_EQ(api_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    auto client = Client::Open({.folder = folder_ + "/run"});
    ASSERT_TRUE(client) << client.error().text();
    client_.emplace(std::move(*client));
  }
  void TearDown() override {
    if (stream_ != nullptr) api_->cuStreamDestroy(stream_);
  }
  Ring Writer(gpushm_ring_policy policy) {
    auto ring =
        Ring::Write(*client_, "video", {.policy = policy, .frames = 2, .frame_bytes = kFrameBytes});
    EXPECT_TRUE(ring) << ring.error().text();
    return ring ? std::move(*ring) : Ring();
  }
  // One frame, filled by the stream.
  void Put(Ring& ring, unsigned char word) {
    auto frame = ring.BeginWrite();
    ASSERT_TRUE(frame) << frame.error().text();
    api_->cuMemsetD32Async(frame->address(), word, kFrameBytes / 4, stream_);
    frame->set_bytes(kFrameBytes);
    frame->metadata()[0] = word;
    ASSERT_TRUE(frame->End(stream_));
    EXPECT_FALSE(frame->open());
  }

  static inline std::string folder_;
  static inline std::optional<Broker> broker_;
  const CudaApi* api_ = nullptr;
  std::optional<PrimaryContext> context_;
  CUstream stream_ = nullptr;
  std::optional<Client> client_;
};

TEST_F(SyncHppTest, ASignalEndsWithItsOwner) {
  auto waiter = Signal::Open(*client_, "ready", {.timeout = 0s});
  ASSERT_FALSE(waiter);
  EXPECT_EQ(waiter.error().status(), GPUSHM_NOT_FOUND);
  {
    auto writer = Signal::Open(*client_, "ready", {.role = GPUSHM_WRITER});
    ASSERT_TRUE(writer) << writer.error().text();
    waiter = Signal::Open(*client_, "ready");
    ASSERT_TRUE(waiter) << waiter.error().text();
    EXPECT_EQ(waiter->Check(1).error().status(), GPUSHM_BUSY);
    ASSERT_TRUE(writer->Record(stream_, 1));
    EXPECT_TRUE(waiter->Wait(1));
    ASSERT_TRUE(writer->Set(2));
    EXPECT_EQ(waiter->Read()->value, 2);
    EXPECT_TRUE(writer->DeviceAddress());
  }
  EXPECT_TRUE(waiter->Check(2));
  EXPECT_EQ(waiter->Wait(3).error().status(), GPUSHM_PEER_DIED);
  EXPECT_TRUE(waiter->Close());
  EXPECT_FALSE(*waiter);
}

TEST_F(SyncHppTest, ASignalInDeviceMemoryIsMovedByStreams) {
  auto writer =
      Signal::Open(*client_, "fast", {.role = GPUSHM_WRITER, .memory = GPUSHM_DEVICE_MEMORY});
  ASSERT_TRUE(writer) << writer.error().text();
  auto waiter = Signal::Open(*client_, "fast");
  ASSERT_TRUE(waiter) << waiter.error().text();
  EXPECT_EQ(waiter->Read()->memory, GPUSHM_DEVICE_MEMORY);
  EXPECT_EQ(writer->Set(1).error().status(), GPUSHM_UNSUPPORTED);
  ASSERT_TRUE(writer->Record(stream_, 1));
  EXPECT_TRUE(waiter->Wait(1));
  ASSERT_EQ(api_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  uint64_t word = 0;
  api_->cuMemcpyDtoH(&word, *waiter->DeviceAddress(), sizeof word);
  EXPECT_EQ(word, 1U) << "kernels find it there, too";
}

TEST_F(SyncHppTest, ABarrierIsPassedByTwo) {
  auto first = Barrier::Open(*client_, "step", 2);
  ASSERT_TRUE(first) << first.error().text();
  {
    auto second = Barrier::Open(*client_, "step", 2);
    ASSERT_TRUE(second) << second.error().text();
    EXPECT_EQ(first->Wait(0s).error().status(), GPUSHM_TIMEOUT);
    EXPECT_TRUE(second->Wait());
    EXPECT_TRUE(first->Wait());
    EXPECT_TRUE(first->Check());
    EXPECT_EQ(first->GetInfo()->point, 1);
  }
  EXPECT_EQ(first->Wait().error().status(), GPUSHM_PEER_DIED);
}

// Goal: a look tells what each kind is and where, and is no taking part: the barrier is not joined.
TEST_F(SyncHppTest, ALookTakesNoPart) {
  EXPECT_EQ(LookAt(*client_, "none").error().status(), GPUSHM_NOT_FOUND);
  auto signal = Signal::Open(*client_, "looked", {.role = GPUSHM_WRITER});
  ASSERT_TRUE(signal && signal->Set(5));
  const auto live = LookAt(*client_, "looked");
  ASSERT_TRUE(live) << live.error().text();
  EXPECT_EQ(live->kind, GPUSHM_SYNC_SIGNAL);
  EXPECT_EQ(live->value, 5);
  EXPECT_EQ(live->state, GPUSHM_SIGNAL_LIVE);
  EXPECT_NE(live->writer_lease, 0);
  ASSERT_TRUE(signal->Close());
  EXPECT_EQ(LookAt(*client_, "looked")->state, GPUSHM_SIGNAL_LEFT);
  EXPECT_EQ(LookAt(*client_, "looked")->value, 5);

  auto step = Barrier::Open(*client_, "looked-step", 2);
  ASSERT_TRUE(step);
  EXPECT_EQ(LookAt(*client_, "looked-step")->kind, GPUSHM_SYNC_BARRIER);
  EXPECT_EQ(LookAt(*client_, "looked-step")->joined, 1);
  EXPECT_EQ(LookAt(*client_, "looked-step")->places, 2);
  EXPECT_EQ(LookAt(*client_, "looked-step")->state, GPUSHM_SIGNAL_LIVE);

  Ring writer = Writer(GPUSHM_OVERWRITE_OLDEST);
  Put(writer, 1);
  ASSERT_EQ(api_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(LookAt(*client_, "video").error().status(), GPUSHM_INVALID_ARGUMENT) << "its buffer";
  const auto ring = LookAt(*client_, "video-ring");
  ASSERT_TRUE(ring) << ring.error().text();
  EXPECT_EQ(ring->kind, GPUSHM_SYNC_RING);
  EXPECT_EQ(ring->value, 1);
  EXPECT_EQ(ring->joined, 1);
}

TEST_F(SyncHppTest, AFrameGoesFromGuardToGuard) {
  Ring writer = Writer(GPUSHM_BACK_PRESSURE);
  auto reader = Ring::Read(*client_, "video");
  ASSERT_TRUE(reader) << reader.error().text();
  for (unsigned char i = 1; i <= 5; ++i) {
    Put(writer, i);
    auto frame = reader->BeginRead(stream_);
    ASSERT_TRUE(frame) << frame.error().text();
    ReadGuard moved = std::move(*frame);
    EXPECT_EQ(moved.metadata()[0], i);
    EXPECT_EQ(moved.size_bytes(), kFrameBytes);
    uint32_t word = 0;
    api_->cuMemcpyDtoH(&word, moved.address(), sizeof word);
    EXPECT_EQ(word, i);
    EXPECT_TRUE(moved.End(stream_));
  }
  EXPECT_EQ(reader->GetInfo()->taken, 5);
  api_->cuStreamSynchronize(stream_);  // An owner that is busy stays open.
}

// The frame that one thread waits for may need the end of one that another thread reads.
TEST_F(SyncHppTest, AReadEndsWhileAnotherThreadWaitsForTheNextFrame) {
  Ring writer = Writer(GPUSHM_BACK_PRESSURE);
  auto reader = Ring::Read(*client_, "video");
  ASSERT_TRUE(reader) << reader.error().text();
  Put(writer, 1);
  Put(writer, 2);
  auto first = reader->BeginRead(stream_);
  auto second = reader->BeginRead(stream_);
  ASSERT_TRUE(first && second);
  std::atomic<bool> waits = false;
  unsigned char got = 0;
  std::thread other([&] {
    EXPECT_TRUE(context_->MakeCurrent());
    waits = true;
    auto third = reader->BeginRead(stream_, 10s);
    if (!third) return;
    got = third->metadata()[0];
    EXPECT_TRUE(third->End(stream_));
  });
  while (!waits) std::this_thread::yield();
  EXPECT_TRUE(first->End(stream_));
  EXPECT_TRUE(second->End(stream_));
  Put(writer, 3);
  other.join();
  EXPECT_EQ(got, 3);
  api_->cuStreamSynchronize(stream_);
}

// Nor is an item of a queue taken for done: the wait for it was in vain, not the work on it.
TEST_F(SyncHppTest, AReadThatTimesOutLosesNoFrame) {
  for (const gpushm_ring_policy policy : {GPUSHM_BACK_PRESSURE, GPUSHM_QUEUE}) {
    Ring writer = Writer(policy);
    auto reader = Ring::Read(*client_, "video");
    ASSERT_TRUE(reader) << reader.error().text();
    auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_WRITER});
    ASSERT_TRUE(gate);
    const auto address = gate->DeviceAddress();
    ASSERT_TRUE(address);
    ASSERT_EQ(api_->cuStreamWaitValue64(stream_, *address, 1, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
    Put(writer, 1);  // Announced, and complete when the gate opens.
    Put(writer, 2);
    EXPECT_EQ(reader->BeginRead(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
    EXPECT_EQ(reader->BeginRead(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
    ASSERT_TRUE(gate->Set(1));
    for (uint64_t i = 1; i <= 2; ++i) {
      auto frame = reader->BeginRead(stream_);
      ASSERT_TRUE(frame) << frame.error().text();
      EXPECT_EQ(frame->frame().number, i);
      EXPECT_EQ(frame->frame().lost, 0);
      EXPECT_EQ(frame->frame().delivery, 1);
      EXPECT_TRUE(frame->End(stream_));
    }
    api_->cuStreamSynchronize(stream_);  // An owner that is busy stays open.
  }
}

TEST_F(SyncHppTest, AReadOfTheNewestPassesOverWhatTimedOut) {
  Ring writer = Writer(GPUSHM_BACK_PRESSURE);
  auto reader = Ring::Read(*client_, "video");
  ASSERT_TRUE(reader) << reader.error().text();
  auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_WRITER});
  ASSERT_TRUE(gate);
  const auto address = gate->DeviceAddress();
  ASSERT_TRUE(address);
  ASSERT_EQ(api_->cuStreamWaitValue64(stream_, *address, 1, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  Put(writer, 1);
  EXPECT_EQ(reader->BeginReadNewest(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
  EXPECT_EQ(reader->BeginReadNewest(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
  Put(writer, 2);
  ASSERT_TRUE(gate->Set(1));
  auto frame = reader->BeginReadNewest(stream_);
  ASSERT_TRUE(frame) << frame.error().text();
  EXPECT_EQ(frame->frame().number, 2);
  EXPECT_EQ(frame->frame().lost, 1);
  EXPECT_TRUE(frame->End(stream_));
  const auto info = reader->GetInfo();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->taken, 1);
  EXPECT_EQ(info->lost, 1);
  api_->cuStreamSynchronize(stream_);  // An owner that is busy stays open.
}

TEST_F(SyncHppTest, AWorkerThatLeavesAfterATimeoutLeavesTheItemToOthers) {
  Ring writer = Writer(GPUSHM_QUEUE);
  auto leaves = Ring::Read(*client_, "video");
  ASSERT_TRUE(leaves) << leaves.error().text();
  auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_WRITER});
  ASSERT_TRUE(gate);
  const auto address = gate->DeviceAddress();
  ASSERT_TRUE(address);
  ASSERT_EQ(api_->cuStreamWaitValue64(stream_, *address, 1, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  Put(writer, 1);
  EXPECT_EQ(leaves->BeginRead(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
  EXPECT_TRUE(leaves->Close());
  ASSERT_TRUE(gate->Set(1));
  auto stays = Ring::Read(*client_, "video");
  ASSERT_TRUE(stays) << stays.error().text();
  auto frame = stays->BeginRead(stream_);
  ASSERT_TRUE(frame) << frame.error().text();
  EXPECT_EQ(frame->frame().delivery, 2);
  EXPECT_TRUE(frame->End(stream_));
  api_->cuStreamSynchronize(stream_);  // An owner that is busy stays open.
}

TEST_F(SyncHppTest, AWriteThatIsNotEndedIsGivenUp) {
  Ring writer = Writer(GPUSHM_BACK_PRESSURE);
  auto reader = Ring::Read(*client_, "video");
  ASSERT_TRUE(reader) << reader.error().text();
  {
    auto frame = writer.BeginWrite();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->frame().number, 1);
    frame->set_bytes(kFrameBytes + 1);
    EXPECT_EQ(frame->End(stream_).error().status(), GPUSHM_INVALID_ARGUMENT);
    EXPECT_TRUE(frame->open());
  }
  EXPECT_EQ(reader->BeginRead(stream_, 0s).error().status(), GPUSHM_TIMEOUT);
  Put(writer, 7);
  auto frame = reader->BeginRead(stream_);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->frame().number, 1) << "its number is the next one's";
  EXPECT_TRUE(frame->End(stream_));
  api_->cuStreamSynchronize(stream_);  // An owner that is busy stays open.
}

// A frame of a guard that just goes is the writer's again when the stream has read it, not before.
TEST_F(SyncHppTest, AReadThatIsNotEndedEndsWithItsStream) {
  Ring writer = Writer(GPUSHM_BACK_PRESSURE);
  auto reader = Ring::Read(*client_, "video");
  ASSERT_TRUE(reader) << reader.error().text();
  Put(writer, 1);
  Put(writer, 2);
  CUstream held = nullptr;
  ASSERT_EQ(api_->cuStreamCreate(&held, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_WRITER});
  ASSERT_TRUE(gate);
  {
    auto frame = reader->BeginRead(held);
    ASSERT_TRUE(frame);
    const auto address = gate->DeviceAddress();
    ASSERT_TRUE(address);
    // Work that takes as long as the test likes.
    ASSERT_EQ(api_->cuStreamWaitValue64(held, *address, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  }
  EXPECT_EQ(writer.BeginWrite(50ms).error().status(), GPUSHM_TIMEOUT) << "it is being read";
  EXPECT_EQ(reader->Close().error().status(), GPUSHM_BUSY);
  ASSERT_TRUE(gate->Set(1));
  EXPECT_TRUE(writer.BeginWrite());
  EXPECT_EQ(api_->cuStreamSynchronize(held), CUDA_SUCCESS);
  EXPECT_TRUE(reader->Close());
  EXPECT_EQ(api_->cuStreamDestroy(held), CUDA_SUCCESS);
  api_->cuStreamSynchronize(stream_);  // An owner that is busy stays open.
}

}  // namespace
}  // namespace gpushm::integration
