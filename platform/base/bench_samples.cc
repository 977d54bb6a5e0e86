#include "platform/base/bench_samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "platform/base/clock.h"

namespace gpushm::bench {

double Samples::Sum() const { return std::accumulate(ns_.begin(), ns_.end(), 0.0); }

double Samples::Percentile(double part) const {
  if (ns_.empty()) return 0;
  std::vector<double> sorted = ns_;
  // Nearest-rank method.
  const double rank = std::ceil(part * static_cast<double>(sorted.size())) - 1;
  const auto at = static_cast<ptrdiff_t>(std::max(0.0, rank));
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end());
  return sorted[static_cast<size_t>(at)];
}

void Show(benchmark::State& state, Ours ours) {
  state.counters["p50_ns"] = ours.samples.Percentile(0.5);
  state.counters["p99_ns"] = ours.samples.Percentile(0.99);
  state.counters["n"] = static_cast<double>(ours.samples.size());
}

void Show(benchmark::State& state, Ours ours, Baseline baseline) {
  Show(state, ours);
  state.counters["baseline_p50_ns"] = baseline.samples.Percentile(0.5);
  state.counters["baseline_p99_ns"] = baseline.samples.Percentile(0.99);
}

void Measure(benchmark::State& state, int times, const std::function<void(int)>& step) {
  Samples samples;
  for (int i = 0; i < times; ++i) {
    const int64_t start_ns = MonotonicNs();
    step(i);
    samples.Add(MonotonicNs() - start_ns);
  }
  state.SetIterationTime(samples.Sum() / 1e9);
  Show(state, Ours{samples});
}

}  // namespace gpushm::bench
