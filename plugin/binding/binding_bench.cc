// Cost of choosing a GPU, and how well it packs: 10,000 pods of mixed sizes come to a node of 8
// GPUs with 140 units, stay for a while and end. A pod that finds no room waits its turn.
//   waited_count    pods that did not start immediately
//   stranded_count  pods among those that would have fitted if the free units were on one GPU
//   wait_mean_count mean wait of all pods, in arrivals
// p50 and p99 are for Bind alone.
//
// Several: one decision about a pod of several GPUs, on a node with 1,000 bindings, for the ways in
// which the GPUs of real nodes are linked. refused_count: pods without a set, which is the longest
// search.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <queue>
#include <random>

#include "platform/base/bench_samples.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin::binding {
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
  Node() : book_(uint64_t{1} << 30) {
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

void Place(benchmark::State& state) {
  const std::vector<Plan> plans = Plans();
  for (auto _ : state) {
    Node node;
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

// How the GPUs of a node are linked. kMesh: the eight of a DGX-1, each with four others.
enum class Links { kNone, kPairs, kMesh, kSwitch };

std::vector<Gpu> Linked(size_t count, uint32_t units, Links links) {
  const auto linked = [links](size_t a, size_t b) {
    switch (links) {
      case Links::kNone:
        return false;
      case Links::kPairs:
        return (a ^ 1) == b;
      case Links::kMesh:
        return a / 4 == b / 4 || (a ^ 4) == b;
      case Links::kSwitch:
        break;
    }
    return true;
  };
  std::vector<Gpu> gpus(count);
  for (size_t i = 0; i < count; ++i) {
    gpus[i] = {.uuid = Concat("GPU-aaaaaaaa-0000-0000-0000-", 100'000'000'000 + i), .units = units};
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i != j && linked(i, j)) gpus[i].nvlink.insert(gpus[j].uuid);
    }
  }
  return gpus;
}

void Several(benchmark::State& state, size_t gpus, Links links) {
  constexpr size_t kBindings = 1000;
  constexpr int kDecisions = 1000;
  std::mt19937 random(3);
  for (auto _ : state) {
    Book book(uint64_t{1} << 30);
    const auto units = static_cast<uint32_t>(3 * kBindings / gpus);
    book.SetGpus(Linked(gpus, units, links));
    for (size_t i = 0; i < kBindings; ++i) {
      const DeviceIds ids = {Concat("m", 10'000 + i)};
      Snapshot now;
      now.Add({{"default", Concat("single-", i)}, "gpushm"}, Resource::kMemory, ids);
      GPUSHM_ASSERT(book.Bind(Resource::kMemory, ids, now).has_value());
    }
    bench::Samples samples;
    int refused = 0;
    for (int i = 0; i < kDecisions; ++i) {
      const size_t count = 2 + random() % (gpus - 1);
      const Owner owner{{"default", "several"}, "gpushm"};
      // Often more than any GPU has left.
      const size_t each = 1 + random() % units;
      DeviceIds ids;
      for (size_t id = 0; id < count * each; ++id) ids.insert(Concat("m", 20'000 + id));
      DeviceIds number;
      for (size_t id = 0; id < count; ++id) number.insert(Concat("g", 1000 + id));
      Snapshot now;
      now.Add(owner, Resource::kMemory, ids);
      now.Add(owner, Resource::kGpus, number);
      const auto begun = std::chrono::steady_clock::now();
      const auto bound = book.Bind(Resource::kMemory, ids, now);
      const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
      samples.Add(static_cast<double>(took.count()));
      if (!bound) ++refused;
      // The kubelet gives the IDs to another pod, so this one has ended.
      Snapshot next;
      next.Add({{"default", "next"}, "gpushm"}, Resource::kMemory, {*ids.begin()});
      book.Supersede(ids);
      if (bound) GPUSHM_ASSERT(book.Bind(Resource::kMemory, {*ids.begin()}, next).has_value());
    }
    state.SetIterationTime(samples.Sum() / 1e9);
    bench::Show(state, bench::Ours{samples});
    state.counters["refused_count"] = refused;
  }
}

BENCHMARK_CAPTURE(Several, gpus_8_none, 8, Links::kNone)->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(Several, gpus_8_pairs, 8, Links::kPairs)->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(Several, gpus_8_mesh, 8, Links::kMesh)->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(Several, gpus_8_switch, 8, Links::kSwitch)->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(Several, gpus_16_switch, 16, Links::kSwitch)->UseManualTime()->Iterations(1);

BENCHMARK(Place)->Name("Place/best_fit")->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gpushm::plugin::binding

BENCHMARK_MAIN();
