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
Result<void> UseDriver(Channel& parent, const std::vector<std::string>&) {
  const Result<Memory> before = MemoryOf(getpid());
  if (!before) return std::unexpected(before.error());
  if (auto r = FindDriver(); !r) return r;
  const Result<Memory> after = MemoryOf(getpid());
  if (!after) return std::unexpected(after.error());
  return parent.Say(Concat(before->rss_bytes, " ", after->rss_bytes));
}

Result<void> DriverMemory(benchmark::State& state) {
  for (auto _ : state) {
    Result<Child> child = Child::Start(kDriverUser, {});
    if (!child) return std::unexpected(child.error());
    const Result<Heard> heard = child->channel().Hear(Deadline::AfterMs(kStepMs));
    if (!heard) return std::unexpected(heard.error());
    const size_t space = heard->text.find(' ');
    if (space == std::string::npos) return Fail(Code::kInternal, heard->text);
    const double before = std::stod(heard->text.substr(0, space));
    const double after = std::stod(heard->text.substr(space));
    state.counters["value_bytes"] = after - before;
    state.counters["process_before_bytes"] = before;
    state.SetIterationTime(1e-9);
  }
  state.SetLabel("what cuInit adds to a process");
  return {};
}

double MemoryBudget(int buffers) {
  if (buffers > 16) return 24.0 * kMiB;
  return (ThisMachine().simulated ? 12.0 : 16.0) * kMiB;
}

Result<void> BrokerMemory(benchmark::State& state, int buffers) {
  for (auto _ : state) {
    const Result<Broker> broker = Broker::Start(Buffers(buffers));
    if (!broker) return std::unexpected(broker.error());
    const Result<Connection> connection = Connection::To(*broker);
    if (!connection) return std::unexpected(connection.error());
    const Result<Memory> memory = MemoryOf(broker->pid());
    if (!memory) return std::unexpected(memory.error());
    state.counters["value_bytes"] = static_cast<double>(memory->rss_bytes);
    state.counters["anon_bytes"] = static_cast<double>(memory->anon_bytes);
    state.counters["budget_bytes"] = MemoryBudget(buffers);
    state.SetIterationTime(1e-9);
  }
  return {};
}

// ---------------------------------------------------------------- start

// Makes and exports as many allocations as a broker does for its buffers, and nothing else.
Result<void> Allocate(Channel& parent, const std::vector<std::string>& arguments) {
  if (auto r = FindDriver(); !r) return r;
  const Machine& machine = ThisMachine();
  std::vector<DeviceMemory> kept;
  std::vector<UniqueFd> exported;
  for (int left = std::stoi(arguments.at(0)); left > 0; --left) {
    Result<DeviceMemory> memory =
        DeviceMemory::Create(*machine.api, machine.device.device, kBufferBytes);
    if (!memory) return std::unexpected(memory.error());
    Result<UniqueFd> descriptor = memory->Export();
    if (!descriptor) return std::unexpected(descriptor.error());
    kept.push_back(std::move(*memory));
    exported.push_back(std::move(*descriptor));
  }
  if (auto r = parent.Say("ready"); !r) return r;
  static_cast<void>(parent.Hear(Deadline::AfterMs(kStepMs)));
  return {};
}

// From the start of the process until a client is connected, compared with a process that only
// makes the same memory.
Result<void> BrokerReady(benchmark::State& state, int buffers) {
  Samples ours;
  Samples raw;
  for (auto _ : state) {
    int64_t start = MonotonicNs();
    {
      const Result<Broker> broker = Broker::Start(Buffers(buffers));
      if (!broker) return std::unexpected(broker.error());
      const Result<Connection> connection = Connection::To(*broker);
      const int64_t took = MonotonicNs() - start;
      if (!connection) return std::unexpected(connection.error());
      ours.Add(took);
      state.SetIterationTime(static_cast<double>(took) / 1e9);
    }
    start = MonotonicNs();
    Result<Child> child = Child::Start(kAllocator, {std::to_string(buffers)});
    if (!child) return std::unexpected(child.error());
    if (auto r = child->Expect("ready", Deadline::AfterMs(kStepMs)); !r) return r;
    raw.Add(MonotonicNs() - start);
  }
  Show(state, Ours{ours}, Baseline{raw});
  if (buffers == 64) state.counters["budget_p50_ns"] = kBudgetReadyNs;
  return {};
}

// ---------------------------------------------------------------- the end of a lease

// Attaches a buffer and keeps it until it is killed.
Result<void> Hold(Channel& parent, const std::vector<std::string>& arguments) {
  const Result<Connection> connection = Connection::Open(arguments.at(0));
  if (!connection) return std::unexpected(connection.error());
  gpushm_attachment* attachment = nullptr;
  if (auto r = Check(gpushm_attach(connection->get(), "buffer-0", nullptr, &attachment), "attach");
      !r) {
    return r;
  }
  if (auto r = parent.Say(kHeld); !r) return r;
  static_cast<void>(parent.Hear(Deadline::AfterMs(kStepMs)));
  return {};
}

struct LeaseEnds {
  Samples kill_to_pidfd;
  Samples kill_to_end;
  Samples pidfd_to_end;
};

Result<void> EndOneLease(const Broker& broker, const Connection& watcher, LeaseEnds* ends) {
  Result<Child> holder = Child::Start(kHolder, {broker.folder().string()});
  if (!holder) return std::unexpected(holder.error());
  if (auto r = holder->Expect(kHeld, Deadline::AfterMs(kStepMs)); !r) return r;
  size_t count = 0;
  if (auto r = Check(gpushm_list_holders(watcher.get(), "buffer-0", nullptr, 0, &count), "holders");
      !r) {
    return r;
  }
  if (count != 1) return Fail(Code::kInternal, Concat(count, " leases, expected one"));
  pollfd poller{.fd = holder->process().pidfd(), .events = POLLIN, .revents = 0};
  const int64_t killed = MonotonicNs();
  holder->process().Kill();
  if (poll(&poller, 1, kStepMs) != 1)
    return Fail(Code::kTimeout, "a killed process did not end in time");
  const int64_t gone = MonotonicNs();
  for (const Deadline deadline = Deadline::AfterMs(kStepMs); count > 0;) {
    if (auto r =
            Check(gpushm_list_holders(watcher.get(), "buffer-0", nullptr, 0, &count), "holders");
        !r) {
      return r;
    }
    if (deadline.Passed())
      return Fail(Code::kTimeout, "the lease of a killed process did not end in time");
  }
  const int64_t ended = MonotonicNs();
  ends->kill_to_pidfd.Add(gone - killed);
  ends->kill_to_end.Add(ended - killed);
  ends->pidfd_to_end.Add(ended - gone);
  return {};
}

// One measurement gives two rows. `after_pidfd` shows the broker's part; otherwise the row shows
// the whole, compared with the kernel's part.
Result<void> LeaseEnd(benchmark::State& state, bool after_pidfd) {
  const Result<Broker> broker = Broker::Start(Buffers(1));
  if (!broker) return std::unexpected(broker.error());
  const Result<Connection> watcher = Connection::To(*broker);
  if (!watcher) return std::unexpected(watcher.error());
  static LeaseEnds ends;
  constexpr size_t kCount = 200;
  while (ends.kill_to_end.size() < kCount) {
    if (auto r = EndOneLease(*broker, *watcher, &ends); !r) return r;
  }
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
  return {};
}

// ---------------------------------------------------------------- making and deleting

Result<void> CreateDelete(benchmark::State& state, uint64_t size_bytes) {
  const Result<Broker> broker = Broker::Start({.buffers = {}, .extra_bytes = 4 * size_bytes});
  if (!broker) return std::unexpected(broker.error());
  const Result<Connection> connection = Connection::To(*broker);
  if (!connection) return std::unexpected(connection.error());
  const Machine& machine = ThisMachine();
  Samples ours;
  Samples raw;
  for (auto _ : state) {
    int64_t start = MonotonicNs();
    gpushm_status status = gpushm_create(connection->get(), "made", size_bytes, nullptr, nullptr);
    if (status == GPUSHM_OK) status = gpushm_delete(connection->get(), "made", nullptr);
    const int64_t took = MonotonicNs() - start;
    if (auto r = Check(status, "gpushm_create, gpushm_delete"); !r) return r;
    ours.Add(took);
    state.SetIterationTime(static_cast<double>(took) / 1e9);
    start = MonotonicNs();
    {
      const Result<DeviceMemory> memory =
          DeviceMemory::Create(*machine.api, machine.device.device, size_bytes);
      if (!memory) return std::unexpected(memory.error());
      const Result<UniqueFd> descriptor = memory->Export();
      if (!descriptor) return std::unexpected(descriptor.error());
    }
    raw.Add(MonotonicNs() - start);
  }
  Show(state, Ours{ours}, Baseline{raw});
  state.SetLabel("baseline: create, export, close, release in a process without a context");
  return {};
}

// One request and its reply, with which every other number of the broker is compared.
Result<void> RoundTrip(benchmark::State& state) {
  const Result<Broker> broker = Broker::Start(Buffers(1));
  if (!broker) return std::unexpected(broker.error());
  const Result<Connection> connection = Connection::To(*broker);
  if (!connection) return std::unexpected(connection.error());
  Samples samples;
  for (auto _ : state) {
    gpushm_broker_info info;
    GPUSHM_INIT(&info);
    const int64_t start = MonotonicNs();
    const gpushm_status status = gpushm_broker_get_info(connection->get(), &info);
    const int64_t took = MonotonicNs() - start;
    if (auto r = Check(status, "gpushm_broker_get_info"); !r) return r;
    samples.Add(took);
    state.SetIterationTime(static_cast<double>(took) / 1e9);
  }
  Show(state, Ours{samples});
  return {};
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
