// What the kubelet waits for: a call through gRPC and the socket, with a Handler that takes no
// time; a change of health of 4,096 IDs until the kubelet has it; a restart until both resources
// are usable. The kubelet is scripted.
#include <benchmark/benchmark.h>

#include <vector>

#include "platform/base/bench_samples.h"
#include "plugin/kubelet/testing/fixture.h"
#include "plugin/kubelet/testing/plugin_client.h"

namespace gpushm::plugin::kubelet::testing {
namespace {

using bench::Measure;

constexpr int kCalls = 2000;
constexpr int kRestarts = 100;

class Node : public KubeletTest {
 public:
  Node() {
    StartKubelet();
    StartPlugin(4096, 512);
    if (!Usable(4096, 512)) std::abort();
  }
  void TestBody() override {}
  std::string socket() const {
    return Concat(options.folder, "/", options.sockets[Resource::kMemory], ".sock");
  }
  using KubeletTest::kubelet;
  using KubeletTest::plugin;
};

void Allocate(benchmark::State& state) {
  const Node node;
  PluginClient client(kMemory, node.socket());
  std::vector<std::string> ids;
  for (const Advertised& device : Devices("m", 8)) ids.push_back(device.id);
  for (auto _ : state)
    Measure(state, kCalls, [&](int) { benchmark::DoNotOptimize(client.Allocate(ids)); });
}

void PreStart(benchmark::State& state) {
  const Node node;
  PluginClient client(kMemory, node.socket());
  std::vector<std::string> ids;
  for (const Advertised& device : Devices("m", 8)) ids.push_back(device.id);
  for (auto _ : state)
    Measure(state, kCalls, [&](int) { benchmark::DoNotOptimize(client.PreStart(ids, kLongMs)); });
}

void ChangeOfHealth(benchmark::State& state) {
  const Node node;
  for (auto _ : state)
    Measure(state, kRestarts, [&](int i) {
      const auto unhealthy = static_cast<size_t>(i) + 1;
      node.plugin->SetDevices(Resource::kMemory, Devices("m", 4096, unhealthy));
      if (!node.kubelet->WaitAllocatable(kMemory, 4096 - unhealthy, Soon())) std::abort();
    });
}

void KubeletRestart(benchmark::State& state) {
  const Node node;
  for (auto _ : state)
    Measure(state, kRestarts, [&](int) {
      if (!node.kubelet->Restart(ScriptedKubelet::Death::kKilled) ||
          !node.kubelet->WaitAllocatable(kMemory, 4096, Soon()) ||
          !node.kubelet->WaitAllocatable(kAttach, 512, Soon()))
        std::abort();
    });
}

BENCHMARK(Allocate)->UseManualTime()->Iterations(1);
BENCHMARK(PreStart)->UseManualTime()->Iterations(1);
BENCHMARK(ChangeOfHealth)->UseManualTime()->Iterations(1);
BENCHMARK(KubeletRestart)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gpushm::plugin::kubelet::testing

BENCHMARK_MAIN();
