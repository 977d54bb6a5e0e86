// The broker from outside: its memory, its start, the end of leases, making and deleting buffers.
//
// This process never makes a context, so that raw calls cost the same here as in the broker.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/harness.h"

namespace gpushm::bench {
namespace {

constexpr char kDriverUser[] = "driver-user";
constexpr char kAllocator[] = "allocator";
constexpr char kHolder[] = "holder";
constexpr char kHeld[] = "held";
constexpr uint64_t kBufferBytes = 2 * kMiB;
constexpr double kBudgetReadyNs = 300e6;
constexpr double kBudgetLeaseEndNs = 5e6;

Broker::Options Buffers(int count) {
  Broker::Options options;
  for (int i = 0; i < count; ++i) options.buffers.emplace_back(Concat("buffer-", i), kBufferBytes);
  return options;
}

// ---------------------------------------------------------------- memory

// What the driver itself uses of a process: cuInit and a list of the GPUs, nothing else.
void UseDriver(Channel& parent, const std::vector<std::string>&) {
  const Memory before = MemoryOf(getpid());
  FindDriver();
  const Memory after = MemoryOf(getpid());
  parent.Say(Concat(before.rss_bytes, " ", after.rss_bytes));
}

void DriverMemory(benchmark::State& state) {
  for (auto _ : state) {
    Child child = Child::Start(kDriverUser, {});
    const Heard heard = Must(child.channel().Hear(Deadline::AfterMs(kStepMs)));
    const size_t space = heard.text.find(' ');
    if (space == std::string::npos) throw Failure(Code::kInternal, heard.text);
    const double before = std::stod(heard.text.substr(0, space));
    const double after = std::stod(heard.text.substr(space));
    state.counters["value_bytes"] = after - before;
    state.counters["process_before_bytes"] = before;
    state.SetIterationTime(1e-9);
  }
  state.SetLabel("what cuInit adds to a process");
}

double MemoryBudget(int buffers) {
  if (buffers > 16) return 24.0 * kMiB;
  return (ThisMachine().simulated ? 12.0 : 16.0) * kMiB;
}

void BrokerMemory(benchmark::State& state, int buffers) {
  for (auto _ : state) {
    const Broker broker = Broker::Start(Buffers(buffers));
    const Connection connection = Connection::To(broker);
    const Memory memory = MemoryOf(broker.pid());
    state.counters["value_bytes"] = static_cast<double>(memory.rss_bytes);
    state.counters["anon_bytes"] = static_cast<double>(memory.anon_bytes);
    state.counters["budget_bytes"] = MemoryBudget(buffers);
    state.SetIterationTime(1e-9);
  }
}

// ---------------------------------------------------------------- start

// Makes and exports as many allocations as a broker does for its buffers, and nothing else.
void Allocate(Channel& parent, const std::vector<std::string>& arguments) {
  FindDriver();
  const Machine& machine = ThisMachine();
  std::vector<DeviceMemory> kept;
  std::vector<UniqueFd> exported;
  for (int left = std::stoi(arguments.at(0)); left > 0; --left) {
    DeviceMemory memory =
        Must(DeviceMemory::Create(*machine.api, machine.device.device, kBufferBytes));
    UniqueFd descriptor = Must(memory.Export());
    kept.push_back(std::move(memory));
    exported.push_back(std::move(descriptor));
  }
  parent.Say("ready");
  static_cast<void>(parent.Hear(Deadline::AfterMs(kStepMs)));
}

// From the start of the process until a client is connected, compared with a process that only
// makes the same memory.
void BrokerReady(benchmark::State& state, int buffers) {
  Samples ours;
  Samples raw;
  for (auto _ : state) {
    int64_t start = MonotonicNs();
    {
      const Broker broker = Broker::Start(Buffers(buffers));
      const Connection connection = Connection::To(broker);
      const int64_t took = MonotonicNs() - start;
      ours.Add(took);
      state.SetIterationTime(static_cast<double>(took) / 1e9);
    }
    start = MonotonicNs();
    Child child = Child::Start(kAllocator, {std::to_string(buffers)});
    child.Expect("ready", Deadline::AfterMs(kStepMs));
    raw.Add(MonotonicNs() - start);
  }
  Show(state, Ours{ours}, Baseline{raw});
  if (buffers == 64) state.counters["budget_p50_ns"] = kBudgetReadyNs;
}

// ---------------------------------------------------------------- the end of a lease

// Attaches a buffer and keeps it until it is killed.
void Hold(Channel& parent, const std::vector<std::string>& arguments) {
  const Connection connection = Connection::Open(arguments.at(0));
  gpushm_attachment* attachment = nullptr;
  Check(gpushm_attach(connection.get(), "buffer-0", nullptr, &attachment), "attach");
  parent.Say(kHeld);
  static_cast<void>(parent.Hear(Deadline::AfterMs(kStepMs)));
}

struct LeaseEnds {
  Samples kill_to_pidfd;
  Samples kill_to_end;
  Samples pidfd_to_end;
};

void EndOneLease(const Broker& broker, const Connection& watcher, LeaseEnds* ends) {
  Child holder = Child::Start(kHolder, {broker.folder().string()});
  holder.Expect(kHeld, Deadline::AfterMs(kStepMs));
  size_t count = 0;
  Check(gpushm_list_holders(watcher.get(), "buffer-0", nullptr, 0, &count), "holders");
  if (count != 1) throw Failure(Code::kInternal, Concat(count, " leases, expected one"));
  pollfd poller{.fd = holder.process().pidfd(), .events = POLLIN, .revents = 0};
  const int64_t killed = MonotonicNs();
  holder.process().Kill();
  if (poll(&poller, 1, kStepMs) != 1)
    throw Failure(Code::kTimeout, "a killed process did not end in time");
  const int64_t gone = MonotonicNs();
  for (const Deadline deadline = Deadline::AfterMs(kStepMs); count > 0;) {
    Check(gpushm_list_holders(watcher.get(), "buffer-0", nullptr, 0, &count), "holders");
    if (deadline.Passed())
      throw Failure(Code::kTimeout, "the lease of a killed process did not end in time");
  }
  const int64_t ended = MonotonicNs();
  ends->kill_to_pidfd.Add(gone - killed);
  ends->kill_to_end.Add(ended - killed);
  ends->pidfd_to_end.Add(ended - gone);
}

// One measurement gives two rows. `after_pidfd` shows the broker's part; otherwise the row shows
// the whole, compared with the kernel's part.
void LeaseEnd(benchmark::State& state, bool after_pidfd) {
  const Broker broker = Broker::Start(Buffers(1));
  const Connection watcher = Connection::To(broker);
  static LeaseEnds ends;
  constexpr size_t kCount = 200;
  while (ends.kill_to_end.size() < kCount) EndOneLease(broker, watcher, &ends);
  const Samples& shown = after_pidfd ? ends.pidfd_to_end : ends.kill_to_end;
  for (auto _ : state) state.SetIterationTime(shown.Percentile(0.5) / 1e9);
  if (after_pidfd) {
    Show(state, Ours{shown});
    state.counters["budget_p99_ns"] = kBudgetLeaseEndNs;
    state.SetLabel("as another client sees it: one request later at the earliest");
  } else {
    Show(state, Ours{shown}, Baseline{ends.kill_to_pidfd});
    state.SetLabel("baseline: until the process is gone");
  }
}

// ---------------------------------------------------------------- making and deleting

void CreateDelete(benchmark::State& state, uint64_t size_bytes) {
  const Broker broker = Broker::Start({.buffers = {}, .extra_bytes = 4 * size_bytes});
  const Connection connection = Connection::To(broker);
  const Machine& machine = ThisMachine();
  Samples ours;
  Samples raw;
  for (auto _ : state) {
    int64_t start = MonotonicNs();
    gpushm_status status = gpushm_create(connection.get(), "made", size_bytes, nullptr, nullptr);
    if (status == GPUSHM_OK) status = gpushm_delete(connection.get(), "made", nullptr);
    const int64_t took = MonotonicNs() - start;
    Check(status, "gpushm_create, gpushm_delete");
    ours.Add(took);
    state.SetIterationTime(static_cast<double>(took) / 1e9);
    start = MonotonicNs();
    {
      const DeviceMemory memory =
          Must(DeviceMemory::Create(*machine.api, machine.device.device, size_bytes));
      const UniqueFd descriptor = Must(memory.Export());
    }
    raw.Add(MonotonicNs() - start);
  }
  Show(state, Ours{ours}, Baseline{raw});
  state.SetLabel("baseline: create, export, close, release in a process without a context");
}

// One request and its reply, with which every other number of the broker is compared.
void RoundTrip(benchmark::State& state) {
  const Broker broker = Broker::Start(Buffers(1));
  const Connection connection = Connection::To(broker);
  gpushm_broker_info info;
  GPUSHM_INIT(&info);
  Repeat(state, [&] {
    return TimeCall("gpushm_broker_get_info",
                    [&] { return gpushm_broker_get_info(connection.get(), &info); });
  });
}

void RegisterRows() {
  Row("DriverMemory", 1, DriverMemory);
  for (const int buffers : {0, 16, 64, 1024, 4096}) {
    Row(Concat("BrokerMemory/", buffers), 1,
        [buffers](benchmark::State& state) { return BrokerMemory(state, buffers); });
  }
  for (const int buffers : {0, 64}) {
    Row(Concat("BrokerReady/", buffers), 20,
        [buffers](benchmark::State& state) { return BrokerReady(state, buffers); });
  }
  Row("LeaseEnd/AfterPidfd", 1, [](benchmark::State& state) { return LeaseEnd(state, true); });
  Row("LeaseEnd/AfterKill", 1, [](benchmark::State& state) { return LeaseEnd(state, false); });
  for (const uint64_t size : {2 * kMiB, 64 * kMiB, kGiB}) {
    Row(Concat("CreateDelete/", SizeName(size)), 200,
        [size](benchmark::State& state) { return CreateDelete(state, size); });
  }
  Row("RoundTrip", 5000, RoundTrip);
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  return Main(argc, argv, {{kDriverUser, UseDriver}, {kAllocator, Allocate}, {kHolder, Hold}},
              RegisterRows);
}
