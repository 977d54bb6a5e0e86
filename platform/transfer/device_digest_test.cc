// Digests of a GPU's memory, on the simulated driver, which runs the kernel by its name. The
// conformance case DigestKernelIsThatOfTheProcessor has the real one.
#include "platform/transfer/device_digest.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "platform/driver/digest_kernel.h"
#include "platform/transfer/testing/transfer_fixture.h"

namespace gpushm {
namespace {

constexpr uint64_t kDigestRoomBytes = uint64_t{48} << 20;

class DeviceDigestTest : public testing::DeviceRoomTest {
 protected:
  DeviceDigestTest() : DeviceRoomTest(kDigestRoomBytes) {}

  void SetUp() override {
    DeviceRoomTest::SetUp();
    bytes_ = testing::Content(kDigestRoomBytes);
    ASSERT_EQ(api_->cuMemcpyHtoD(mapping_->address(), bytes_.data(), bytes_.size()), CUDA_SUCCESS);
  }
  void TearDown() override { Inject(""); }

  void Inject(const std::string& faults) {
    std::ofstream(std::string(std::getenv("GPUSHM_SIM_DIR")) + "/faults.yaml") << faults;
  }
  DeviceRange Range(uint64_t offset, uint64_t bytes) {
    return {mapping_->address() + offset, bytes};
  }
  std::vector<Digest> Expected(std::span<const DeviceRange> ranges) {
    std::vector<Digest> expected;
    for (const DeviceRange& range : ranges) {
      expected.push_back(DigestOf(std::as_bytes(
          std::span(bytes_).subspan(range.address - mapping_->address(), range.bytes))));
    }
    return expected;
  }
  // Of a digest for that many bytes, which decides who makes it.
  void Check(uint64_t expected_bytes, std::span<const DeviceRange> ranges, bool by_kernel) {
    DeviceDigest digest(*api_, expected_bytes);
    const auto made = digest.Of(ranges);
    ASSERT_TRUE(made) << made.error().ToString();
    EXPECT_EQ(digest.by_kernel(), by_kernel);
    EXPECT_EQ(*made, Expected(ranges));
  }

  std::string bytes_;
};

std::vector<DeviceRange> SomeRanges(CUdeviceptr address, size_t count, uint64_t most) {
  std::mt19937_64 random(count);
  std::vector<DeviceRange> ranges;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bytes = random() % 7 == 0 ? 0 : random() % most;
    ranges.push_back({address + random() % (kDigestRoomBytes - bytes), bytes});
  }
  return ranges;
}

TEST_F(DeviceDigestTest, KernelAndProcessorAgree) {
  std::vector<DeviceRange> ranges = SomeRanges(mapping_->address(), 50, 3 << 20);
  ranges.push_back(Range(0, kDigestRoomBytes));
  ranges.push_back(Range(0, 0));
  for (const uint64_t bytes : {1U, 16U, 16383U, 16384U, 16385U, 4194304U, 4194305U}) {
    ranges.push_back(Range(256, bytes));
  }
  Check(kDigestRoomBytes, ranges, true);
  Check(1, ranges, false);
}

TEST_F(DeviceDigestTest, MoreRangesThanOneLaunchTakes) {
  Check(kDigestRoomBytes, SomeRanges(mapping_->address(), 70'000, 64), true);
}

TEST_F(DeviceDigestTest, NothingNeedsNoLaunch) {
  DeviceDigest digest(*api_, kDigestRoomBytes);
  const auto none = digest.Of({});
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
  const std::vector<DeviceRange> empty(3);
  const auto made = digest.Of(empty);
  ASSERT_TRUE(made);
  EXPECT_EQ(*made, std::vector<Digest>(3, DigestOf({})));
}

// A container without the driver's compiler, or a card without room for the table.
TEST_F(DeviceDigestTest, WithoutTheKernelTheProcessorMakesIt) {
  const std::vector<DeviceRange> ranges = {Range(0, kDigestRoomBytes), Range(3, 100'000)};
  for (const char* const function : {"cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc"}) {
    Inject(std::string("results: {") + function + ": 2}");
    Check(kDigestRoomBytes, ranges, false);
  }
}

TEST_F(DeviceDigestTest, AFaultIsAnError) {
  const std::vector<DeviceRange> ranges = {Range(0, kDigestRoomBytes)};
  Inject("results: {cuLaunchKernel: 719}");
  DeviceDigest digest(*api_, kDigestRoomBytes);
  const auto made = digest.Of(ranges);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kDriver);
  EXPECT_NE(made.error().what().find("the digest"), std::string::npos) << made.error().what();
}

TEST_F(DeviceDigestTest, ThatIsNotUsedEndsInOrder) { DeviceDigest digest(*api_, kDigestRoomBytes); }

}  // namespace
}  // namespace gpushm
