// Handing over in time between two processes on one GPU: a signal's round trip, and a frame through
// a ring. Beside each, in turns, the same by hand: stream memory operations on a shared page.
//
//   parent   turn |          armed, t0 | record, wait, passed | t1         a round trip
//   child         | wait, record, armed
//   parent   turn |          armed, t0 | end of the write                  a ring
//   child         | armed, begin of the read, passed | t1, end of the read
//
// "passed" is a store on the stream behind the wait, which a processor polls. Every wait has a
// deadline.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/include/gpushm/wait.h"
#include "tests/bench/harness.h"
#include "tests/bench/poll.h"

namespace gpushm::bench {
namespace {

constexpr char kEcho[] = "echo";
constexpr char kReader[] = "reader";
constexpr char kPoller[] = "poller";
constexpr char kPing[] = "ping";
constexpr char kPong[] = "pong";
constexpr char kFrames[] = "frames";
constexpr int64_t kPassMs = 5000;  // If it took this long, something failed.
constexpr uint64_t kWarmSteps = 200;
constexpr int64_t kSteps = 4000;
constexpr int64_t kAsleepSteps = 2000;
// A reader that waits this long sleeps in its longest steps, 200 us.
constexpr std::chrono::milliseconds kUntilAsleep{2};

// Shared by both processes and registered with the driver in both. The words count up to the step's
// number.
struct Page {
  // Streams store these:
  alignas(64) std::atomic<uint64_t> ping;  // By hand: the parent's signal.
  alignas(64) std::atomic<uint64_t> pong;  // The child's.
  alignas(64)
      std::atomic<uint64_t> passed;  // The stream of the process that takes t1 is past the wait.
  // Processors store these:
  alignas(64) std::atomic<uint64_t> turn;  // By the parent: the step that comes next.
  alignas(64) std::atomic<uint64_t> armed;
  std::atomic<uint64_t> done;
  std::atomic<int64_t> passed_ns;  // The ring's t1. Valid once done.
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Each way gets every other step, and every other pair of steps begins with the other way.
bool ByHand(uint64_t step) { return ((step + 1) / 2 + step) % 2 != 0; }

Result<void> Await(const std::atomic<uint64_t>& word, uint64_t step, const char* what) {
  if (WaitUntil([&] { return Reached(word, step); }, Deadline::AfterMs(kPassMs))) return {};
  return Fail(Code::kTimeout, Concat(what, " of step ", step, " did not arrive in time"));
}

// Where the way by hand keeps the words of a round trip.
struct Words {
  CUdeviceptr ping = 0;
  CUdeviceptr pong = 0;
};

// What each of the two processes has: a context, a stream, the page, a connection.
class Side {
 public:
  static Result<std::unique_ptr<Side>> SetUp(const std::filesystem::path& folder, int page_fd);
  Page& page() const { return *page_; }
  CUstream stream() const { return stream_->get(); }
  gpushm_client* client() const { return connection_->get(); }

  Words on_page() const { return {OnGpu(page_->ping), OnGpu(page_->pong)}; }

  // On the stream.
  Result<void> Store(CUdeviceptr word, uint64_t value) const {
    return api_.Check(api_.cuStreamWriteValue64(stream(), word, value, 0), "cuStreamWriteValue64");
  }
  Result<void> WaitFor(CUdeviceptr word, uint64_t value) const {
    return api_.Check(api_.cuStreamWaitValue64(stream(), word, value, CU_STREAM_WAIT_VALUE_GEQ),
                      "cuStreamWaitValue64");
  }
  // Waits until the stream gets here.
  Result<void> Pass(uint64_t step) const {
    if (auto r = Store(OnGpu(page_->passed), step); !r) return r;
    return Await(page_->passed, step, "the stream");
  }

  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side();

 private:
  Side() = default;
  Result<void> Register(int page_fd);
  CUdeviceptr OnGpu(const std::atomic<uint64_t>& word) const {
    return page_address_ + static_cast<CUdeviceptr>(reinterpret_cast<const std::byte*>(&word) -
                                                    reinterpret_cast<const std::byte*>(page_));
  }

  const CudaApi& api_ = *ThisMachine().api;
  std::optional<PrimaryContext> context_;
  std::optional<Stream> stream_;
  std::optional<Connection> connection_;
  Page* page_ = nullptr;
  CUdeviceptr page_address_ = 0;
};

Result<std::unique_ptr<Side>> Side::SetUp(const std::filesystem::path& folder, int page_fd) {
  std::unique_ptr<Side> side(new Side);
  Result<PrimaryContext> context = PrimaryContext::Retain(side->api_, ThisMachine().device.device);
  if (!context) return std::unexpected(context.error());
  side->context_.emplace(std::move(*context));
  if (auto r = side->context_->MakeCurrent(); !r) return std::unexpected(r.error());
  Result<Stream> stream = Stream::Create(side->api_);
  if (!stream) return std::unexpected(stream.error());
  side->stream_.emplace(std::move(*stream));
  if (auto r = side->Register(page_fd); !r) return std::unexpected(r.error());
  Result<Connection> connection = Connection::Open(folder);
  if (!connection) return std::unexpected(connection.error());
  side->connection_.emplace(std::move(*connection));
  return side;
}

Result<void> Side::Register(int page_fd) {
  void* const at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
  if (at == MAP_FAILED) return FailSystem(errno, "mmap");
  page_ = static_cast<Page*>(at);
  if (auto r = api_.Check(api_.cuMemHostRegister(at, sizeof(Page), CU_MEMHOSTREGISTER_DEVICEMAP),
                          "cuMemHostRegister");
      !r) {
    return r;
  }
  return api_.Check(api_.cuMemHostGetDevicePointer(&page_address_, at, 0),
                    "cuMemHostGetDevicePointer");
}

Side::~Side() {
  if (page_ == nullptr) return;
  // CUDA cannot end a wait by hand: a peer that failed must not block a stream here, or there.
  page_->ping.store(GPUSHM_SIGNAL_MAX, std::memory_order_release);
  page_->pong.store(GPUSHM_SIGNAL_MAX, std::memory_order_release);
  static_cast<void>(
      WaitUntil([this] { return api_.cuStreamQuery(stream()) != CUDA_ERROR_NOT_READY; },
                Deadline::AfterMs(kPassMs)));
  if (page_address_ != 0) api_.cuMemHostUnregister(page_);
  munmap(page_, sizeof(Page));
}

// A signal or a ring, closed when its stream has finished with it.
template <typename Handle, gpushm_status (*Close)(Handle*)>
class Closing {
 public:
  explicit Closing(Handle* handle) : handle_(handle) {}
  Handle* get() const { return handle_; }

  Closing(Closing&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Closing& operator=(Closing&&) = delete;
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;
  ~Closing() {
    static_cast<void>(
        WaitUntil([this] { return Close(handle_) != GPUSHM_BUSY; }, Deadline::AfterMs(kPassMs)));
  }

 private:
  Handle* handle_;
};
using Signal = Closing<gpushm_signal, gpushm_signal_close>;
using Ring = Closing<gpushm_ring, gpushm_ring_close>;

Result<Signal> OpenSignal(const Side& side, const char* name, gpushm_signal_role role) {
  gpushm_signal_options options;
  GPUSHM_INIT(&options);
  options.role = role;
  gpushm_signal* signal = nullptr;
  if (auto r = Check(gpushm_signal_open(side.client(), name, &options, &signal), "signal"); !r) {
    return std::unexpected(r.error());
  }
  return Signal(signal);
}

Result<Ring> OpenRing(const Side& side, gpushm_ring_role role) {
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = role;
  if (role == GPUSHM_RING_WRITER) {
    options.policy = GPUSHM_RING_BACK_PRESSURE;
    options.frame_bytes = 2 * kMiB;
    options.need_readers = 1;
  }
  gpushm_ring* ring = nullptr;
  if (auto r = Check(gpushm_ring_open(side.client(), kFrames, &options, &ring), "ring"); !r) {
    return std::unexpected(r.error());
  }
  return Ring(ring);
}

// ---------------------------------------------------------------- the child

// Its side, with the parent's page.
Result<std::unique_ptr<Side>> ChildSide(Channel& parent, const std::string& folder) {
  if (auto r = FindDriver(); !r) return std::unexpected(r.error());
  const Result<Heard> heard = parent.Hear(Deadline::AfterMs(kStepMs));
  if (!heard) return std::unexpected(heard.error());
  return Side::SetUp(folder, heard->descriptor.get());
}

// Until the parent no longer needs this process, and kills it.
template <typename Step>
Result<void> FollowSteps(Channel& parent, const Page& page, const Step& one) {
  if (auto r = parent.Say("ready"); !r) return r;
  for (uint64_t step = 1;; ++step) {
    if (auto r = Await(page.turn, step, "the turn"); !r) return r;
    if (auto r = one(step); !r) return r;
  }
}

Result<void> Echo(Channel& parent, const std::vector<std::string>& arguments) {
  const Result<std::unique_ptr<Side>> side = ChildSide(parent, arguments.at(0));
  if (!side) return std::unexpected(side.error());
  const Words words = (*side)->on_page();
  const Result<Signal> pong = OpenSignal(**side, kPong, GPUSHM_SIGNAL_WRITER);
  if (!pong) return std::unexpected(pong.error());
  const Result<Signal> ping = OpenSignal(**side, kPing, GPUSHM_SIGNAL_WAITER);
  if (!ping) return std::unexpected(ping.error());
  const CUstream stream = (*side)->stream();
  Page& page = (*side)->page();
  return FollowSteps(parent, page, [&](uint64_t step) -> Result<void> {
    if (auto r = ByHand(step)
                     ? (*side)->WaitFor(words.ping, step)
                     : Check(gpushm_signal_wait_on_stream(ping->get(), stream, step), "wait");
        !r) {
      return r;
    }
    if (auto r = ByHand(step) ? (*side)->Store(words.pong, step)
                              : Check(gpushm_signal_record(pong->get(), stream, step), "record");
        !r) {
      return r;
    }
    page.armed.store(step, std::memory_order_release);
    return {};
  });
}

Result<void> ReadByHand(const Side& side, uint64_t step) {
  if (auto r = side.WaitFor(side.on_page().ping, step); !r) return r;
  side.page().armed.store(step, std::memory_order_release);
  return side.Pass(step);
}

// Sleeps in poll(), as a server does, until a read would not wait.
Result<void> AwaitEvent(gpushm_waiter* waiter) {
  const Deadline deadline = Deadline::AfterMs(kPassMs);
  gpushm_event event;
  GPUSHM_INIT(&event);
  for (size_t count = 0; count == 0;) {
    pollfd sleeper{.fd = gpushm_waiter_descriptor(waiter), .events = POLLIN, .revents = 0};
    if (poll(&sleeper, 1, deadline.RemainingMs()) == 0) return Fail(Code::kTimeout, "no event");
    if (auto r = Check(gpushm_waiter_wait(waiter, &event, 1, &count, GPUSHM_DONT_WAIT), "wait");
        !r) {
      return r;
    }
  }
  return {};
}

Result<void> ReadFramesBy(Channel& parent, const std::vector<std::string>& arguments, bool polls) {
  const Result<std::unique_ptr<Side>> side = ChildSide(parent, arguments.at(0));
  if (!side) return std::unexpected(side.error());
  const Result<Ring> ring = OpenRing(**side, GPUSHM_RING_READER);
  if (!ring) return std::unexpected(ring.error());
  gpushm_waiter* waiter = nullptr;  // Closed with the client.
  if (polls) {
    if (auto r = Check(gpushm_waiter_open((*side)->client(), &waiter), "waiter"); !r) return r;
    if (auto r = Check(gpushm_waiter_add_ring(waiter, ring->get(), 1), "add"); !r) return r;
  }
  const CUstream stream = (*side)->stream();
  Page& page = (*side)->page();
  gpushm_frame frame;
  GPUSHM_INIT(&frame);
  const auto begin = [&](uint64_t step) -> Result<void> {
    page.armed.store(step, std::memory_order_release);
    if (polls) {
      if (auto r = AwaitEvent(waiter); !r) return r;
    }
    if (auto r = Check(gpushm_ring_begin_read(ring->get(), stream, &frame, kPassMs), "begin_read");
        !r) {
      return r;
    }
    return (*side)->Pass(step);
  };
  return FollowSteps(parent, page, [&](uint64_t step) -> Result<void> {
    if (auto r = ByHand(step) ? ReadByHand(**side, step) : begin(step); !r) return r;
    page.passed_ns.store(MonotonicNs(), std::memory_order_relaxed);
    if (!ByHand(step)) {
      if (auto r = Check(gpushm_ring_end_read(ring->get(), stream, &frame, kPassMs), "end_read");
          !r) {
        return r;
      }
    }
    page.done.store(step, std::memory_order_release);
    return {};
  });
}

Result<void> ReadFrames(Channel& parent, const std::vector<std::string>& arguments) {
  return ReadFramesBy(parent, arguments, /*polls=*/false);
}

Result<void> PollForFrames(Channel& parent, const std::vector<std::string>& arguments) {
  return ReadFramesBy(parent, arguments, /*polls=*/true);
}

// ---------------------------------------------------------------- the parent

// A broker, the child, and this process's side.
class Meeting {
 public:
  static Result<Meeting> With(const char* role) {
    const UniqueFd page_fd(memfd_create("gpushm-bench", MFD_CLOEXEC));
    if (!page_fd || ftruncate(page_fd.get(), sizeof(Page)) != 0) {
      return FailSystem(errno, "memfd_create");
    }
    Result<Broker> broker = Broker::Start({.buffers = {}, .extra_bytes = 64 * kMiB});
    if (!broker) return std::unexpected(broker.error());
    if (auto up = Connection::To(*broker); !up) return std::unexpected(up.error());
    Result<Child> child = Child::Start(role, {broker->folder().string()});
    if (!child) return std::unexpected(child.error());
    if (auto r = child->channel().Say("page", page_fd.get()); !r) {
      return std::unexpected(r.error());
    }
    Result<std::unique_ptr<Side>> side = Side::SetUp(broker->folder(), page_fd.get());
    if (!side) return std::unexpected(side.error());
    return Meeting(std::move(*broker), std::move(*child), std::move(*side));
  }
  Side& side() const { return *side_; }
  Result<void> AwaitReady() { return child_.Expect("ready", Deadline::AfterMs(kStepMs)); }
  // The child's own message explains more than the fact that it did not arrive.
  Result<void> Explained(Result<void> result) {
    constexpr int64_t kLastWordsMs = 1000;
    if (result) return result;
    const Result<Heard> heard = child_.channel().Hear(Deadline::AfterMs(kLastWordsMs));
    if (!heard || !heard->text.starts_with("failed")) return result;
    return Fail(Code::kInternal, Concat(result.error().what(), "; the child ", heard->text));
  }

 private:
  Meeting(Broker broker, Child child, std::unique_ptr<Side> side)
      : broker_(std::move(broker)), child_(std::move(child)), side_(std::move(side)) {}
  Broker broker_;
  Child child_;
  std::unique_ptr<Side> side_;
};

// `one(step)` returns how long the step took, in nanoseconds.
template <typename Step>
Result<void> MeasureSteps(benchmark::State& state, const Step& one) {
  uint64_t step = 1;
  for (; step <= kWarmSteps; ++step) {
    if (const Result<int64_t> took = one(step); !took) return std::unexpected(took.error());
  }
  Samples ours;
  Samples by_hand;
  for (auto _ : state) {
    for (int i = 0; i < 2; ++i, ++step) {
      const Result<int64_t> took = one(step);
      if (!took) return std::unexpected(took.error());
      (ByHand(step) ? by_hand : ours).Add(*took);
      if (!ByHand(step)) state.SetIterationTime(static_cast<double>(*took) / 1e9);
    }
  }
  Show(state, Ours{ours}, Baseline{by_hand});
  return {};
}

Result<void> RoundTrips(benchmark::State& state, Meeting& meeting) {
  const Side& side = meeting.side();
  const Words words = side.on_page();
  const Result<Signal> ping = OpenSignal(side, kPing, GPUSHM_SIGNAL_WRITER);
  if (!ping) return std::unexpected(ping.error());
  const Result<Signal> pong = OpenSignal(side, kPong, GPUSHM_SIGNAL_WAITER);
  if (!pong) return std::unexpected(pong.error());
  if (auto r = meeting.AwaitReady(); !r) return r;
  Page& page = side.page();
  const auto go = [&](uint64_t step) -> Result<void> {
    if (ByHand(step)) {
      const Result<void> stored = side.Store(words.ping, step);
      return stored ? side.WaitFor(words.pong, step) : stored;
    }
    const Result<void> recorded =
        Check(gpushm_signal_record(ping->get(), side.stream(), step), "record");
    if (!recorded) return recorded;
    return Check(gpushm_signal_wait_on_stream(pong->get(), side.stream(), step), "wait");
  };
  return MeasureSteps(state, [&](uint64_t step) -> Result<int64_t> {
    page.turn.store(step, std::memory_order_release);
    if (auto r = Await(page.armed, step, "the child"); !r) return std::unexpected(r.error());
    const int64_t start = MonotonicNs();
    if (auto r = go(step); !r) return std::unexpected(r.error());
    if (auto r = side.Pass(step); !r) return std::unexpected(r.error());
    const int64_t took = MonotonicNs() - start;
    if (!ByHand(step)) {
      if (auto r = Check(gpushm_signal_check(pong->get(), step), "check"); !r) {
        return std::unexpected(r.error());
      }
    }
    return took;
  });
}

Result<void> Frames(benchmark::State& state, Meeting& meeting, std::chrono::milliseconds pause) {
  const Side& side = meeting.side();
  const Result<Ring> ring = OpenRing(side, GPUSHM_RING_WRITER);
  if (!ring) return std::unexpected(ring.error());
  if (auto r = meeting.AwaitReady(); !r) return r;
  Page& page = side.page();
  gpushm_frame frame;
  GPUSHM_INIT(&frame);
  return MeasureSteps(state, [&](uint64_t step) -> Result<int64_t> {
    if (!ByHand(step)) {
      if (auto r = Check(gpushm_ring_begin_write(ring->get(), &frame, kPassMs), "begin_write");
          !r) {
        return std::unexpected(r.error());
      }
      frame.bytes = frame.capacity_bytes;
    }
    page.turn.store(step, std::memory_order_release);
    if (auto r = Await(page.armed, step, "the child"); !r) return std::unexpected(r.error());
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const int64_t start = MonotonicNs();
    if (auto r = ByHand(step) ? side.Store(side.on_page().ping, step)
                              : Check(gpushm_ring_end_write(ring->get(), &frame, side.stream()),
                                      "end_write");
        !r) {
      return std::unexpected(r.error());
    }
    if (auto r = Await(page.done, step, "the child"); !r) return std::unexpected(r.error());
    return page.passed_ns.load(std::memory_order_relaxed) - start;
  });
}

Result<void> SignalRoundTrip(benchmark::State& state) {
  Result<Meeting> meeting = Meeting::With(kEcho);
  if (!meeting) return std::unexpected(meeting.error());
  state.counters["budget_ratio"] = 1.15;
  state.SetLabel("baseline: stream memory operations on a shared page");
  return meeting->Explained(RoundTrips(state, *meeting));
}

Result<void> RingFrame(benchmark::State& state, const char* reader,
                       std::chrono::milliseconds pause) {
  Result<Meeting> meeting = Meeting::With(reader);
  if (!meeting) return std::unexpected(meeting.error());
  if (pause.count() == 0) state.counters["budget_p50_ns"] = 15'000;
  state.SetLabel("baseline: as above; its stream waits before the frame comes");
  return meeting->Explained(Frames(state, *meeting, pause));
}

void RegisterRows() {
  Row("sync/SignalRoundTrip", kSteps, SignalRoundTrip);
  Row("sync/RingFrame/waiting", kSteps, [](benchmark::State& state) {
    return RingFrame(state, kReader, std::chrono::milliseconds::zero());
  });
  Row("sync/RingFrame/asleep", kAsleepSteps,
      [](benchmark::State& state) { return RingFrame(state, kReader, kUntilAsleep); });
  Row("sync/RingFrame/poll", kAsleepSteps,
      [](benchmark::State& state) { return RingFrame(state, kPoller, kUntilAsleep); });
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  return Main(argc, argv, {{kEcho, Echo}, {kReader, ReadFrames}, {kPoller, PollForFrames}},
              RegisterRows);
}
