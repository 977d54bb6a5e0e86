// The real gpushm-plugin against the scripted kubelet: what the parts do together.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "plugin/kubelet/testing/other_plugin.h"
#include "plugin/testing/sharing.h"

namespace gpushm::plugin {
namespace {

using kubelet::testing::OtherPlugin;
using kubelet::testing::PodSpec;
using kubelet::testing::ScriptedKubelet;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kAttach;
using testing::kGpuA;
using testing::kGpuB;
using testing::kLongMs;
using testing::kMemory;
using testing::kTokens;
using testing::kUnits;
using testing::PluginProcess;
using testing::SharingPod;
using ::testing::SizeIs;
using testing::Soon;
using testing::TestNode;

std::string SimulatedDriver() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "driver-sim";
}
int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++count;
  return count;
}

class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() {
    if (!kubelet_.Start()) ADD_FAILURE() << "no kubelet";
  }
  void StartPlugin(const std::string& more = "") {
    plugin_ = std::make_unique<PluginProcess>(node_, node_.WriteConfig(more));
  }
  bool WaitUsable(size_t units = kUnits) {
    return kubelet_.WaitAllocatable(kMemory, units, Soon()) &&
           kubelet_.WaitAllocatable(kAttach, kTokens, Soon());
  }
  std::vector<std::string> GpusOf(const std::string& uid) const {
    return testing::GpusOf(node_, kubelet_, uid);
  }
  bool WaitReleased() {
    return testing::WaitUntil(kLongMs,
                              [this] { return node_.Specs().empty() && node_.Links().empty(); });
  }
  std::string Log() const { return plugin_->Log(); }

  TestNode node_;
  ScriptedKubelet kubelet_{testing::KubeletOf(node_, 50)};
  std::unique_ptr<PluginProcess> plugin_;
};

TEST_F(ProcessTest, APodsContainersGetOneGpu) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string first = kubelet_.AddPod(SharingPod("first", 8));
  const std::string second = kubelet_.AddPod(SharingPod("second", 10));
  ASSERT_TRUE(kubelet_.WaitRunning(first, Soon())) << Log();
  ASSERT_TRUE(kubelet_.WaitRunning(second, Soon())) << Log();
  EXPECT_THAT(GpusOf(first), ::testing::Each(kGpuA));
  EXPECT_THAT(GpusOf(second), ::testing::Each(kGpuB));
  EXPECT_THAT(GpusOf(first), SizeIs(3));
  EXPECT_THAT(node_.Links(), SizeIs(2));
  kubelet_.DeletePod(first);
  kubelet_.DeletePod(second);
  EXPECT_TRUE(WaitReleased()) << Log();
}

TEST_F(ProcessTest, WhatDoesNotFitWaitsAndStartsWhenThereIsRoom) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string a = kubelet_.AddPod(SharingPod("a", 9));
  const std::string b = kubelet_.AddPod(SharingPod("b", 9));
  ASSERT_TRUE(kubelet_.WaitRunning(a, Soon()) && kubelet_.WaitRunning(b, Soon())) << Log();
  const std::string late = kubelet_.AddPod(SharingPod("late", 10));
  EXPECT_FALSE(kubelet_.StartPod(late));
  const auto waiting = kubelet_.StatusOf(late);
  EXPECT_FALSE(waiting.failed);
  EXPECT_THAT(waiting.containers.at("gpushm").message,
              HasSubstr("needs 10 GiB on one GPU, the largest free block is 6 GiB"));
  kubelet_.DeletePod(a);
  EXPECT_TRUE(kubelet_.WaitRunning(late, Soon())) << Log();
}

TEST_F(ProcessTest, AKilledPluginLeavesPodsAloneAndFindsThemAgain) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 8));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  const std::vector<std::string> before = GpusOf(pod);
  plugin_->Signal(SIGKILL);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  EXPECT_EQ(GpusOf(pod), before) << "the specs stay";
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  ASSERT_TRUE(kubelet_.RestartContainer(pod, "one"));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  EXPECT_EQ(GpusOf(pod), before);
  // Its room is still taken: 15 - 8 = 7 are left there, 15 on the other.
  const std::string large = kubelet_.AddPod(SharingPod("large", 15));
  EXPECT_TRUE(kubelet_.WaitRunning(large, Soon())) << Log();
  EXPECT_THAT(GpusOf(large), ::testing::Each(::testing::Ne(before[0])));
}

TEST_F(ProcessTest, ASecondPluginRefusesToStart) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  PluginProcess twin(node_, node_.WriteConfig());
  ASSERT_TRUE(twin.WaitEnd(kLongMs));
  EXPECT_EQ(WEXITSTATUS(twin.status()), 1);
  EXPECT_THAT(Log(), HasSubstr("another plugin serves"));
  // Another state folder is not enough of a difference.
  std::ifstream config(node_.WriteConfig());
  std::string text{std::istreambuf_iterator<char>(config), {}};
  const std::string state = node_ / "state";
  text.replace(text.find(state), state.size(), node_ / "apart");
  std::ofstream(node_ / "other.yaml") << text;
  PluginProcess apart(node_, node_ / "other.yaml");
  ASSERT_TRUE(apart.WaitEnd(kLongMs));
  EXPECT_EQ(WEXITSTATUS(apart.status()), 1);
  EXPECT_THAT(Log(), HasSubstr(Concat("another process serves ", node_ / "plugins/")));
  EXPECT_TRUE(plugin_->Running());
}

// Goal: a machine without Kubernetes needs NVML and nothing else of the driver, and a restarted
// plugin leaves the folder that a broker may have mounted.
TEST_F(ProcessTest, WithoutAKubeletDeclaredLinksNeedNoDriverFiles) {
  const std::string config = node_ / "none.yaml";
  std::ofstream(config) << "kubelet: none\ndriver-root: /nowhere\n"
                        << "state-folder: " << node_ / "state" << "\n"
                        << "cdi-folder: " << node_ / "cdi" << "\n"
                        << "allocations: [{name: demo, memory: 4Mi, gpu: " << kGpuB << "}]\n";
  const std::string folder = node_ / "state/links/demo";
  ino_t before = 0;
  for (int run = 0; run < 2; ++run) {
    plugin_ = std::make_unique<PluginProcess>(
        node_, config, std::map<std::string, std::string>{{"GPUSHM_DRIVER", SimulatedDriver()}});
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), " ready ") == run + 1; }))
        << Log();
    EXPECT_EQ(access((folder + "/plugin.sock").c_str(), F_OK), 0) << Log();
    struct stat info{};
    ASSERT_EQ(stat(folder.c_str(), &info), 0);
    EXPECT_TRUE(run == 0 || info.st_ino == before) << "it was replaced";
    before = info.st_ino;
    plugin_->Signal(SIGKILL);
    ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  }
  EXPECT_THAT(Log(), HasSubstr("no-driver-files"));
  EXPECT_FALSE(std::filesystem::exists(node_ / "cdi/gpushm.io-driver-files.json"));
}

TEST_F(ProcessTest, ASickGpuLosesItsUnitsAndGetsThemBack) {
  StartPlugin("health: {quiet-ms: 1000}\n");
  ASSERT_TRUE(WaitUsable()) << Log();
  const auto faults = [this](const std::string& text) {
    std::ofstream(node_ / "sim/faults.new") << text;
    std::rename((node_ / "sim/faults.new").c_str(), (node_ / "sim/faults.yaml").c_str());
  };
  faults(Concat("lost: [", kGpuA, "]\n"));
  ASSERT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits / 2, Soon())) << Log();
  ASSERT_TRUE(kubelet_.WaitAllocatable(kAttach, kTokens / 2, Soon())) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 2));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  EXPECT_THAT(GpusOf(pod), ::testing::Each(kGpuB));
  faults("lost: []\n");
  EXPECT_TRUE(WaitUsable()) << Log();
}

// Goal: a GPU that was exchanged while the plugin was away costs units only as long as a pod of
// before holds them.
TEST_F(ProcessTest, UnitsThatWereBoundToAGpuThatIsGoneComeBackWithTheirPodsEnd) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 8));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  ASSERT_THAT(GpusOf(pod), ::testing::Each(kGpuA));
  plugin_->Signal(SIGKILL);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  std::ofstream(node_ / "sim/cards.yaml")
      << "gpus:\n- {name: B, memory: 16Gi, uuid: " << kGpuB
      << "}\n- {name: C, memory: 16Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000003}\n";
  StartPlugin();
  ASSERT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits - 8, Soon())) << Log();
  kubelet_.DeletePod(pod);
  EXPECT_TRUE(testing::WaitUntil(2 * kLongMs, [this] {
    return kubelet_.Allocatable(kMemory) == kUnits && kubelet_.Allocatable(kAttach) == kTokens;
  })) << Log();
}

TEST_F(ProcessTest, ReloadTakesAGoodFileAndKeepsTheOldOneForABadOne) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  node_.WriteConfig("gpus: [0\n");
  // Twice: when the second is refused, the first has had what effect it has.
  for (int i = 0; i < 2; ++i) {
    const int before = Count(Log(), "reload-refused");
    plugin_->Signal(SIGHUP);
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] {
      return Count(Log(), "reload-refused") > before;
    })) << Log();
  }
  EXPECT_EQ(kubelet_.Allocatable(kMemory), kUnits) << Log();
  EXPECT_EQ(kubelet_.Allocatable(kAttach), kTokens) << Log();
  node_.WriteConfig(Concat("gpus: [", kGpuB, "]\n"));
  plugin_->Signal(SIGHUP);
  EXPECT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits / 2, Soon())) << Log();
}

TEST_F(ProcessTest, StrategyDevicesGivesTheDevicesItselfAndSurvivesARestart) {
  StartPlugin("strategy: devices\n");
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 8));
  const auto gpu_of = [&](const std::string& container) {
    const auto answers = kubelet_.StatusOf(pod).containers.at(container).answers;
    return answers.empty() ? std::string("none") : answers[0].edits.env.at("GPUSHM_SIM_DEVICES");
  };
  ASSERT_FALSE(kubelet_.StatusOf(pod).failed) << kubelet_.StatusOf(pod).message;
  EXPECT_EQ(gpu_of("gpushm"), kGpuA);
  EXPECT_EQ(gpu_of("one"), kGpuA);
  EXPECT_EQ(gpu_of("two"), kGpuA);
  // Between Allocate and the start.
  plugin_->Signal(SIGKILL);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  StartPlugin("strategy: devices\n");
  ASSERT_TRUE(WaitUsable()) << Log();
  EXPECT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  EXPECT_THAT(node_.Specs(), IsEmpty()) << "nothing where a runtime reads";
}

TEST_F(ProcessTest, AContainerThatAlsoAsksNvidiasPluginIsTold) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  OtherPlugin nvidia(node_ / "plugins", "nvidia.com/gpu");
  ASSERT_TRUE(kubelet_.WaitAllocatable("nvidia.com/gpu", 1, Soon()));
  PodSpec spec = SharingPod("greedy", 2);
  spec.containers[1].limits["nvidia.com/gpu"] = 1;
  const std::string pod = kubelet_.AddPod(spec);
  EXPECT_FALSE(kubelet_.StartPod(pod));
  EXPECT_THAT(kubelet_.StatusOf(pod).containers.at("one").message,
              HasSubstr("asks for nvidia.com/gpu beside gpushm.io/attach"));
}

}  // namespace
}  // namespace gpushm::plugin
