// The monitor on the simulated NVML; faults.yaml makes calls fail while the monitor runs.
#include "plugin/inventory/health.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "platform/base/clock.h"
#include "platform/driver/cuda_api.h"

namespace gpushm::plugin::inventory {
namespace {

const NvmlApi& Nvml() {
  static const NvmlApi* const api = *NvmlApi::Load(DriverFolderFromEnvironment());
  return *api;
}

constexpr int64_t kLongMs = 20'000;

// Four GPUs, the last with two MIG instances, in a state folder of the test.
class HealthTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    char name[] = "/var/tmp/gpushm-health-test-XXXXXX";
    folder_ = new std::string(mkdtemp(name));
    setenv("GPUSHM_SIM_DIR", folder_->c_str(), 1);
    Write("cards.yaml",
          "gpus:\n- {memory: 80Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000}\n"
          "- {memory: 80Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000001}\n"
          "- {memory: 80Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000002}\n"
          "- memory: 80Gi\n  uuid: GPU-aaaaaaaa-0000-0000-0000-000000000003\n  mig:\n"
          "  - {profile: 1g.10gb, memory: 10Gi, uuid: MIG-aaaaaaaa-0000-0000-0000-000000000004}\n"
          "  - {profile: 2g.20gb, memory: 20Gi, uuid: MIG-aaaaaaaa-0000-0000-0000-000000000005}\n");
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*folder_);
    delete folder_;
  }
  void SetUp() override { Faults("{}"); }

  static void Write(const std::string& file, const std::string& text) {
    const std::string path = *folder_ + "/" + file;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  }
  static void Faults(const std::string& text) { Write("faults.yaml", text); }

  void Start(HealthRules rules = {.ignore_xids = {},
                                  .fatal_xids = {},
                                  .recheck_ms = 30,
                                  .good_probes = 3,
                                  .quiet_ms = 100},
             std::ptrdiff_t from = 0) {
    auto devices = ReadDevices(Nvml());
    ASSERT_TRUE(devices) << devices.error().ToString();
    ASSERT_EQ(devices->size(), 5u);
    for (const Device& device : *devices) uuids_.push_back(device.uuid);
    devices->erase(devices->begin(), devices->begin() + from);
    monitor_.emplace(Nvml(), *devices, rules, [this](const HealthChange& change) {
      const std::lock_guard lock(mutex_);
      changes_.push_back(change);
      changed_.notify_all();
    });
  }

  // The next change, in order; empty if none comes in time.
  HealthChange Next(int64_t wait_ms = kLongMs) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                           [this] { return taken_ < changes_.size(); })) {
      return {};
    }
    return changes_[taken_++];
  }

  // Adds XIDs of the GPU until a change comes, because events count only once the monitor has
  // registered.
  HealthChange NextOfXids(const std::string& other_faults, int gpu, int xid) {
    std::string xids;
    const Deadline deadline = Deadline::AfterMs(kLongMs);
    for (;;) {
      xids += Concat(xids.empty() ? "" : ", ", "{gpu: ", gpu, ", xid: ", xid, "}");
      Faults(Concat(other_faults, "xids: [", xids, "]"));
      HealthChange change = Next(100);
      if (!change.uuid.empty() || deadline.Passed()) return change;
    }
  }

  static inline std::string* folder_ = nullptr;
  std::vector<std::string> uuids_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HealthChange> changes_;
  size_t taken_ = 0;
  std::optional<HealthMonitor> monitor_;  // Last, because it calls back until it is destroyed.
};

TEST_F(HealthTest, AFatalXidIsKnownWithinASecondAndEnds) {
  Start();
  const int64_t begin_ns = MonotonicNs();
  Faults("xids: [{gpu: 1, xid: 13}, {gpu: 1, xid: 95}]");
  const HealthChange sick = Next();
  EXPECT_LT(MonotonicNs() - begin_ns, 1'000'000'000);
  EXPECT_EQ(sick.uuid, uuids_[1]);
  EXPECT_FALSE(sick.healthy);
  EXPECT_EQ(sick.reason, "XID 95: memory error that was not contained");
  EXPECT_EQ(Next(), (HealthChange{uuids_[1], true, ""}));
  const auto xids = monitor_->xids();
  ASSERT_EQ(xids.size(), 2u);
  EXPECT_EQ(xids[0].gpu, uuids_[1]);
  EXPECT_EQ(xids[0].xid, 13u);
}

TEST_F(HealthTest, ALostGpuIsFoundWithoutAnEventAndComesBack) {
  Start();
  Faults("lost: ['0']");
  const HealthChange sick = Next();
  EXPECT_EQ(sick.uuid, uuids_[0]);
  EXPECT_NE(sick.reason.find("does not answer"), std::string::npos) << sick.reason;
  // Events of the others arrive meanwhile, although waiting for a lost GPU's events fails.
  EXPECT_EQ(NextOfXids("lost: ['0']\n", 1, 119).uuid, uuids_[1]);
  EXPECT_EQ(Next(), (HealthChange{uuids_[1], true, ""}));
  Faults("{}");
  EXPECT_EQ(Next(), (HealthChange{uuids_[0], true, ""}));
  EXPECT_EQ(NextOfXids("", 0, 119).uuid, uuids_[0]) << "heard again";
}

TEST_F(HealthTest, NvmlGoesAndComesBack) {
  Start();
  Faults("driver_gone: true");
  std::set<std::string> sick;
  for (int i = 0; i < 5; ++i) {
    const HealthChange change = Next();
    EXPECT_FALSE(change.healthy);
    EXPECT_NE(change.reason.find("NVML fails"), std::string::npos) << change.reason;
    sick.insert(change.uuid);
  }
  EXPECT_EQ(sick.size(), 5u);
  Faults("{}");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Next().healthy);
  EXPECT_EQ(NextOfXids("", 2, 120).uuid, uuids_[2]) << "events arrive again";
}

TEST_F(HealthTest, SomebodyElseRestartsNvml) {
  Start();
  nvmlReturn_t restarted = NVML_ERROR_IN_USE;
  const Deadline deadline = Deadline::AfterMs(kLongMs);
  while (restarted == NVML_ERROR_IN_USE && !deadline.Passed()) restarted = Nvml().Restart();
  ASSERT_EQ(restarted, NVML_SUCCESS);
  EXPECT_EQ(NextOfXids("", 1, 120).uuid, uuids_[1]);
}

TEST_F(HealthTest, WhereWaitingForEventsFailsLooksGoOn) {
  Start();
  const std::string failing = "results: {nvmlEventSetWait_v2: 999}\n";
  Faults(failing + "lost: ['2']");
  EXPECT_EQ(Next().uuid, uuids_[2]);
  Faults(failing);
  EXPECT_EQ(Next(), (HealthChange{uuids_[2], true, ""}));
  EXPECT_EQ(NextOfXids("", 1, 120).uuid, uuids_[1]) << "events arrive again";
}

TEST_F(HealthTest, AnXidOfAnInstanceConcernsThatOne) {
  Start();
  Faults("xids: [{gpu: 3, xid: 95, instance: 2, compute: 0}]");
  EXPECT_EQ(Next().uuid, uuids_[4]);
  EXPECT_EQ(Next(), (HealthChange{uuids_[4], true, ""}));
  Faults("xids: [{gpu: 3, xid: 95, instance: 2, compute: 0}, {gpu: 3, xid: 79}]");
  EXPECT_EQ(Next().uuid, uuids_[3]);
  EXPECT_EQ(Next().uuid, uuids_[4]);
}

TEST_F(HealthTest, TheDriversRecoveryActionAndFailedRemapping) {
  Faults("health: [{gpu: 2, remap_failed: true}]");
  Start();
  EXPECT_EQ(Next(0).uuid, uuids_[2]) << "known once the monitor has started";
  EXPECT_FALSE(monitor_->Look()[2].healthy);
  Faults("health: [{gpu: 0, recovery: 2, ecc: 4}]");
  const HealthChange first = Next();
  EXPECT_EQ(first.uuid, uuids_[0]);
  EXPECT_EQ(first.reason, "the driver requests a reboot of the node");
  EXPECT_EQ(Next(), (HealthChange{uuids_[2], true, ""}));
  Faults("{}");
  EXPECT_EQ(Next(), (HealthChange{uuids_[0], true, ""}));
}

TEST_F(HealthTest, ADriverWithoutTheNewFunctionsWillDo) {
  Faults("unsupported: [nvmlDeviceGetFieldValues, nvmlDeviceGetRemappedRows]");
  Start();
  Faults("unsupported: [nvmlDeviceGetFieldValues]\nhealth: [{gpu: 1, ecc: 1}]");
  const HealthChange sick = Next();
  EXPECT_EQ(sick.uuid, uuids_[1]);
  EXPECT_EQ(sick.reason, "uncorrectable ECC errors");
  EXPECT_TRUE(Next().healthy);
}

// The first GPU is not this plugin's, and the rules differ from the table.
TEST_F(HealthTest, OnlyItsOwnDevicesByItsOwnRules) {
  Start({.ignore_xids = {95},
         .fatal_xids = {13},
         .recheck_ms = 30,
         .good_probes = 1,
         .quiet_ms = 100},
        1);
  EXPECT_EQ(monitor_->Look().size(), 4u);
  // Events arrive only once the monitor has registered.
  Faults("health: [{gpu: 2, recovery: 1}]");
  EXPECT_EQ(Next().uuid, uuids_[2]);
  Faults("xids: [{gpu: 0, xid: 79}, {gpu: 1, xid: 95}, {gpu: 1, xid: 13}]");
  std::set<std::string> seen;
  while (!seen.contains(uuids_[1])) {
    const HealthChange change = Next();
    ASSERT_NE(change.uuid, "");
    if (!change.healthy) seen.insert(change.uuid);
    EXPECT_TRUE(change.healthy || change.uuid != uuids_[1] || change.reason.starts_with("XID 13"))
        << change.reason;
  }
  EXPECT_FALSE(seen.contains(uuids_[0]));
}

int64_t CpuMs() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000 +
         usage.ru_stime.tv_sec * 1000 + usage.ru_stime.tv_usec / 1000;
}

// Goal: the monitor does not spin while it waits in vain, or while a GPU stays lost. The simulated
// driver itself checks its files every 10 ms.
TEST_F(HealthTest, WaitingCostsNothing) {
  Start(HealthRules{});
  Faults("lost: ['1']");
  ASSERT_EQ(Next().uuid, uuids_[1]);
  const int64_t before_ms = CpuMs();
  EXPECT_EQ(Next(2000).uuid, "");
  EXPECT_LT(CpuMs() - before_ms, 1000);
}

}  // namespace
}  // namespace gpushm::plugin::inventory
