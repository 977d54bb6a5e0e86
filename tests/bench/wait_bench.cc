// The time from a change in one process until another learns of it, and many concurrent attaches.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
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
void WaitForNext(Channel& parent, const std::vector<std::string>& arguments) {
  const Connection connection = Connection::Open(arguments.at(0));
  gpushm_info seen;
  GPUSHM_INIT(&seen);
  Check(gpushm_lookup(connection.get(), kBuffer, &seen), "gpushm_lookup");
  gpushm_wait_options wait;
  GPUSHM_INIT(&wait);
  wait.timeout_ms = kStepMs;
  parent.Say("waiting");
  for (;;) {
    const gpushm_status status =
        gpushm_wait(connection.get(), kBuffer, seen.generation + 1, &wait, &seen);
    const int64_t known = MonotonicNs();
    Check(status, "gpushm_wait");
    parent.Say(std::to_string(known));
  }
}

// The same in poll(), as a server does.
void PollForNext(Channel& parent, const std::vector<std::string>& arguments) {
  const Connection connection = Connection::Open(arguments.at(0));
  gpushm_info seen;
  GPUSHM_INIT(&seen);
  Check(gpushm_lookup(connection.get(), kBuffer, &seen), "gpushm_lookup");
  gpushm_waiter* waiter = nullptr;  // Closed with the client.
  Check(gpushm_waiter_open(connection.get(), &waiter), "gpushm_waiter_open");
  Check(gpushm_waiter_add_name(waiter, kBuffer, seen.generation, 1), "add");
  gpushm_event event;
  GPUSHM_INIT(&event);
  parent.Say("waiting");
  for (;;) {
    pollfd sleeper{.fd = gpushm_waiter_descriptor(waiter), .events = POLLIN, .revents = 0};
    if (poll(&sleeper, 1, kStepMs) == 0) throw Failure(Code::kTimeout, "no event");
    size_t count = 0;
    const gpushm_status status = gpushm_waiter_wait(waiter, &event, 1, &count, GPUSHM_DONT_WAIT);
    const int64_t known = MonotonicNs();
    Check(status, "gpushm_waiter_wait");
    if (count == 0) continue;
    parent.Say(std::to_string(known));
  }
}

// Reports when a message arrived: the cost of waking an idle process on this machine.
void Listen(Channel& parent, const std::vector<std::string>&) {
  for (;;) {
    const Result<Heard> heard = parent.Hear(Deadline::AfterMs(kStepMs));
    const int64_t known = MonotonicNs();
    if (!heard) return;
    parent.Say(std::to_string(known));
  }
}

int64_t WakeListener(Child& listener) {
  const int64_t start = MonotonicNs();
  listener.channel().Say("wake");
  const Heard heard = Must(listener.channel().Hear(Deadline::AfterMs(kStepMs)));
  return std::stoll(heard.text) - start;
}

void WaitForPublish(benchmark::State& state, const char* role) {
  const Broker broker = Broker::Start({.buffers = {}, .extra_bytes = 8 * 2 * kMiB});
  const Connection connection = Connection::To(broker);
  Check(gpushm_create(connection.get(), kBuffer, 2 * kMiB, nullptr, nullptr), "gpushm_create");
  Child waiter = Child::Start(role, {broker.folder().string()});
  waiter.Expect("waiting", Deadline::AfterMs(kStepMs));
  Child listener = Child::Start(kListener, {});
  gpushm_create_options options;
  GPUSHM_INIT(&options);
  options.unpublished = 1;
  Samples samples;
  Samples publishing;
  Samples waking;
  for (auto _ : state) {
    gpushm_attachment* next = nullptr;
    Check(gpushm_replace(connection.get(), kBuffer, 0, &options, &next), "replace");
    const int64_t start = MonotonicNs();
    const gpushm_status status = gpushm_attachment_publish(next);
    const int64_t published = MonotonicNs();
    Check(status, "gpushm_attachment_publish");
    const Heard heard = Must(waiter.channel().Hear(Deadline::AfterMs(kStepMs)));
    if (heard.text.starts_with("failed")) throw Failure(Code::kInternal, heard.text);
    gpushm_attachment_detach(next, nullptr);
    const int64_t known = std::stoll(heard.text);
    samples.Add(known - start);
    publishing.Add(published - start);
    waking.Add(WakeListener(listener));  // As idle as the waiter was.
    state.SetIterationTime(static_cast<double>(known - start) / 1e9);
  }
  Show(state, Ours{samples}, Baseline{waking});
  state.counters["publish_p50_ns"] = publishing.Percentile(0.5);
  state.SetLabel("baseline: waking an idle process by a socket");
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

std::shared_ptr<Round> MapRound(const UniqueFd& memory) {
  return std::static_pointer_cast<Round>(MapShared(memory.get(), sizeof(Round)));
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
  static Shared Make() {
    Shared shared;
    shared.round = MakeShared(sizeof(Round));
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

void AttachInRounds(Channel& parent, const std::vector<std::string>& arguments) {
  FindDriver();  // cuInit is not part of an attach.
  std::array<UniqueFd, 5> shared;
  for (UniqueFd& descriptor : shared) {
    descriptor = Must(parent.Hear(Deadline::AfterMs(kStepMs))).descriptor;
  }
  const std::shared_ptr<Round> round = MapRound(shared[0]);
  const Connection connection = Connection::Open(arguments.at(0));
  const size_t self = std::stoul(arguments.at(1));
  parent.Say("ready");
  for (size_t i = 0;; ++i) {
    uint64_t token = 0;
    if (read(shared[1 + i % 2].get(), &token, sizeof token) != sizeof token) return;
    // The parent reads it after this peer was counted in `done`.
    std::atomic<int64_t>* const finished_ns = &round->finished_ns[self];
    const bool good = i % 2 == 0 ? AttachOnce(connection.get(), finished_ns)
                                 : MapOnce(shared[4].get(), finished_ns);
    if (!good) round->failed.fetch_add(1, std::memory_order_relaxed);
    const uint64_t one = 1;
    if (write(shared[3].get(), &one, sizeof one) != sizeof one) {
      throw Failure(FailSystem(errno, "write"));
    }
  }
}

// Nanoseconds from the start until the last peer has the buffer.
int64_t RunRound(const Shared& shared, const Round& round, size_t number, size_t peers) {
  const uint64_t tokens = peers;
  const int64_t start = MonotonicNs();
  if (write(shared.tokens[number % 2].get(), &tokens, sizeof tokens) != sizeof tokens) {
    throw Failure(FailSystem(errno, "write"));
  }
  for (uint64_t done = 0; done < peers;) {
    uint64_t more = 0;
    if (read(shared.done.get(), &more, sizeof more) != sizeof more) {
      throw Failure(FailSystem(errno, "read"));
    }
    done += more;
  }
  int64_t last = start;
  for (size_t i = 0; i < peers; ++i) {
    last = std::max(last, round.finished_ns[i].load(std::memory_order_acquire));
  }
  return last - start;
}

std::vector<Child> StartPeers(const Broker& broker, const Shared& shared, size_t count) {
  std::vector<Child> peers;
  for (size_t i = 0; i < count; ++i) {
    peers.push_back(Child::Start(kPeer, {broker.folder().string(), std::to_string(i)}));
  }
  for (Child& peer : peers) {
    for (const int descriptor : shared.descriptors()) peer.channel().Say("take", descriptor);
  }
  for (Child& peer : peers) peer.Expect("ready", Deadline::AfterMs(kStepMs));
  return peers;
}

void AttachAtOnce(benchmark::State& state, size_t count) {
  const Broker broker = Broker::Start({.buffers = {{kBuffer, kBufferBytes}}, .extra_bytes = 0});
  // The broker runs before the peers connect.
  const Connection connection = Connection::To(broker);
  const BorrowedDescriptor memory = BorrowedDescriptor::Borrow(broker.folder(), kBuffer);
  Shared shared = Shared::Make();
  shared.memory = memory.get();
  const std::shared_ptr<Round> round = MapRound(shared.round);
  std::vector<Child> peers = StartPeers(broker, shared, count);
  Samples ours;
  Samples raw;
  double seconds = 0;
  size_t number = 0;
  while (number < 2) RunRound(shared, *round, number++, count);  // Warms up.
  for (auto _ : state) {
    const int64_t took = RunRound(shared, *round, number++, count);
    const int64_t by_hand = RunRound(shared, *round, number++, count);
    ours.Add(took);
    raw.Add(by_hand);
    seconds += static_cast<double>(took) / 1e9;
    state.SetIterationTime(static_cast<double>(took) / 1e9);
  }
  const uint32_t failed = round->failed.load(std::memory_order_relaxed);
  if (failed > 0) throw Failure(Code::kInternal, Concat(failed, " attaches failed"));
  Show(state, Ours{ours}, Baseline{raw});
  state.counters["attaches_per_s"] =
      static_cast<double>(ours.size()) * static_cast<double>(count) / seconds;
  state.SetLabel("until the last one has it; baseline: import and map alone");
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
