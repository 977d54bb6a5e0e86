// Goal: page-locked memory is freed at once. While a stream waits, it is kept for the next copy and
// freed later, but never by an address that has another owner then.
// Method: the simulated driver, and a wait of this process in its list of waits.
#include "platform/transfer/pinned_pool.h"

#include <gtest/gtest.h>

#include <optional>

#include "platform/driver/stream_waits.h"
#include "platform/transfer/testing/transfer_fixture.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRoomBytes = 2 * kMiB;

class PinnedPoolTest : public testing::DeviceRoomTest {
 protected:
  PinnedPoolTest() : DeviceRoomTest(kRoomBytes) {}
  void SetUp() override {
    DeviceRoomTest::SetUp();
    ASSERT_TRUE(StreamWaits::Instance(*api_).Add(nullptr, word_, 1));
  }
  void TearDown() override {
    EndWait();
    PinnedPool::Instance().Trim();
    EXPECT_EQ(PinnedPool::Instance().size(), 0u);
  }
  void EndWait() { word_ = 1; }
  std::byte* TakeAndGive(uint64_t size_bytes) {
    const auto taken = PooledBuffer::Take(*api_, size_bytes);
    EXPECT_TRUE(taken) << taken.error().ToString();
    return taken ? taken->data() : nullptr;
  }
  bool IsThere(const std::byte* memory) {
    unsigned type = 0;
    return api_->cuPointerGetAttribute(
               &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
               static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(memory))) == CUDA_SUCCESS;
  }

  StreamWaits::Word word_ = 0;
};

TEST_F(PinnedPoolTest, WithoutAWaitIsFreedAtOnce) {
  EndWait();
  const std::byte* const memory = TakeAndGive(kMiB);
  EXPECT_FALSE(IsThere(memory));
  EXPECT_EQ(PinnedPool::Instance().size(), 0u);
}

TEST_F(PinnedPoolTest, WhileAStreamWaitsTheNextCopyTakesIt) {
  const std::byte* const first = TakeAndGive(kMiB);
  EXPECT_TRUE(IsThere(first));
  for (uint64_t size = kMiB; size <= kTransferChunkBytes; size += kMiB) {
    EXPECT_EQ(TakeAndGive(size), first) << "a growing series must not fill the pool";
  }
  EXPECT_NE(TakeAndGive(kTransferChunkBytes + 1), first) << "too small";
  EXPECT_EQ(PinnedPool::Instance().size(), 2u);
  PinnedPool::Instance().Trim();
  EXPECT_EQ(PinnedPool::Instance().size(), 2u) << "a stream still waits";
  EndWait();
  PinnedPool::Instance().Trim();
  EXPECT_FALSE(IsThere(first));
}

TEST_F(PinnedPoolTest, TwoCopiesAtOnceHaveTheirOwn) {
  const auto one = PooledBuffer::Take(*api_, kMiB);
  const auto other = PooledBuffer::Take(*api_, kMiB);
  ASSERT_TRUE(one && other);
  EXPECT_NE(one->data(), other->data());
}

TEST_F(PinnedPoolTest, MemoryThatEndedWithItsContextIsForgotten) {
  const std::byte* const memory = TakeAndGive(kMiB);
  mapping_.reset();
  context_.reset();
  ASSERT_FALSE(IsThere(memory));
  SetUp();
  // Another owner's memory, perhaps at that address.
  auto other = PinnedBuffer::Allocate(*api_, kTransferChunkBytes);
  ASSERT_TRUE(other);
  const auto taken = PooledBuffer::Take(*api_, kMiB);
  ASSERT_TRUE(taken);
  EXPECT_NE(taken->data(), other->data());
  EndWait();
  PinnedPool::Instance().Trim();
  EXPECT_TRUE(IsThere(other->data()));
}

}  // namespace
}  // namespace gpushm
