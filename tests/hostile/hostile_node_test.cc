// Goal: a node with hostile pods serves every other pod as if they did not exist.
// Method: the real plugin with a scripted kubelet, real sidecars, and all kinds of hostile_pods.h
// at once, each in its own process. Meanwhile pods start, attach, free, lose their sidecar, are
// scraped and end. Then the plugin is replaced, by SIGTERM.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <fstream>
#include <list>
#include <memory>
#include <optional>

#include "platform/daemon/process.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "plugin/keeper/testing/fake_broker.h"
#include "plugin/testing/scrape.h"
#include "plugin/testing/sharing.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"
#include "tests/hostile/hostile_pods.h"

namespace gpushm::hostile {
namespace {

using broker::testing::BrokerProcess;
using broker::testing::BrokerSettings;
using broker::testing::RawClient;
using gpushm::testing::HungFuse;
using gpushm::testing::TempFolder;
using plugin::keeper::testing::Process;
using plugin::kubelet::testing::ScriptedKubelet;
using plugin::testing::HttpGet;
using plugin::testing::kAttach;
using plugin::testing::kLongMs;
using plugin::testing::kMemory;
using plugin::testing::kTokens;
using plugin::testing::kUnits;
using plugin::testing::PluginProcess;
using plugin::testing::Scrape;
using plugin::testing::SharingPod;
using plugin::testing::Soon;
using plugin::testing::TestNode;
using plugin::testing::WaitUntil;

constexpr int kRounds = 4;
constexpr uint64_t kMemoryLimitBytes = uint64_t{256} << 20;  // helm/gpushm/values.yaml

// Children of fork() can see it.
class SharedFlag {
 public:
  SharedFlag()
      : value_(new(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   std::atomic<bool>(false)) {}
  ~SharedFlag() { munmap(value_, 4096); }
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;
  std::atomic<bool>& operator*() const { return *value_; }

 private:
  std::atomic<bool>* value_;
};

// A pod with gpushm's own sidecar.
struct Pod {
  std::string name;
  std::string uid;
  TempFolder folder;  // Its sidecar's.
  std::unique_ptr<BrokerProcess> sidecar;
};

class HostileNodeTest : public ::testing::Test {
 protected:
  HostileNodeTest() : kubelet_(plugin::testing::KubeletOf(node_)) {}

  void SetUp() override {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    RaiseDescriptorLimit();
    ASSERT_TRUE(kubelet_.Start());
    StartPlugin();
  }
  void TearDown() override {
    *stop_ = true;
    for (size_t i = 0; const auto& attacker : attackers_) {
      // It may be in a call that takes as long as WaitForEnd before it gives up.
      EXPECT_TRUE(attacker->WaitForEnd() || attacker->WaitForEnd()) << Kinds()[i].name;
      ++i;
    }
    attackers_.clear();
    pods_.clear();
  }

  void StartPlugin() {
    std::filesystem::remove(node_ / "plugin.log");
    plugin_ = std::make_unique<PluginProcess>(
        node_, node_.WriteConfig("metrics: {address: '127.0.0.1:0'}\nstatus: {address: ''}\n"
                                 "probes: {address: '127.0.0.1:0'}\n"));
    ASSERT_TRUE(WaitUntil(kLongMs, [&] {
      metrics_port_ = plugin::testing::PortIn(node_ / "plugin.log", "metrics-served");
      probes_port_ = plugin::testing::PortIn(node_ / "plugin.log", "probes-served");
      return metrics_port_ != 0 && probes_port_ != 0;
    })) << plugin_->Log();
    ASSERT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits, Soon())) << plugin_->Log();
    ASSERT_TRUE(kubelet_.WaitAllocatable(kAttach, kTokens, Soon())) << plugin_->Log();
  }

  std::string Admit(const std::string& name) {
    std::string uid = kubelet_.AddPod(SharingPod(name, 1));
    EXPECT_TRUE(kubelet_.WaitRunning(uid, Soon())) << name << "\n" << plugin_->Log();
    return uid;
  }
  std::string LinkFolderOf(const std::string& uid) const {
    const auto ids = kubelet_.StatusOf(uid).containers.at("gpushm").ids.at(kMemory);
    return node_ / ("state/links/" + *ids.begin());
  }
  void StartSidecar(Pod* pod) {
    pod->sidecar.reset();
    pod->sidecar = std::make_unique<BrokerProcess>(
        pod->folder.path(), BrokerSettings{.arguments = {"--container", "one", "--container", "two",
                                                         "--link", LinkFolderOf(pod->uid), "--pool",
                                                         "64Mi", "--drain-timeout-ms", "200"},
                                           .buffers = "buffers.gpushm.io/weights: 4Mi",
                                           .simulated_state = node_ / "sim"});
    ASSERT_TRUE(pod->sidecar->ready()) << pod->sidecar->log();
  }
  Pod& Start(const std::string& name) {
    Pod& pod = *pods_.emplace_back(std::make_unique<Pod>());
    pod.name = name;
    pod.uid = Admit(name);
    StartSidecar(&pod);
    return pod;
  }
  void End(Pod* pod) {
    pod->sidecar->Signal(SIGTERM);
    EXPECT_EQ(pod->sidecar->WaitForEnd(), 0);
    kubelet_.DeletePod(pod->uid);
    std::erase_if(pods_, [&](const auto& one) { return one.get() == pod; });
  }

  static void Use(const Pod& pod, const std::string& container) {
    RawClient client(pod.sidecar->Socket(container));
    ASSERT_TRUE(client.Hello());
    const auto weights = client.Attach("weights");
    ASSERT_TRUE(weights) << weights.error().ToString();
    const uint64_t before = client.Info()->used_bytes;
    const auto made = client.Create("made", 2 << 20);
    ASSERT_TRUE(made) << made.error().ToString();
    const auto deleted = client.Delete("made");
    ASSERT_TRUE(deleted) << deleted.error().ToString();
    EXPECT_TRUE(WaitUntil(kLongMs, [&] { return client.Info()->used_bytes == before; }));
    EXPECT_TRUE(client.Detach(weights->lease_id));
  }
  // The pod is in the metrics, with its buffer, and probes are answered.
  void ExpectSeen(const Pod& pod) {
    EXPECT_TRUE(WaitUntil(kLongMs, [&] {
      const Scrape page(Scrape::Get(metrics_port_, "/metrics"));
      return page.Sum("gpushm_broker_connected", {{"pod", pod.name}}) == 1 &&
             page.Count("gpushm_buffer_info", {{"pod", pod.name}}) == 1;
    })) << pod.name;
    EXPECT_EQ(HttpGet(probes_port_, "/healthz").status, 200);
    EXPECT_EQ(HttpGet(probes_port_, "/readyz").status, 200);
  }

  void StartAttackers() {
    for (const Kind& kind : Kinds()) {
      const std::string name = std::string("hostile-") + kind.name;
      Target target{.link = {},
                    .sidecar = {},
                    .folder = attack_folders_.emplace_back().path(),
                    .simulated_state = node_ / "sim",
                    .plugin_address = "127.0.0.1",
                    .metrics_port = metrics_port_,
                    .probes_port = probes_port_};
      if (kind.needs_sidecar) {
        target.sidecar = Start(name).sidecar->Socket("one");
      } else {
        target.link = LinkFolderOf(Admit(name)) + "/" + std::string(protocol::kLinkSocketName);
      }
      attackers_.push_back(std::make_unique<Process>([&] { kind.attack(target, *stop_); }));
    }
  }
  uint64_t PluginPeakBytes() const {
    std::ifstream status("/proc/" + std::to_string(plugin_->pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) << 10;
    }
    return ~uint64_t{0};
  }
  double Metric(const std::string& name) const {
    return Scrape(Scrape::Get(metrics_port_, "/metrics")).Sum(name).value_or(-1);
  }

  TestNode node_;
  ScriptedKubelet kubelet_;
  std::unique_ptr<PluginProcess> plugin_;
  int metrics_port_ = 0;
  int probes_port_ = 0;
  std::list<std::unique_ptr<Pod>> pods_;
  const SharedFlag stop_;
  std::list<TempFolder> attack_folders_;
  std::list<std::unique_ptr<Process>> attackers_;
};

TEST_F(HostileNodeTest, OtherPodsDoNotNotice) {
  ASSERT_GE(Kinds().size(), 10u);
  Pod& old = Start("old");  // Started before the attackers.
  ASSERT_NO_FATAL_FAILURE(StartAttackers());
  ASSERT_TRUE(WaitUntil(kLongMs, [&] { return Metric("gpushm_plugin_fuse_aborts_total") >= 2; }))
      << "both that state a dead file to the plugin\n"
      << plugin_->Log();
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    Pod& pod = Start("good-" + std::to_string(round));
    ASSERT_NO_FATAL_FAILURE(Use(pod, "one"));
    ExpectSeen(pod);
    // After a kill it finds its buffers again, because the plugin kept them.
    pod.sidecar->Signal(SIGKILL);
    pod.sidecar->WaitForEnd();
    ASSERT_NO_FATAL_FAILURE(StartSidecar(&pod));
    EXPECT_NE(pod.sidecar->log().find("restored"), std::string::npos) << pod.sidecar->log();
    ASSERT_NO_FATAL_FAILURE(Use(pod, "two"));
    ASSERT_NO_FATAL_FAILURE(Use(old, "one"));
    ExpectSeen(old);
    End(&pod);
  }
  EXPECT_LT(PluginPeakBytes(), kMemoryLimitBytes);

  // At a moment when the close of a dead file is blocked.
  const double refused = Metric("gpushm_plugin_foreign_descriptors_total");
  ASSERT_TRUE(WaitUntil(
      kLongMs, [&] { return Metric("gpushm_plugin_foreign_descriptors_total") > refused; }));
  plugin_->Signal(SIGTERM);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs)) << "something blocks its end\n" << plugin_->Log();
  EXPECT_EQ(plugin_->status(), 0);
  ASSERT_NO_FATAL_FAILURE(StartPlugin());
  ExpectSeen(old);
  Pod& next = Start("next");
  ASSERT_NO_FATAL_FAILURE(Use(next, "one"));
  ExpectSeen(next);
}

}  // namespace
}  // namespace gpushm::hostile
