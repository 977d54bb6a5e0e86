// What kubelets do when something fails, row by row, and that the plugin handles it. The kubelet
// here is scripted (testing/scripted_kubelet.h): it does what kubelets 1.28 to 1.37 were observed
// to do, or do by their source. No test in this file runs a real one.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "platform/base/testing.h"
#include "platform/daemon/unix_socket.h"
#include "plugin/kubelet/pod_resources.h"
#include "plugin/kubelet/testing/fixture.h"

namespace gpushm::plugin::kubelet {
namespace {

using namespace testing;  // NOLINT: the folder's test support
using ::testing::HasSubstr;
using ::testing::SizeIs;

const int kCycles = 1000 / gpushm::testing::Stride();
const int kMishaps = 400 / gpushm::testing::Stride();

using State_ = ContainerStatus::State;

class RowTest : public KubeletTest {
 protected:
  void StartBoth() {
    StartKubelet();
    StartPlugin();
    ASSERT_TRUE(Usable());
  }
  std::string AddRunningPod(const PodSpec& spec) {
    const std::string uid = kubelet->AddPod(spec);
    EXPECT_TRUE(kubelet->WaitRunning(uid, Soon())) << kubelet->StatusOf(uid).message;
    return uid;
  }
};

// Row: kubelet restart. It deletes every socket and creates kubelet.sock anew. It knows who has
// what but has no capacity, and does not allocate for running containers. The kubelet is scripted.
using KubeletRestart = RowTest;

TEST_F(KubeletRestart, RegistersAgainAndKeepsWhatRuns) {
  StartBoth();
  const std::string uid = AddRunningPod(SharingPod("pod"));
  const auto ids = kubelet->StatusOf(uid).containers["gpushm"].ids;
  const size_t allocated = handler.Count("allocate");
  const State before = plugin->state();
  kubelet->Stop();
  EXPECT_TRUE(plugin->WaitFor(
      [](const State& state) { return !state.Of(binding::Resource::kMemory).usable(); }, Soon()));
  ASSERT_TRUE(kubelet->Start());
  kubelet->Readmit();
  ASSERT_TRUE(UsableAgain(before));
  EXPECT_EQ(handler.Count("allocate"), allocated);
  const PodStatus status = kubelet->StatusOf(uid);
  EXPECT_FALSE(status.failed) << status.message;
  EXPECT_EQ(status.containers.at("app").state, State_::kRunning);
  EXPECT_EQ(status.containers.at("gpushm").ids, ids);
}

TEST_F(KubeletRestart, SurvivesOneThatRemovesEveryFile) {
  kubelet_options.wipes_all_files = true;
  StartBoth();
  const State before = plugin->state();
  ASSERT_TRUE(kubelet->Restart(ScriptedKubelet::Death::kKilled));
  EXPECT_TRUE(UsableAgain(before));
}

TEST_F(KubeletRestart, KeepsNoFilesInTheKubeletsFolder) {
  StartBoth();
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options.folder))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"gpushm-attach.sock", "gpushm-exclusive.sock",
                                          "gpushm-gpus.sock", "gpushm-memory.sock",
                                          "gpushm-nvlink.sock", "kubelet.sock"}));
}

// Goal: none of many restarts leaves a resource at allocatable 0. Method: all kinds of death;
// prints how long it took from the kubelet's socket until both resources were usable.
TEST_F(KubeletRestart, IsNeverStuckInHundredsOfCycles) {
  StartBoth();
  std::vector<double> took_ms;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    const State before = plugin->state();
    kubelet->Stop(cycle % 3 == 0 ? ScriptedKubelet::Death::kKilled
                                 : ScriptedKubelet::Death::kStopped);
    const int64_t start_ns = MonotonicNs();
    ASSERT_TRUE(kubelet->Start());
    ASSERT_TRUE(UsableAgain(before)) << "cycle " << cycle;
    took_ms.push_back(static_cast<double>(MonotonicNs() - start_ns) * 1e-6);
  }
  std::sort(took_ms.begin(), took_ms.end());
  std::cout << kCycles << " restarts, ms from the kubelet's start to usable: p50 "
            << took_ms[took_ms.size() / 2] << ", p99 " << took_ms[took_ms.size() * 99 / 100]
            << ", max " << took_ms.back() << "\n";
}

// Goal: no sequence of mishaps leaves a resource unusable. Method: random ones, several at a time,
// with a kubelet that notices the end of a stream late; then nothing more is disturbed. A kubelet
// that a busy machine delays beyond grace_ms can confuse two registrations. Then the plugin
// believes that it is served, and the test calls Renew, as Daemon::CheckBelieved does. There is no
// other help.
class Mishaps : public RowTest, public ::testing::WithParamInterface<bool> {
 protected:
  [[nodiscard]] bool Recovers(binding::Resource resource, size_t count) {
    const std::string name = options.names.Of(resource);
    const Deadline deadline = Soon();
    while (!kubelet->WaitAllocatable(name, count, Deadline::AfterMs(kDoubtMs))) {
      if (deadline.Passed()) return false;
      if (!plugin->state().Of(resource).usable()) continue;
      std::cout << name << " is renewed\n";
      plugin->Renew(resource);
    }
    return true;
  }
  static constexpr int64_t kDoubtMs = 1000;
};
INSTANTIATE_TEST_SUITE_P(Kubelets, Mishaps, ::testing::Bool());
TEST_P(Mishaps, NeverLeaveItUnusable) {
  kubelet_options.known_by_resource_alone = GetParam();
  kubelet_options.notice_ms = 2;
  options.times.open_ms = 50;
  StartBoth();
  SCOPED_TRACE(gpushm::testing::StrideNote());
  std::mt19937 random(static_cast<unsigned>(7 + gpushm::testing::Offset()));
  for (int i = 0; i < kMishaps; ++i) {
    for (auto several = random() % 3 + 1; several > 0; --several) {
      switch (random() % 7) {
        case 0:
          ASSERT_TRUE(kubelet->Restart(ScriptedKubelet::Death::kKilled));
          break;
        case 1:
          ASSERT_TRUE(kubelet->Restart());
          break;
        case 2:
          ASSERT_TRUE(kubelet->ListenAgain());
          break;
        case 3:
          std::filesystem::remove(folder / "device-plugins/gpushm-memory.sock");
          break;
        case 4:
          kubelet->DropStream(random() % 2 == 0 ? kMemory : kAttach);
          break;
        case 5:
          kubelet->LoseStreams(1);
          break;
        default:
          kubelet->RefuseRegistrations(1);
          break;
      }
    }
    kubelet->LoseStreams(0);
    kubelet->RefuseRegistrations(0);
    ASSERT_TRUE(Recovers(binding::Resource::kMemory, 8)) << "mishap " << i;
    ASSERT_TRUE(Recovers(binding::Resource::kAttach, 4)) << "mishap " << i;
  }
  // Until the kubelet notices that a stream has ended, it shows the former number of devices and
  // refuses pods.
  const Deadline deadline = Soon();
  for (int pod = 0;; ++pod) {
    const auto status = kubelet->StatusOf(kubelet->AddPod(SharingPod(Concat("after-", pod))));
    if (!status.failed) break;
    ASSERT_FALSE(deadline.Passed()) << status.message;
    ASSERT_TRUE(Recovers(binding::Resource::kMemory, 8));
  }
}

// Row: the plugin dies, or ListAndWatch ends. All devices become unhealthy immediately. Running
// containers stay; new pods fail permanently. The kubelet is scripted.
using PluginDies = RowTest;

TEST_F(PluginDies, LosesOnlyThePodsAdmittedMeanwhile) {
  StartBoth();
  const std::string running = AddRunningPod(SharingPod("running"));
  plugin.reset();
  ASSERT_TRUE(kubelet->WaitAllocatable(kMemory, 0, Soon()));
  EXPECT_EQ(kubelet->Capacity(kMemory), 8U);
  const PodStatus failed = kubelet->StatusOf(kubelet->AddPod(SharingPod("meanwhile")));
  EXPECT_TRUE(failed.failed);
  EXPECT_THAT(failed.message, HasSubstr("UnexpectedAdmissionError"));
  StartPlugin();
  ASSERT_TRUE(Usable());
  EXPECT_EQ(kubelet->StatusOf(running).containers["app"].state, State_::kRunning);
  AddRunningPod(SharingPod("after"));
}

// Row: registration while an old stream is open. Kubelets up to 1.36 identify plugins by resource
// alone, so the old stream's end disconnects the new registration. Later ones refuse a socket that
// they consider connected. The kubelet is scripted, of both kinds, and notices the end of a stream
// late.
class ReRegisterWhileOldStreamIsOpen : public RowTest,
                                       public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Kubelets, ReRegisterWhileOldStreamIsOpen, ::testing::Bool());
TEST_P(ReRegisterWhileOldStreamIsOpen, EndsItFirst) {
  kubelet_options.known_by_resource_alone = GetParam();
  kubelet_options.notice_ms = 10;
  options.times.grace_ms = 500;
  StartBoth();
  // A running kubelet creates a new kubelet.sock: the old streams are open.
  const State before = plugin->state();
  ASSERT_TRUE(kubelet->ListenAgain());
  ASSERT_TRUE(UsableAgain(before));
  EXPECT_EQ(kubelet->streams(kMemory), 2U);
  // Even after the end of the old stream must have been noticed, everything works.
  AddRunningPod(SharingPod("after"));
  EXPECT_EQ(kubelet->Allocatable(kMemory), 8U);
  EXPECT_EQ(plugin->state().Of(binding::Resource::kMemory).failures, 0U);
}

// The same with a kubelet that notices later than the plugin's grace: the registration that it
// disconnects is repeated.
TEST_F(ReRegisterWhileOldStreamIsOpen, IsRepeatedIfItWasTooEarly) {
  kubelet_options.known_by_resource_alone = true;
  kubelet_options.notice_ms = 2000;  // Later than a busy machine registers again.
  options.times.grace_ms = 1;
  StartBoth();
  ASSERT_TRUE(kubelet->ListenAgain());
  ASSERT_TRUE(plugin->WaitFor(
      [](const State& state) { return state.Of(binding::Resource::kMemory).failures > 0; },
      Soon()));
  EXPECT_TRUE(Usable());
}

// After that, later kubelets consider the socket connected indefinitely.
TEST_F(ReRegisterWhileOldStreamIsOpen, IsRepeatedOnAnotherSocketIfItWasTooEarly) {
  kubelet_options.notice_ms = kLongMs;  // Until the kubelet ends.
  options.times.grace_ms = 1;
  StartBoth();
  ASSERT_TRUE(kubelet->ListenAgain());
  ASSERT_TRUE(plugin->WaitFor(
      [](const State& state) { return state.Of(binding::Resource::kMemory).failures > 0; },
      Soon()));
  EXPECT_THAT(plugin->state().Of(binding::Resource::kMemory).last_error,
              HasSubstr("already connected"));
  EXPECT_TRUE(Usable());
  EXPECT_TRUE(std::filesystem::exists(folder / "device-plugins/gpushm-memory-2.sock"));
  EXPECT_FALSE(std::filesystem::exists(folder / "device-plugins/gpushm-memory.sock"));
}

// Row: the kubelet has forgotten the resource, although its stream is open. podresources shows it,
// and Renew fixes it. The kubelet is scripted.
using Forgotten = RowTest;

TEST_F(Forgotten, IsSeenInPodResourcesAndRenewed) {
  StartBoth();
  kubelet->Forget(kMemory);
  PodResources pods({.socket = kubelet_options.pod_resources_socket});
  const auto is_well = [&] {
    const auto allocatable = pods.Allocatable(Soon());
    return allocatable && allocatable->ours.contains(binding::Resource::kMemory) &&
           allocatable->ours.at(binding::Resource::kMemory).size() == 8;
  };
  EXPECT_FALSE(is_well());
  EXPECT_TRUE(plugin->state().usable());
  const uint64_t before = kubelet->streams(kMemory);
  plugin->Renew(binding::Resource::kMemory);
  ASSERT_TRUE(plugin->WaitFor(
      [&](const State& state) {
        return state.Of(binding::Resource::kMemory).usable() && kubelet->streams(kMemory) > before;
      },
      Soon()));
  EXPECT_TRUE(Usable());
  EXPECT_TRUE(is_well());
}

// Row: a device becomes unhealthy. Allocatable shrinks, capacity does not; its container continues,
// but cannot restart until the device is healthy again. The kubelet is scripted.
using DeviceUnhealthy = RowTest;

TEST_F(DeviceUnhealthy, RecoversByTheNextList) {
  StartBoth();
  const std::string uid = AddRunningPod(SharingPod("pod", 8));
  plugin->SetDevices(binding::Resource::kMemory, Devices("m", 8, 1));
  ASSERT_TRUE(kubelet->WaitAllocatable(kMemory, 7, Soon()));
  EXPECT_EQ(kubelet->Capacity(kMemory), 8U);
  EXPECT_EQ(kubelet->StatusOf(uid).containers["gpushm"].state, State_::kRunning);
  const Result<void> refused = kubelet->RestartContainer(uid, "gpushm");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what(),
              HasSubstr("previously allocated devices are no longer healthy"));
  plugin->SetDevices(binding::Resource::kMemory, Devices("m", 8));
  ASSERT_TRUE(kubelet->WaitAllocatable(kMemory, 8, Soon()));
  EXPECT_TRUE(kubelet->RestartContainer(uid, "gpushm"));
}

// Row: node reboot. Pods that are admitted before the plugin registers fail permanently. The
// kubelet is scripted.
using NodeReboot = RowTest;

TEST_F(NodeReboot, FailsPodsThatComeBeforeThePlugin) {
  StartBoth();
  const std::string uid = AddRunningPod(SharingPod("bare"));
  kubelet->PowerOff();
  plugin.reset();
  ASSERT_TRUE(kubelet->Start());
  kubelet->Readmit();
  EXPECT_TRUE(kubelet->StatusOf(uid).failed);
  EXPECT_THAT(kubelet->StatusOf(uid).message, HasSubstr("no healthy devices present"));
  StartPlugin();
  ASSERT_TRUE(Usable());
  AddRunningPod(SharingPod("successor", 8));
}

TEST_F(NodeReboot, KeepsPodsThatComeAfterThePlugin) {
  StartBoth();
  const std::string uid = AddRunningPod(SharingPod("bare"));
  const size_t started = handler.Count("prestart");
  kubelet->PowerOff();
  plugin.reset();
  StartPlugin();
  ASSERT_TRUE(kubelet->Start());
  ASSERT_TRUE(Usable());
  kubelet->Readmit();
  EXPECT_TRUE(kubelet->WaitRunning(uid, Soon())) << kubelet->StatusOf(uid).message;
  EXPECT_EQ(handler.Count("prestart"), started + 2);
}

// Time limits: Allocate has none; PreStartContainer has 30 s (scaled), and is repeated.
using Timeouts = RowTest;

TEST_F(Timeouts, RepeatAPreStartThatTookTooLong) {
  kubelet_options.pre_start_ms = 50;
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  handler.on_pre_start = [&](binding::Resource, const binding::DeviceIds&) -> Result<void> {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::milliseconds(kLongMs), [&] { return ready; });
    return {};
  };
  StartBoth();
  const std::string uid = kubelet->AddPod(SharingPod("pod"));
  EXPECT_FALSE(kubelet->StartPod(uid));
  EXPECT_THAT(kubelet->StatusOf(uid).containers["gpushm"].message, HasSubstr("DeadlineExceeded"));
  {
    const std::lock_guard lock(mutex);
    ready = true;
  }
  changed.notify_all();
  EXPECT_TRUE(kubelet->WaitRunning(uid, Soon()));
}

// Order of calls: pod after pod, the sidecar first, then the others; one request per call.
using Order = RowTest;

TEST_F(Order, OfCallsFollowsTheSpec) {
  StartBoth();
  std::vector<std::thread> admissions;
  for (int i = 0; i < 4; ++i)
    admissions.emplace_back([&, i] { kubelet->AddPod(SharingPod(Concat("pod-", i))); });
  for (std::thread& admission : admissions) admission.join();
  const auto calls = handler.calls();
  ASSERT_THAT(calls, SizeIs(8));
  for (size_t i = 0; i < calls.size(); ++i)
    EXPECT_EQ(calls[i].resource,
              i % 2 == 0 ? binding::Resource::kMemory : binding::Resource::kAttach);
}

}  // namespace
}  // namespace gpushm::plugin::kubelet
