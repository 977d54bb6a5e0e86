// Goal: the real gpushm-plugin reports exactly what is true, and still reports while the kubelet is
// away and GPUs are unhealthy. Method: the scripted kubelet, brokers in separate processes, the
// simulated NVML.
#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <set>
#include <vector>

#include "contract/registry/testing/registry.h"
#include "contract/sync/page.h"
#include "platform/base/sealed_memory.h"
#include "platform/driver/device.h"
#include "plugin/keeper/testing/counter_segment.h"
#include "plugin/keeper/testing/statements.h"
#include "plugin/kubelet/testing/other_plugin.h"
#include "plugin/metrics/catalogue.h"
#include "plugin/testing/scrape.h"
#include "plugin/testing/sharing.h"

namespace gpushm::plugin::monitoring {
namespace {

using keeper::testing::BufferOf;
using keeper::testing::ClientOf;
using keeper::testing::CounterSegment;
using keeper::testing::FakeBroker;
using keeper::testing::GenerationOf;
using keeper::testing::LeaseOf;
using keeper::testing::PidfdOf;
using keeper::testing::Process;
using keeper::testing::SimulatedMemory;
using kubelet::testing::ScriptedKubelet;
using protocol::Counter;
using ::testing::ContainerEq;
using ::testing::HasSubstr;
using testing::kAttach;
using testing::kGpuA;
using testing::kGpuB;
using testing::kLongMs;
using testing::kMemory;
using testing::kUnits;
using testing::PluginProcess;
using testing::Scrape;
using testing::SharingPod;
using testing::Soon;
using ::testing::StartsWith;
using testing::TestNode;
using testing::WaitUntil;

constexpr char kMonitoring[] =
    "metrics: {address: '127.0.0.1:0', sample-ms: 100, host-pids: true}\nstatus: {address: ''}\n"
    "probes: {address: '127.0.0.1:0'}\n";
constexpr char kSensors[] =
    "sensors:\n"
    "- {gpu: 0, utilization: 0.87, memory-activity: 0.41, temperature: 61, memory-temperature: 70,"
    " power-watts: 412.5, power-limit-watts: 700, energy-joules: 1000, sm-clock-mhz: 1980,"
    " memory-clock-mhz: 3201, pcie-transmit: 1, pcie-receive: 2, nvlink-transmit: 3,"
    " nvlink-receive: 4, clock-reasons: 4, ecc-corrected: 7}\n";
constexpr uint64_t kAttachesOfABroker = 3;

void Must(bool holds) {
  if (!holds) _exit(1);
}

// A broker in a separate process: one client, which is that process, with one buffer attached. Or
// additionally what is rare: every counter, and a buffer that is being loaded.
enum class Says { kLittle, kEverything };
// A signal that nobody has written.
void SaySignal(FakeBroker* broker) {
  const auto page = MakeSealed("page", sync::kPageBytes, Writers::kAll);
  Must(page.has_value());
  sync::Page::Make(page->mapping.address(), page->mapping.bytes(), sync::Kind::kSignal, 1, 0, {});
  protocol::LinkGeneration generation = GenerationOf("ready", 9, sync::kPageBytes);
  generation.transport = static_cast<uint32_t>(protocol::Transport::kHost);
  generation.pooled = 0;
  Must(broker->Say(BufferOf("ready", 9)) && broker->Say(generation, page->fd.get()));
}

// `state`: the simulated driver's state folder.
void BeBroker(const std::string& socket, const std::string& state, Says says) {
  FakeBroker broker(socket);
  Must(broker.Greet(false).has_value());
  auto registry = registry::RegistryWriter::Create(4);
  registry::BufferRecord record = registry::SomeRecord("frames", 8);
  record.flags = static_cast<uint32_t>(Code::kNotFound) << registry::kRecordReasonShift;
  Must(registry && registry->Insert(record, "no file frames.bin") &&
       broker.Say(protocol::LinkKind::kRegistry, protocol::LinkRegistry{1}, registry->fd()));
  CounterSegment counters({"one"});
  counters.word(0, Counter::kFirstAttaches) = kAttachesOfABroker;
  if (says == Says::kEverything) {
    counters.header().ready_ns = 20'000'000;
    for (auto& word : counters.record(0).words) word = 1;
    counters.record(0).private_bytes = 1;
    counters.header().mps.state = static_cast<uint64_t>(protocol::MpsWord::kReady);
  }
  Must(broker
           .Say(protocol::LinkKind::kCounters,
                protocol::LinkCounters{protocol::kCountersVersion, 0}, counters.fd().get())
           .has_value());
  Must(broker.Say(ClientOf(1, "one"), PidfdOf(getpid()).get()).has_value());
  Must(broker.Say(BufferOf("weights", 7)) &&
       broker.Say(GenerationOf("weights", 7), SimulatedMemory(state).get()) &&
       broker.Say(LeaseOf(1, 1, 7)));
  if (says == Says::kEverything) {
    protocol::LinkBuffer loading = BufferOf("frames", 8);
    loading.state = static_cast<uint32_t>(registry::BufferState::kLoading);
    loading.loaded_bytes = 4096;
    Must(broker.Say(loading) &&
         broker.Say(GenerationOf("frames", 8), SimulatedMemory(state).get()));
    SaySignal(&broker);
  }
  Must(broker.End().has_value());
  keeper::testing::WaitToBeKilled();
}

// Also in a separate process, so that NVML shows it.
PrimaryContext MakeContext(const std::string& sim) {
  setenv("GPUSHM_SIM_DIR", sim.c_str(), 1);
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  Must(api && (*api)->Init());
  auto context = PrimaryContext::Retain(**api, 0);
  Must(context.has_value());
  return *std::move(context);
}

class MonitoringTest : public ::testing::Test {
 protected:
  void Faults(const std::string& text) const {
    std::ofstream(node_ / "sim/faults.new") << text;
    std::filesystem::rename(node_ / "sim/faults.new", node_ / "sim/faults.yaml");
  }
  void StartPlugin(const std::string& more = "") {
    plugin_ = std::make_unique<PluginProcess>(node_, node_.WriteConfig(kMonitoring + more));
    ASSERT_TRUE(WaitUntil(kLongMs, [this] {
      port_ = testing::PortIn(node_ / "plugin.log", "metrics-served");
      probes_port_ = testing::PortIn(node_ / "plugin.log", "probes-served");
      return port_ != 0 && probes_port_ != 0;
    })) << Log();
  }
  // Starts the kubelet and the plugin, and waits until they know each other. `more`: lines for the
  // plugin's configuration.
  void StartAll(const std::string& more = "") {
    ASSERT_TRUE(kubelet_.Start());
    StartPlugin(more);
    ASSERT_TRUE(kubelet_.WaitAllocatable(kMemory, kUnits, Soon())) << Log();
    ASSERT_TRUE(kubelet_.WaitAllocatable(kAttach, testing::kTokens, Soon())) << Log();
    // The plugin registers further resources after these two.
    ASSERT_TRUE(WaitUntil(kLongMs, [this] {
      return testing::HttpGet(probes_port_, "/readyz").status == 200;
    })) << Log();
  }
  std::string Page() const { return Scrape::Get(port_, "/metrics"); }
  Scrape Look() const { return Scrape(Page()); }
  bool WaitFor(const std::string& name, const testing::Labels& labels, double value) const {
    return WaitUntil(kLongMs, [&] { return Look().Sum(name, labels) == value; });
  }
  // The socket to which the broker of a running pod connects.
  std::string LinkOf(const std::string& uid) const {
    const auto ids = kubelet_.StatusOf(uid).containers.at("gpushm").ids.at(kMemory);
    return node_ / Concat("state/links/", *ids.begin(), "/", protocol::kLinkSocketName);
  }
  std::string Log() const { return plugin_->Log(); }

  TestNode node_;
  ScriptedKubelet kubelet_{testing::KubeletOf(node_)};
  std::unique_ptr<PluginProcess> plugin_;
  int port_ = 0;
  int probes_port_ = 0;
};

// ---- what is reported

std::set<std::string> NamesInTheCatalogue() {
  std::set<std::string> names;
  for (const metrics::MetricInfo& info : metrics::Metrics()) {
    if (info.type != metrics::MetricType::kHistogram) {
      names.emplace(info.name);
      continue;
    }
    for (const char* const suffix : {"_bucket", "_count", "_sum"}) {
      names.insert(Concat(info.name, suffix));
    }
  }
  return names;
}

TEST_F(MonitoringTest, APageHasEveryMetricOfTheCatalogueAndNothingElse) {
  Faults(kSensors);
  StartAll("gpus: [0, 1, 7]\n");  // GPU 7 does not exist.
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 4, {"one"}));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  const Process broker([this, link = LinkOf(pod)] {
    const PrimaryContext context = MakeContext(node_ / "sim");
    BeBroker(link, node_ / "sim", Says::kEverything);
  });
  const kubelet::testing::OtherPlugin nvidia(node_ / "plugins", "nvidia.com/gpu", {kGpuB});
  Faults(Concat(kSensors, "xids: [{gpu: 0, xid: 13}]\n"));
  // Only if this test's processes are in a cgroup like a pod's; the sampler's test has the number.
  const std::string perhaps = "gpushm_mps_outside_processes";
  std::set<std::string> expected = NamesInTheCatalogue();
  ASSERT_EQ(expected.erase(perhaps), 1U);
  const auto names = [&] {
    std::set<std::string> found = Look().Names();
    found.erase(perhaps);
    return found;
  };
  WaitUntil(kLongMs, [&] { return names() == expected; });
  EXPECT_THAT(names(), ContainerEq(expected)) << Log();
  const testing::HttpReply text = testing::HttpGet(port_, "/metrics");
  EXPECT_THAT(text.content_type, StartsWith("text/plain; version=0.0.4"));
}

TEST_F(MonitoringTest, XidsAndSickGpusAreTold) {
  StartAll();
  const auto now = [] { return static_cast<double>(UnixNs()) * 1e-9; };
  const double before = now();
  const testing::Labels xid{{"gpu_uuid", kGpuA}, {"xid", "79"}};
  EXPECT_EQ(Look().Sum("gpushm_gpu_healthy", {{"gpu_uuid", kGpuA}}), 1.0);
  Faults("xids: [{gpu: 0, xid: 79}]\n");
  ASSERT_TRUE(WaitFor("gpushm_gpu_xid_errors_total", xid, 1)) << Log();
  const Scrape page = Look();
  const double last = page.Sum("gpushm_gpu_xid_last_timestamp_seconds", xid).value_or(0);
  EXPECT_GT(last, before - 1);
  EXPECT_LT(last, now() + 1);
  EXPECT_EQ(page.Count("gpushm_gpu_xid_errors_total"), 1U);
  EXPECT_TRUE(WaitFor("gpushm_gpu_healthy", {{"gpu_uuid", kGpuA}}, 0));
  EXPECT_TRUE(WaitFor("gpushm_plugin_unhealthy_devices", {{"resource", kMemory}}, kUnits / 2.0));
  EXPECT_EQ(Look().Sum("gpushm_gpu_healthy", {{"gpu_uuid", kGpuB}}), 1.0);
  EXPECT_EQ(Look().Sum("gpushm_scrape_collector_success"), 3.0) << "all collectors succeed";
}

TEST_F(MonitoringTest, ALostGpuHasNoSensorsAndIsNoFailureOfTheCollector) {
  Faults(kSensors);
  StartAll();
  const testing::Labels lost{{"gpu_uuid", kGpuA}};
  ASSERT_TRUE(WaitFor("gpushm_gpu_temperature_celsius", lost, 61));
  Faults(Concat(kSensors, "lost: [", kGpuA, "]\n"));
  EXPECT_TRUE(WaitUntil(kLongMs, [&] {
    const Scrape page = Look();
    return page.Sum("gpushm_gpu_healthy", lost) == 0.0 &&
           !page.Sum("gpushm_gpu_sampled_timestamp_seconds", lost) &&
           !page.Sum("gpushm_gpu_temperature_celsius", lost) &&
           page.Sum("gpushm_scrape_collector_success", {{"collector", "nvml"}}) == 1.0;
  })) << Page();
  EXPECT_EQ(Look().Count("gpushm_gpu_info"), 2U) << "it still belongs to this node";
}

TEST_F(MonitoringTest, WhatIsSickFromTheStartIsToldWithoutAKubelet) {
  Faults("health: [{gpu: 0, remap_failed: true}]\n");
  StartPlugin("kubelet: none\n");
  const Scrape page = Look();
  EXPECT_EQ(page.Sum("gpushm_gpu_healthy", {{"gpu_uuid", kGpuA}}), 0.0) << Log();
  EXPECT_TRUE(WaitFor("gpushm_plugin_unhealthy_devices", {{"resource", kMemory}}, kUnits / 2.0));
}

// Goal: nobody waits for an unhealthy GPU. Method: NVML hangs for longer than the test may take;
// once samples are stale, it certainly hangs.
TEST_F(MonitoringTest, AScrapeDoesNotWaitForNvml) {
  StartAll();
  ASSERT_TRUE(
      WaitUntil(kLongMs, [this] { return Look().Count("gpushm_gpu_memory_used_bytes") == 2; }));
  Faults("hang: {nvmlDeviceGetMemoryInfo: 600000}\n");
  EXPECT_TRUE(WaitUntil(kLongMs, [this] {
    const std::string page = Page();
    EXPECT_FALSE(page.empty());
    return Scrape(page).Count("gpushm_gpu_sampled_timestamp_seconds") == 0;
  }));
  EXPECT_EQ(Look().Count("gpushm_gpu_memory_used_bytes"), 0U);
  EXPECT_EQ(Look().Sum("gpushm_scrape_collector_success", {{"collector", "nvml"}}), 0.0);
  EXPECT_EQ(testing::HttpGet(probes_port_, "/healthz").status, 200) << "a restart would not help";
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 2));
  EXPECT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  Faults("{}");
  EXPECT_TRUE(
      WaitUntil(kLongMs, [this] { return Look().Count("gpushm_gpu_memory_used_bytes") == 2; }));
  Faults("hang: {nvmlDeviceGetMemoryInfo: 600000}\n");
  EXPECT_TRUE(
      WaitUntil(kLongMs, [this] { return Look().Count("gpushm_gpu_memory_used_bytes") == 0; }));
  plugin_->Signal(SIGTERM);
  ASSERT_TRUE(plugin_->WaitEnd(kLongMs)) << Log();
  EXPECT_EQ(plugin_->status(), 0);
}

// ---- what goes wrong

TEST_F(MonitoringTest, ReadyIsWhatTheKubeletKnows) {
  StartPlugin();
  const auto ready = [this](int status, const std::string& body) {
    testing::HttpReply reply;
    EXPECT_TRUE(WaitUntil(kLongMs, [&] {
      reply = testing::HttpGet(probes_port_, "/readyz");
      return reply.status == status;
    })) << reply.status;
    EXPECT_THAT(reply.body, HasSubstr(body));
  };
  ready(503, "gpushm.io/memory is not registered with the kubelet: ");
  EXPECT_EQ(Look().Sum("gpushm_plugin_registered"), 0.0);
  ASSERT_TRUE(kubelet_.Start());
  ready(200, "ok\n");
  EXPECT_EQ(Look().Sum("gpushm_plugin_registered"), 5.0);
  EXPECT_EQ(Look().Sum("gpushm_plugin_registrations_total", {{"resource", kMemory}}), 1.0);
  kubelet_.Stop(ScriptedKubelet::Death::kKilled);
  ready(503, " is not registered with the kubelet: ");  // For the resource that is noticed first.
  EXPECT_EQ(testing::HttpGet(probes_port_, "/healthz").status, 200);
}

// Goal: clients of the metrics port that never finish a request hold up neither probes nor metrics.
// Method: more of them than it serves at a time, each of which announces a body.
TEST_F(MonitoringTest, CallersWithoutAnEndHoldUpNeitherProbesNorMetrics) {
  constexpr int kCallers = 64;
  StartAll();
  std::vector<UniqueFd> callers;
  for (int i = 0; i < kCallers; ++i) {
    UniqueFd& caller = callers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(caller.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    // Half of them do not finish the head either.
    const std::string ask = Concat("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n",
                                   i % 2 == 0 ? "\r\n" : "A: ");
    ASSERT_EQ(send(caller.get(), ask.data(), ask.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(ask.size()));
  }
  for (int i = 0; i < 10; ++i) {
    for (const UniqueFd& caller : callers) send(caller.get(), "x", 1, MSG_NOSIGNAL);
    EXPECT_EQ(testing::HttpGet(probes_port_, "/healthz").status, 200);
    EXPECT_EQ(testing::HttpGet(probes_port_, "/readyz").status, 200);
    EXPECT_EQ(testing::HttpGet(port_, "/metrics").status, 200);
  }
}

TEST_F(MonitoringTest, APodListThatFailsIsCounted) {
  ScriptedKubelet::Options mute = testing::KubeletOf(node_);
  mute.pod_resources_socket = "";
  ScriptedKubelet kubelet(mute);
  ASSERT_TRUE(kubelet.Start());
  StartPlugin();
  EXPECT_TRUE(WaitUntil(kLongMs, [this] {
    return Look().Sum("gpushm_plugin_pod_list_errors_total").value_or(0) >= 1;
  })) << Log();
}

TEST_F(MonitoringTest, APodWithoutRoomIsCounted) {
  StartAll();
  const testing::Labels exhausted{{"resource", kMemory}, {"code", "EXHAUSTED"}};
  EXPECT_EQ(Look().Sum("gpushm_plugin_prestart_errors_total", exhausted), 0.0);
  for (const char* const name : {"a", "b"}) {
    ASSERT_TRUE(kubelet_.WaitRunning(kubelet_.AddPod(SharingPod(name, 9)), Soon())) << Log();
  }
  const std::string late = kubelet_.AddPod(SharingPod("late", 10));
  EXPECT_FALSE(kubelet_.StartPod(late));
  EXPECT_THAT(kubelet_.StatusOf(late).containers.at("gpushm").message,
              HasSubstr("needs 10 GiB on one GPU, but the largest free block is 6 GiB"));
  EXPECT_EQ(Look().Sum("gpushm_plugin_prestart_errors_total", exhausted), 1.0) << Page();
  EXPECT_EQ(Look().Sum("gpushm_plugin_bound_devices", {{"resource", kMemory}}), 18.0);
}

// Goal: each resource counts the IDs that pods hold. Method: a pod of two GPUs with NVLink, and one
// that has its GPU alone.
TEST_F(MonitoringTest, EveryResourceCountsWhatPodsHold) {
  StartAll();
  // The plugin is ready when it has registered; the kubelet reads the lists after that.
  ASSERT_TRUE(kubelet_.WaitAllocatable(binding::ResourceName(binding::Resource::kGpus),
                                       testing::kTokens, Soon()));
  ASSERT_TRUE(kubelet_.WaitAllocatable(binding::ResourceName(binding::Resource::kNvlink),
                                       testing::kTokens, Soon()));
  ASSERT_TRUE(
      kubelet_.WaitAllocatable(binding::ResourceName(binding::Resource::kExclusive), 2, Soon()));
  auto pair = SharingPod("pair", 4, {"one"});
  pair.containers[0].limits[binding::ResourceName(binding::Resource::kGpus)] = 2;
  pair.containers[0].limits[binding::ResourceName(binding::Resource::kNvlink)] = 1;
  const std::string uid = kubelet_.AddPod(pair);
  ASSERT_TRUE(kubelet_.WaitRunning(uid, Soon())) << Log();
  const auto bound = [&](binding::Resource resource) {
    return Look().Sum("gpushm_plugin_bound_devices",
                      {{"resource", binding::ResourceName(resource)}});
  };
  EXPECT_EQ(bound(binding::Resource::kMemory), 4.0);
  EXPECT_EQ(bound(binding::Resource::kAttach), 1.0);
  EXPECT_EQ(bound(binding::Resource::kGpus), 2.0);
  EXPECT_EQ(bound(binding::Resource::kNvlink), 1.0);
  EXPECT_EQ(bound(binding::Resource::kExclusive), 0.0);
  kubelet_.DeletePod(uid);
  EXPECT_TRUE(WaitFor("gpushm_plugin_bound_devices",
                      {{"resource", binding::ResourceName(binding::Resource::kNvlink)}}, 0))
      << Log();
  auto alone = SharingPod("alone", 4, {"one"});
  alone.containers[0].limits[binding::ResourceName(binding::Resource::kExclusive)] = 1;
  ASSERT_TRUE(kubelet_.WaitRunning(kubelet_.AddPod(alone), Soon())) << Log();
  EXPECT_EQ(bound(binding::Resource::kExclusive), 1.0);
}

// ---- what remains of pods that have ended

// Goal: series end with the pod, not with its broker. Method: a broker that is away for two
// listings of the kubelet and returns; then the pod's end, whose proof is a log line.
TEST_F(MonitoringTest, APodsSeriesGoBeforeItsEndIsProven) {
  StartAll();
  const std::string pod = kubelet_.AddPod(SharingPod("pod", 4, {"one"}));
  ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
  const testing::Labels labels{{"pod", "pod"}};
  const auto broker = [&] {
    return std::make_unique<Process>(
        [link = LinkOf(pod), state = node_ / "sim"] { BeBroker(link, state, Says::kLittle); });
  };
  auto alive = broker();
  ASSERT_TRUE(WaitFor("gpushm_broker_connected", labels, 1));
  alive->Kill();
  ASSERT_TRUE(WaitFor("gpushm_broker_connected", labels, 0));
  const uint64_t calls = kubelet_.pod_resources_calls();
  EXPECT_TRUE(WaitUntil(kLongMs, [&] {
    EXPECT_EQ(Look().Count("gpushm_pool_size_bytes", labels), 1U);
    return kubelet_.pod_resources_calls() >= calls + 2;
  }));
  alive = broker();
  ASSERT_TRUE(WaitFor("gpushm_broker_connected", labels, 1)) << Log();
  alive->Kill();
  kubelet_.DeletePod(pod);
  const auto proven = [&] { return Log().find(" released ") != std::string::npos; };
  EXPECT_TRUE(WaitUntil(kLongMs, [&] { return Look().Count("gpushm_pool_size_bytes") == 0; }));
  EXPECT_FALSE(proven());
  EXPECT_EQ(Look().Count("gpushm_attachment_mapped_bytes"), 0U);
  EXPECT_TRUE(WaitUntil(kLongMs, proven)) << Log();
}

class ChurnTest : public MonitoringTest {
 protected:
  // All memory IDs but five are in use, so each batch takes over from the one before.
  static constexpr int kBatch = 25;

  // Every third pod has a broker, which is killed before its pod's end or after it.
  void RunBatch(int batch) {
    std::vector<std::string> pods;
    for (int i = 0; i < kBatch; ++i) {
      pods.push_back(kubelet_.AddPod(SharingPod(Concat("churn-", batch * kBatch + i), 1, {"one"})));
    }
    std::list<Process> brokers;
    for (int i = 0; i < kBatch; ++i) {
      const std::string& pod = pods[static_cast<size_t>(i)];
      ASSERT_TRUE(kubelet_.WaitRunning(pod, Soon())) << Log();
      if (i % 3 != 0) continue;
      brokers.emplace_back(
          [link = LinkOf(pod), state = node_ / "sim"] { BeBroker(link, state, Says::kLittle); });
      attaches_ += kAttachesOfABroker;
    }
    ASSERT_TRUE(WaitUntil(kLongMs, [&] {
      const Scrape page = Look();
      CheckSum(page);
      return page.Count("gpushm_attachment_mapped_bytes") == brokers.size() &&
             page.Sum("gpushm_attaches_total") == static_cast<double>(attaches_);
    })) << Log();
    for (auto broker = brokers.begin(); broker != brokers.end(); std::advance(broker, 1)) {
      if (std::distance(brokers.begin(), broker) % 2 == 0) broker->Kill();
    }
    for (const std::string& pod : pods) kubelet_.DeletePod(pod);
    brokers.clear();
    CheckSum(Look());
  }
  // The sum never decreases.
  void CheckSum(const Scrape& page) {
    const double now = page.Sum("gpushm_attaches_total").value_or(-1);
    EXPECT_GE(now, last_sum_);
    last_sum_ = now;
  }
  bool WaitGone(size_t samples) {
    return WaitUntil(2 * kLongMs, [&] {
      const std::string page = Page();
      CheckSum(Scrape(page));
      return page.find("churn-") == std::string::npos && SamplesOf(Scrape(page)) == samples &&
             node_.Specs().empty();
    });
  }
  // Without the series of failures by cause, which begin with the first failure and then stay.
  static size_t SamplesOf(const Scrape& page) {
    return page.size() - page.Count("gpushm_plugin_prestart_errors_total");
  }

  uint64_t attaches_ = 0;
  double last_sum_ = 0;
};

TEST_F(ChurnTest, PodsThatComeAndGoLeaveNothing) {
#ifdef GPUSHM_SANITIZED
  constexpr int kBatches = 8;
  constexpr uint64_t kMoreBytes = 1 << 30;  // A sanitizer keeps freed memory.
#else
  constexpr int kBatches = 40;
  constexpr uint64_t kMoreBytes = 2 << 20;
#endif
  constexpr int kWarm = 4;
  StartAll();
  ASSERT_TRUE(
      WaitUntil(kLongMs, [this] { return Look().Count("gpushm_gpu_memory_used_bytes") == 2; }));
  const size_t samples = SamplesOf(Look());
  for (int batch = 0; batch < kWarm; ++batch) RunBatch(batch);
  ASSERT_TRUE(WaitGone(samples)) << Page();
  const uint64_t rss_bytes = plugin_->RssBytes();
  const int descriptors = plugin_->Descriptors();
  for (int batch = kWarm; batch < kBatches; ++batch) RunBatch(batch);
  ASSERT_TRUE(WaitGone(samples)) << Page();
  RecordProperty("rss_before_bytes", static_cast<int>(rss_bytes));
  RecordProperty("rss_after_bytes", static_cast<int>(plugin_->RssBytes()));
  EXPECT_TRUE(WaitUntil(kLongMs, [&] { return plugin_->Descriptors() <= descriptors; }))
      << plugin_->Descriptors() << " descriptors, " << descriptors << " before";
  EXPECT_LE(plugin_->RssBytes(), rss_bytes + kMoreBytes);
  EXPECT_EQ(Look().Sum("gpushm_attaches_total"), static_cast<double>(attaches_));
}

}  // namespace
}  // namespace gpushm::plugin::monitoring
