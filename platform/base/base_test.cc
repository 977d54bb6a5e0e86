#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "platform/base/alarm.h"
#include "platform/base/clock.h"
#include "platform/base/nearest.h"
#include "platform/base/status.h"
#include "platform/base/testing/code.h"
#include "platform/base/unique_fd.h"

namespace gpushm {
namespace {

TEST(Status, SaysWhatFailedAndWhatToDo) {
  const Status status(Code::kNotFound, "no buffer \"weigths\"", "gpushmctl ls shows the names");
  EXPECT_EQ(status.ToString(),
            "NOT_FOUND: no buffer \"weigths\". Remedy: gpushmctl ls shows the names");
  const Status outer = status.WithContext("attach");
  EXPECT_EQ(outer.what(), "attach: no buffer \"weigths\"");
  EXPECT_EQ(outer.remedy(), status.remedy());
}

TEST(Status, EveryCodeHasAName) {
  for (int code = 1; code <= kMaxCode; ++code) {
    EXPECT_NE(CodeName(static_cast<Code>(code)), "UNKNOWN") << code;
  }
  EXPECT_EQ(CodeName(static_cast<Code>(kMaxCode + 1)), "UNKNOWN");
  EXPECT_EQ(CodeName(Code::kInternal), "INTERNAL");
}

TEST(Nearest, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0U);
  EXPECT_EQ(EditDistance("size", ""), 4U);
  EXPECT_EQ(EditDistance("szie", "size"), 2U);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
}

TEST(Nearest, SimilarNamesAreThoseOfASlip) {
  const std::vector<std::string_view> names = {"kv-cache", "weights", "weights-1", "weight", "a"};
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(Similar("weigths", names), (Names{"weights", "weight"}));
  EXPECT_EQ(Similar("weights-", names), (Names{"weights", "weights-1", "weight"}));
  EXPECT_EQ(Similar("kvcache", names), Names{"kv-cache"});
  EXPECT_EQ(Similar("b", names), Names{"a"});
  EXPECT_EQ(Similar("frames", names), Names{});
  EXPECT_EQ(Similar("weights", {}), Names{});
}

TEST(UniqueFd, ClosesWhatItOwnsAndNothingElse) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd reader(ends[0]);
  {
    UniqueFd writer(ends[1]);
    UniqueFd moved(std::move(writer));
    EXPECT_FALSE(writer.valid());  // NOLINT(bugprone-use-after-move): what is tested
  }
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "the write end is still open";
  const int released = reader.Release();
  EXPECT_EQ(close(released), 0);
}

// Goal: a caller that repeatedly waits for RemainingMs() neither wakes early nor spins.
// Method: a deadline of less than a millisecond, checked until it has passed.
TEST(Deadline, NeverEndsEarly) {
  constexpr int64_t kWaitNs = 900'000;
  const int64_t start_ns = MonotonicNs();
  const Deadline deadline = Deadline::After(std::chrono::nanoseconds(kWaitNs));
  int remaining_ms = 1;
  while (remaining_ms > 0) {
    remaining_ms = deadline.RemainingMs();
    EXPECT_LE(remaining_ms, 1);
  }
  EXPECT_TRUE(deadline.Passed());
  EXPECT_GE(MonotonicNs() - start_ns, kWaitNs);
}

TEST(Deadline, DoesNotOverflow) {
  EXPECT_TRUE(Deadline::AfterMs(-5).Passed());
  EXPECT_EQ(Deadline::AfterMs(0).RemainingMs(), 0);
  EXPECT_GT(Deadline::After(std::chrono::nanoseconds(INT64_MAX)).RemainingNs(), INT64_MAX / 2);
  EXPECT_GT(Deadline::AfterMs(60'000).RemainingMs(), 59'000);
}

TEST(CodeOf, AFailureShowsTheText) {
  const Result<void> failed = Fail(Code::kNotFound, "no buffer \"x\"", "create it");
  EXPECT_EQ(testing::CodeOf(failed), Code::kNotFound);
  EXPECT_EQ(testing::CodeOf(Result<void>()), 0);
  EXPECT_NONFATAL_FAILURE(
      EXPECT_EQ(testing::CodeOf(Result<void>(Fail(Code::kNotFound, "no buffer \"x\""))), 0),
      "no buffer \"x\"");
}

// ---- alarm

TEST(Alarm, WakesEachEpollInstanceOnceForEachRing) {
  const auto alarm = MakeAlarm();
  ASSERT_TRUE(alarm) << alarm.error().ToString();
  std::vector<UniqueFd> listeners;
  for (int i = 0; i < 3; ++i) {
    listeners.emplace_back(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
    ASSERT_EQ(epoll_ctl(listeners.back().get(), EPOLL_CTL_ADD, alarm->get(), &event), 0);
  }
  for (int ring = 0; ring < 3; ++ring) {
    ASSERT_TRUE(RingAlarm(alarm->get()));
    for (const UniqueFd& listener : listeners) {
      // The instance itself can be polled, as an event loop does.
      pollfd outer{.fd = listener.get(), .events = POLLIN, .revents = 0};
      EXPECT_EQ(poll(&outer, 1, 10'000), 1);
      epoll_event event{};
      EXPECT_EQ(epoll_wait(listener.get(), &event, 1, 0), 1);
      EXPECT_EQ(poll(&outer, 1, 0), 0);
    }
  }
}

TEST(Alarm, OnlyAnAlarmRings) {
  const UniqueFd other(eventfd(0, EFD_CLOEXEC));
  EXPECT_FALSE(RingAlarm(other.get()));
  EXPECT_FALSE(RingAlarm(-1));
}

}  // namespace
}  // namespace gpushm
