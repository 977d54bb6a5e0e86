// Goal: a MIG instance is a GPU like any other. Two containers share a buffer and a signal on it,
// only its memory counts, and a container that sees another instance of the same card is refused.
// Method: the simulated driver with a partitioned card; broker, keeper and clients as processes,
// each with the device nodes of one instance.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "platform/driver/nvml_api.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

constexpr uint64_t kMigMi = uint64_t{1} << 20;
constexpr char kFirst[] = "MIG-51700000-0000-4000-8000-000000000001";
constexpr char kSecond[] = "MIG-51700000-0000-4000-8000-000000000002";

class MigTest : public LinkedTest {
 protected:
  void SetUp() override {
    if (DriverFolderFromEnvironment().empty()) {
      GTEST_SKIP() << "a test must not put a real GPU into MIG mode";
    }
    std::filesystem::create_directory(folder_ + "/sim");
    std::ofstream(folder_ + "/sim/cards.yaml")
        << "gpus:\n- memory: 80Gi\n- memory: 80Gi\n  mig:\n"
        << "  - {profile: 1g.10gb, memory: 10Gi, uuid: " << kFirst << "}\n"
        << "  - {profile: 1g.10gb, memory: 10Gi, uuid: " << kSecond << "}\n";
    LinkedTest::SetUp();
    gpu_ = kFirst;
    const auto nvml = NvmlApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(nvml);
    nvml_ = *nvml;
    ASSERT_EQ(nvml_->Restart(), NVML_SUCCESS)
        << "NVML could not be restarted, so it may still have another test's cards";
    Show(kFirst);
  }
  ~MigTest() override { unsetenv("GPUSHM_SIM_DEVICES"); }

  // Sets which device the processes started from now on can see.
  static void Show(const char* device) { setenv("GPUSHM_SIM_DEVICES", device, 1); }

  uint64_t Used(const char* device) const {
    const auto use = nvml_->Use();
    nvmlDevice_t handle = nullptr;
    nvmlMemory_t memory{};
    EXPECT_EQ(nvml_->nvmlDeviceGetHandleByUUID(device, &handle), NVML_SUCCESS);
    EXPECT_EQ(nvml_->nvmlDeviceGetMemoryInfo(handle, &memory), NVML_SUCCESS);
    return memory.used;
  }

  const NvmlApi* nvml_ = nullptr;
};

TEST_F(MigTest, TwoContainersShareABufferOnAnInstance) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  const uint64_t before = Used(kFirst);
  IsolatedWorker writer(run());
  IsolatedWorker reader(run());
  if (!writer.started() || !reader.started()) GTEST_SKIP() << "this system forbids namespaces";
  const Answer made = writer.Do("create weights " + std::to_string(8 * kMigMi));
  ASSERT_EQ(made.status, GPUSHM_OK);
  EXPECT_EQ(Used(kFirst) - before, 8 * kMigMi);
  EXPECT_EQ(Used(kSecond), 0U) << "a buffer must not use memory of the other instance";
  ASSERT_EQ(writer.Do("write 4711").status, 0);
  const Answer attached = reader.Do("attach weights r 0");
  ASSERT_EQ(attached.status, GPUSHM_OK);
  EXPECT_EQ(attached.value, made.value);
  EXPECT_EQ(reader.Do("read").value, 4711);
  ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("signal await 0 1").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal record 0 1").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("signal sync 0 20000").status, 0);
}

TEST_F(MigTest, ABrokersRestartFindsTheInstanceAgain) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  Worker writer(run());
  const Answer made = writer.Do("create weights " + std::to_string(8 * kMigMi));
  ASSERT_EQ(made.status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 4711").status, 0);
  broker.Kill();
  broker.Start();
  Worker reader(run());
  EXPECT_EQ(reader.Do("attach weights r 0").value, made.value);
  EXPECT_EQ(reader.Do("read").value, 4711);
}

TEST_F(MigTest, WhoSeesAnotherInstanceIsRefused) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do("create weights " + std::to_string(8 * kMigMi)).status, GPUSHM_OK);
  for (const char* const other :
       {kSecond, "0"}) {  // Another instance of the same card, and a whole card.
    Show(other);
    Worker stranger(run());
    EXPECT_EQ(stranger.Do("attach weights r -1").status, GPUSHM_NOT_FOUND)
        << "a process that sees device " << other << " must be refused";
  }
}

TEST_F(MigTest, AnInstanceGivesNoMoreThanItHas) {
  const std::string log = LogOfBroker(run(), {"--pool", "11Gi"});
  EXPECT_NE(log.find("is more than"), std::string::npos)
      << "the broker must say that the pool is too large, but logged: " << log;
}

}  // namespace
}  // namespace gpushm::integration
