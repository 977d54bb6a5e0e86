// The cost of a look-up with an idle writer, and with a writer that commits as fast as it can in
// another thread.
//
// A sample is the mean of kBatch calls, because the clock costs about as much as a call. The
// counters p50_ns and p99_ns are over samples. Batches hide single slow calls, so with a busy
// writer p99 is also measured for each call, minus the clock's own cost (p50_single_ns,
// p99_single_ns).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "contract/limits.h"
#include "contract/registry/reader.h"
#include "contract/registry/testing/registry.h"
#include "contract/registry/writer.h"
#include "platform/base/clock.h"

namespace gpushm::registry {
namespace {

constexpr uint32_t kLive = limits::kBuffers;
constexpr size_t kBatch = 64;
constexpr size_t kMaxSamples = 1 << 20;

double Percentile(std::vector<double>& samples, double part) {
  if (samples.empty()) return 0;
  const auto at = static_cast<ptrdiff_t>(part * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), samples.begin() + at, samples.end());
  return samples[static_cast<size_t>(at)];
}

double ClockCostNs() {
  std::vector<double> samples;
  for (int i = 0; i < 10'000; ++i) {
    const int64_t start = MonotonicNs();
    samples.push_back(static_cast<double>(MonotonicNs() - start));
  }
  return Percentile(samples, 0.5);
}

// A full registry, its names, and a random order in which to look them up.
class Fixture {
 public:
  Fixture() : writer_(*RegistryWriter::Create(kLive)) {
    for (uint32_t i = 0; i < kLive; ++i) {
      names_.push_back(Concat("layer-", i, "-weights-of-some-model"));
      slots_.push_back(*writer_.Insert(SomeRecord(names_.back(), 1)));
    }
    reader_ = OpenReader(writer_);
    std::mt19937 random(1);
    for (int i = 0; i < 1 << 16; ++i) order_.push_back(random() % kLive);
    PrepareNames();
  }

  // Copies the next kBatch names to a place in the cache, like a caller's own names.
  void PrepareNames() {
    for (Name& name : ready_) name = Name(names_[order_[at_++ % order_.size()]]);
    for (size_t i = 0; i < kBatch; ++i) views_[i] = ready_[i].view();
  }
  std::string_view NextName() { return views_[ready_at_++ % kBatch]; }
  RegistryWriter& writer() { return writer_; }
  const RegistryReader& reader() const { return *reader_; }

  // Replaces records in the same random order until `stop`.
  uint64_t CommitUntil(const std::atomic<bool>& stop) {
    uint64_t commits = 0;
    for (; !stop.load(std::memory_order_relaxed); ++commits) {
      const uint32_t i = order_[commits * 7 % order_.size()];
      static_cast<void>(writer_.Update(slots_[i], SomeRecord(names_[i], commits + 2)));
    }
    return commits;
  }

 private:
  RegistryWriter writer_;
  std::unique_ptr<RegistryReader> reader_;
  std::vector<std::string> names_;
  std::vector<uint32_t> slots_;
  std::vector<uint32_t> order_;
  size_t at_ = 0;
  std::array<Name, kBatch> ready_;
  std::array<std::string_view, kBatch> views_;
  size_t ready_at_ = 0;
};

template <typename Call>
void Sample(benchmark::State& state, Fixture& fixture, const Call& call) {
  std::vector<double> batches;
  std::vector<double> singles;
  batches.reserve(kMaxSamples);
  singles.reserve(kMaxSamples);
  const double clock_ns = ClockCostNs();
  for (auto _ : state) {
    fixture.PrepareNames();
    int64_t start = MonotonicNs();
    for (size_t i = 0; i < kBatch; ++i) call();
    const int64_t end = MonotonicNs();
    if (batches.size() < kMaxSamples) {
      batches.push_back((static_cast<double>(end - start) - clock_ns) / kBatch);
    }
    for (size_t i = 0; i < kBatch && singles.size() < kMaxSamples; ++i) {
      start = MonotonicNs();
      call();
      singles.push_back(std::max(0.0, static_cast<double>(MonotonicNs() - start) - clock_ns));
    }
  }
  state.counters["p50_ns"] = Percentile(batches, 0.5);
  state.counters["p99_ns"] = Percentile(batches, 0.99);
  state.counters["p50_single_ns"] = Percentile(singles, 0.5);
  state.counters["p99_single_ns"] = Percentile(singles, 0.99);
  state.counters["clock_ns"] = clock_ns;
}

void FindHit(benchmark::State& state) {
  Fixture fixture;
  Sample(state, fixture,
         [&] { benchmark::DoNotOptimize(fixture.reader().Find(fixture.NextName())); });
}
BENCHMARK(FindHit);

void FindHitBesideAWriter(benchmark::State& state) {
  Fixture fixture;
  std::atomic<bool> stop = false;
  uint64_t commits = 0;
  std::thread writer([&] { commits = fixture.CommitUntil(stop); });
  uint64_t failed = 0;
  const int64_t start = MonotonicNs();
  Sample(state, fixture, [&] { failed += fixture.reader().Find(fixture.NextName()) ? 0 : 1; });
  const double seconds = static_cast<double>(MonotonicNs() - start) / 1e9;
  stop = true;
  writer.join();
  state.counters["failed"] = static_cast<double>(failed);
  state.counters["commits_per_s"] = static_cast<double>(commits) / seconds;
}
BENCHMARK(FindHitBesideAWriter);

void FindMiss(benchmark::State& state) {
  Fixture fixture;
  Sample(state, fixture,
         [&] { benchmark::DoNotOptimize(fixture.reader().Find("no-such-buffer")); });
}
BENCHMARK(FindMiss);

void IsCurrentHot(benchmark::State& state) {
  Fixture fixture;
  Ref ref = fixture.reader().Find(fixture.NextName())->ref;
  Sample(state, fixture, [&] {
    benchmark::DoNotOptimize(ref);
    benchmark::DoNotOptimize(fixture.reader().IsCurrent(ref));
  });
}
BENCHMARK(IsCurrentHot);

void IsCurrentRandom(benchmark::State& state) {
  Fixture fixture;
  std::vector<Ref> refs;
  for (size_t i = 0; i < 4096; ++i) {
    if (i % kBatch == 0) fixture.PrepareNames();
    refs.push_back(fixture.reader().Find(fixture.NextName())->ref);
  }
  size_t at = 0;
  Sample(state, fixture,
         [&] { benchmark::DoNotOptimize(fixture.reader().IsCurrent(refs[at++ % refs.size()])); });
}
BENCHMARK(IsCurrentRandom);

void Commit(benchmark::State& state) {
  Fixture fixture;
  const uint32_t slot = fixture.reader().Find(fixture.NextName())->ref.slot;
  const BufferRecord record = fixture.reader().List()->at(slot);
  Sample(state, fixture, [&] { static_cast<void>(fixture.writer().Update(slot, record)); });
}
BENCHMARK(Commit);

// The first look-up after one change of a full registry, which follows the change log.
void FindMissAfterOneChange(benchmark::State& state) {
  Fixture fixture;
  const uint32_t slot = fixture.reader().Find(fixture.NextName())->ref.slot;
  const BufferRecord record = fixture.reader().List()->at(slot);
  Sample(state, fixture, [&] {
    static_cast<void>(fixture.writer().Update(slot, record));
    benchmark::DoNotOptimize(fixture.reader().Find("no-such-buffer"));
  });
}
BENCHMARK(FindMissAfterOneChange);

}  // namespace
}  // namespace gpushm::registry

BENCHMARK_MAIN();
