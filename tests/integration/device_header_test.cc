// Goal: what gpushm/device.cuh promises. A kernel signals across containers, and a graph does so at
// each launch.
// Method: workers in separate processes whose kernels use the header. It runs only on GPUs, and
// only if CUDA's compiler has compiled the kernels.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "tests/integration/fixture.h"
#include "tests/integration/kernel_commands.h"

namespace gpushm::integration {
namespace {

class DeviceHeaderTest : public IntegrationTest {
 protected:
  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    if ((*api)->simulated()) GTEST_SKIP() << "kernels run on GPUs only";
    const auto own = std::filesystem::canonical("/proc/self/exe");
    if (!std::filesystem::exists(own.parent_path() / kKernelsFile)) {
      GTEST_SKIP() << "the test kernels are missing: use ./run setup --nvcc, then build again";
    }
    ASSERT_EQ(writer_->Do("signal open ready w 0").status, GPUSHM_OK);
    ASSERT_EQ(waiter_.Do("signal open ready r 0").status, GPUSHM_OK);
  }

  Broker broker_{run(), "64Mi"};
  std::optional<Worker> writer_{run()};
  Worker waiter_{run()};
};

TEST_F(DeviceHeaderTest, AStreamWaitsForAnotherContainersKernel) {
  ASSERT_EQ(writer_->Do("create frame 1048576").status, GPUSHM_OK);
  ASSERT_EQ(waiter_.Do("attach frame r 0").status, GPUSHM_OK);
  for (int i = 1; i <= 50; ++i) {
    ASSERT_EQ(waiter_.Do(Concat("signal await 0 ", i)).status, GPUSHM_OK);
    ASSERT_EQ(waiter_.Do("signal get 0").status, 0);
    EXPECT_EQ(waiter_.Do("signal sync 0 2").status, GPUSHM_TIMEOUT)
        << "the stream must wait until the kernel sets the value";
    ASSERT_EQ(writer_->Do(Concat("signal put 0 ", 1000 + i)).status, 0);
    ASSERT_EQ(writer_->Do(Concat("kernel set 0 ", i)).status, 0);
    ASSERT_EQ(waiter_.Do("signal sync 0 20000").status, 0);
    EXPECT_EQ(waiter_.Do("signal word").value, 1000 + i);
    EXPECT_EQ(waiter_.Do(Concat("signal check ", i)).status, GPUSHM_OK);
  }
  EXPECT_EQ(waiter_.Do("signal value").value, 50)
      << "the host must see the value that the kernels stored";
}

TEST_F(DeviceHeaderTest, AGraphGoesOnByOneAtEachLaunch) {
  ASSERT_EQ(waiter_.Do("kernel reach 0 1 10").status, 0);
  EXPECT_EQ(waiter_.Do("signal sync 0 2").status, GPUSHM_TIMEOUT);
  ASSERT_EQ(writer_->Do("kernel advance 0 10").status, 0);
  EXPECT_EQ(waiter_.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter_.Do("signal value").value, 10);
  EXPECT_EQ(writer_->Do("signal set 10").status, GPUSHM_INVALID_ARGUMENT)
      << "the value must be above the one that kernels stored";
  EXPECT_EQ(writer_->Do("signal set 11").status, GPUSHM_OK);
}

// The alternative in docs/guides/synchronisation.md: graph nodes whose value is set before each
// launch.
TEST_F(DeviceHeaderTest, AMemoryOperationNodeStoresAndWaits) {
  ASSERT_EQ(waiter_.Do("kernel reach 0 1 5").status, 0);
  EXPECT_EQ(waiter_.Do("signal sync 0 2").status, GPUSHM_TIMEOUT);
  ASSERT_EQ(writer_->Do("kernel store 0 1 4").status, 0);
  ASSERT_EQ(writer_->Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter_.Do("signal sync 0 2").status, GPUSHM_TIMEOUT)
      << "the value is 4, and the fifth launch must wait for 5";
  ASSERT_EQ(writer_->Do("kernel store 0 5 1").status, 0);
  EXPECT_EQ(waiter_.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter_.Do("signal check 5").status, GPUSHM_OK);
  ASSERT_EQ(waiter_.Do("kernel reach 0 6 1").status, 0);
  writer_->Kill();
  EXPECT_EQ(waiter_.Do("signal sync 0 20000").status, 0)
      << "the writer's poison must end a node's wait";
  EXPECT_EQ(waiter_.Do("signal check 6").status, GPUSHM_PEER_DIED);
}

}  // namespace
}  // namespace gpushm::integration
