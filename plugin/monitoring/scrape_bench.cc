// The budget of a scrape (docs/benchmarks): 8 GPUs, 500 buffers, 2,000 attachments; the real
// plugin, to which 50 pods' brokers have stated everything, scraped over HTTP. And what
// prometheus-cpp's serializer takes for output with as many samples, which is why gpushm has its
// own serializer.
#include <benchmark/benchmark.h>
#include <prometheus/text_serializer.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/bench_samples.h"
#include "platform/base/clock.h"
#include "platform/daemon/process.h"
#include "plugin/keeper/testing/statements.h"
#include "plugin/metrics/exposition.h"
#include "plugin/testing/plugin_process.h"
#include "plugin/testing/scrape.h"

namespace gpushm::plugin::monitoring {
namespace {

using keeper::testing::BufferOf;
using keeper::testing::ClientOf;
using keeper::testing::FakeBroker;
using keeper::testing::GenerationOf;
using keeper::testing::kGiB;
using keeper::testing::LeaseOf;
using keeper::testing::PidfdOf;
using keeper::testing::SimulatedMemory;
using testing::PluginProcess;
using testing::PortIn;
using testing::Scrape;
using testing::TestNode;
using testing::WaitUntil;

constexpr int kGpus = 8;
constexpr int kPods = 50;
constexpr int kBuffers = 10;      // For each pod.
constexpr int kContainers = 8;    // For each pod; each one attaches five of the buffers.
constexpr int kAttachments = 40;  // For each pod.
constexpr int kScrapes = 500;
constexpr int64_t kPatienceMs = 60'000;
constexpr double kMebi = 1 << 20;

void Require(bool holds) {
  if (!holds) std::abort();
}

std::string GpuName(int i) { return Concat("GPU-aaaaaaaa-0000-0000-0000-00000000000", i + 1); }

std::string Get(int port) { return Scrape::Get(port, "/metrics"); }

class LoadedNode {
 public:
  LoadedNode() {
    RaiseDescriptorLimit();
    std::ofstream cards(node_ / "sim/cards.yaml");
    cards << "gpus:\n";
    for (int i = 0; i < kGpus; ++i) {
      cards << "- {name: H200, memory: 141Gi, uuid: " << GpuName(i) << "}\n";
    }
    cards.close();
    std::string more =
        "kubelet: none\nmetrics: {address: '127.0.0.1:0'}\nstatus: {address: ''}\nallocations:\n";
    for (int pod = 0; pod < kPods; ++pod) {
      more += Concat("- {name: pod-", pod, ", memory: 8Gi, gpu: ", GpuName(pod % kGpus), "}\n");
    }
    plugin_ = std::make_unique<PluginProcess>(node_, node_.WriteConfig(more));
    Require(WaitUntil(kPatienceMs, [this] {
      return (port_ = PortIn(node_ / "plugin.log", "metrics-served")) != 0;
    }));
    Require(WaitUntil(kPatienceMs,
                      [this] { return Get(port_).find("gpu_info{") != std::string::npos; }));
    rss_before_ = static_cast<double>(plugin_->RssBytes());
    for (int pod = 0; pod < kPods; ++pod) Fill(pod);
    Require(WaitUntil(kPatienceMs, [this] {
      return Count(Get(port_), "\ngpushm_attachment_mapped_bytes{") == kPods * kAttachments;
    }));
  }

  static int Count(const std::string& page, const std::string& what) {
    int count = 0;
    for (size_t at = 0; (at = page.find(what, at)) != std::string::npos; ++at) ++count;
    return count;
  }
  int port() const { return port_; }
  double rss_before() const { return rss_before_; }
  double rss() const { return static_cast<double>(plugin_->RssBytes()); }

 private:
  void Fill(int pod) {
    FakeBroker& broker = brokers_.emplace_back(
        Concat(node_ / "state", "/links/pod-", pod, "/", protocol::kLinkSocketName));
    Require(broker.Greet(false).has_value() && broker.Registry().has_value());
    std::vector<std::string> containers;
    for (int i = 0; i < kContainers; ++i) containers.push_back(Concat("container-", i));
    Require(broker.Counters(containers).has_value());
    const UniqueFd self = PidfdOf(getpid());
    for (int i = 0; i < kContainers; ++i) {
      const auto id = static_cast<uint64_t>(i) + 1;
      Require(broker.Say(ClientOf(id, containers[static_cast<size_t>(i)].c_str()), self.get())
                  .has_value());
    }
    for (int i = 0; i < kBuffers; ++i) {
      const std::string name = Concat("buffer-", i);
      const auto number = static_cast<uint64_t>(i) + 1;
      Require(broker.Say(BufferOf(name, number)).has_value());
      Require(broker.Say(GenerationOf(name, number, kGiB / 2), SimulatedMemory(node_ / "sim").get())
                  .has_value());
    }
    for (int i = 0; i < kAttachments; ++i) {
      const auto client = static_cast<uint64_t>(i % kContainers) + 1;
      const auto generation = static_cast<uint64_t>((i / kContainers + i) % kBuffers) + 1;
      Require(broker.Say(LeaseOf(static_cast<uint64_t>(i) + 1, client, generation)).has_value());
    }
    Require(broker.End().has_value());
  }

  TestNode node_;
  std::unique_ptr<PluginProcess> plugin_;
  std::vector<FakeBroker> brokers_;
  int port_ = 0;
  double rss_before_ = 0;
};

void ScrapeTime(benchmark::State& state) {
  LoadedNode node;
  const std::string page = Get(node.port());
  for (auto _ : state) {
    bench::Measure(state, kScrapes,
                   [&](int) { Require(Get(node.port()).size() > page.size() / 2); });
  }
  state.counters["budget_p99_ns"] = 20e6;
  state.counters["page_bytes"] = static_cast<double>(page.size());
  state.counters["samples_count"] = LoadedNode::Count(page, "\n") - LoadedNode::Count(page, "\n#");
  state.counters["rss_before_bytes"] = node.rss_before();
  state.counters["rss_after_bytes"] = node.rss();
}

// The plugin's memory while it is scraped with that load.
void ScrapeMemory(benchmark::State& state) {
  LoadedNode node;
  for (auto _ : state) {
    for (int i = 0; i < kScrapes; ++i) Require(!Get(node.port()).empty());
    state.SetIterationTime(1e-9);
  }
  state.counters["value_bytes"] = node.rss();
  state.counters["budget_bytes"] = 20 * kMebi;
}

// ---- the same number of samples, from memory to text only

constexpr int kSamples = 2000;

void SerializeOurs(benchmark::State& state) {
  for (auto _ : state) {
    bench::Measure(state, 100, [&](int) {
      metrics::Exposition out;
      for (int i = 0; i < kSamples; ++i) {
        out.Add(metrics::Metric::kAttachmentMapped,
                {"default", "pod-0", Concat("container-", i), "buffer-0", GpuName(0), "ro"},
                uint64_t{1} << 30);
      }
      benchmark::DoNotOptimize(out.Finish());
    });
  }
}

void SerializePrometheusCpp(benchmark::State& state) {
  for (auto _ : state) {
    bench::Measure(state, 100, [&](int) {
      prometheus::MetricFamily family;
      family.name = metrics::InfoOf(metrics::Metric::kAttachmentMapped).name;
      family.help = metrics::InfoOf(metrics::Metric::kAttachmentMapped).help;
      family.type = prometheus::MetricType::Gauge;
      for (int i = 0; i < kSamples; ++i) {
        prometheus::ClientMetric& metric = family.metric.emplace_back();
        metric.label = {{"namespace", "default"},
                        {"pod", "pod-0"},
                        {"container", Concat("container-", i)},
                        {"buffer", "buffer-0"},
                        {"gpu_uuid", GpuName(0)},
                        {"access", "ro"}};
        metric.gauge.value = 1 << 30;
      }
      const std::vector<prometheus::MetricFamily> families{std::move(family)};
      benchmark::DoNotOptimize(prometheus::TextSerializer().Serialize(families));
    });
  }
}

BENCHMARK(ScrapeTime)->UseManualTime()->Iterations(1);
BENCHMARK(ScrapeMemory)->UseManualTime()->Iterations(1);
BENCHMARK(SerializeOurs)->UseManualTime()->Iterations(1);
BENCHMARK(SerializePrometheusCpp)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gpushm::plugin::monitoring

BENCHMARK_MAIN();
