#include "plugin/inventory/health_tracker.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "platform/base/testing.h"
#include "plugin/inventory/xids.h"

namespace gpushm::plugin::inventory {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kResetGpu = 1;
constexpr uint32_t kUnknownAction = 99;
constexpr uint32_t kDrainPeers = 3;

Device Gpu(const std::string& uuid) {
  Device device;
  device.uuid = uuid;
  return device;
}

Device Instance(const std::string& uuid, const std::string& parent, uint32_t number) {
  Device device = Gpu(uuid);
  device.parent_uuid = parent;
  device.gpu_instance = number;
  device.compute_instance = 0;
  return device;
}

// A driver since R565; without `action`, an older one.
Probe Good(std::optional<uint32_t> action = 0, uint64_t ecc = 0) {
  Probe probe;
  probe.recovery_action = action;
  probe.ecc_errors = ecc;
  return probe;
}

Probe Bad(Probe::Answer answer) {
  Probe probe;
  probe.answer = answer;
  probe.error = "no answer";
  return probe;
}

class HealthBookTest : public ::testing::Test {
 protected:
  // Checks GPU-0 once a second; returns the changes.
  std::vector<HealthChange> Look(const Probe& probe, int times = 1) {
    std::vector<HealthChange> all;
    for (int i = 0; i < times; ++i) {
      now_ms_ += 1000;
      for (const auto& change : tracker_.OnProbe("GPU-0", probe, now_ms_)) all.push_back(change);
    }
    return all;
  }
  std::vector<HealthChange> Xid(uint64_t xid) {
    return tracker_.OnXid("GPU-0", xid, kNoInstance, kNoInstance, now_ms_);
  }
  bool Healthy(size_t device = 0) const { return tracker_.Look()[device].healthy; }
  // Seconds of successful checks until GPU-0 is healthy.
  int SecondsToHealth(const Probe& probe) {
    for (int seconds = 1; seconds < 100'000; ++seconds) {
      if (!Look(probe).empty()) return seconds;
    }
    return -1;
  }

  HealthTracker tracker_{HealthRules{}, {Gpu("GPU-0"), Gpu("GPU-1")}};
  int64_t now_ms_ = 1;
};

TEST_F(HealthBookTest, AnApplicationsOwnFaultIsCountedAndIgnored) {
  for (const uint64_t xid : {13u, 31u, 43u, 45u, 68u, 94u, 63u})
    EXPECT_THAT(Xid(xid), IsEmpty()) << xid;
  Xid(13);
  EXPECT_TRUE(Healthy());
  ASSERT_THAT(tracker_.xids(), SizeIs(7));
  EXPECT_EQ(tracker_.xids()[0].xid, 13u);
  EXPECT_EQ(tracker_.xids()[0].count, 2u);
}

TEST_F(HealthBookTest, AFatalXidConcernsItsGpuAtOnceAndAQuietTimeEndsIt) {
  Look(Good());
  const auto changes = Xid(79);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].uuid, "GPU-0");
  EXPECT_FALSE(changes[0].healthy);
  EXPECT_THAT(changes[0].reason, HasSubstr("XID 79: the GPU has fallen off the bus"));
  EXPECT_TRUE(Healthy(1));
  EXPECT_EQ(SecondsToHealth(Good()), 30)
      << "this driver has a recovery action, and requests nothing";
  Xid(79);
  EXPECT_EQ(SecondsToHealth(Good()), 60) << "the XID returned, so the time doubles";
  now_ms_ += HealthTracker::kForgetMs;
  Xid(79);
  EXPECT_EQ(SecondsToHealth(Good()), 30) << "a day later";
}

TEST_F(HealthBookTest, WithoutARecoveryActionTheQuietTimeIsTheConfigurations) {
  const Probe old = Good(std::nullopt);
  Look(old);
  Xid(119);
  EXPECT_EQ(SecondsToHealth(old), 600);
  Xid(77777);
  EXPECT_EQ(SecondsToHealth(old), 60) << "an unknown XID";
}

TEST_F(HealthBookTest, WhereItDependsTheDriverDecides) {
  Look(Good());
  EXPECT_THAT(Xid(48), IsEmpty()) << "contained, as the recovery action says";
  EXPECT_THAT(Look(Good(0, 1)), IsEmpty());
  ASSERT_THAT(Look(Good(kResetGpu, 2)), SizeIs(1));
  EXPECT_THAT(tracker_.Look()[0].reason, HasSubstr("requests a reset of the GPU"));
  Look(Good(kResetGpu, 2), 10'000);
  EXPECT_FALSE(Healthy()) << "as long as the driver requests it";
  Look(Good(kUnknownAction, 2));
  EXPECT_THAT(tracker_.Look()[0].reason, HasSubstr("requests recovery action 99, which"));
  EXPECT_EQ(SecondsToHealth(Good()), 3);
  Look(Good(kDrainPeers), 10);
  EXPECT_TRUE(Healthy()) << "traffic between GPUs only";
}

TEST_F(HealthBookTest, AnOlderDriversEccErrorsCount) {
  Look(Good(std::nullopt, 5));
  EXPECT_TRUE(Healthy()) << "these errors existed before";
  ASSERT_THAT(Look(Good(std::nullopt, 6)), SizeIs(1));
  EXPECT_EQ(SecondsToHealth(Good(std::nullopt, 6)), 600);
  ASSERT_THAT(Xid(48), SizeIs(1));
  EXPECT_EQ(SecondsToHealth(Good(std::nullopt, 0)), 3) << "a lower count means a reset";
}

TEST_F(HealthBookTest, AResetEndsTheQuietTime) {
  Look(Good());
  Xid(95);
  Look(Good(kResetGpu), 20);
  EXPECT_EQ(SecondsToHealth(Good(0)), 3);
}

TEST_F(HealthBookTest, ALostGpuIsHealthyWhenItAnswersAgain) {
  ASSERT_THAT(Look(Bad(Probe::Answer::kLost)), SizeIs(1));
  EXPECT_THAT(tracker_.Look()[0].reason, HasSubstr("does not answer: no answer"));
  EXPECT_TRUE(tracker_.AnyLost());
  Xid(79);
  Look(Bad(Probe::Answer::kLost), 100);
  EXPECT_THAT(Look(Good(), 2), IsEmpty());
  EXPECT_THAT(Look(Bad(Probe::Answer::kFailed)), IsEmpty());
  EXPECT_EQ(SecondsToHealth(Good()), 3) << "successful checks in a row";
}

TEST_F(HealthBookTest, OneFailedLookIsNothingTwoAre) {
  EXPECT_THAT(Look(Bad(Probe::Answer::kFailed)), IsEmpty());
  EXPECT_TRUE(tracker_.AnyInDoubt());
  EXPECT_THAT(Look(Good()), IsEmpty());
  EXPECT_FALSE(tracker_.AnyInDoubt());
  EXPECT_THAT(Look(Bad(Probe::Answer::kFailed), 2), SizeIs(1));
  EXPECT_EQ(SecondsToHealth(Good()), 3);
}

TEST_F(HealthBookTest, AFailedRemappingStays) {
  Probe probe = Good();
  probe.remap_failed = true;
  ASSERT_THAT(Look(probe), SizeIs(1));
  EXPECT_THAT(Look(probe, 10'000), IsEmpty());
  EXPECT_EQ(SecondsToHealth(Good()), 3);
}

TEST_F(HealthBookTest, NvmlsFailureConcernsAll) {
  EXPECT_THAT(tracker_.OnNvmlGone("driver not loaded", true), SizeIs(2));
  EXPECT_THAT(tracker_.OnNvmlGone("driver not loaded", true), IsEmpty());
  EXPECT_EQ(SecondsToHealth(Good()), 3);
  EXPECT_FALSE(Healthy(1)) << "not checked yet";
}

TEST(HealthTracker, RulesGoBeforeTheTable) {
  HealthTracker tracker({.ignore_xids = {79, 48}, .fatal_xids = {13, 48}}, {Gpu("GPU-0")});
  const auto xid = [&tracker](uint64_t number) {
    return tracker.OnXid("GPU-0", number, kNoInstance, kNoInstance, 1);
  };
  EXPECT_THAT(xid(79), IsEmpty());
  EXPECT_THAT(xid(48), SizeIs(1)) << "fatal-xids has precedence";
  EXPECT_THAT(xid(13), IsEmpty()) << "it is unhealthy already";
}

TEST(HealthTracker, OfAGpuInMigModeOnlyTheInstanceThatIsNamed) {
  HealthTracker tracker(
      HealthRules{}, {Gpu("GPU-0"), Instance("MIG-1", "GPU-1", 1), Instance("MIG-2", "GPU-1", 2)});
  const auto one = tracker.OnXid("GPU-1", 95, 2, 0, 1);
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_EQ(one[0].uuid, "MIG-2");
  EXPECT_THAT(tracker.OnXid("GPU-1", 95, 2, kNoInstance, 1), IsEmpty());
  const auto all = tracker.OnXid("GPU-1", 79, kNoInstance, kNoInstance, 1);
  ASSERT_THAT(all, SizeIs(1)) << "only the other device";
  EXPECT_EQ(all[0].uuid, "MIG-1");
}

const std::vector<uint64_t> kSomeXids = {13, 31, 45, 48, 63, 79, 94, 95, 119, 154, 999};

constexpr uint64_t kSeeds = 300;

// Goal: invariants 1 to 4 of the header. Method: random signs on three GPUs, one of them in MIG
// mode, against a model that only knows the time of each device's last sign; GPU-2 gets none.
TEST(HealthTracker, RandomSigns) {
  SCOPED_TRACE(gpushm::testing::StrideNote());
  const uint64_t first = gpushm::testing::TestSeed(0);
  const auto stride = static_cast<uint64_t>(gpushm::testing::Stride());
  for (uint64_t seed = first + static_cast<uint64_t>(gpushm::testing::Offset());
       seed < first + kSeeds; seed += stride) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t n) { return random() % n; };
    HealthRules rules;
    rules.good_probes = static_cast<uint32_t>(1 + pick(4));
    rules.quiet_ms = static_cast<uint32_t>(pick(700'000));
    const std::vector<Device> devices = {Gpu("GPU-0"), Instance("MIG-1", "GPU-1", 1),
                                         Instance("MIG-2", "GPU-1", 2), Gpu("GPU-2")};
    HealthTracker tracker(rules, devices);
    const bool speaks = pick(2) == 0;
    std::map<std::string, bool> healthy;
    std::map<std::string, uint32_t> good;
    for (const Device& device : devices) healthy[device.uuid] = true;
    const auto check = [&](const std::vector<HealthChange>& changes) {
      for (const HealthChange& change : changes) {
        ASSERT_NE(healthy[change.uuid], change.healthy) << "invariant 4";
        healthy[change.uuid] = change.healthy;
        ASSERT_NE(change.reason.empty(), !change.healthy);
        ASSERT_TRUE(!change.healthy || good[change.uuid] >= rules.good_probes) << "invariant 2";
      }
      for (const DeviceHealth& device : tracker.Look()) {
        ASSERT_EQ(device.healthy, healthy[device.uuid]) << "invariant 4";
      }
      ASSERT_TRUE(healthy["GPU-2"]) << "invariant 1";
    };
    int64_t now_ms = 1;
    const auto look = [&](const std::string& uuid, const Probe& probe) {
      const bool bad = probe.answer != Probe::Answer::kGood || probe.remap_failed ||
                       NeedsReset(probe.recovery_action.value_or(0));
      good[uuid] = bad ? 0 : good[uuid] + 1;
      check(tracker.OnProbe(uuid, probe, now_ms));
    };
    for (int step = 0; step < 400; ++step) {
      now_ms += static_cast<int64_t>(pick(20'000));
      const std::string uuid = devices[pick(3)].uuid;
      const std::optional<uint32_t> none = speaks ? std::optional<uint32_t>(0) : std::nullopt;
      switch (pick(6)) {
        case 0: {
          const bool whole = pick(2) == 0;
          const auto instance = static_cast<uint32_t>(whole ? kNoInstance : 1 + pick(2));
          check(tracker.OnXid(whole ? "GPU-0" : "GPU-1", kSomeXids[pick(kSomeXids.size())],
                              instance, kNoInstance, now_ms));
          break;
        }
        case 1:
          look(uuid, Bad(pick(2) == 0 ? Probe::Answer::kLost : Probe::Answer::kFailed));
          break;
        case 2:
          look(uuid, Good(speaks ? std::optional<uint32_t>(pick(8)) : std::nullopt, pick(3)));
          break;
        default:
          for (const Device& device : devices)
            look(device.uuid, Good(none, device.uuid != "GPU-2" && pick(20) == 0 ? 1 : 0));
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (int i = 0; i < 16'000; ++i) {
      now_ms += 1000;
      for (const Device& device : devices) {
        look(device.uuid, Good(speaks ? std::optional<uint32_t>(0) : std::nullopt, 0));
      }
      if (::testing::Test::HasFatalFailure()) return;
      if (tracker.AllHealthy() && i > 20) break;
    }
    EXPECT_TRUE(tracker.AllHealthy()) << "invariant 3";
  }
}

TEST(Xids, TheTableIsOrderedAndKnowsTheImportantOnes) {
  uint32_t last = 0;
  for (const XidInfo& info : Xids()) {
    EXPECT_GT(info.first, last);
    EXPECT_GE(info.last, info.first);
    last = info.last;
  }
  EXPECT_EQ(FindXid(79).effect, XidEffect::kReset);
  EXPECT_EQ(FindXid(13).effect, XidEffect::kNone);
  EXPECT_EQ(FindXid(98).effect, XidEffect::kNone);
  EXPECT_EQ(FindXid(48).effect, XidEffect::kAsk);
  EXPECT_EQ(FindXid(999).effect, XidEffect::kUnknown);
  EXPECT_EQ(FindXid(0).effect, XidEffect::kUnknown);
}

}  // namespace
}  // namespace gpushm::plugin::inventory
