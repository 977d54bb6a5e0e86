// Goal: the copy that an offer makes contains what the producer's work wrote, on any stream.
// Method: work on a stream that takes a while and then writes; afterwards the buffer's bytes are
// checked.
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "contract/sync/page.h"
#include "platform/driver/stream_waits.h"
#include "runtime/client/ipc_mapping.h"
#include "runtime/client/testing/client_fixture.h"

// As if libgpushm-cudaipc.so were loaded into a test, but not into what it starts of this program.
extern "C" pid_t gpushm_cudaipc_pid() {
  const bool testing = ::testing::UnitTest::GetInstance()->current_test_info() != nullptr;
  return getpid() + (testing ? 1 : 0);
}

namespace gpushm::client {
namespace {

constexpr uint64_t kBytes = uint64_t{2} << 20;
constexpr uint32_t kWord = 0x600DF00D;

class OfferTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    context_.emplace(MakeContext());
    broker_->Add("some", 1, kBytes, api_);  // Gives the broker the driver.
    Open();
    // Imported memory has no descriptor to share.
    const auto made = DeviceMemory::Create(*api_, 0, 2 * kBytes);
    ASSERT_TRUE(made) << made.error().ToString();
    const auto descriptor = made->Export();
    ASSERT_TRUE(descriptor) << descriptor.error().ToString();
    const auto memory = DeviceMemory::Import(*api_, descriptor->get());
    ASSERT_TRUE(memory) << memory.error().ToString();
    auto mapping = DeviceMapping::Map(*api_, *memory, 2 * kBytes, 0, Access::kReadWrite);
    ASSERT_TRUE(mapping) << mapping.error().ToString();
    memory_.emplace(std::move(*mapping));
  }
  void TearDown() override {
    gate_ = true;
    api_->cuCtxSynchronize();
    for (const CUstream stream : streams_) api_->cuStreamDestroy(stream);
  }

  CUstream MakeStream(unsigned flags) {
    CUstream stream = nullptr;
    EXPECT_EQ(api_->cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    streams_.push_back(stream);
    return stream;
  }
  CUdeviceptr address() const { return memory_->address() + kBytes; }
  // Simulates a kernel that takes 50 ms and then writes.
  void Produce(CUstream stream) {
    const auto work = [](void*) {
      usleep(50'000);  // sleep: stands in for a kernel's time.
    };
    ASSERT_EQ(api_->cuLaunchHostFunc(stream, work, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(api_->cuMemsetD32Async(address(), kWord, kBytes / 4, stream), CUDA_SUCCESS);
  }
  // Simulates a kernel that ends when the test allows it.
  void ProduceLater(CUstream stream) {
    const auto work = [](void* gate) {
      while (!*static_cast<std::atomic<bool>*>(gate)) sched_yield();
    };
    ASSERT_EQ(api_->cuLaunchHostFunc(stream, work, &gate_), CUDA_SUCCESS);
  }
  // A call that hangs fails the test; `let_go` then releases it.
  template <typename Call, typename LetGo>
  static auto WithPatience(Call call, LetGo let_go) {
    std::binary_semaphore done(0);
    std::thread watch([&] {
      if (done.try_acquire_for(std::chrono::milliseconds(kPatienceMs))) return;
      ADD_FAILURE() << "the call hung";
      let_go();
    });
    const auto result = call();
    done.release();
    watch.join();
    return result;
  }
  gpushm_status Offer(CUstream stream, int64_t timeout_ms = kPatienceMs) {
    auto options = Sized<gpushm_offer_options>();
    options.allow_copy = 1;
    options.timeout_ms = timeout_ms;
    options.stream = stream;
    return gpushm_offer(client_.get(), "mine", address(), kBytes, &options, nullptr);
  }
  // The last word of the buffer, which a copy that came too early would also lack.
  uint32_t Copied() {
    gpushm_attachment* const copy = Attach("mine");
    EXPECT_NE(copy, nullptr) << gpushm_last_error()->text;
    uint32_t word = 0;
    EXPECT_EQ(api_->cuMemcpyDtoH(&word, gpushm_attachment_address(copy) + kBytes - 4, sizeof word),
              CUDA_SUCCESS);
    EXPECT_EQ(gpushm_attachment_detach(copy, nullptr), GPUSHM_OK);
    return word;
  }

  std::optional<PrimaryContext> context_;
  std::optional<DeviceMapping> memory_;
  std::vector<CUstream> streams_;
  std::atomic<bool> gate_{false};
};

// Without a stream, a copy comes after all work.
TEST_F(OfferTest, ACopyComesAfterTheWorkOfTheStreamThatIsNamed) {
  const CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  for (const auto& [works, named] :
       {std::pair(stream, stream), std::pair(CU_STREAM_LEGACY, CU_STREAM_LEGACY),
        std::pair(stream, CUstream()), std::pair(CUstream(), CUstream())}) {
    SCOPED_TRACE(
        Concat("work on ", static_cast<void*>(works), ", offered on ", static_cast<void*>(named)));
    ASSERT_EQ(api_->cuMemsetD32(address(), 0, kBytes / 4), CUDA_SUCCESS);
    Produce(works);
    ASSERT_EQ(Offer(named), GPUSHM_OK) << gpushm_last_error()->text;
    EXPECT_EQ(Copied(), kWord);
    broker_->Remove("mine");
  }
}

TEST_F(OfferTest, ACopyWaitsForTheNamedStreamAlone) {
  const CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  ProduceLater(MakeStream(CU_STREAM_NON_BLOCKING));
  Produce(stream);
  ASSERT_EQ(Offer(stream), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_FALSE(gate_);
  gate_ = true;
  EXPECT_EQ(Copied(), kWord);
}

TEST_F(OfferTest, WorkThatDoesNotEndIsWaitedForUntilTheDeadline) {
  const CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  ProduceLater(stream);
  EXPECT_EQ(Offer(stream, 20), GPUSHM_TIMEOUT);
  EXPECT_EQ(Offer(stream, GPUSHM_DONT_WAIT), GPUSHM_BUSY);
  auto info = Sized<gpushm_info>();
  EXPECT_EQ(gpushm_lookup(client_.get(), "mine", &info), GPUSHM_NOT_FOUND);
  EXPECT_TRUE(broker_->leases().empty());
}

// The copy's own stream must not share the connection of a stream that waits for a peer.
TEST_F(OfferTest, ACopyPassesAStreamThatWaitsForAPeer) {
  const CUstream waits = MakeStream(CU_STREAM_NON_BLOCKING);
  const CUstream named = MakeStream(CU_STREAM_NON_BLOCKING);
  const auto memory = PinnedBuffer::Allocate(*api_, 4096);
  ASSERT_TRUE(memory);
  auto& word = *new (memory->data()) sync::Word(0);
  CUdeviceptr at = 0;
  ASSERT_EQ(api_->cuMemHostGetDevicePointer(&at, memory->data(), 0), CUDA_SUCCESS);
  ASSERT_TRUE(StreamWaits::Instance(*api_).Add(waits, word, 1));
  ASSERT_EQ(api_->cuStreamWaitValue64(waits, at, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  ASSERT_EQ(api_->cuMemsetD32Async(address(), kWord, kBytes / 4, named), CUDA_SUCCESS);
  for (int i = 0; i < 8; ++i) {  // One for each connection.
    ASSERT_EQ(WithPatience([&] { return Offer(named); }, [&] { word = 1; }), GPUSHM_OK)
        << gpushm_last_error()->text;
    broker_->Remove("mine");
  }
  word = 1;
  EXPECT_EQ(api_->cuStreamSynchronize(waits), CUDA_SUCCESS);
  StreamWaits::Instance().Forget(memory->data(), 4096);
}

TEST_F(OfferTest, ACopyThatDoesNotEndKeepsItsMemoryBeyondTheDeadline) {
  const CUstream named = MakeStream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 7; ++i) ProduceLater(MakeStream(CU_STREAM_NON_BLOCKING));
  MakeStream(CU_STREAM_NON_BLOCKING);  // The copy's stream gets the connection of a held stream.
  EXPECT_EQ(WithPatience([&] { return Offer(named, 50); }, [&] { gate_ = true; }), GPUSHM_TIMEOUT);
  EXPECT_EQ(broker_->requests(protocol::Kind::kPublish), 0u) << "nothing is offered";
  EXPECT_EQ(broker_->leases().size(), 1u) << "the copy will still write there";
  gate_ = true;
  ASSERT_EQ(api_->cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(Offer(named), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_TRUE(broker_->leases().empty());
}

TEST_F(OfferTest, AStreamThatIsBeingCapturedIsRefused) {
  const CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(api_->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(Offer(stream), GPUSHM_UNSUPPORTED);
  CUgraph graph = nullptr;
  ASSERT_EQ(api_->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  api_->cuGraphDestroy(graph);
}

// Goal: importers compare the number that is in the handle. Method: the number that the driver is
// told is not this process's PID.
TEST_F(OfferTest, CuIpcCarriesTheNumberThatTheDriverIsTold) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(api_->cuMemAlloc(&memory, kBytes), CUDA_SUCCESS);
  auto result = Sized<gpushm_offer_result>();
  ASSERT_EQ(gpushm_offer(client_.get(), "mine", memory, kBytes, nullptr, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.transport, GPUSHM_TRANSPORT_CUIPC);
  EXPECT_EQ(broker_->offered_pid(), getpid() + 1);
  EXPECT_EQ(api_->cuMemFree(memory), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpushm::client
