// The real gpushm-plugin against the scripted kubelet: what the parts do together.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <thread>

#include "contract/status/drained.h"
#include "plugin/keeper/testing/fake_broker.h"
#include "plugin/keeper/testing/statements.h"
#include "plugin/kubelet/testing/other_plugin.h"
#include "plugin/testing/sharing.h"

namespace gpushm::plugin {
namespace {

using keeper::testing::FakeBroker;
using kubelet::testing::OtherPlugin;
using kubelet::testing::ScriptedKubelet;
using ::testing::HasSubstr;
using testing::kAttach;
using testing::kGpuA;
using testing::kGpuB;
using testing::kLongMs;
using testing::kMemory;
using testing::kTokens;
using testing::kUnits;
using testing::PluginProcess;
using testing::SharingPod;
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

TEST_F(ProcessTest, ASecondPluginRefusesToStart) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  PluginProcess twin(node_, node_.WriteConfig());
  ASSERT_TRUE(twin.WaitEnd(kLongMs));
  EXPECT_EQ(WEXITSTATUS(twin.status()), 1);
  EXPECT_THAT(Log(), HasSubstr("another plugin serves"));
  EXPECT_TRUE(plugin_->Running());
}

// Goal: an update leaves the node without a plugin only for a moment, and kept state of a broker
// that is not running at that moment is not lost. Method: the broker of a pod is killed; another
// plugin stands by; the first is asked to end.
TEST_F(ProcessTest, APluginThatStandsByTakesOverWhatIsKept) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 4));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  const auto ids = kubelet_.StatusOf(pod).containers.at("gpushm").ids.at(kMemory);
  const std::string link =
      node_ / Concat("state/links/", *ids.begin(), "/", protocol::kLinkSocketName);
  {
    const keeper::testing::Process broker([&] {
      FakeBroker says(link);
      const bool said = says.Greet(false, 7) && says.Registry(7) &&
                        says.Say(keeper::testing::BufferOf("weights", 7)) &&
                        says.Say(keeper::testing::GenerationOf("weights", 7),
                                 keeper::testing::SimulatedMemory(node_ / "sim").get()) &&
                        says.End();
      if (said) std::ofstream(node_ / "said").flush();
      keeper::testing::WaitToBeKilled();
    });
    // What is in the socket at that moment is read before the link is closed.
    ASSERT_TRUE(
        testing::WaitUntil(kLongMs, [&] { return std::filesystem::exists(node_ / "said"); }));
  }
  ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), "link-closed") == 1; }));
  ASSERT_THAT(Log(), HasSubstr("generations=1 leases=0"));
  const std::string config = node_.WriteConfig();
  PluginProcess next(node_, config, {}, {"--standby"});
  ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), "standing-by") == 1; }))
      << Log();
  PluginProcess third(node_, config, {}, {"--standby"});
  ASSERT_TRUE(third.WaitEnd(kLongMs)) << Log();
  EXPECT_THAT(Log(), HasSubstr("another plugin stands by"));
  EXPECT_TRUE(kubelet_.Allocatable(kMemory) == kUnits && plugin_->Running() && next.Running());
  const uint64_t before = kubelet_.registrations(kMemory);
  plugin_->Signal(SIGTERM);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs)) << Log();
  ASSERT_TRUE(
      testing::WaitUntil(kLongMs, [&] { return kubelet_.registrations(kMemory) > before; }));
  ASSERT_TRUE(WaitUsable()) << Log();
  EXPECT_THAT(Log(), HasSubstr("handed-over allocation=")) << Log();
  ASSERT_TRUE(kubelet_.RestartContainer(pod, "one")) << Log();
  FakeBroker successor(link);
  const auto welcome = successor.Greet(true, 8);
  ASSERT_TRUE(welcome) << welcome.error().ToString();
  EXPECT_EQ(welcome->generations, 1U) << Log();
  EXPECT_TRUE(next.Running()) << Log();
}

// For example after a change of stateFolder: the CDI specs are in a folder that both plugins use.
TEST_F(ProcessTest, ASecondPluginWithAnotherStateFolderTouchesNothing) {
  const std::string config = node_.WriteConfig();
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  for (int update = 0; update < 2; ++update) {  // The second time, the first plugin uses "-2.sock".
    const std::string pod = kubelet_.AddPod(SharingPod(Concat("pod-", update), 4));
    ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
    const auto text = [&] {
      std::string all;
      for (const auto& file : std::filesystem::directory_iterator(node_ / "cdi")) {
        std::ifstream in(file.path());
        all.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      }
      return all;
    };
    const std::string before = text();
    EXPECT_THAT(before, HasSubstr("/state/links/"));
    const std::string serves = Concat("another process serves ", node_ / "plugins/");
    const int refused = Count(Log(), serves);
    PluginProcess second(node_, config, {}, {"--standby", "--state-folder", node_ / "other"});
    EXPECT_TRUE(second.WaitEnd(kLongMs)) << Log();
    EXPECT_EQ(WEXITSTATUS(second.status()), 1);
    EXPECT_EQ(Count(Log(), serves), refused + 1) << Log();
    EXPECT_EQ(text(), before);
    if (update > 0) break;
    auto next = std::make_unique<PluginProcess>(node_, config, std::map<std::string, std::string>(),
                                                std::vector<std::string>{"--standby"});
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), "standing-by") == 1; }));
    plugin_->Signal(SIGTERM);
    ASSERT_TRUE(plugin_->WaitEnd(kLongMs)) << Log();
    plugin_ = std::move(next);
  }
}

// Pods come one after the other, while the next plugin takes over, three times.
TEST_F(ProcessTest, AnUpdateRejectsNoPod) {
  const std::string config = node_.WriteConfig();
  plugin_ = std::make_unique<PluginProcess>(node_, config, std::map<std::string, std::string>(),
                                            std::vector<std::string>{"--standby"});
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string stays = kubelet_.AddPod(SharingPod("stays", 4));
  ASSERT_TRUE(kubelet_.WaitRunning(stays, Soon())) << Log();
  const std::vector<std::string> gpus = GpusOf(stays);
  std::atomic<bool> stop = false;
  std::atomic<int> done = 0;
  std::string failures;
  std::thread pods([&] {
    while (!stop) {
      const std::string uid = kubelet_.AddPod(SharingPod(Concat("pod-", done), 2));
      if (kubelet_.StatusOf(uid).failed) {
        failures += kubelet_.StatusOf(uid).message + "\n";
      } else if (!kubelet_.WaitRunning(uid, Soon())) {
        failures += "does not start\n";
      }
      kubelet_.DeletePod(uid);
      ++done;
    }
  });
  const auto more = [&] {
    const int wanted = done + 3;
    return testing::WaitUntil(kLongMs, [&] { return done >= wanted; });
  };
  for (int update = 0; update < 3 && more(); ++update) {
    auto next = std::make_unique<PluginProcess>(node_, config, std::map<std::string, std::string>(),
                                                std::vector<std::string>{"--standby"});
    if (!testing::WaitUntil(kLongMs, [&] { return Count(Log(), "standing-by") == update + 1; })) {
      ADD_FAILURE() << "does not stand by: " << Log();
    }
    plugin_->Signal(SIGTERM);
    if (!plugin_->WaitEnd(kLongMs)) ADD_FAILURE() << "does not end: " << Log();
    EXPECT_EQ(WEXITSTATUS(plugin_->status()), 0);
    plugin_ = std::move(next);
  }
  EXPECT_TRUE(more());
  stop = true;
  pods.join();
  EXPECT_EQ(failures, "") << Log();
  EXPECT_EQ(kubelet_.registrations(kMemory), 4U) << Log();
  EXPECT_TRUE(WaitUsable());
  ASSERT_TRUE(kubelet_.RestartContainer(stays, "one"));
  ASSERT_TRUE(kubelet_.WaitRunning(stays, Soon())) << Log();
  EXPECT_EQ(GpusOf(stays), gpus);
}

// Goal: a change of the configuration is an update. One with mistakes stops before it, and one
// without takes effect; pods that run stay.
TEST_F(ProcessTest, AChangedConfigurationTakesEffectWithTheNextPlugin) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string stays = kubelet_.AddPod(SharingPod("stays", 4));
  ASSERT_TRUE(kubelet_.WaitRunning(stays, Soon())) << Log();
  PluginProcess wrong(node_, node_.WriteConfig("reserve: [much]\n"), {}, {"--standby"});
  ASSERT_TRUE(wrong.WaitEnd(kLongMs)) << Log();
  EXPECT_EQ(WEXITSTATUS(wrong.status()), 2);
  EXPECT_THAT(Log(), HasSubstr("start-failed"));
  EXPECT_TRUE(WaitUsable()) << "the plugin that serves has not read it: " << Log();
  auto next = std::make_unique<PluginProcess>(node_, node_.WriteConfig("reserve: 2Gi\n"),
                                              std::map<std::string, std::string>(),
                                              std::vector<std::string>{"--standby"});
  ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), "standing-by") == 1; }))
      << Log();
  EXPECT_EQ(kubelet_.Allocatable(kMemory), kUnits);
  plugin_->Signal(SIGTERM);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs)) << Log();
  plugin_ = std::move(next);
  EXPECT_TRUE(WaitUsable(kUnits - 2)) << Log();
  ASSERT_TRUE(kubelet_.RestartContainer(stays, "one"));
  EXPECT_TRUE(kubelet_.WaitRunning(stays, Soon())) << Log();
}

TEST_F(ProcessTest, APluginThatStandsByEndsWhenItIsAskedTo) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  PluginProcess next(node_, node_.WriteConfig(), {}, {"--standby"});
  ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), "standing-by") == 1; }))
      << Log();
  next.Signal(SIGTERM);
  ASSERT_TRUE(next.WaitEnd(kLongMs)) << Log();
  EXPECT_EQ(next.status(), 0);
  // If no plugin serves the node, a standby plugin serves immediately.
  plugin_->Signal(SIGKILL);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  PluginProcess alone(node_, node_.WriteConfig(), {}, {"--standby"});
  ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), " ready ") == 2; })) << Log();
}

// Goal: on a machine without Kubernetes, the plugin needs only NVML of the driver, and a restarted
// plugin leaves the folder that a broker may have mounted.
TEST_F(ProcessTest, WithoutAKubeletDeclaredLinksNeedNoDriverFiles) {
  const std::string config = node_ / "none.yaml";
  std::ofstream(config) << "kubelet: none\ndriver-root: /nowhere\n"
                        << "state-folder: " << node_ / "state" << "\n"
                        << "cdi-folder: " << node_ / "cdi" << "\n"
                        << "metrics: {address: ''}\nstatus: {address: ''}\n"
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

// Goal: a GPU that was replaced while the plugin was away costs units only as long as a pod bound
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

// Goal: no GPU is allocated twice. Method: another plugin advertises one of two GPUs by its UUID;
// also between two of this plugin's checks, nothing is bound to it.
TEST_F(ProcessTest, AGpuThatAnotherPluginBeginsToOfferTakesNobodyNew) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string there = kubelet_.AddPod(SharingPod("there", 8));
  ASSERT_TRUE(kubelet_.WaitRunning(there, Soon())) << Log();
  ASSERT_THAT(GpusOf(there), ::testing::Each(kGpuA));
  OtherPlugin nvidia(node_ / "plugins", "nvidia.com/gpu", {kGpuA});
  ASSERT_TRUE(kubelet_.WaitAllocatable("nvidia.com/gpu", 1, Soon()));
  // By best fit it would join the other one.
  const std::string next = kubelet_.AddPod(SharingPod("next", 2));
  ASSERT_TRUE(kubelet_.WaitRunning(next, Soon())) << Log();
  EXPECT_THAT(GpusOf(next), ::testing::Each(kGpuB));
  // The 7 free ones of A's 15 units are no longer available.
  EXPECT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits - 7, Soon())) << Log();
  EXPECT_THAT(Log(), HasSubstr(Concat("gpu-taken gpu=", kGpuA, " by=nvidia.com/gpu")));
  ASSERT_TRUE(kubelet_.RestartContainer(there, "one"));
  EXPECT_TRUE(kubelet_.WaitRunning(there, Soon())) << Log();
}

// Goal: a drained GPU is left alone until an operator puts it back, also by a plugin that starts
// meanwhile. Method: files, as gpushmctl writes them.
TEST_F(ProcessTest, ADrainedGpuTakesNobodyNewUntilItIsPutBack) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string there = kubelet_.AddPod(SharingPod("there", 8));
  ASSERT_TRUE(kubelet_.WaitRunning(there, Soon())) << Log();
  ASSERT_THAT(GpusOf(there), ::testing::Each(kGpuA));
  ASSERT_TRUE(status::Drain(node_ / "state", kGpuA, "a fan is loud"));
  // The 7 free ones of A's 15 units are no longer available.
  EXPECT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits - 7, Soon())) << Log();
  EXPECT_THAT(Log(), HasSubstr(Concat("gpu-drained gpu=", kGpuA, " reason=\"a fan is loud\"")));
  // By best fit it would join the other one.
  const std::string next = kubelet_.AddPod(SharingPod("next", 2));
  ASSERT_TRUE(kubelet_.WaitRunning(next, Soon())) << Log();
  EXPECT_THAT(GpusOf(next), ::testing::Each(kGpuB));
  ASSERT_TRUE(kubelet_.RestartContainer(there, "one"));
  EXPECT_TRUE(kubelet_.WaitRunning(there, Soon())) << Log();

  plugin_->Signal(SIGKILL);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  StartPlugin();
  EXPECT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits - 7, Soon())) << Log();
  kubelet_.DeletePod(there);
  EXPECT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits / 2, Soon())) << Log();
  ASSERT_TRUE(status::Undrain(node_ / "state", kGpuA));
  EXPECT_TRUE(WaitUsable()) << Log();
  EXPECT_THAT(Log(), HasSubstr(Concat("gpu-undrained gpu=", kGpuA)));
}

// Goal: the nodes' labels follow what the book would give, and end with the plugin, not with an
// update of it.
TEST_F(ProcessTest, NodeFeatureDiscoveryIsToldHowMuchRoomThereIs) {
  const std::string folder = node_ / "features";
  std::filesystem::create_directory(folder);
  const std::string more = Concat("features-folder: ", folder, "\n");
  const auto says = [&folder](int one, int two) {
    const std::string wanted =
        Concat("gpushm.io/largest-free=", one, "\ngpushm.io/largest-free-2=", two, "\n");
    return testing::WaitUntil(kLongMs, [&] {
      std::ifstream file(folder + "/gpushm");
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      return text.ends_with(wanted) && text.find("# +expiry-time=20") != std::string::npos;
    });
  };
  StartPlugin(more);
  ASSERT_TRUE(WaitUsable()) << Log();
  EXPECT_TRUE(says(15, 15)) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 9));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  EXPECT_TRUE(says(15, 6));
  ASSERT_TRUE(status::Drain(node_ / "state", kGpuB, "a fan is loud"));
  EXPECT_TRUE(says(6, 0));
  ASSERT_TRUE(status::Undrain(node_ / "state", kGpuB));
  EXPECT_TRUE(says(15, 6));
  {
    PluginProcess next(node_, node_.WriteConfig(more), {}, {"--standby"});
    ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), "standing-by") == 1; }));
    plugin_->Signal(SIGTERM);
    ASSERT_TRUE(plugin_->WaitEnd(kLongMs)) << Log();
    EXPECT_TRUE(std::filesystem::exists(folder + "/gpushm")) << "the next plugin goes on with it";
    ASSERT_TRUE(status::Drain(node_ / "state", kGpuB, "a fan is loud"));
    EXPECT_TRUE(says(6, 0)) << Log();
    next.Signal(SIGTERM);
    ASSERT_TRUE(next.WaitEnd(kLongMs)) << Log();
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/gpushm")) << "nobody keeps it up to date";
}

TEST_F(ProcessTest, NamespacesHaveGpusOfTheirOwnIfToldSo) {
  StartPlugin("binding: {tenancy: namespace}\n");
  ASSERT_TRUE(WaitUsable()) << Log();
  std::vector<std::string> pods;
  for (const char* name_space : {"red", "blue", "green"}) {
    auto pod = SharingPod("pod", 2);
    pod.pod.name_space = name_space;
    pods.push_back(kubelet_.AddPod(pod));
  }
  ASSERT_TRUE(kubelet_.WaitRunning(pods[0], Soon())) << Log();
  ASSERT_TRUE(kubelet_.WaitRunning(pods[1], Soon())) << Log();
  EXPECT_NE(GpusOf(pods[0]), GpusOf(pods[1]));
  EXPECT_FALSE(kubelet_.StartPod(pods[2]));
  EXPECT_THAT(kubelet_.StatusOf(pods[2]).containers.at("gpushm").message,
              HasSubstr("(binding.tenancy: namespace)"));
  kubelet_.DeletePod(pods[0]);
  EXPECT_TRUE(kubelet_.WaitRunning(pods[2], Soon())) << Log();
}

TEST_F(ProcessTest, WithCoexistBothOfferIt) {
  OtherPlugin nvidia(node_ / "plugins", "nvidia.com/gpu", {kGpuA, "17"});
  ASSERT_TRUE(kubelet_.WaitAllocatable("nvidia.com/gpu", 2, Soon()));
  StartPlugin("coexist: true\n");
  EXPECT_TRUE(WaitUsable()) << Log();
}

TEST_F(ProcessTest, WhileNobodyKnowsWhichGpuAnotherOffersItDoesNotRegister) {
  const auto serves_unknown = [&] {
    return std::make_unique<OtherPlugin>(node_ / "plugins", "nvidia.com/thing",
                                         std::vector<std::string>{"17"});
  };
  const auto thing = serves_unknown();
  ASSERT_TRUE(kubelet_.WaitAllocatable("nvidia.com/thing", 1, Soon()));
  StartPlugin();
  ASSERT_TRUE(testing::WaitUntil(kLongMs, [&] { return Count(Log(), " ready ") == 1; })) << Log();
  EXPECT_THAT(Log(), HasSubstr("not-registered"));
  EXPECT_THAT(Log(), HasSubstr("gpus-taken by=nvidia.com/thing id=17"));
  EXPECT_EQ(kubelet_.registrations(kMemory), 0U);
  plugin_->Signal(SIGTERM);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  StartPlugin("not-gpus: [nvidia.com/thing]\n");
  EXPECT_TRUE(WaitUsable()) << Log();
}

// Otherwise the containers of existing pods could not restart.
TEST_F(ProcessTest, WithPodsThereItRegistersAlsoWhereNobodyKnowsWhichGpuAnotherOffers) {
  StartPlugin();
  ASSERT_TRUE(WaitUsable()) << Log();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 4));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  OtherPlugin thing(node_ / "plugins", "nvidia.com/thing", {"17"});
  ASSERT_TRUE(kubelet_.WaitAllocatable("nvidia.com/thing", 1, Soon()));
  plugin_->Signal(SIGTERM);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs));
  ASSERT_TRUE(kubelet_.WaitAllocatable(kMemory, 0, Soon()));
  StartPlugin();
  ASSERT_TRUE(kubelet_.WaitAllocatable(kMemory, 4, Soon())) << Log();  // Those that are bound.
  ASSERT_TRUE(kubelet_.WaitAllocatable(kAttach, 2, Soon())) << Log();
  ASSERT_TRUE(kubelet_.RestartContainer(pod, "one"));
  EXPECT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
}

}  // namespace
}  // namespace gpushm::plugin
