// Samples of one operation, and the benchmark row that they produce with the counters that
// report.py reads.
//
// Threads: one.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gpushm::bench {

class Samples {
 public:
  void Add(int64_t ns) { ns_.push_back(static_cast<double>(ns)); }
  void Add(double ns) { ns_.push_back(ns); }
  size_t size() const { return ns_.size(); }
  double Sum() const;
  // The sample at that fraction of the sorted samples; 0 without samples.
  double Percentile(double part) const;

 private:
  std::vector<double> ns_;
};

struct Ours {
  const Samples& samples;
};
struct Baseline {
  const Samples& samples;
};
void Show(benchmark::State& state, Ours ours);
void Show(benchmark::State& state, Ours ours, Baseline baseline);

// One iteration with manual time: calls `step(0)`, `step(1)` ... `times` times; each call is a
// sample.
void Measure(benchmark::State& state, int times, const std::function<void(int)>& step);

}  // namespace gpushm::bench
