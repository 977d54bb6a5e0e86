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

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
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

void Await(const std::atomic<uint64_t>& word, uint64_t step, const char* what) {
  if (WaitUntil([&] { return Reached(word, step); }, Deadline::AfterMs(kPassMs))) return;
  throw Failure(Code::kTimeout, Concat(what, " of step ", step, " did not arrive in time"));
}

// Where the way by hand keeps the words of a round trip.
struct Words {
  CUdeviceptr ping = 0;
  CUdeviceptr pong = 0;
};

// What each of the two processes has: a context, a stream, the page, a connection.
class Side {
 public:
  Side(const std::filesystem::path& folder, int page_fd)
      : page_(std::static_pointer_cast<Page>(MapShared(page_fd, sizeof(Page)))),
        connection_(Connection::Open(folder)) {
    Must(api_.Check(api_.cuMemHostRegister(page_.get(), sizeof(Page), CU_MEMHOSTREGISTER_DEVICEMAP),
                    "cuMemHostRegister"));
    Must(api_.Check(api_.cuMemHostGetDevicePointer(&page_address_, page_.get(), 0),
                    "cuMemHostGetDevicePointer"));
  }
  Page& page() const { return *page_; }
  CUstream stream() const { return stream_.get(); }
  gpushm_client* client() const { return connection_.get(); }

  Words on_page() const { return {OnGpu(page_->ping), OnGpu(page_->pong)}; }

  // On the stream.
  void Store(CUdeviceptr word, uint64_t value) const {
    Must(api_.Check(api_.cuStreamWriteValue64(stream(), word, value, 0), "cuStreamWriteValue64"));
  }
  void WaitFor(CUdeviceptr word, uint64_t value) const {
    Must(api_.Check(api_.cuStreamWaitValue64(stream(), word, value, CU_STREAM_WAIT_VALUE_GEQ),
                    "cuStreamWaitValue64"));
  }
  // Waits until the stream gets here.
  void Pass(uint64_t step) const {
    Store(OnGpu(page_->passed), step);
    Await(page_->passed, step, "the stream");
  }

  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side();

 private:
  CUdeviceptr OnGpu(const std::atomic<uint64_t>& word) const {
    return page_address_ +
           static_cast<CUdeviceptr>(reinterpret_cast<const std::byte*>(&word) -
                                    reinterpret_cast<const std::byte*>(page_.get()));
  }

  const CudaApi& api_ = *ThisMachine().api;
  const Stream stream_ = Must(Stream::Create(api_));
  const std::shared_ptr<Page> page_;
  const Connection connection_;
  CUdeviceptr page_address_ = 0;
};

Side::~Side() {
  // CUDA cannot end a wait by hand: a peer that failed must not block a stream here, or there.
  page_->ping.store(GPUSHM_SIGNAL_MAX, std::memory_order_release);
  page_->pong.store(GPUSHM_SIGNAL_MAX, std::memory_order_release);
  static_cast<void>(
      WaitUntil([this] { return api_.cuStreamQuery(stream()) != CUDA_ERROR_NOT_READY; },
                Deadline::AfterMs(kPassMs)));
  api_.cuMemHostUnregister(page_.get());
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

Signal OpenSignal(const Side& side, const char* name, gpushm_signal_role role) {
  gpushm_signal_options options;
  GPUSHM_INIT(&options);
  options.role = role;
  gpushm_signal* signal = nullptr;
  Check(gpushm_signal_open(side.client(), name, &options, &signal), "signal");
  return Signal(signal);
}

Ring OpenRing(const Side& side, gpushm_ring_role role) {
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = role;
  if (role == GPUSHM_RING_WRITER) {
    options.policy = GPUSHM_RING_BACK_PRESSURE;
    options.frame_bytes = 2 * kMiB;
    options.need_readers = 1;
  }
  gpushm_ring* ring = nullptr;
  Check(gpushm_ring_open(side.client(), kFrames, &options, &ring), "ring");
  return Ring(ring);
}

// ---------------------------------------------------------------- the child

// Its side, with the parent's page.
Side ChildSide(Channel& parent, const std::string& folder) {
  FindDriver();
  NeedContext();
  const Heard heard = Must(parent.Hear(Deadline::AfterMs(kStepMs)));
  return Side(folder, heard.descriptor.get());
}

// Until the parent no longer needs this process, and kills it.
template <typename Step>
void FollowSteps(Channel& parent, const Page& page, const Step& one) {
  parent.Say("ready");
  for (uint64_t step = 1;; ++step) {
    Await(page.turn, step, "the turn");
    one(step);
  }
}

void Echo(Channel& parent, const std::vector<std::string>& arguments) {
  const Side side = ChildSide(parent, arguments.at(0));
  const Words words = side.on_page();
  const Signal pong = OpenSignal(side, kPong, GPUSHM_SIGNAL_WRITER);
  const Signal ping = OpenSignal(side, kPing, GPUSHM_SIGNAL_WAITER);
  const CUstream stream = side.stream();
  Page& page = side.page();
  FollowSteps(parent, page, [&](uint64_t step) {
    if (ByHand(step)) {
      side.WaitFor(words.ping, step);
      side.Store(words.pong, step);
    } else {
      Check(gpushm_signal_wait_on_stream(ping.get(), stream, step), "wait");
      Check(gpushm_signal_record(pong.get(), stream, step), "record");
    }
    page.armed.store(step, std::memory_order_release);
  });
}

void ReadByHand(const Side& side, uint64_t step) {
  side.WaitFor(side.on_page().ping, step);
  side.page().armed.store(step, std::memory_order_release);
  side.Pass(step);
}

// Sleeps in poll(), as a server does, until a read would not wait.
void AwaitEvent(gpushm_waiter* waiter) {
  const Deadline deadline = Deadline::AfterMs(kPassMs);
  gpushm_event event;
  GPUSHM_INIT(&event);
  for (size_t count = 0; count == 0;) {
    pollfd sleeper{.fd = gpushm_waiter_descriptor(waiter), .events = POLLIN, .revents = 0};
    if (poll(&sleeper, 1, deadline.RemainingMs()) == 0) throw Failure(Code::kTimeout, "no event");
    Check(gpushm_waiter_wait(waiter, &event, 1, &count, GPUSHM_DONT_WAIT), "wait");
  }
}

void ReadFramesBy(Channel& parent, const std::vector<std::string>& arguments, bool polls) {
  const Side side = ChildSide(parent, arguments.at(0));
  const Ring ring = OpenRing(side, GPUSHM_RING_READER);
  gpushm_waiter* waiter = nullptr;  // Closed with the client.
  if (polls) {
    Check(gpushm_waiter_open(side.client(), &waiter), "waiter");
    Check(gpushm_waiter_add_ring(waiter, ring.get(), 1), "add");
  }
  const CUstream stream = side.stream();
  Page& page = side.page();
  gpushm_frame frame;
  GPUSHM_INIT(&frame);
  const auto begin = [&](uint64_t step) {
    page.armed.store(step, std::memory_order_release);
    if (polls) AwaitEvent(waiter);
    Check(gpushm_ring_begin_read(ring.get(), stream, &frame, kPassMs), "begin_read");
    side.Pass(step);
  };
  FollowSteps(parent, page, [&](uint64_t step) {
    ByHand(step) ? ReadByHand(side, step) : begin(step);
    page.passed_ns.store(MonotonicNs(), std::memory_order_relaxed);
    if (!ByHand(step)) {
      Check(gpushm_ring_end_read(ring.get(), stream, &frame, kPassMs), "end_read");
    }
    page.done.store(step, std::memory_order_release);
  });
}

void ReadFrames(Channel& parent, const std::vector<std::string>& arguments) {
  ReadFramesBy(parent, arguments, /*polls=*/false);
}

void PollForFrames(Channel& parent, const std::vector<std::string>& arguments) {
  ReadFramesBy(parent, arguments, /*polls=*/true);
}

// ---------------------------------------------------------------- the parent

// A broker, the child, and this process's side.
class Meeting {
 public:
  explicit Meeting(const char* role)
      : broker_(Broker::Start({.buffers = {}, .extra_bytes = 64 * kMiB})),
        started_(Connection::To(broker_)),
        child_(Child::Start(role, {broker_.folder().string()})) {
    NeedContext();
    const UniqueFd page_fd = MakeShared(sizeof(Page));
    child_.channel().Say("page", page_fd.get());
    side_.emplace(broker_.folder(), page_fd.get());
  }
  Side& side() { return *side_; }
  void AwaitReady() { child_.Expect("ready", Deadline::AfterMs(kStepMs)); }
  // The child's own message explains more than the fact that it did not arrive.
  void Explained(const std::function<void()>& steps) try {
    steps();
  } catch (const Failure& failure) {
    constexpr int64_t kLastWordsMs = 1000;
    const Result<Heard> heard = child_.channel().Hear(Deadline::AfterMs(kLastWordsMs));
    if (!heard || !heard->text.starts_with("failed")) throw;
    throw Failure(Code::kInternal, Concat(failure.status.what(), "; the child ", heard->text));
  }

 private:
  Broker broker_;
  Connection started_;
  Child child_;
  std::optional<Side> side_;
};

// `one(step)` returns how long the step took, in nanoseconds.
template <typename Step>
void MeasureSteps(benchmark::State& state, const Step& one) {
  uint64_t step = 1;
  for (; step <= kWarmSteps; ++step) one(step);
  Samples ours;
  Samples by_hand;
  for (auto _ : state) {
    for (int i = 0; i < 2; ++i, ++step) {
      const int64_t took = one(step);
      (ByHand(step) ? by_hand : ours).Add(took);
      if (!ByHand(step)) state.SetIterationTime(static_cast<double>(took) / 1e9);
    }
  }
  Show(state, Ours{ours}, Baseline{by_hand});
}

void RoundTrips(benchmark::State& state, Meeting& meeting) {
  const Side& side = meeting.side();
  const Words words = side.on_page();
  const Signal ping = OpenSignal(side, kPing, GPUSHM_SIGNAL_WRITER);
  const Signal pong = OpenSignal(side, kPong, GPUSHM_SIGNAL_WAITER);
  meeting.AwaitReady();
  Page& page = side.page();
  const auto go = [&](uint64_t step) {
    if (ByHand(step)) {
      side.Store(words.ping, step);
      side.WaitFor(words.pong, step);
    } else {
      Check(gpushm_signal_record(ping.get(), side.stream(), step), "record");
      Check(gpushm_signal_wait_on_stream(pong.get(), side.stream(), step), "wait");
    }
  };
  MeasureSteps(state, [&](uint64_t step) -> int64_t {
    page.turn.store(step, std::memory_order_release);
    Await(page.armed, step, "the child");
    const int64_t start = MonotonicNs();
    go(step);
    side.Pass(step);
    const int64_t took = MonotonicNs() - start;
    if (!ByHand(step)) Check(gpushm_signal_check(pong.get(), step), "check");
    return took;
  });
}

void Frames(benchmark::State& state, Meeting& meeting, std::chrono::milliseconds pause) {
  const Side& side = meeting.side();
  const Ring ring = OpenRing(side, GPUSHM_RING_WRITER);
  meeting.AwaitReady();
  Page& page = side.page();
  gpushm_frame frame;
  GPUSHM_INIT(&frame);
  MeasureSteps(state, [&](uint64_t step) -> int64_t {
    if (!ByHand(step)) {
      Check(gpushm_ring_begin_write(ring.get(), &frame, kPassMs), "begin_write");
      frame.bytes = frame.capacity_bytes;
    }
    page.turn.store(step, std::memory_order_release);
    Await(page.armed, step, "the child");
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const int64_t start = MonotonicNs();
    ByHand(step) ? side.Store(side.on_page().ping, step)
                 : Check(gpushm_ring_end_write(ring.get(), &frame, side.stream()), "end_write");
    Await(page.done, step, "the child");
    return page.passed_ns.load(std::memory_order_relaxed) - start;
  });
}

void SignalRoundTrip(benchmark::State& state) {
  Meeting meeting(kEcho);
  state.counters["budget_ratio"] = 1.15;
  state.SetLabel("baseline: stream memory operations on a shared page");
  meeting.Explained([&] { RoundTrips(state, meeting); });
}

void RingFrame(benchmark::State& state, const char* reader, std::chrono::milliseconds pause) {
  Meeting meeting(reader);
  if (pause.count() == 0) state.counters["budget_p50_ns"] = 15'000;
  state.SetLabel("baseline: as above; its stream waits before the frame comes");
  meeting.Explained([&] { Frames(state, meeting, pause); });
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
