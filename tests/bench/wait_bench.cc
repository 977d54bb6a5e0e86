// The time from a change in one process until another learns of it, and many concurrent attaches.
// at once.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/include/gpushm/wait.h"
#include "tests/bench/harness.h"
#include "tests/bench/raw.h"

namespace gpushm::bench {
namespace {

constexpr char kWaiter[] = "waiter";
constexpr char kPoller[] = "poller";
constexpr char kListener[] = "listener";
constexpr char kPeer[] = "peer";
constexpr char kBuffer[] = "weights";

// ---------------------------------------------------------------- waiting

// Waits for one generation after another, and reports when it learned of each.
Result<void> WaitForNext(Channel& parent, const std::vector<std::string>& arguments) {
  const Result<Connection> connection = Connection::Open(arguments.at(0));
  if (!connection) return std::unexpected(connection.error());
  gpushm_info seen;
  GPUSHM_INIT(&seen);
  if (auto r = Check(gpushm_lookup(connection->get(), kBuffer, &seen), "gpushm_lookup"); !r) {
    return r;
  }
  gpushm_wait_options wait;
  GPUSHM_INIT(&wait);
  wait.timeout_ms = kStepMs;
  if (auto r = parent.Say("waiting"); !r) return r;
  for (;;) {
    const gpushm_status status =
        gpushm_wait(connection->get(), kBuffer, seen.generation + 1, &wait, &seen);
    const int64_t known = MonotonicNs();
    if (auto r = Check(status, "gpushm_wait"); !r) return r;
    if (auto r = parent.Say(std::to_string(known)); !r) return r;
  }
}

// The same in poll(), as a server does.
Result<void> PollForNext(Channel& parent, const std::vector<std::string>& arguments) {
  const Result<Connection> connection = Connection::Open(arguments.at(0));
  if (!connection) return std::unexpected(connection.error());
  gpushm_info seen;
  GPUSHM_INIT(&seen);
  if (auto r = Check(gpushm_lookup(connection->get(), kBuffer, &seen), "gpushm_lookup"); !r) {
    return r;
  }
  gpushm_waiter* waiter = nullptr;  // Closed with the client.
  if (auto r = Check(gpushm_waiter_open(connection->get(), &waiter), "gpushm_waiter_open"); !r) {
    return r;
  }
  if (auto r = Check(gpushm_waiter_add_name(waiter, kBuffer, seen.generation, 1), "add"); !r) {
    return r;
  }
  gpushm_event event;
  GPUSHM_INIT(&event);
  if (auto r = parent.Say("waiting"); !r) return r;
  for (;;) {
    pollfd sleeper{.fd = gpushm_waiter_descriptor(waiter), .events = POLLIN, .revents = 0};
    if (poll(&sleeper, 1, kStepMs) == 0) return Fail(Code::kTimeout, "no event");
    size_t count = 0;
    const gpushm_status status = gpushm_waiter_wait(waiter, &event, 1, &count, GPUSHM_DONT_WAIT);
    const int64_t known = MonotonicNs();
    if (auto r = Check(status, "gpushm_waiter_wait"); !r) return r;
    if (count == 0) continue;
    if (auto r = parent.Say(std::to_string(known)); !r) return r;
  }
}

// Reports when a message arrived: the cost of waking an idle process on this machine.
Result<void> Listen(Channel& parent, const std::vector<std::string>&) {
  for (;;) {
    const Result<Heard> heard = parent.Hear(Deadline::AfterMs(kStepMs));
    const int64_t known = MonotonicNs();
    if (!heard) return {};
    if (auto r = parent.Say(std::to_string(known)); !r) return r;
  }
}

Result<int64_t> WakeListener(Child& listener) {
  const int64_t start = MonotonicNs();
  if (auto r = listener.channel().Say("wake"); !r) return std::unexpected(r.error());
  const Result<Heard> heard = listener.channel().Hear(Deadline::AfterMs(kStepMs));
  if (!heard) return std::unexpected(heard.error());
  return std::stoll(heard->text) - start;
}

Result<void> WaitForPublish(benchmark::State& state, const char* role) {
  const Result<Broker> broker = Broker::Start({.buffers = {}, .extra_bytes = 8 * 2 * kMiB});
  if (!broker) return std::unexpected(broker.error());
  const Result<Connection> connection = Connection::To(*broker);
  if (!connection) return std::unexpected(connection.error());
  if (auto r = Check(gpushm_create(connection->get(), kBuffer, 2 * kMiB, nullptr, nullptr),
                     "gpushm_create");
      !r) {
    return r;
  }
  Result<Child> waiter = Child::Start(role, {broker->folder().string()});
  if (!waiter) return std::unexpected(waiter.error());
  if (auto r = waiter->Expect("waiting", Deadline::AfterMs(kStepMs)); !r) return r;
  Result<Child> listener = Child::Start(kListener, {});
  if (!listener) return std::unexpected(listener.error());
  gpushm_create_options options;
  GPUSHM_INIT(&options);
  options.unpublished = 1;
  Samples samples;
  Samples publishing;
  Samples waking;
  for (auto _ : state) {
    gpushm_attachment* next = nullptr;
    if (auto r = Check(gpushm_replace(connection->get(), kBuffer, 0, &options, &next), "replace");
        !r) {
      return r;
    }
    const int64_t start = MonotonicNs();
    const gpushm_status status = gpushm_attachment_publish(next);
    const int64_t published = MonotonicNs();
    if (auto r = Check(status, "gpushm_attachment_publish"); !r) return r;
    const Result<Heard> heard = waiter->channel().Hear(Deadline::AfterMs(kStepMs));
    if (!heard) return std::unexpected(heard.error());
    if (heard->text.starts_with("failed")) return Fail(Code::kInternal, heard->text);
    gpushm_attachment_detach(next, nullptr);
    const int64_t known = std::stoll(heard->text);
    samples.Add(known - start);
    publishing.Add(published - start);
    const Result<int64_t> woken = WakeListener(*listener);  // As idle as the waiter was.
    if (!woken) return std::unexpected(woken.error());
    waking.Add(*woken);
    state.SetIterationTime(static_cast<double>(known - start) / 1e9);
  }
  Show(state, Ours{samples}, Baseline{waking});
  state.counters["publish_p50_ns"] = publishing.Percentile(0.5);
  state.SetLabel("baseline: waking an idle process by a socket");
  return {};
}

// ---------------------------------------------------------------- many at once

constexpr int kMaxPeers = 64;
constexpr uint64_t kBufferBytes = 64 * kMiB;

// Shared with the peers. A round starts with one token for each peer in the eventfd of its parity.
// A fast peer cannot take a slow one's token, because the next round's tokens are in the other
// eventfd.
struct Round {
  std::array<std::atomic<int64_t>, kMaxPeers> finished_ns;
  std::atomic<uint32_t> failed;
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

Round* MapRound(int fd) {
  void* const at = mmap(nullptr, sizeof(Round), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Round*>(at);
}

// Passed to the peers one by one. `memory` is the buffer's own descriptor. In every other round the
// peers import and map it by hand, which is the driver's part.
struct Shared {
  UniqueFd round;
  std::array<UniqueFd, 2> tokens;
  UniqueFd done;
  int memory = -1;

  std::array<int, 5> descriptors() const {
    return {round.get(), tokens[0].get(), tokens[1].get(), done.get(), memory};
  }
  static Result<Shared> Make() {
    Shared shared;
    shared.round.Reset(memfd_create("gpushm-bench", MFD_CLOEXEC));
    if (!shared.round || ftruncate(shared.round.get(), sizeof(Round)) != 0) {
      return FailSystem(errno, "memfd_create");
    }
    for (UniqueFd& token : shared.tokens) token.Reset(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
    shared.done.Reset(eventfd(0, EFD_CLOEXEC));
    return shared;
  }
};

// Whether the attach succeeded. It is undone after the time was taken.
bool AttachOnce(gpushm_client* client, std::atomic<int64_t>* finished_ns) {
  gpushm_attachment* attachment = nullptr;
  const gpushm_status status = gpushm_attach(client, kBuffer, nullptr, &attachment);
  finished_ns->store(MonotonicNs(), std::memory_order_release);
  gpushm_attachment_detach(attachment, nullptr);
  return status == GPUSHM_OK;
}

bool MapOnce(int memory, std::atomic<int64_t>* finished_ns) {
  const Machine& machine = ThisMachine();
  const Result<DeviceMemory> imported = DeviceMemory::Import(*machine.api, memory);
  if (!imported) return false;
  const Result<DeviceMapping> mapping = DeviceMapping::Map(*machine.api, *imported, kBufferBytes,
                                                           machine.device.device, Access::kRead);
  finished_ns->store(MonotonicNs(), std::memory_order_release);
  return mapping.has_value();
}

Result<void> AttachInRounds(Channel& parent, const std::vector<std::string>& arguments) {
  if (auto r = FindDriver(); !r) return r;  // cuInit is not part of an attach.
  std::array<UniqueFd, 5> shared;
  for (UniqueFd& descriptor : shared) {
    Result<Heard> heard = parent.Hear(Deadline::AfterMs(kStepMs));
    if (!heard) return std::unexpected(heard.error());
    descriptor = std::move(heard->descriptor);
  }
  Round* const round = MapRound(shared[0].get());
  if (round == nullptr) return FailSystem(errno, "mmap");
  const Result<Connection> connection = Connection::Open(arguments.at(0));
  if (!connection) return std::unexpected(connection.error());
  const size_t self = std::stoul(arguments.at(1));
  if (auto r = parent.Say("ready"); !r) return r;
  for (size_t i = 0;; ++i) {
    uint64_t token = 0;
    if (read(shared[1 + i % 2].get(), &token, sizeof token) != sizeof token) return {};
    // The parent reads it after this peer was counted in `done`.
    std::atomic<int64_t>* const finished_ns = &round->finished_ns[self];
    const bool good = i % 2 == 0 ? AttachOnce(connection->get(), finished_ns)
                                 : MapOnce(shared[4].get(), finished_ns);
    if (!good) round->failed.fetch_add(1, std::memory_order_relaxed);
    const uint64_t one = 1;
    if (write(shared[3].get(), &one, sizeof one) != sizeof one) return FailSystem(errno, "write");
  }
}

// Nanoseconds from the start until the last peer has the buffer.
Result<int64_t> RunRound(const Shared& shared, const Round& round, size_t number, size_t peers) {
  const uint64_t tokens = peers;
  const int64_t start = MonotonicNs();
  if (write(shared.tokens[number % 2].get(), &tokens, sizeof tokens) != sizeof tokens) {
    return FailSystem(errno, "write");
  }
  for (uint64_t done = 0; done < peers;) {
    uint64_t more = 0;
    if (read(shared.done.get(), &more, sizeof more) != sizeof more)
      return FailSystem(errno, "read");
    done += more;
  }
  int64_t last = start;
  for (size_t i = 0; i < peers; ++i) {
    last = std::max(last, round.finished_ns[i].load(std::memory_order_acquire));
  }
  return last - start;
}

Result<std::vector<Child>> StartPeers(const Broker& broker, const Shared& shared, size_t count) {
  std::vector<Child> peers;
  for (size_t i = 0; i < count; ++i) {
    Result<Child> peer = Child::Start(kPeer, {broker.folder().string(), std::to_string(i)});
    if (!peer) return std::unexpected(peer.error());
    peers.push_back(std::move(*peer));
  }
  for (Child& peer : peers) {
    for (const int descriptor : shared.descriptors()) {
      if (auto r = peer.channel().Say("take", descriptor); !r) return std::unexpected(r.error());
    }
  }
  for (Child& peer : peers) {
    if (auto r = peer.Expect("ready", Deadline::AfterMs(kStepMs)); !r) {
      return std::unexpected(r.error());
    }
  }
  return peers;
}

Result<void> AttachAtOnce(benchmark::State& state, size_t count) {
  const Result<Broker> broker =
      Broker::Start({.buffers = {{kBuffer, kBufferBytes}}, .extra_bytes = 0});
  if (!broker) return std::unexpected(broker.error());
  // The broker runs before the peers connect.
  const Result<Connection> connection = Connection::To(*broker);
  if (!connection) return std::unexpected(connection.error());
  const Result<BorrowedDescriptor> memory = BorrowedDescriptor::Borrow(broker->folder(), kBuffer);
  if (!memory) return std::unexpected(memory.error());
  Result<Shared> shared = Shared::Make();
  if (!shared) return std::unexpected(shared.error());
  shared->memory = memory->get();
  Round* const round = MapRound(shared->round.get());
  if (round == nullptr) return FailSystem(errno, "mmap");
  Result<std::vector<Child>> peers = StartPeers(*broker, *shared, count);
  if (!peers) return std::unexpected(peers.error());
  Samples ours;
  Samples raw;
  double seconds = 0;
  size_t number = 0;
  // The first two rounds warm up.
  for (const int warming : {0, 1}) {
    static_cast<void>(warming);
    if (auto r = RunRound(*shared, *round, number++, count); !r) return std::unexpected(r.error());
  }
  for (auto _ : state) {
    const Result<int64_t> took = RunRound(*shared, *round, number++, count);
    if (!took) return std::unexpected(took.error());
    const Result<int64_t> by_hand = RunRound(*shared, *round, number++, count);
    if (!by_hand) return std::unexpected(by_hand.error());
    ours.Add(*took);
    raw.Add(*by_hand);
    seconds += static_cast<double>(*took) / 1e9;
    state.SetIterationTime(static_cast<double>(*took) / 1e9);
  }
  const uint32_t failed = round->failed.load(std::memory_order_relaxed);
  munmap(round, sizeof(Round));
  if (failed > 0) return Fail(Code::kInternal, Concat(failed, " attaches failed"));
  Show(state, Ours{ours}, Baseline{raw});
  state.counters["attaches_per_s"] =
      static_cast<double>(ours.size()) * static_cast<double>(count) / seconds;
  state.SetLabel("until the last one has it; baseline: import and map alone");
  return {};
}

void RegisterRows() {
  Row("WaitForPublish", 500,
      [](benchmark::State& state) { return WaitForPublish(state, kWaiter); });
  Row("WaitForPublish/poll", 500,
      [](benchmark::State& state) { return WaitForPublish(state, kPoller); });
  for (const size_t peers : {1, 4, 16, 64}) {
    Row(Concat("AttachAtOnce/", peers), 50,
        [peers](benchmark::State& state) { return AttachAtOnce(state, peers); });
  }
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  return Main(argc, argv,
              {{kWaiter, WaitForNext},
               {kPoller, PollForNext},
               {kListener, Listen},
               {kPeer, AttachInRounds}},
              RegisterRows);
}
