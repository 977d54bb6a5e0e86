// The real plugin with `allocation: dra` as a process, with an API server and the kubelet's side of
// its sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "platform/base/testing.h"
#include "platform/kubernetes/testing/api_server.h"
#include "plugin/dra/devices.h"
#include "plugin/dra/testing/kubelet_client.h"
#include "plugin/testing/sharing.h"

namespace gpushm::plugin {
namespace {

using dra::testing::KubeletClient;
using kubelet::testing::ScriptedKubelet;
using kubernetes::testing::ApiServer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kGpuA;
using testing::kLongMs;
using testing::PluginProcess;
using testing::TestNode;
using testing::WaitUntil;

constexpr char kVictim[] = "11111111-2222-3333-4444-555555555555";
constexpr char kOther[] = "66666666-2222-3333-4444-555555555555";
constexpr int kMostSteps = 400;
#ifdef GPUSHM_SANITIZED
constexpr int64_t kTellMs = kLongMs;
#else
constexpr int64_t kTellMs = 5000;
#endif

// A node whose kubelet answers podresources, and claims of 8 and 7 GiB on GPU A, which offers 15.
class DraNode {
 public:
  DraNode() : kubelet_(testing::KubeletOf(node)) {
    for (const char* const folder : {"registry", "dra"}) {
      std::filesystem::create_directory(node / folder);
    }
    EXPECT_TRUE(kubelet_.Start());
    server.PutClaim("victim", kVictim, "node0", dra::DeviceName(kGpuA), "8Gi");
    server.PutClaim("other", kOther, "node0", dra::DeviceName(kGpuA), "7Gi");
  }

  std::string Config() const {
    return node.WriteConfig(Concat("allocation: dra\nplugins-registry-folder: ", node / "registry",
                                   "\nplugins-folder: ", node / "dra",
                                   "\ndra: {api-server: '127.0.0.1:", server.port(),
                                   "', credentials-folder: ", server.credentials(), "}\n"));
  }
  std::string Registry() const { return node / "registry"; }
  // The GPU that the claim's containers would get.
  std::string GpuOf(const std::string& uid) const {
    const std::string broker = node.GpuOf(Concat("gpushm.io/claim=", uid, "-broker"));
    const std::string app = node.GpuOf(Concat("gpushm.io/claim=", uid, "-app"));
    return broker == app ? broker : Concat(broker, " and ", app);
  }

  TestNode node;
  ApiServer server;

 private:
  ScriptedKubelet kubelet_;
};

const std::map<std::string, std::string> kEnvironment = {{"NODE_NAME", "node0"}};

// As `text` in the simulated driver's faults.yaml.
void SetFaults(const DraNode& node, const std::string& text) {
  std::ofstream(node.node / "sim/faults.new") << text;
  std::filesystem::rename(node.node / "sim/faults.new", node.node / "sim/faults.yaml");
}

// Goal: the kubelet hears within about a second that a GPU is sick and why, that it is well again,
// and the plugin's end, whether or not it listens.
TEST(PluginDra, TellsTheKubeletOfAGpusHealth) {
  DraNode node;
  PluginProcess plugin(node.node, node.Config(), kEnvironment);
  const KubeletClient kubelet(node.Registry());
  ASSERT_TRUE(kubelet.GetInfo()) << plugin.Log();
  const auto watch = kubelet.WatchHealth();
  const auto deaf = kubelet.WatchHealth(/*deaf=*/true);
  ASSERT_TRUE(kubelet.Notify(true));
  const std::string sick = Concat("node0/", dra::DeviceName(kGpuA));
  const std::string well = Concat("node0/", dra::DeviceName(testing::kGpuB));
  const auto are = [&](bool first, bool second) {
    return [&, first, second](const dra::testing::HealthList& list) {
      return list.size() == 2 && list.at(sick).healthy == first && list.at(well).healthy == second;
    };
  };
  ASSERT_TRUE(watch->WaitFor(are(true, true), kLongMs)) << plugin.Log();
  ASSERT_TRUE(WaitUntil(kLongMs, [&] { return !node.server.Slices().empty(); })) << plugin.Log();
  EXPECT_EQ(node.server.Slices()[0]["spec"]["devices"][0]["name"], dra::DeviceName(kGpuA));
  const int64_t started_ns = MonotonicNs();
  SetFaults(node, "lost: [0]\n");
  ASSERT_TRUE(watch->WaitFor(are(false, true), kLongMs)) << plugin.Log();
  EXPECT_LT(MonotonicNs() - started_ns, kTellMs * 1'000'000) << "recheck_ms is 1000";
  EXPECT_THAT(watch->Last()[sick].message, HasSubstr(Concat("GPU ", kGpuA, " is unhealthy: ")));
  EXPECT_EQ(watch->Last()[well].message, "");
  SetFaults(node, "{}\n");
  ASSERT_TRUE(watch->WaitFor(are(true, true), 2 * kLongMs)) << plugin.Log();
  EXPECT_EQ(watch->Last()[sick].message, "");
  plugin.Signal(SIGTERM);
  ASSERT_TRUE(plugin.WaitEnd(kLongMs)) << plugin.Log();
  EXPECT_EQ(plugin.status(), 0) << plugin.Log();
  EXPECT_TRUE(watch->WaitEnd(kLongMs));
  EXPECT_TRUE(std::filesystem::is_empty(node.Registry()));
}

TEST(PluginDra, WithoutTheNodesNameItSaysSo) {
  DraNode node;
  PluginProcess plugin(node.node, node.Config());
  ASSERT_TRUE(plugin.WaitEnd(kLongMs));
  EXPECT_NE(plugin.status(), 0);
  EXPECT_THAT(plugin.Log(), HasSubstr("NODE_NAME"));
}

// Two front ends on one node would give its memory away twice.
TEST(PluginDra, TheOtherFrontEndIsRefusedWhileItServes) {
  DraNode node;
  PluginProcess plugin(node.node, node.Config(), kEnvironment);
  ASSERT_TRUE(KubeletClient(node.Registry()).GetInfo()) << plugin.Log();
  const TestNode second;
  PluginProcess other(
      second, second.WriteConfig(Concat("plugins-registry-folder: ", node.Registry(), "\n")));
  ASSERT_TRUE(other.WaitEnd(kLongMs));
  EXPECT_NE(other.status(), 0);
  EXPECT_THAT(other.Log(), HasSubstr("allocation: dra"));
}

// Goal: nobody loses a claim by going back to the device plugin. Method: the other front end
// starts, and stands by, while a claim is prepared; then the claim ends.
TEST(PluginDra, TheOtherFrontEndIsRefusedWhileAClaimIsPrepared) {
  DraNode node;
  {
    PluginProcess plugin(node.node, node.Config(), kEnvironment);
    const KubeletClient kubelet(node.Registry());
    ASSERT_TRUE(kubelet.GetInfo()) << plugin.Log();
    ASSERT_TRUE(kubelet.Notify(true));
    ASSERT_TRUE(kubelet.Prepare("victim", kVictim));
    PluginProcess next(node.node, node.node.WriteConfig(), {}, {"--standby"});
    ASSERT_TRUE(next.WaitEnd(kLongMs)) << "it must not become ready: the update would go on";
    EXPECT_THAT(next.Log(), HasSubstr("default/pod-of-victim"));
    plugin.Signal(SIGTERM);
    ASSERT_TRUE(plugin.WaitEnd(kLongMs));
  }
  {
    PluginProcess other(node.node, node.node.WriteConfig());
    ASSERT_TRUE(other.WaitEnd(kLongMs));
    EXPECT_NE(other.status(), 0);
    EXPECT_THAT(other.Log(), HasSubstr("drain the node first"));
  }
  PluginProcess plugin(node.node, node.Config(), kEnvironment);
  const KubeletClient kubelet(node.Registry());
  ASSERT_TRUE(kubelet.GetInfo()) << plugin.Log();
  ASSERT_TRUE(kubelet.Notify(true));
  ASSERT_TRUE(kubelet.Unprepare("victim", kVictim));
  plugin.Signal(SIGTERM);
  ASSERT_TRUE(plugin.WaitEnd(kLongMs));
  PluginProcess other(node.node, node.node.WriteConfig());
  EXPECT_TRUE(WaitUntil(kLongMs, [&] {
    return other.Log().find(" ready ") != std::string::npos || !other.Running();
  }));
  EXPECT_TRUE(other.Running()) << other.Log();
}

// A pod's life, which ends early if the plugin has died.
void LiveOn(const DraNode& node, PluginProcess& plugin) {
  const KubeletClient kubelet(node.Registry());
  const auto registered = [&] { return kubelet.GetInfo(/*timeout_ms=*/50).has_value(); };
  if (!WaitUntil(kLongMs, [&] { return !plugin.Running() || registered(); })) {
    ADD_FAILURE() << plugin.Log();
  }
  if (!plugin.Running() || !kubelet.Notify(true)) return;
  if (!kubelet.Prepare("victim", kVictim)) return;
  (void)kubelet.Unprepare("victim", kVictim);
}

// Goal: whatever change of the file system the plugin was making when it was killed, the next one
// prepares the same claim, counts it once, and leaves nothing behind. Method: killed before its
// n-th change, for each Stride()-th n, in its start and in a pod's life.
TEST(PluginDra, KilledBeforeEachChangeOfTheFileSystem) {
  const std::string killer =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libgpushm_kill_at.so";
  SCOPED_TRACE(gpushm::testing::StrideNote());
  int step = 1 + gpushm::testing::Offset();
  bool ended = false;
  for (; !ended && step < kMostSteps; step += gpushm::testing::Stride()) {
    SCOPED_TRACE(Concat("killed before change ", step));
    DraNode node;
    {
      auto environment = kEnvironment;
      environment["LD_PRELOAD"] = killer;
      environment["GPUSHM_KILL_AT"] = std::to_string(step);
      PluginProcess plugin(node.node, node.Config(), environment);
      LiveOn(node, plugin);
      ended = plugin.Running();  // It survived everything, so there is no such step.
    }
    PluginProcess plugin(node.node, node.Config(), kEnvironment);
    const KubeletClient kubelet(node.Registry());
    const auto info = kubelet.GetInfo();
    ASSERT_TRUE(info) << info.error().ToString() << plugin.Log();
    ASSERT_TRUE(kubelet.Notify(true));
    const auto again = kubelet.Prepare("victim", kVictim);
    ASSERT_TRUE(again) << again.error().ToString() << plugin.Log();
    const auto other = kubelet.Prepare("other", kOther);
    ASSERT_TRUE(other) << other.error().ToString() << plugin.Log();
    EXPECT_EQ(node.GpuOf(kVictim), kGpuA);
    EXPECT_EQ(node.GpuOf(kOther), kGpuA);
    for (const auto& [name, uid] : {std::pair("victim", kVictim), std::pair("other", kOther)}) {
      const Result<void> gone = kubelet.Unprepare(name, uid);
      ASSERT_TRUE(gone) << gone.error().ToString() << plugin.Log();
    }
    EXPECT_THAT(node.node.Specs(), IsEmpty());
    EXPECT_THAT(node.node.Links(), IsEmpty());
  }
  EXPECT_TRUE(ended) << "more steps than " << kMostSteps;
  EXPECT_GT(step, 20) << "the killer was not preloaded";
}

}  // namespace
}  // namespace gpushm::plugin
