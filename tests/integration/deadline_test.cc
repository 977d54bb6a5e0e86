// Goal: a call ends at its deadline, even a short one, when the broker is stopped and answers no
// request. Method: a real broker and SIGSTOP. A deadline is about time, so time is measured: the
// minimum of up to twenty calls, which other load on the machine cannot shorten.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/sync.h"
#include "platform/base/clock.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "tests/integration/shared_broker.h"

namespace gpushm::integration {
namespace {

constexpr int64_t kShortMs = 50;
// A call may end 50 ms after its deadline: so long it asks who the other participants are, for its
// error text (kWhoIsMs of runtime/client/sync/open_page.cc). 20 ms more for the machine to run it.
constexpr int64_t kLateMs = kShortMs + 50 + 20;
constexpr int64_t kAnswerMs = 1500;  // For what allows a broker one second.

class DeadlineTest : public SharedBrokerTest {
 protected:
  void SetUp() override {
    client_ = OpenClient(run());
    ASSERT_EQ(gpushm_create(client_, "weights", 4096, nullptr, &made_), GPUSHM_OK)
        << gpushm_last_error()->text;
    // The first attach of a process takes long, because it initialises the driver.
    ASSERT_EQ(Attach(), GPUSHM_OK) << gpushm_last_error()->text;
  }
  void StopBroker() {
    kill(broker_->pid(), SIGSTOP);
    // From here on there is no connection, because this call gave it up.
    EXPECT_EQ(Create(kShortMs), GPUSHM_TIMEOUT);
  }
  void TearDown() override {
    kill(broker_->pid(), SIGCONT);
    EXPECT_EQ(Delete(kPatienceMs), GPUSHM_OK) << gpushm_last_error()->text;
    gpushm_close(client_);
  }

  gpushm_status Attach(int64_t timeout_ms = kPatienceMs, const char* name = "weights") {
    auto options = Sized<gpushm_attach_options>();
    options.timeout_ms = timeout_ms;
    gpushm_attachment* attached = nullptr;
    const gpushm_status status = gpushm_attach(client_, name, &options, &attached);
    if (status == GPUSHM_OK) gpushm_attachment_detach(attached, nullptr);
    return status;
  }
  gpushm_status Create(int64_t timeout_ms) {
    auto options = Sized<gpushm_create_options>();
    options.timeout_ms = timeout_ms;
    options.unpublished = 1;
    gpushm_attachment* made = nullptr;
    return gpushm_create(client_, "other", 4096, &options, &made);
  }
  gpushm_status Delete(int64_t timeout_ms) {
    auto options = Sized<gpushm_delete_options>();
    options.timeout_ms = timeout_ms;
    return gpushm_delete(client_, "weights", &options);
  }
  gpushm_status WaitFor(int64_t timeout_ms) {
    auto options = Sized<gpushm_wait_options>();
    options.timeout_ms = timeout_ms;
    return gpushm_wait(client_, "never", 0, &options, nullptr);
  }

  // The shortest of up to twenty calls. Ends with the first call that takes less than `late_ms`.
  static int64_t TakesMs(const std::function<gpushm_status()>& call, int64_t late_ms = kLateMs) {
    int64_t least_ms = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 20 && least_ms >= late_ms; ++i) {
      const int64_t begun_ns = MonotonicNs();
      EXPECT_NE(call(), GPUSHM_OK);
      least_ms = std::min(least_ms, (MonotonicNs() - begun_ns) / 1'000'000);
    }
    return least_ms;
  }

  gpushm_client* client_ = nullptr;
  gpushm_attachment* made_ = nullptr;
};

TEST_F(DeadlineTest, Attach) {
  StopBroker();
  EXPECT_LT(TakesMs([&] { return Attach(kShortMs); }), kLateMs);
  EXPECT_LT(TakesMs([&] { return Attach(kShortMs, "never"); }), kLateMs);
}

TEST_F(DeadlineTest, Wait) {
  StopBroker();
  EXPECT_LT(TakesMs([&] { return WaitFor(kShortMs); }), kLateMs);
}

// If the end of a lease could not be sent, the next call sends it, within that call's time.
TEST_F(DeadlineTest, CreateAfterADetach) {
  StopBroker();
  EXPECT_EQ(gpushm_attachment_detach(made_, nullptr), GPUSHM_OK);
  EXPECT_LT(TakesMs([&] { return Create(kShortMs); }), kLateMs);
}

// One request asks for all missing participants, and it takes little time.
TEST_F(DeadlineTest, ABarrierThatManyMiss) {
  constexpr uint32_t kMissing = 20;
  auto options = Sized<gpushm_barrier_options>();
  options.participants = kMissing + 1;
  std::vector<gpushm_client*> others(kMissing);
  for (gpushm_client*& other : others) other = OpenClient(run());
  std::vector<gpushm_barrier*>
      barriers;  // One for each call, because known holders are not requested again.
  for (const char* name : {"one", "two", "three"}) {
    gpushm_barrier* barrier = nullptr;
    for (gpushm_client* const other : others) {
      ASSERT_EQ(gpushm_barrier_open(other, name, &options, &barrier), GPUSHM_OK);
    }
    ASSERT_EQ(gpushm_barrier_open(client_, name, &options, &barrier), GPUSHM_OK);
    barriers.push_back(barrier);
  }
  StopBroker();
  size_t next = 0;
  EXPECT_LT(TakesMs([&] { return gpushm_barrier_wait(barriers[next++], kShortMs); }), kLateMs);
  kill(broker_->pid(), SIGCONT);
  const Deadline patience = Deadline::AfterMs(kPatienceMs);
  bool told = false;  // The holder was not known before.
  while (!told && !patience.Passed()) {
    EXPECT_EQ(gpushm_barrier_wait(barriers[0], kShortMs), GPUSHM_TIMEOUT);
    told = std::string_view(gpushm_last_error()->text).find("container \"main\"") !=
           std::string_view::npos;
  }
  EXPECT_TRUE(told) << "the error must name the container that is missing: "
                    << gpushm_last_error()->text;
  for (gpushm_client* const other : others) gpushm_close(other);
}

TEST_F(DeadlineTest, SignalsAndRings) {
  auto writing = Sized<gpushm_signal_options>();
  writing.role = GPUSHM_SIGNAL_WRITER;
  gpushm_signal* signal = nullptr;
  ASSERT_EQ(gpushm_signal_open(client_, "ready", &writing, &signal), GPUSHM_OK);
  auto making = Sized<gpushm_ring_options>();
  making.role = GPUSHM_RING_WRITER;
  making.policy = GPUSHM_RING_BACK_PRESSURE;
  making.frame_bytes = 512;
  making.frames = 2;
  gpushm_ring* writer = nullptr;
  gpushm_ring* reader = nullptr;
  ASSERT_EQ(gpushm_ring_open(client_, "video", &making, &writer), GPUSHM_OK);
  ASSERT_EQ(gpushm_ring_open(client_, "video", nullptr, &reader), GPUSHM_OK);
  auto frame = Sized<gpushm_frame>();
  for (uint32_t i = 0; i < making.frames; ++i) {
    ASSERT_EQ(gpushm_ring_begin_write(writer, &frame, 0), GPUSHM_OK);
    ASSERT_EQ(gpushm_ring_end_write(writer, &frame, GPUSHM_NO_STREAM), GPUSHM_OK);
  }
  StopBroker();
  EXPECT_LT(TakesMs([&] { return gpushm_signal_wait(signal, 1, kShortMs); }), kLateMs);
  EXPECT_LT(TakesMs([&] { return gpushm_ring_begin_write(writer, &frame, kShortMs); }), kLateMs);
  for (uint32_t i = 0; i < making.frames; ++i) {
    ASSERT_EQ(gpushm_ring_begin_read(reader, GPUSHM_NO_STREAM, &frame, 0), GPUSHM_OK);
  }
  EXPECT_LT(
      TakesMs([&] { return gpushm_ring_begin_read(reader, GPUSHM_NO_STREAM, &frame, kShortMs); }),
      kLateMs);
  auto info = Sized<gpushm_sync_info>();
  EXPECT_LT(TakesMs([&] { return gpushm_sync_lookup(client_, "ready", &info); }, kAnswerMs),
            kAnswerMs);
}

TEST_F(DeadlineTest, Opening) {
  StopBroker();
  for (const uint32_t role : {GPUSHM_SIGNAL_WAITER, GPUSHM_SIGNAL_WRITER}) {
    auto options = Sized<gpushm_signal_options>();
    options.role = role;
    options.timeout_ms = kShortMs;
    gpushm_signal* signal = nullptr;
    EXPECT_LT(TakesMs([&] { return gpushm_signal_open(client_, "new", &options, &signal); }),
              kLateMs);
  }
  for (const uint32_t role : {GPUSHM_RING_READER, GPUSHM_RING_WRITER}) {
    auto options = Sized<gpushm_ring_options>();
    options.role = role;
    if (role == GPUSHM_RING_WRITER) options.frame_bytes = 512;
    options.timeout_ms = kShortMs;
    gpushm_ring* ring = nullptr;
    EXPECT_LT(TakesMs([&] { return gpushm_ring_open(client_, "new", &options, &ring); }), kLateMs);
  }
  auto options = Sized<gpushm_barrier_options>();
  options.participants = 2;
  options.timeout_ms = kShortMs;
  gpushm_barrier* barrier = nullptr;
  EXPECT_LT(TakesMs([&] { return gpushm_barrier_open(client_, "new", &options, &barrier); }),
            kLateMs);
}

// Opens existing objects, so that the broker gets a request.
TEST_F(DeadlineTest, OpeningWhatIsThere) {
  auto options = Sized<gpushm_barrier_options>();
  options.participants = 2;
  gpushm_client* const other = OpenClient(run());
  gpushm_barrier* barrier = nullptr;
  ASSERT_EQ(gpushm_barrier_open(other, "there", &options, &barrier), GPUSHM_OK);
  auto signals = Sized<gpushm_signal_options>();
  signals.role = GPUSHM_SIGNAL_WRITER;
  gpushm_signal* signal = nullptr;
  ASSERT_EQ(gpushm_signal_open(other, "moves", &signals, &signal), GPUSHM_OK);
  auto rings = Sized<gpushm_ring_options>();
  rings.role = GPUSHM_RING_WRITER;
  rings.frame_bytes = 512;
  gpushm_ring* ring = nullptr;
  ASSERT_EQ(gpushm_ring_open(other, "turns", &rings, &ring), GPUSHM_OK);
  StopBroker();
  options.timeout_ms = signals.timeout_ms = rings.timeout_ms = kShortMs;
  EXPECT_LT(TakesMs([&] { return gpushm_barrier_open(client_, "there", &options, &barrier); }),
            kLateMs);
  EXPECT_LT(TakesMs([&] { return gpushm_signal_open(client_, "moves", &signals, &signal); }),
            kLateMs);
  EXPECT_LT(TakesMs([&] { return gpushm_ring_open(client_, "turns", &rings, &ring); }), kLateMs);
  kill(broker_->pid(), SIGCONT);
  gpushm_close(other);
}

// GPUSHM_DONT_WAIT allows a broker one second to answer, and no more.
TEST_F(DeadlineTest, DontWait) {
  StopBroker();
  EXPECT_LT(TakesMs([&] { return Attach(GPUSHM_DONT_WAIT); }, kAnswerMs), kAnswerMs);
  EXPECT_LT(TakesMs([&] { return WaitFor(GPUSHM_DONT_WAIT); }, kAnswerMs), kAnswerMs);
}

}  // namespace
}  // namespace gpushm::integration
