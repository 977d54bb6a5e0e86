// The plugin's performance budgets (docs/benchmarks): the real process on the simulated driver. If
// GPUSHM_DRIVER is not set and there is an NVIDIA device, on the real driver. The kubelet is
// scripted.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "platform/base/bench_samples.h"
#include "plugin/kubelet/testing/plugin_client.h"
#include "plugin/testing/sharing.h"

namespace gpushm::plugin::testing {
namespace {

using bench::Measure;
using kubelet::testing::PluginClient;
using kubelet::testing::ScriptedKubelet;

constexpr int64_t kRetryMs = 10'000;  // Long, so that no measurement includes a retry.
constexpr int kCalls = 2000;
constexpr int kRestarts = 20;
constexpr int kPods = 5000;  // Each makes two allocations and two bindings.
constexpr double kMiB = 1 << 20;

TestNode::Gpus Gpus() {
  return std::getenv("GPUSHM_DRIVER") == nullptr && access("/dev/nvidiactl", F_OK) == 0
             ? TestNode::Gpus::kReal
             : TestNode::Gpus::kSimulated;
}

class Bench {
 public:
  Bench() {
    Require(kubelet.Start().has_value());
    plugin = std::make_unique<PluginProcess>(node, node.WriteConfig());
    Require(Usable());
  }
  static void Require(bool holds) {
    if (!holds) std::abort();
  }
  bool Usable() {
    return WaitUntil(kLongMs, [this] {
      return kubelet.Allocatable(kMemory) > 0 && kubelet.Allocatable(kAttach) > 0;
    });
  }

  TestNode node{Gpus()};
  ScriptedKubelet kubelet{KubeletOf(node, kRetryMs)};
  std::unique_ptr<PluginProcess> plugin;
};

kubelet::testing::PodSpec SmallPod(const std::string& name) { return SharingPod(name, 1, {"app"}); }

void PluginUsableAfterKubelet(benchmark::State& state) {
  Bench bench;
  for (auto _ : state) {
    Measure(state, kRestarts, [&](int) {
      Bench::Require(bench.kubelet.Restart(ScriptedKubelet::Death::kKilled).has_value());
      Bench::Require(bench.Usable());
    });
  }
  state.counters["budget_p99_ns"] = 500e6;
}

void PluginAllocate(benchmark::State& state) {
  Bench bench;
  PluginClient client(kMemory, bench.node / "plugins/gpushm-memory.sock");
  for (auto _ : state) {
    Measure(state, kCalls, [&](int) { Bench::Require(client.Allocate({"m0000"}).has_value()); });
  }
  state.counters["budget_p99_ns"] = 2e6;
}

// Both containers of a pod: listing, binding, link and specs.
void PluginPreStartTwice(benchmark::State& state) {
  Bench bench;
  const std::string pod = bench.kubelet.AddPod(SmallPod("pod"));
  Bench::Require(bench.kubelet.StartPod(pod));
  for (auto _ : state) {
    Measure(state, kCalls, [&](int) {
      Bench::Require(bench.kubelet.RestartContainer(pod, "gpushm").has_value());
      Bench::Require(bench.kubelet.RestartContainer(pod, "app").has_value());
      Bench::Require(bench.kubelet.StartPod(pod));
    });
  }
  state.counters["budget_p99_ns"] = 40e6;
}

// Pods come and go; measures what is left of them afterwards.
void PluginTenThousandAllocations(benchmark::State& state) {
  Bench bench;
  const auto come_and_go = [&](int i) {
    const std::string pod = bench.kubelet.AddPod(SmallPod(Concat("pod-", i)));
    Bench::Require(WaitUntil(kLongMs, [&] { return bench.kubelet.StartPod(pod); }));
    bench.kubelet.DeletePod(pod);
  };
  const auto settled = [&] { return bench.node.Specs().empty() && bench.node.Links().empty(); };
  for (int i = 0; i < 100; ++i) come_and_go(-i - 1);
  Bench::Require(WaitUntil(kLongMs, settled));
  const int before = bench.plugin->Descriptors();
  const auto rss_before = static_cast<double>(bench.plugin->RssBytes());
  for (auto _ : state) Measure(state, kPods, come_and_go);
  Bench::Require(WaitUntil(kLongMs, settled));
  Bench::Require(WaitUntil(kLongMs, [&] { return bench.plugin->Descriptors() <= before; }));
  state.counters["rss_before_bytes"] = rss_before;
  state.counters["rss_after_bytes"] = static_cast<double>(bench.plugin->RssBytes());
  state.counters["descriptors_count"] = bench.plugin->Descriptors();
}

void PluginMemory(benchmark::State& state) {
  Bench bench;
  for (auto _ : state) {
    Bench::Require(bench.kubelet.StartPod(bench.kubelet.AddPod(SmallPod("pod"))));
    state.SetIterationTime(1e-9);
  }
  state.counters["value_bytes"] = static_cast<double>(bench.plugin->RssBytes());
  state.counters["budget_bytes"] = (bench.node.gpus() == TestNode::Gpus::kReal ? 40 : 20) * kMiB;
}

BENCHMARK(PluginUsableAfterKubelet)->UseManualTime()->Iterations(1);
BENCHMARK(PluginAllocate)->UseManualTime()->Iterations(1);
BENCHMARK(PluginPreStartTwice)->UseManualTime()->Iterations(1);
BENCHMARK(PluginTenThousandAllocations)->UseManualTime()->Iterations(1);
BENCHMARK(PluginMemory)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gpushm::plugin::testing

BENCHMARK_MAIN();
