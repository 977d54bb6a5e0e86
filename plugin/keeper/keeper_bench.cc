// What the plugin and a restarted broker wait for.
//   KeeperLook      a read of 64 links with 500 buffers and 2,000 leases, as for a scrape (the
//                   budget of the whole scrape is 20 ms)
//   KeeperGiveBack  from connect to End of a broker that gets 1,000 generations with descriptors
//                   and 65,536 leases, as many as a link can have
//   KeeperStatement from the statement of a lease until a read shows it
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "contract/limits.h"
#include "platform/base/bench_samples.h"
#include "platform/base/clock.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "plugin/keeper/keeper.h"
#include "plugin/keeper/testing/statements.h"

namespace gpushm::plugin::keeper::testing {
namespace {

using bench::Ours;
using bench::Samples;
using bench::Show;

class Node {
 public:
  Node() {
    ConfigureLog({.level = LogLevel::kError, .format = LogFormat::kText});
    RaiseDescriptorLimit();
    Keeper::Options options;
    options.links_folder = folder_.path();
    options.settings.memory = MemfdsAreMemory();
    auto keeper = Keeper::Start(std::move(options));
    if (keeper) keeper_ = std::move(*keeper);
  }

  // A broker with state, in this process.
  FakeBroker AddBroker(const std::string& name) {
    folder_.Add(name);
    (void)keeper_->Open(name, {.gpus = {kGpu}, .pool_bytes = kGiB});
    FakeBroker broker(folder_.Socket(name));
    (void)broker.Greet(false);
    (void)broker.Registry();
    (void)broker.Say(ClientOf(1), PidfdOf(getpid()).get());
    return broker;
  }
  // Buffers and generations 1 to `count`, and leases spread over them.
  void Fill(FakeBroker* broker, uint64_t count, uint64_t leases) {
    for (uint64_t i = 1; i <= count; ++i) {
      (void)broker->Say(BufferOf(Concat("b", i), i));
      (void)broker->Say(GenerationOf(Concat("b", i), i), Memfd().get());
    }
    for (uint64_t i = 1; i <= leases; ++i) (void)broker->Say(LeaseOf(i, 1, 1 + i % count));
    (void)broker->End();
  }
  bool WaitForLeases(size_t leases) {
    return Eventually([&] {
      size_t seen = 0;
      for (const LinkView& view : keeper_->Look()) seen += view.leases.size();
      return seen == leases;
    });
  }
  Keeper& keeper() { return *keeper_; }
  std::string Socket(const std::string& name) const { return folder_.Socket(name); }

 private:
  LinksFolder folder_;
  std::unique_ptr<Keeper> keeper_;
};

void KeeperLook(benchmark::State& state) {
  constexpr uint64_t kLinks = 64;
  Node node;
  std::vector<FakeBroker> brokers;
  for (uint64_t i = 0; i < kLinks; ++i) {
    brokers.push_back(node.AddBroker(Concat("m", i)));
    node.Fill(&brokers.back(), 8, 2000 / kLinks);
  }
  if (!node.WaitForLeases(2000 / kLinks * kLinks)) state.SkipWithError("not everything was kept");
  Samples samples;
  for (auto _ : state) {
    const int64_t begun_ns = MonotonicNs();
    benchmark::DoNotOptimize(node.keeper().Look());
    samples.Add(MonotonicNs() - begun_ns);
  }
  Show(state, Ours{samples});
  state.counters["budget_p99_ns"] = 20e6;
}
BENCHMARK(KeeperLook);

void KeeperGiveBack(benchmark::State& state) {
  Node node;
  {
    FakeBroker broker = node.AddBroker("m0");
    node.Fill(&broker, 1000, limits::kLeases);
    if (!node.WaitForLeases(limits::kLeases)) state.SkipWithError("not everything was kept");
  }
  Samples samples;
  for (auto _ : state) {
    const int64_t begun_ns = MonotonicNs();
    FakeBroker broker(node.Socket("m0"));
    if (!broker.Greet(true)) state.SkipWithError("not welcome");
    const auto kept = broker.TakeKept();
    samples.Add(MonotonicNs() - begun_ns);
    if (!kept || kept->size() != 2001 + limits::kLeases)
      state.SkipWithError("not everything came back");
  }
  Show(state, Ours{samples});
}
BENCHMARK(KeeperGiveBack)->Unit(benchmark::kMillisecond);

void KeeperStatement(benchmark::State& state) {
  Node node;
  FakeBroker broker = node.AddBroker("m0");
  node.Fill(&broker, 1, 1);
  Samples samples;
  uint64_t lease = 1;
  for (auto _ : state) {
    const int64_t begun_ns = MonotonicNs();
    (void)broker.Say(LeaseOf(++lease, 1, 1));
    while (node.keeper().Look()[0].kept.leases < 2) {
    }
    samples.Add(MonotonicNs() - begun_ns);
    (void)broker.Say(protocol::LinkDrop{.what = 4, .reserved = 0, .id = lease, .name = {}});
    while (node.keeper().Look()[0].kept.leases > 1) {
    }
  }
  Show(state, Ours{samples});
}
BENCHMARK(KeeperStatement);

}  // namespace
}  // namespace gpushm::plugin::keeper::testing

BENCHMARK_MAIN();
