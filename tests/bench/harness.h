// What the benchmarks share: the machine they run on, samples, rows, and a main() that also serves
// as the main() of their child processes.
//
// A row is one Google Benchmark with manual time. Its counters are what report.py reads:
//   p50_ns, p99_ns, n                    ours
//   baseline_p50_ns, baseline_p99_ns     what it is measured against, in the same run
//   budget_ratio, budget_p50_ns, budget_p99_ns, value_bytes, budget_bytes ...
// Nothing here asserts on time: report.py says what is over its budget.
//
// Threads: a benchmark program has one.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/bench_samples.h"
#include "platform/base/status.h"
#include "platform/driver/device.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/bench/process.h"

namespace gpushm::bench {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
// The limit for anything that a working product does immediately.
inline constexpr int64_t kStepMs = 60'000;

// The machine of this program. Child processes find the same driver through the environment.
struct Machine {
  const CudaApi* api = nullptr;
  DeviceInfo device;
  bool simulated = false;
  std::filesystem::path work;  // Temporary; removed at the end.
};
// Set before any benchmark runs. A role that needs it calls FindDriver first; its `work` is empty.
const Machine& ThisMachine();
// Facts that a reader of the figures needs: names and values for the JSON's context.
std::vector<std::pair<std::string, std::string>> MachineFacts();
// Loads the driver that the environment names, and calls cuInit.
void FindDriver();

// The primary context, made at the first call and kept until the process ends; it takes 523 MiB of
// the card. Rows that measure a process without a context are registered first and check
// HasContext.
void NeedContext();
bool HasContext();

// Registers a row. With `iterations` 0, Google Benchmark chooses. A Failure that the body throws
// becomes the row's error.
using Body = std::function<void(benchmark::State&)>;
void Row(const std::string& name, int64_t iterations, Body body);

// Throws a Failure with the library's own error text unless the status is GPUSHM_OK.
void Check(gpushm_status status, std::string_view what);

// Measures with one call for each iteration, which returns how long it took, and shows that.
void Repeat(benchmark::State& state, const std::function<double()>& took_ns);
// The same for two ways in turns; which comes first alternates, too.
void InTurns(benchmark::State& state, const std::function<double()>& ours_ns,
             const std::function<double()>& baseline_ns);
// How long a call of the library took, which must succeed.
template <typename Call>
int64_t TimeCall(std::string_view what, const Call& call) {
  const int64_t start = MonotonicNs();
  const gpushm_status status = call();
  const int64_t took = MonotonicNs() - start;
  Check(status, what);
  return took;
}

// "2MiB", "16GiB".
std::string SizeName(uint64_t bytes);

// A connection to the broker in `folder`, closed at the end.
class Connection {
 public:
  static Connection Open(const std::filesystem::path& folder, int64_t timeout_ms = kStepMs);
  // Waits for a starting broker. If the broker ends instead, the error contains the end of its log.
  static Connection To(const Broker& broker);
  gpushm_client* get() const { return client_; }

  Connection(Connection&& other) noexcept : client_(std::exchange(other.client_, nullptr)) {}
  Connection& operator=(Connection&&) = delete;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { gpushm_close(client_); }

 private:
  explicit Connection(gpushm_client* client) : client_(client) {}
  gpushm_client* client_;
};

// The main function of a child process, with its channel to the parent and its arguments. The
// parent hears of a Failure that it throws.
using Role = std::function<void(Channel& parent, const std::vector<std::string>& arguments)>;

// Runs a role if this process was started as a child; otherwise runs `body` on ThisMachine().
int RunOnMachine(int argc, char** argv, const std::map<std::string, Role>& roles,
                 const std::function<int()>& body);

// The same with a body that registers and runs the benchmarks.
int Main(int argc, char** argv, const std::map<std::string, Role>& roles,
         const std::function<void()>& register_rows);

}  // namespace gpushm::bench
