// The cost of the library's calls that need no request, through the C ABI: look-up and "is it
// current".
//
// A sample is the mean of kBatch calls, because the clock costs about as much as one call. Next to
// a writer, single calls are timed one by one as well. registry_bench measures the same below the
// ABI.
#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "contract/limits.h"
#include "tests/bench/harness.h"

namespace gpushm::bench {
namespace {

constexpr char kReplacer[] = "replacer";
constexpr int kBatch = 64;
constexpr uint64_t kBufferBytes = 2 * kMiB;
constexpr double kBudgetLookupP50Ns = 50;
constexpr double kBudgetLookupP99Ns = 150;
constexpr double kBudgetCurrentNs = 3;

std::string NameOf(uint32_t i) { return Concat("layer-", i, "-weights"); }

struct Setup {
  Broker broker;
  Connection connection;
  std::vector<std::string> names;
};

// One buffer fewer than a pod can have; the replacer makes the last one.
Setup* TheSetup() {
  static std::optional<Setup> setup;
  if (setup) return &*setup;
  Broker::Options options;
  options.extra_bytes = 16 * kBufferBytes;
  std::vector<std::string> names;
  for (uint32_t i = 0; i + 1 < limits::kBuffers; ++i) {
    names.push_back(NameOf(i));
    options.buffers.emplace_back(names.back(), kBufferBytes);
  }
  Broker broker = Broker::Start(options);
  Connection connection = Connection::To(broker);
  setup.emplace(std::move(broker), std::move(connection), std::move(names));
  return &*setup;
}

// Replaces a buffer of its own as fast as the broker answers.
void ReplaceFlatOut(Channel& parent, const std::vector<std::string>& arguments) {
  const Connection connection = Connection::Open(arguments.at(0));
  gpushm_client* const client = connection.get();
  Check(gpushm_create(client, "moving", kBufferBytes, nullptr, nullptr), "create");
  parent.Say("replacing");
  uint64_t count = 0;
  for (;;) {
    const Result<Heard> stop = parent.Hear(Deadline::AfterMs(0));
    if (stop) break;
    if (stop.error().code() != Code::kTimeout) throw Failure(stop.error());
    for (int i = 0; i < kBatch; ++i, ++count) {
      Check(gpushm_replace(client, "moving", 0, nullptr, nullptr), "replace");
    }
  }
  Check(gpushm_delete(client, "moving", nullptr), "delete");
  parent.Say(std::to_string(count));
}

// Names in random order. A batch of them is copied to the place of a caller's own names.
class NameBatches {
 public:
  explicit NameBatches(const std::vector<std::string>& names) : names_(names) {}
  void Next() {
    for (std::array<char, GPUSHM_NAME_BYTES>& name : batch_) {
      const std::string& chosen = names_[random_() % names_.size()];
      name.fill(0);
      chosen.copy(name.data(), name.size() - 1);
    }
  }
  const char* at(int i) const { return batch_[static_cast<size_t>(i)].data(); }

 private:
  const std::vector<std::string>& names_;
  std::mt19937 random_{1};
  std::array<std::array<char, GPUSHM_NAME_BYTES>, kBatch> batch_{};
};

double ClockCostNs() {
  Samples samples;
  for (int i = 0; i < 10'000; ++i) {
    const int64_t start = MonotonicNs();
    samples.Add(MonotonicNs() - start);
  }
  return samples.Percentile(0.5);
}

void LookUp(benchmark::State& state, gpushm_client* client, const std::vector<std::string>& all) {
  NameBatches names(all);
  gpushm_info info;
  GPUSHM_INIT(&info);
  const double clock_ns = ClockCostNs();
  Samples batches;
  Samples singles;
  int failed = 0;
  for (auto _ : state) {
    names.Next();
    int64_t start = MonotonicNs();
    for (int i = 0; i < kBatch; ++i) {
      failed += gpushm_lookup(client, names.at(i), &info) == GPUSHM_OK ? 0 : 1;
    }
    const int64_t took = MonotonicNs() - start;
    batches.Add((static_cast<double>(took) - clock_ns) / kBatch);
    state.SetIterationTime(static_cast<double>(took) / kBatch / 1e9);
    names.Next();
    for (int i = 0; i < kBatch; ++i) {
      start = MonotonicNs();
      failed += gpushm_lookup(client, names.at(i), &info) == GPUSHM_OK ? 0 : 1;
      singles.Add(std::max(0.0, static_cast<double>(MonotonicNs() - start) - clock_ns));
    }
  }
  Show(state, Ours{batches});
  state.counters["single_p50_ns"] = singles.Percentile(0.5);
  state.counters["single_p99_ns"] = singles.Percentile(0.99);
  state.counters["failed_count"] = failed;
  state.counters["budget_p50_ns"] = kBudgetLookupP50Ns;
  state.counters["budget_p99_ns"] = kBudgetLookupP99Ns;
}

void LookUpIdle(benchmark::State& state) {
  const Setup* setup = TheSetup();
  LookUp(state, setup->connection.get(), setup->names);
}

// The record and the map's entry are in the cache: the part of Lookup/idle that is not memory
// latency.
void LookUpOneName(benchmark::State& state) {
  const Setup* setup = TheSetup();
  LookUp(state, setup->connection.get(), {setup->names.front()});
}

void LookUpBesideReplaces(benchmark::State& state) {
  const Setup* setup = TheSetup();
  Child replacer = Child::Start(kReplacer, {setup->broker.folder().string()});
  replacer.Expect("replacing", Deadline::AfterMs(kStepMs));
  const int64_t start = MonotonicNs();
  LookUp(state, setup->connection.get(), setup->names);
  const double seconds = static_cast<double>(MonotonicNs() - start) / 1e9;
  replacer.channel().Say("stop");
  const Heard heard = Must(replacer.channel().Hear(Deadline::AfterMs(kStepMs)));
  if (heard.text.starts_with("failed")) throw Failure(Code::kInternal, heard.text);
  state.counters["replaces_per_s"] = std::stod(heard.text) / seconds;
}

void Current(benchmark::State& state) {
  const Setup* setup = TheSetup();
  gpushm_attachment* attachment = nullptr;
  Check(gpushm_attach(setup->connection.get(), setup->names.front().c_str(), nullptr, &attachment),
        "gpushm_attach");
  const double clock_ns = ClockCostNs();
  constexpr int kMany = 1024;
  Repeat(state, [&] {
    const int64_t start = MonotonicNs();
    for (int i = 0; i < kMany; ++i) benchmark::DoNotOptimize(gpushm_attachment_check(attachment));
    return (static_cast<double>(MonotonicNs() - start) - clock_ns) / kMany;
  });
  gpushm_attachment_detach(attachment, nullptr);
  state.counters["budget_p50_ns"] = kBudgetCurrentNs;
}

void CachedAttachDetach(benchmark::State& state) {
  const Setup* setup = TheSetup();
  gpushm_client* const client = setup->connection.get();
  const char* const name = setup->names.front().c_str();
  gpushm_attachment* held = nullptr;
  Check(gpushm_attach(client, name, nullptr, &held), "gpushm_attach");
  Repeat(state, [&] {
    const int64_t start = MonotonicNs();
    for (int i = 0; i < kBatch; ++i) {
      gpushm_attachment* again = nullptr;
      benchmark::DoNotOptimize(gpushm_attach(client, name, nullptr, &again));
      gpushm_attachment_detach(again, nullptr);
    }
    return static_cast<double>(MonotonicNs() - start) / kBatch;
  });
  gpushm_attachment_detach(held, nullptr);
}

void ListAll(benchmark::State& state) {
  const Setup* setup = TheSetup();
  std::vector<gpushm_info> infos(limits::kBuffers);
  for (gpushm_info& info : infos) GPUSHM_INIT(&info);
  Repeat(state, [&] {
    size_t count = 0;
    return TimeCall("gpushm_list", [&] {
      return gpushm_list(setup->connection.get(), infos.data(), infos.size(), &count);
    });
  });
}

void RegisterRows() {
  Row("Lookup/idle", 20'000, LookUpIdle);
  Row("Lookup/one name", 20'000, LookUpOneName);
  Row("Lookup/beside replaces", 20'000, LookUpBesideReplaces);
  Row("Current", 20'000, Current);
  Row("CachedAttachDetach", 20'000, CachedAttachDetach);
  Row("List/4095", 200, ListAll);
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  return Main(argc, argv, {{kReplacer, ReplaceFlatOut}}, RegisterRows);
}
