// Goal: however many callers there are, answers are made one at a time and few of them exist.
#include "plugin/metrics/shared_answer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace gpushm::plugin::metrics {
namespace {

Deadline Soon() { return Deadline::AfterMs(30'000); }

// Makes "1", "2", ...; waits before each until the test releases it.
class Maker {
 public:
  std::string Make() {
    EXPECT_FALSE(making_.exchange(true)) << "two at the same time";
    const int number = ++begun_;
    while (allowed_ < number && !ends_.Passed()) std::this_thread::yield();
    making_ = false;
    return std::to_string(number);
  }
  void Allow(int number) { allowed_ = number; }
  bool WaitBegun(int number) const {
    while (begun_ < number && !ends_.Passed()) std::this_thread::yield();
    return begun_ >= number;
  }
  int begun() const { return begun_; }

 private:
  const Deadline ends_ = Soon();
  std::atomic<bool> making_ = false;
  std::atomic<int> begun_ = 0;
  std::atomic<int> allowed_ = 0;
};

TEST(SharedAnswer, EachCallerByItselfGetsAnAnswerOfItsOwn) {
  int made = 0;
  SharedAnswer answer([&] { return std::to_string(++made); });
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(*answer.Get(Soon()), std::to_string(i));
}

// Goal: a caller that comes while an answer is made shares the next one, which begins after it
// came.
TEST(SharedAnswer, CallersAtTheSameTimeShare) {
  Maker maker;
  SharedAnswer answer([&] { return maker.Make(); });
  auto first = std::async(std::launch::async, [&] { return answer.Get(Soon()); });
  ASSERT_TRUE(maker.WaitBegun(1));
  std::atomic<int> asking = 0;
  std::vector<std::future<SharedAnswer::Text>> others;
  for (int i = 0; i < 16; ++i) {
    others.push_back(std::async(std::launch::async, [&] {
      ++asking;
      return answer.Get(Soon());
    }));
  }
  while (asking < 16) std::this_thread::yield();
  maker.Allow(1000);
  EXPECT_EQ(*first.get(), "1");
  for (auto& other : others) {
    const SharedAnswer::Text text = other.get();
    ASSERT_NE(text, nullptr);
    EXPECT_NE(*text, "1");
  }
}

// Goal: slow readers cannot keep many answers alive. Method: callers that keep what they got.
TEST(SharedAnswer, WhileOthersReadThereAreFew) {
  int made = 0;
  SharedAnswer answer([&] { return std::to_string(++made); });
  std::vector<SharedAnswer::Text> kept;
  for (int i = 0; i < 10; ++i) kept.push_back(answer.Get(Soon()));
  EXPECT_EQ(made, static_cast<int>(SharedAnswer::kMostAnswers));
  EXPECT_EQ(*kept.back(), std::to_string(SharedAnswer::kMostAnswers)) << "the newest answer";
  kept.clear();
  EXPECT_EQ(*answer.Get(Soon()), std::to_string(SharedAnswer::kMostAnswers + 1));
}

TEST(SharedAnswer, NobodyWaitsBeyondTheDeadline) {
  Maker maker;
  SharedAnswer answer([&] { return maker.Make(); });
  auto first = std::async(std::launch::async, [&] { return answer.Get(Soon()); });
  ASSERT_TRUE(maker.WaitBegun(1));
  EXPECT_EQ(answer.Get(Deadline::AfterMs(10)), nullptr);
  maker.Allow(1000);
  EXPECT_EQ(*first.get(), "1");
  EXPECT_NE(answer.Get(Soon()), nullptr);
}

}  // namespace
}  // namespace gpushm::plugin::metrics
