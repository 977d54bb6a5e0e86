// The budgets of the webhook (docs/benchmarks): the real process over TLS on loopback.
//
//   WebhookAt200PerSecond   Calls begin on schedule, whether earlier ones have ended or not, so a
//                           stall counts for all calls that it delays. Every tenth pod has 100
//                           containers. Measures from the call to the whole answer, as the API
//                           server waits.
//   WebhookMemory           Resident memory after those calls.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/bench_samples.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "sidecar/injector/testing/pods.h"
#include "sidecar/injector/testing/process.h"

namespace gpushm::injector::testing {
namespace {

constexpr int kPerSecond = 200;
constexpr int kSeconds = 10;
constexpr int kCallers = 20;  // At most this many calls wait at the same time.
constexpr int64_t kYearS = 365 * 24 * 3600;
constexpr double kMiB = 1 << 20;

void Require(bool holds) {
  if (!holds) std::abort();
}

std::string BodyOf(int containers) {
  std::vector<std::string> names;
  for (int i = 0; i < containers; ++i) names.push_back(Concat("container-", i));
  return ReviewOf(PodWith(names, {{"buffers.gpushm.io/weights", "8Gi"}})).dump();
}

void WebhookAt200PerSecond(benchmark::State& state) {
  const gpushm::testing::TempFolder tls;
  WriteCertificate(tls.path(), "bench", kYearS);
  const InjectorProcess injector(tls.path());
  Require(injector.ready());
  const std::string small = BodyOf(2);
  const std::string large = BodyOf(100);
  std::mutex mutex;
  bench::Samples samples;
  for (auto _ : state) {
    const int64_t start_ns = MonotonicNs() + 100'000'000;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([&, caller] {
        const auto client = injector.Https();
        for (int call = caller; call < kPerSecond * kSeconds; call += kCallers) {
          const int64_t due_ns = start_ns + call * (1'000'000'000LL / kPerSecond);
          std::this_thread::sleep_for(std::chrono::nanoseconds(due_ns - MonotonicNs()));
          const auto answer =
              client->Post("/mutate", call % 10 == 0 ? large : small, "application/json");
          const int64_t took_ns = MonotonicNs() - due_ns;
          Require(answer && answer->status == 200);
          if (call < kCallers) continue;  // For the handshake; connections are kept.
          const std::lock_guard lock(mutex);
          samples.Add(took_ns);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    state.SetIterationTime(kSeconds);
  }
  bench::Show(state, bench::Ours{samples});
  state.counters["budget_p99_ns"] = 5e6;
  state.counters["rss_bytes"] = static_cast<double>(injector.RssBytes());
  state.counters["budget_rss_bytes"] = 24 * kMiB;
}

BENCHMARK(WebhookAt200PerSecond)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gpushm::injector::testing

BENCHMARK_MAIN();
