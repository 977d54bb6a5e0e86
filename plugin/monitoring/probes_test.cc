// Goal: probes report a hung thread, and what keeps the plugin from its work.
#include "plugin/monitoring/probes.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "platform/base/clock.h"
#include "platform/daemon/event_loop.h"

namespace gpushm::plugin::monitoring {
namespace {

using ::testing::HasSubstr;

// Everything works except what a test changes.
struct Node {
  int64_t busy_ms = 0;
  int64_t since_look_ms = 0;

  ProbeSources Sources() {
    return {.loops = {{"of the main loop", [] { return int64_t{0}; }},
                      {"of the links", [this] { return busy_ms; }}},
            .since_look_ms = [this] { return since_look_ms; },
            .registration = {}};
  }
};

TEST(Probes, AThreadThatHangsIsNeitherLiveNorReady) {
  Node node;
  const ProbeSources sources = node.Sources();
  EXPECT_EQ(Live(sources).status, 200);
  EXPECT_EQ(Ready(sources).status, 200);
  node.busy_ms = kLoopHangsMs + 1;
  for (const http::Answer& answer : {Live(sources), Ready(sources)}) {
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(*answer.body.text(), HasSubstr("the thread of the links hangs"));
  }
  node.busy_ms = kLoopHangsMs;
  EXPECT_EQ(Live(sources).status, 200);
}

// A restart would not help.
TEST(Probes, ASickGpuIsLiveAndNotReady) {
  Node node;
  node.since_look_ms = kNvmlHangsMs + 1;
  const ProbeSources sources = node.Sources();
  EXPECT_EQ(Live(sources).status, 200);
  EXPECT_EQ(Ready(sources).status, 503);
  EXPECT_THAT(*Ready(sources).body.text(), HasSubstr("NVML hangs"));
}

TEST(Probes, WithoutTheKubeletItIsLiveAndNotReady) {
  Node node;
  ProbeSources sources = node.Sources();
  sources.registration = [] { return kubelet::State(); };
  EXPECT_EQ(Live(sources).status, 200);
  EXPECT_EQ(Ready(sources).status, 503);
  EXPECT_THAT(*Ready(sources).body.text(), HasSubstr("is not registered with the kubelet"));
}

// Goal: a loop reports for how long it has been held up, also while it is. Method: a task that
// waits until the report was read.
TEST(EventLoopBusy, ALoopThatIsHeldUpTellsForHowLong) {
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  EXPECT_EQ((*loop)->BusyMs(), 0);
  std::thread runs([&] { (*loop)->Run(); });
  std::promise<void> seen;
  (*loop)->Post([end = seen.get_future().share()] { end.wait(); });
  const Deadline deadline = Deadline::AfterMs(30'000);
  while ((*loop)->BusyMs() < 20 && !deadline.Passed()) std::this_thread::yield();
  EXPECT_GE((*loop)->BusyMs(), 20);
  seen.set_value();
  while ((*loop)->BusyMs() != 0 && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ((*loop)->BusyMs(), 0);
  (*loop)->Stop();
  runs.join();
}

}  // namespace
}  // namespace gpushm::plugin::monitoring
