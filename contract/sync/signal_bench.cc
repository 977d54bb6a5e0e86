// The host's work for a frame of a ring and for an item of a queue: everything except the GPU's
// work. One thread, with all sync pages in its cache. A sample is the mean of kBatch frames,
// because the clock costs about as much as one frame.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "contract/sync/queue.h"
#include "contract/sync/ring.h"
#include "platform/base/clock.h"

namespace gpushm::signal {
namespace {

constexpr int kBatch = 64;
constexpr uint32_t kFrames = 256;
const Deadline kNow = Deadline::AfterMs(0);

struct Memory {
  Memory(Kind kind, uint32_t readers)
      : settings{.frames = kFrames, .frame_bytes = 1, .readers = readers},
        bytes(BytesFor(settings.cells(), settings.body_bytes())),
        address(std::aligned_alloc(kPageBytes, bytes), &std::free),
        page(Page::Make(std::memset(address.get(), 0, bytes), bytes, kind, settings.cells(),
                        settings.body_bytes(), settings.ToHeader())) {}
  FrameSettings settings;
  uint64_t bytes;
  std::unique_ptr<void, decltype(&std::free)> address;
  Page page;
};

double At(std::vector<double>& samples, double part) {
  const auto at = static_cast<ptrdiff_t>(part * static_cast<double>(samples.size() - 1));
  std::ranges::nth_element(samples, samples.begin() + at);
  return samples[static_cast<size_t>(at)];
}

// Runs batches of `before`, then of `measured`; the mean of `measured` is a sample.
void Batches(benchmark::State& state, const std::function<void()>& before,
             const std::function<void()>& measured) {
  std::vector<double> samples;
  for (auto _ : state) {
    for (int i = 0; i < kBatch; ++i) before();
    const int64_t start_ns = MonotonicNs();
    for (int i = 0; i < kBatch; ++i) measured();
    const auto ns = static_cast<double>(MonotonicNs() - start_ns);
    samples.push_back(ns / kBatch);
    state.SetIterationTime(ns / 1e9);
  }
  state.counters["p50_ns"] = At(samples, 0.5);
  state.counters["p99_ns"] = At(samples, 0.99);
}

void Write(FrameWriter& writer, const FrameWriter::Opened& opened) {
  const std::array<std::byte, kMetadataBytes> metadata{};
  benchmark::DoNotOptimize(writer.Announce(opened.seq, 1, metadata));
  const Point ready = writer.Ready(opened.seq);
  ready.word->store(ready.value, std::memory_order_release);
}

// Argument: number of readers that have joined; the writer checks all of them.
void RingOpenAndAnnounce(benchmark::State& state) {
  const auto readers = static_cast<uint32_t>(state.range(0));
  const Memory memory(Kind::kRing, readers);
  auto writer = *RingWriter::Open(memory.page, 1);
  for (uint32_t i = 0; i < readers; ++i) {
    static_cast<void>(RingReader::Join(memory.page, 10 + i));
  }
  Batches(state, [] {}, [&] { Write(writer, *writer.OpenFrame(kNow)); });
}
BENCHMARK(RingOpenAndAnnounce)->Arg(1)->Arg(8)->Arg(127)->UseManualTime();

void RingNextAndRelease(benchmark::State& state) {
  const Memory memory(Kind::kRing, 8);
  auto writer = *RingWriter::Open(memory.page, 1);
  auto reader = *RingReader::Join(memory.page, 2);
  Batches(
      state, [&] { Write(writer, *writer.OpenFrame(kNow)); },
      [&] {
        const auto frame = reader.Next(kNow);
        benchmark::DoNotOptimize(reader.Check(frame->seq));
        benchmark::DoNotOptimize(reader.ReleaseNow(*frame));
      });
}
BENCHMARK(RingNextAndRelease)->UseManualTime();

void QueueOpenAndAnnounce(benchmark::State& state) {
  const Memory memory(Kind::kQueue, 8);
  auto writer = *QueueWriter::Open(memory.page, 1);
  auto worker = *QueueWorker::Join(memory.page, 2);
  const auto take_one = [&] {
    if (const auto item = worker.Next(kNow)) static_cast<void>(worker.DoneNow(*item));
  };
  for (int i = 0; i < kBatch; ++i) Write(writer, *writer.OpenFrame(kNow));
  Batches(state, take_one, [&] { Write(writer, *writer.OpenFrame(kNow)); });
}
BENCHMARK(QueueOpenAndAnnounce)->UseManualTime();

// Argument: number of possible workers; all of them are checked.
void QueueNextAndDone(benchmark::State& state) {
  const Memory memory(Kind::kQueue, static_cast<uint32_t>(state.range(0)));
  auto writer = *QueueWriter::Open(memory.page, 1);
  auto worker = *QueueWorker::Join(memory.page, 2);
  Batches(
      state, [&] { Write(writer, *writer.OpenFrame(kNow)); },
      [&] {
        const auto item = worker.Next(kNow);
        benchmark::DoNotOptimize(worker.Check(item->seq));
        benchmark::DoNotOptimize(worker.DoneNow(*item));
      });
}
BENCHMARK(QueueNextAndDone)->Arg(1)->Arg(8)->Arg(127)->UseManualTime();

}  // namespace
}  // namespace gpushm::signal

BENCHMARK_MAIN();
