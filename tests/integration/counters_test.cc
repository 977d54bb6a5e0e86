// Goal: the plugin shows what the processes of a pod did, also for processes that are gone, and
// over brokers that were killed. Method: the library in separate processes, the real broker, and
// the plugin's keeper.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using protocol::Counter;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class CountersTest : public LinkedTest {
 protected:
  void SetUp() override {
    LinkedTest::SetUp();
    StartKeeper();
  }

  plugin::keeper::LinkView Look() { return std::move(keeper_->Look().front()); }
  // The values of the only container.
  protocol::CounterValues Values() {
    const plugin::keeper::LinkView view = Look();
    return view.counters.empty() ? protocol::CounterValues{} : view.counters.front().values;
  }
  uint64_t Value(Counter counter) { return Values()[protocol::WordOf(counter)]; }
  bool WaitFor(Counter counter, uint64_t value) {
    return Eventually([&] { return Value(counter) == value; });
  }

  uint64_t missed_ = 0;  // Detaches that no broker had read before it was killed.
};

TEST_F(CountersTest, ThePluginShowsWhatProcessesDid) {
  const Broker broker(run(), "64Mi", Linked());
  const std::string path = folder_ + "/content";
  std::ofstream(path) << std::string(kMiB, 'x');
  // A load waits until what nothing announces has not changed for some seconds.
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) - std::chrono::hours(1));
  {
    Worker worker(run());
    ASSERT_EQ(worker.Do("create weights " + std::to_string(kMiB)).status, GPUSHM_OK);
    Worker reader(run());
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
    }
    ASSERT_EQ(reader.Do("detach").status, GPUSHM_OK);
    EXPECT_EQ(reader.Do("attach nothing r 30").status, GPUSHM_TIMEOUT);
    ASSERT_EQ(worker.Do("create other 4096").status, GPUSHM_OK);
    ASSERT_EQ(reader.Do("attach other r 0").status, GPUSHM_OK);
    ASSERT_EQ(reader.Do("detach").status, GPUSHM_OK);
    EXPECT_EQ(reader.Do("delete nothing").status, GPUSHM_NOT_FOUND);
    ASSERT_EQ(worker.Do("load weights " + path).status, GPUSHM_OK);
    ASSERT_EQ(worker.Do("save weights " + path + ".copy").status, GPUSHM_OK);
    ASSERT_EQ(worker.Do("offer mine 2097152 7 vmm").status, GPUSHM_OK);
    ASSERT_EQ(worker.Do("offer copied 2097152 7 copy").status, GPUSHM_OK);
    ASSERT_TRUE(WaitFor(Counter::kOffers, 2));
    ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  }
  // Both processes were killed. None of their counts is lost, not even the last ones.
  ASSERT_TRUE(WaitFor(Counter::kCachedAttaches, 6));
  const plugin::keeper::LinkView view = Look();
  ASSERT_EQ(view.counters.size(), 1u);
  EXPECT_EQ(view.counters[0].container, "main");
  const auto at = [&](auto what) { return view.counters[0].values[protocol::WordOf(what)]; };
  EXPECT_EQ(at(Counter::kCreates), 2u) << "an offer that was copied must not count as a create";
  EXPECT_EQ(at(Counter::kFirstAttaches), 3u) << "expected two by the reader and one by the save";
  EXPECT_EQ(at(Counter::kCachedAttaches), 6u) << "expected five by the reader and one by the load";
  EXPECT_GT(at(Counter::kFirstAttachNs), 0u);
  EXPECT_EQ(at(Counter::kDetaches), 3u)
      << "only \"other\", the copied offer and the save were unmapped; the others must not count";
  EXPECT_EQ(at(Counter::kWaits), 0u);
  EXPECT_EQ(at(Counter::kWaitsTimedOut), 1u);
  EXPECT_GE(at(Counter::kWaitNs), 29'000'000u);
  EXPECT_EQ(at(Counter::kLoads), 1u);
  EXPECT_EQ(at(Counter::kLoadedBytes), kMiB);
  EXPECT_EQ(at(Counter::kSaves), 1u);
  EXPECT_EQ(at(Counter::kSavedBytes), kMiB);
  EXPECT_EQ(at(Code::kTimeout), 1u);
  EXPECT_EQ(at(Code::kNotFound), 1u);
  uint64_t attaches = 0;
  for (size_t i = 0; i < protocol::kFirstAttachBuckets; ++i) {
    attaches += view.counters[0].values[protocol::kFirstAttachBucketsAt + i];
  }
  EXPECT_EQ(attaches, 3u);
  ASSERT_TRUE(view.broker_ready_seconds);
  EXPECT_GT(*view.broker_ready_seconds, 0);
  EXPECT_LT(*view.broker_ready_seconds, 60);
}

// A standby attaches the page repeatedly only to inspect it.
TEST_F(CountersTest, SignalsAreNoAttachesOfBuffers) {
  const Broker broker(run(), "64Mi", Linked());
  {
    Worker writer(run());
    Worker standby(run());
    ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
    EXPECT_EQ(standby.Do("signal open ready w 20").status, GPUSHM_TIMEOUT);
    ASSERT_EQ(standby.Do("signal open ready r 0").status, GPUSHM_OK);
    ASSERT_EQ(standby.Do("signal close").status, GPUSHM_OK);
    ASSERT_EQ(writer.Do("create last 4096").status, GPUSHM_OK);
  }
  ASSERT_TRUE(WaitFor(Counter::kCreates, 1));
  EXPECT_EQ(Value(Counter::kFirstAttaches), 0u);
  EXPECT_EQ(Value(Counter::kCachedAttaches), 0u);
  EXPECT_EQ(Value(Counter::kDetaches), 0u);
}

// Goal: a broker that is killed at any time takes no count back and adds none twice. Method: a
// process attaches and detaches continuously while brokers are killed at different times. No total
// falls or exceeds what was done, and only counts that a broker had not read may be missing.
TEST_F(CountersTest, AKilledBrokerLeavesNoWrongTotals) {
#ifdef GPUSHM_SANITIZED
  constexpr int kRounds = 5;
#else
  constexpr int kRounds = 12;
#endif
  Broker broker(run(), "64Mi", Linked());
  Worker maker(run());
  ASSERT_EQ(maker.Do("create weights " + std::to_string(kMiB)).status, GPUSHM_OK);
  ASSERT_TRUE(WaitFor(Counter::kCreates, 1));
  Worker worker(run());
  uint64_t done = 0;
  protocol::CounterValues shown{};
  const auto expect_sane = [&] {
    const protocol::CounterValues now = Values();
    for (size_t i = 0; i < now.size(); ++i) {
      ASSERT_GE(now[i], shown[i]) << "counter word " << i << " must not go back";
    }
    shown = now;
    ASSERT_LE(shown[protocol::WordOf(Counter::kFirstAttaches)], done);
  };
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i <= round; ++i) {
      ASSERT_EQ(worker.Do("attach weights r 0").status, GPUSHM_OK);
      ++done;
      ASSERT_EQ(worker.Do("detach").status, GPUSHM_OK);
      expect_sane();
    }
    const uint64_t before = shown[protocol::WordOf(Counter::kFirstAttaches)];
    if (round % 2 == 0) {
      // All counts under this broker have arrived before it is killed.
      ASSERT_TRUE(Eventually([&] {
        expect_sane();
        return HasFailure() || shown[protocol::WordOf(Counter::kDetaches)] >= done - missed_;
      }));
    }
    broker.Kill();
    expect_sane();
    EXPECT_GE(shown[protocol::WordOf(Counter::kFirstAttaches)], before);
    missed_ = done - shown[protocol::WordOf(Counter::kDetaches)];
    broker.Start();
    expect_sane();
  }
  EXPECT_EQ(shown[protocol::WordOf(Counter::kCreates)], 1u);
}

}  // namespace
}  // namespace gpushm::integration
