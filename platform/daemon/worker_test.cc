#include "platform/daemon/worker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

namespace gpushm {
namespace {

constexpr std::chrono::seconds kPatience{20};

// A task that blocks until the test ends or releases it.
class Blocked {
 public:
  explicit Blocked(Worker* worker) {
    worker->Run([started = started_, end = end_.get_future().share()] {
      started->set_value();
      end.wait();
    });
  }
  ~Blocked() { end_.set_value(); }
  bool WaitForStart() {
    return started_->get_future().wait_for(kPatience) == std::future_status::ready;
  }

 private:
  std::shared_ptr<std::promise<void>> started_ = std::make_shared<std::promise<void>>();
  std::promise<void> end_;
};

// Whether a task that is added now runs.
bool Runs(Worker* worker) {
  const auto ran = std::make_shared<std::promise<void>>();
  auto future = ran->get_future();
  worker->Run([ran] { ran->set_value(); });
  return future.wait_for(kPatience) == std::future_status::ready;
}

TEST(Worker, ATaskRightBehindOneThatBlocksRuns) {
  Worker worker(2);
  Blocked blocked(&worker);
  ASSERT_TRUE(blocked.WaitForStart());
  EXPECT_TRUE(Runs(&worker));
  EXPECT_TRUE(Runs(&worker)) << "later tasks must run, too";
}

// Goal: tasks that arrive together do not block each other.
// Method: all threads but one block.
TEST(Worker, TasksThatBlockTakeAllThreadsButOne) {
  Worker worker(4);
  Blocked first(&worker);
  Blocked second(&worker);
  Blocked third(&worker);
  EXPECT_TRUE(Runs(&worker));
}

TEST(Worker, WithAllThreadsBlockedATaskWaitsUntilOneEnds) {
  Worker worker(2);
  Blocked first(&worker);
  std::optional<Blocked> second(&worker);
  ASSERT_TRUE(first.WaitForStart() && second->WaitForStart());
  const auto ran = std::make_shared<std::promise<void>>();
  worker.Run([ran] { ran->set_value(); });
  EXPECT_EQ(worker.backlog(), 3u);
  second.reset();
  EXPECT_EQ(ran->get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(Worker, OneThreadRunsTasksInOrderAndAllBeforeItEnds) {
  std::vector<int> order;
  {
    Worker worker;
    for (int i = 0; i < 1000; ++i) worker.Run([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace gpushm
