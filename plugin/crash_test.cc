// Goal: whatever change of the file system the plugin was making when it was killed, the next
// plugin gives every container of a pod one GPU, and nothing left behind gets in its way. Method:
// the real process is killed before its n-th change of the file system, for each Stride()-th n,
// while it starts, admits a pod, starts its containers and releases it. Then a plugin that is not
// killed serves the affected pod and another one.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/testing.h"
#include "plugin/keeper/testing/fake_broker.h"
#include "plugin/testing/sharing.h"

namespace gpushm::plugin {
namespace {

using keeper::testing::FakeBroker;
using keeper::testing::Process;
using kubelet::testing::ScriptedKubelet;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Eq;
using testing::kAttach;
using testing::kLongMs;
using testing::kMemory;
using testing::kTokens;
using testing::kUnits;
using testing::PluginProcess;
using testing::SharingPod;
using ::testing::SizeIs;
using testing::Soon;
using testing::TestNode;

constexpr size_t kPodUnits = 4;
constexpr int kMostSteps = 400;

std::string KillerLibrary() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
         "tests/libgpushm_kill_at.so";
}

// Ends a running pod as on a node: its broker ends with it, so the plugin checks the kubelet's list
// soon.
void EndPod(const TestNode& node, ScriptedKubelet& kubelet, const std::string& pod) {
  const auto ids = kubelet.StatusOf(pod).containers.at("gpushm").ids.at(kMemory);
  const std::string link =
      node / Concat("state/links/", *ids.begin(), "/", protocol::kLinkSocketName);
  kubelet.DeletePod(pod);
  Process broker([&] {
    Result<UniqueFd> socket = protocol::Connect(link);
    if (socket) (void)FakeBroker(std::move(*socket)).Greet(false);
  });
  EXPECT_TRUE(broker.WaitForEnd());
}

// The life of a pod; ends early if the plugin has died. Returns the pod if it is to go on then.
std::optional<std::string> LiveOn(const TestNode& node, ScriptedKubelet& kubelet,
                                  PluginProcess& plugin) {
  const auto wait = [&](const std::function<bool()>& done) {
    bool alive = true;
    const bool over =
        testing::WaitUntil(kLongMs, [&] { return !(alive = plugin.Running()) || done(); });
    EXPECT_TRUE(over) << plugin.Log();
    return over && alive;
  };
  const auto usable = [&] {
    return kubelet.Allocatable(kMemory) == kUnits && kubelet.Allocatable(kAttach) == kTokens;
  };
  if (!wait(usable)) return std::nullopt;
  const std::string pod = kubelet.AddPod(SharingPod("victim", kPodUnits));
  if (!wait([&] { return kubelet.StartPod(pod); })) {
    // A failed Allocate ends a pod.
    return kubelet.StatusOf(pod).failed ? std::nullopt : std::optional(pod);
  }
  EndPod(node, kubelet, pod);
  wait([&] { return node.Specs().empty() && node.Links().empty(); });
  return std::nullopt;
}

void ExpectRunsOnOneGpu(const TestNode& node, ScriptedKubelet& kubelet, const std::string& pod) {
  ASSERT_TRUE(kubelet.WaitRunning(pod, Soon()));
  const auto gpus = testing::GpusOf(node, kubelet, pod);
  EXPECT_THAT(gpus, SizeIs(3));
  EXPECT_THAT(gpus, Each(AnyOf(Eq(testing::kGpuA), Eq(testing::kGpuB))));
  EXPECT_THAT(std::set(gpus.begin(), gpus.end()), SizeIs(1));
}

TEST(PluginCrash, KilledBeforeEachChangeOfTheFileSystem) {
  SCOPED_TRACE(gpushm::testing::StrideNote());
  int step = 1 + gpushm::testing::Offset();
  bool ended = false;
  for (; !ended && step < kMostSteps; step += gpushm::testing::Stride()) {
    SCOPED_TRACE(Concat("killed before change ", step));
    const TestNode node;
    const std::string config = node.WriteConfig();
    ScriptedKubelet kubelet(testing::KubeletOf(node));
    ASSERT_TRUE(kubelet.Start());
    std::optional<std::string> victim;
    {
      PluginProcess plugin(
          node, config,
          {{"LD_PRELOAD", KillerLibrary()}, {"GPUSHM_KILL_AT", std::to_string(step)}});
      victim = LiveOn(node, kubelet, plugin);
      ended = plugin.Running();  // It survived everything, so there is no such step.
    }
    // Waits until the kubelet has noticed its end: what it advertises after that comes from the
    // next plugin.
    ASSERT_TRUE(kubelet.WaitAllocatable(kMemory, 0, Soon()));
    ASSERT_TRUE(kubelet.WaitAllocatable(kAttach, 0, Soon()));
    const uint64_t looks = kubelet.pod_resources_calls();
    PluginProcess plugin(node, config);
    ASSERT_TRUE(kubelet.WaitAllocatable(kMemory, kUnits, Soon())) << plugin.Log();
    ASSERT_TRUE(kubelet.WaitAllocatable(kAttach, kTokens, Soon())) << plugin.Log();
    // For a pod that it has not seen, it would accept the end half a minute later.
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return kubelet.pod_resources_calls() > looks; }));
    const std::string next = kubelet.AddPod(SharingPod("next", kPodUnits));
    // What was admitted under the killed plugin starts now, unless it had started.
    if (victim) ExpectRunsOnOneGpu(node, kubelet, *victim);
    ExpectRunsOnOneGpu(node, kubelet, next);
    ASSERT_FALSE(::testing::Test::HasFailure()) << plugin.Log();
    if (!victim) continue;
    kubelet.DeletePod(next);
    EndPod(node, kubelet, *victim);
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] {
      return node.Specs().empty() && node.Links().empty();
    })) << plugin.Log();
  }
  EXPECT_TRUE(ended) << "more than " << kMostSteps << " changes";
  EXPECT_GT(step, 30) << "the preloaded library did not count";
}

// Kills the plugin that takes over before its n-th change of the file system until it serves, and
// restarts it immediately, as the kubelet does. Or kills the plugin that is ending, that many
// milliseconds after it was asked to end.
struct Handover {
  const char* name;
  bool kills_next;
};
class PluginHandoverCrash : public ::testing::TestWithParam<Handover> {};
INSTANTIATE_TEST_SUITE_P(Killed, PluginHandoverCrash,
                         ::testing::Values(Handover{"TheOneThatTakesOver", true},
                                           Handover{"TheOneThatEnds", false}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(PluginHandoverCrash, LeavesPodsAloneAndTheNodeServed) {
  constexpr int kMostMs = 150;
  const std::vector<std::string> waits = {"--standby"};
  SCOPED_TRACE(gpushm::testing::StrideNote());
  int step = 1 + gpushm::testing::Offset();
  bool ended = false;
  for (; !ended && step < kMostSteps; step += gpushm::testing::Stride()) {
    SCOPED_TRACE(Concat("killed at ", step));
    const TestNode node;
    const std::string config = node.WriteConfig();
    ScriptedKubelet kubelet(testing::KubeletOf(node));
    ASSERT_TRUE(kubelet.Start());
    PluginProcess first(node, config, {}, waits);
    ASSERT_TRUE(kubelet.WaitAllocatable(kMemory, kUnits, Soon())) << first.Log();
    ASSERT_TRUE(kubelet.WaitAllocatable(kAttach, kTokens, Soon())) << first.Log();
    const std::string pod = kubelet.AddPod(SharingPod("victim", kPodUnits));
    ExpectRunsOnOneGpu(node, kubelet, pod);
    const auto gpus = testing::GpusOf(node, kubelet, pod);
    std::map<std::string, std::string> environment;
    if (GetParam().kills_next) {
      environment = {{"LD_PRELOAD", KillerLibrary()}, {"GPUSHM_KILL_AT", std::to_string(step)}};
    }
    PluginProcess next(node, config, environment, waits);
    // Both write to the same log.
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] {
      return !next.Running() || first.Log().find("standing-by") != std::string::npos;
    }));
    first.Signal(SIGTERM);
    if (GetParam().kills_next) {
      EXPECT_TRUE(testing::WaitUntil(kLongMs, [&] { return !next.Running() || !first.Running(); }));
      ended = next.Running();
      if (ended) break;  // It serves; its death from then on is tested above.
    } else {
      ended = first.WaitEnd(step) || step >= kMostMs;
      first.Signal(SIGKILL);
      EXPECT_TRUE(first.WaitEnd(kLongMs));
      EXPECT_TRUE(next.Running()) << first.Log();
    }
    uint64_t memory_streams = 2;
    uint64_t attach_streams = 2;
    // As the kubelet does with a container that died.
    std::optional<PluginProcess> again;
    if (!next.Running()) {
      memory_streams = kubelet.streams(kMemory) + 1;
      attach_streams = kubelet.streams(kAttach) + 1;
      again.emplace(node, config, std::map<std::string, std::string>(), waits);
    }
    EXPECT_TRUE(first.WaitEnd(kLongMs)) << first.Log();
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] {
      return kubelet.streams(kMemory) >= memory_streams &&
             kubelet.streams(kAttach) >= attach_streams && kubelet.Allocatable(kMemory) == kUnits &&
             kubelet.Allocatable(kAttach) == kTokens;
    })) << first.Log();
    EXPECT_EQ(testing::GpusOf(node, kubelet, pod), gpus);
    const Result<void> restarted = kubelet.RestartContainer(pod, "one");
    ASSERT_TRUE(restarted) << restarted.error().ToString() << first.Log();
    ExpectRunsOnOneGpu(node, kubelet, pod);
    ExpectRunsOnOneGpu(node, kubelet, kubelet.AddPod(SharingPod("next", kPodUnits)));
    ASSERT_FALSE(::testing::Test::HasFailure()) << first.Log();
  }
  EXPECT_TRUE(ended) << "more than " << kMostSteps << " steps";
  EXPECT_GT(step, 3) << "nothing was killed";
}

}  // namespace
}  // namespace gpushm::plugin
