// Cost of choosing a GPU, and how well it packs: 10,000 pods of mixed sizes come to a node of 8
// GPUs with 140 units, stay for a while and end. A pod that finds no room waits its turn. Each
// strategy gets the same pods.
//   waited_count    pods that did not start immediately
//   stranded_count  pods among those that would have fitted if the free units were on one GPU
//   wait_mean_count mean wait of all pods, in arrivals
// p50 and p99 are for Bind alone.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <queue>
#include <random>

#include "platform/base/bench_samples.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin {
namespace {

constexpr int kPods = 10'000;
constexpr int kGpus = 8;
constexpr uint32_t kUnits = 140;

struct Plan {
  int arrival;
  uint32_t units;
  int stays;
};

std::vector<Plan> Plans() {
  std::mt19937 random(3);
  std::vector<Plan> plans;
  for (int i = 0; i < kPods; ++i) {
    const auto kind = random() % 10;
    const auto pick = static_cast<uint32_t>(random());
    const uint32_t units = kind < 7 ? 1 + pick % 8 : kind < 9 ? 16 + pick % 25 : 70 + pick % 71;
    plans.push_back({i, units, static_cast<int>(20 + random() % 60)});
  }
  return plans;
}

class Node {
 public:
  explicit Node(Fit fit) : book_(uint64_t{1} << 30, fit) {
    std::vector<Gpu> gpus;
    for (int i = 0; i < kGpus; ++i) gpus.push_back({.uuid = Concat("GPU-", i), .units = kUnits});
    book_.SetGpus(gpus);
    for (uint32_t i = 0; i < 3 * kGpus * kUnits; ++i) free_.push_back(Concat("m", 10'000 + i));
  }

  bool Start(const Plan& plan) {
    const DeviceIds ids(free_.begin(), free_.begin() + plan.units);
    Snapshot now;
    now.Add({{"default", Concat("pod-", plan.arrival)}, "gpushm"}, Resource::kMemory, ids);
    const auto begun = std::chrono::steady_clock::now();
    const auto bound = book_.Bind(Resource::kMemory, ids, now);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
    samples_.Add(static_cast<double>(took.count()));
    if (!bound) return false;
    free_.erase(free_.begin(), free_.begin() + plan.units);
    running_[plan.arrival] = ids;
    return true;
  }

  void End(int arrival) {
    const auto pod = running_.extract(arrival);
    free_.insert(free_.end(), pod.mapped().begin(), pod.mapped().end());
    Snapshot now;
    for (const auto& [other, ids] : running_) {
      now.Add({{"default", Concat("pod-", other)}, "gpushm"}, Resource::kMemory, ids);
    }
    book_.Observe(now, now_ms_ += Book::kProofMs);
    book_.Observe(now, now_ms_ += Book::kProofMs);
  }

  uint32_t LargestFree() const {
    uint32_t largest = 0;
    for (int i = 0; i < kGpus; ++i) largest = std::max(largest, book_.FreeUnits(Concat("GPU-", i)));
    return largest;
  }
  uint32_t FreeUnits() const {
    uint32_t free = 0;
    for (int i = 0; i < kGpus; ++i) free += book_.FreeUnits(Concat("GPU-", i));
    return free;
  }
  const bench::Samples& samples() const { return samples_; }

 private:
  Book book_;
  std::deque<std::string> free_;
  std::map<int, DeviceIds> running_;
  bench::Samples samples_;
  int64_t now_ms_ = 0;
};

void Place(benchmark::State& state, Fit fit) {
  const std::vector<Plan> plans = Plans();
  for (auto _ : state) {
    Node node(fit);
    using End = std::pair<int, int>;  // Time, and index of the pod.
    std::priority_queue<End, std::vector<End>, std::greater<>> ends;
    std::deque<Plan> waiting;
    int64_t wait = 0;
    int waited = 0;
    int stranded = 0;
    for (int time = 0; time < kPods || !waiting.empty(); ++time) {
      bool ended = false;
      for (; !ends.empty() && ends.top().first <= time; ends.pop(), ended = true) {
        node.End(ends.top().second);
      }
      for (size_t i = 0; ended && i < waiting.size();) {
        if (waiting[i].units <= node.LargestFree() && node.Start(waiting[i])) {
          wait += time - waiting[i].arrival;
          ends.push({time + waiting[i].stays, waiting[i].arrival});
          waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
      if (time >= kPods) continue;
      const Plan& plan = plans[static_cast<size_t>(time)];
      if (node.Start(plan)) {
        ends.push({time + plan.stays, plan.arrival});
        continue;
      }
      ++waited;
      if (node.FreeUnits() >= plan.units) ++stranded;
      waiting.push_back(plan);
    }
    state.SetIterationTime(node.samples().Sum() / 1e9);
    bench::Show(state, bench::Ours{node.samples()});
    state.counters["waited_count"] = waited;
    state.counters["stranded_count"] = stranded;
    state.counters["wait_mean_count"] = static_cast<double>(wait) / kPods;
  }
}

BENCHMARK_CAPTURE(Place, best_fit, Fit::kBest)->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(Place, first_fit, Fit::kFirst)->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(Place, spread, Fit::kSpread)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gpushm::plugin

BENCHMARK_MAIN();
