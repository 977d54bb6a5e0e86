// Goal: whatever the plugin was doing to the file system when it was killed, the plugin that
// follows gives every container of a pod one GPU, and nothing of the killed one is in its way.
// Method: the real process, killed before its n-th change of the file system, for each n, while it
// starts, admits a pod, starts its containers and releases it; then a plugin that lives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <set>

#include "plugin/cdi/spec_text.h"
#include "plugin/kubelet/testing/scripted_kubelet.h"
#include "plugin/testing/plugin_process.h"

namespace gpushm::plugin {
namespace {

using kubelet::testing::Role;
using kubelet::testing::ScriptedKubelet;
using testing::PluginProcess;
using testing::TestNode;

constexpr char kMemory[] = "gpushm.io/memory";
constexpr char kAttach[] = "gpushm.io/attach";
constexpr int64_t kLongMs = 30'000;
constexpr int kMostSteps = 400;
#ifdef GPUSHM_SANITIZED
constexpr int kStride = 7;
#else
constexpr int kStride = 1;
#endif
Deadline Soon() { return Deadline::AfterMs(kLongMs); }

kubelet::testing::PodSpec SharingPod(const std::string& name) {
  return {.pod = {"default", name},
          .containers = {{"gpushm", Role::kSidecar, {{kMemory, 4}}},
                         {"one", Role::kApp, {{kAttach, 1}}},
                         {"two", Role::kApp, {{kAttach, 1}}}}};
}

std::string KillerLibrary() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
         "tests/libgpushm_kill_at.so";
}

ScriptedKubelet::Options OptionsFor(const TestNode& node) {
  ScriptedKubelet::Options options;
  options.folder = node / "plugins";
  options.pod_resources_socket = node / "pods/kubelet.sock";
  options.retry_ms = 20;
  options.list_qps = 1000;
  options.list_burst = 1000;
  return options;
}

void ExpectOneGpu(const TestNode& node, const ScriptedKubelet& kubelet, const std::string& uid) {
  std::set<std::string> gpus;
  for (const auto& [name, container] : kubelet.StatusOf(uid).containers) {
    for (const auto& answer : container.answers) {
      for (const std::string& cdi : answer.cdi_names) {
        if (cdi != kSharedCdiName) gpus.insert(node.GpuOf(cdi));
      }
    }
  }
  EXPECT_EQ(gpus.size(), 1u);
  EXPECT_FALSE(gpus.contains(""));
}

// A life of a pod; ends early when the plugin is dead.
void LiveOn(const TestNode& node, ScriptedKubelet& kubelet, PluginProcess& plugin) {
  const auto wait = [&](const std::function<bool()>& done) {
    bool alive = true;
    return testing::WaitUntil(kLongMs, [&] { return !(alive = plugin.Running()) || done(); }) &&
           alive;
  };
  const auto usable = [&] {
    return kubelet.Allocatable(kMemory) == 30 && kubelet.Allocatable(kAttach) == 128;
  };
  if (!wait(usable)) return;
  const std::string pod = kubelet.AddPod(SharingPod("victim"));
  if (!wait([&] { return kubelet.StartPod(pod); })) return;
  kubelet.DeletePod(pod);
  wait([&] { return node.Specs().empty() && node.Links().empty(); });
}

TEST(PluginCrash, KilledBeforeEachChangeOfTheFileSystem) {
  int step = 1;
  bool ended = false;
  for (; !ended && step < kMostSteps; step += kStride) {
    SCOPED_TRACE(Concat("killed before change ", step));
    const TestNode node;
    const std::string config = node.WriteConfig();
    ScriptedKubelet kubelet(OptionsFor(node));
    ASSERT_TRUE(kubelet.Start());
    {
      PluginProcess plugin(
          node, config,
          {{"LD_PRELOAD", KillerLibrary()}, {"GPUSHM_KILL_AT", std::to_string(step)}});
      LiveOn(node, kubelet, plugin);
      ended = plugin.Running();  // It outlived everything: no such step.
    }
    PluginProcess plugin(node, config);
    ASSERT_TRUE(kubelet.WaitAllocatable(kMemory, 30, Soon())) << plugin.Log();
    ASSERT_TRUE(kubelet.WaitAllocatable(kAttach, 128, Soon())) << plugin.Log();
    // What was admitted under the killed one starts now, if it had not.
    const std::string pod = kubelet.AddPod(SharingPod("next"));
    ASSERT_TRUE(kubelet.WaitRunning(pod, Soon())) << plugin.Log();
    ExpectOneGpu(node, kubelet, pod);
  }
  EXPECT_TRUE(ended) << "more than " << kMostSteps << " changes";
  EXPECT_GT(step, 30) << "the preloaded library did not count";
}

}  // namespace
}  // namespace gpushm::plugin
