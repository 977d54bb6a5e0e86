// Goal: containers pass points together, on the host and in streams. If any participant dies, all
// others learn why they cannot. Method: broker, the plugin's keeper and participants as processes;
// SIGKILL.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <thread>

#include "runtime/include/gpushm/sync.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::testing::Ne;

constexpr char kOpenTwo[] = "barrier open step 2 20000";
constexpr char kOpenThree[] = "barrier open step 3 20000";

class BarrierTest : public LinkedTest {};

TEST_F(BarrierTest, ThreeContainersPassFiftyPointsInStep) {
  Broker broker(run(), "64Mi");
  std::array<IsolatedWorker, 3> workers{IsolatedWorker(run()), IsolatedWorker(run()),
                                        IsolatedWorker(run())};
  for (IsolatedWorker& worker : workers) {
    if (!worker.started()) GTEST_SKIP() << "this system forbids namespaces";
    ASSERT_EQ(worker.Do(kOpenThree).status, GPUSHM_OK);
  }
  for (size_t point = 1; point <= 50; ++point) {
    IsolatedWorker& first = workers[point % 3];
    IsolatedWorker& second = workers[(point + 1) % 3];
    IsolatedWorker& last = workers[(point + 2) % 3];
    ASSERT_EQ(first.Do("barrier wait -1").status, GPUSHM_TIMEOUT);
    ASSERT_EQ(second.Do("barrier wait -1").status, GPUSHM_TIMEOUT);
    ASSERT_EQ(first.Do("barrier wait -1").status, GPUSHM_TIMEOUT)
        << "a repeated wait must not count as another arrival";
    for (IsolatedWorker* const worker : {&last, &first, &second}) {
      const Answer passed = worker->Do("barrier wait 0");
      ASSERT_EQ(passed.status, GPUSHM_OK);
      EXPECT_EQ(passed.value, point);
    }
  }
}

TEST_F(BarrierTest, AKilledParticipantIsToldOfAndAllGoOnInANewGeneration) {
  auto [broker, first, second] = Pair(run());
  std::optional<Worker> doomed(run());
  for (Worker* const worker : {&first, &second, &*doomed}) {
    ASSERT_TRUE(worker->Begin(kOpenThree)) << "the command could not be sent to the worker";
  }
  const Answer old = first.Await("barrier open");
  ASSERT_EQ(old.status, GPUSHM_OK);
  EXPECT_EQ(second.Await("barrier open").value, old.value);
  EXPECT_EQ(doomed->Await("barrier open").value, old.value);
  ASSERT_TRUE(first.Begin("barrier wait 20000"));
  ASSERT_TRUE(second.Begin("barrier wait 20000"));
  doomed->Kill();
  EXPECT_EQ(first.Await("barrier wait").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(second.Await("barrier wait").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(first.Do("barrier wait 0").status, GPUSHM_PEER_DIED)
      << "a broken barrier must stay broken";
  ASSERT_EQ(first.Do("barrier close").status, GPUSHM_OK);
  ASSERT_EQ(second.Do("barrier close").status, GPUSHM_OK);
  doomed.emplace(run());
  const Answer next = first.Do(kOpenThree);
  ASSERT_EQ(next.status, GPUSHM_OK);
  EXPECT_GT(next.value, old.value);
  EXPECT_EQ(doomed->Do(kOpenThree).value, next.value);
  EXPECT_EQ(second.Do(kOpenThree).value, next.value);
  ASSERT_TRUE(first.Begin("barrier wait 20000"));
  ASSERT_TRUE(second.Begin("barrier wait 20000"));
  EXPECT_EQ(doomed->Do("barrier wait 20000").value, 1);
  EXPECT_EQ(first.Await("barrier wait").value, 1);
  EXPECT_EQ(second.Await("barrier wait").value, 1);
}

TEST_F(BarrierTest, ATimeoutNamesWhoIsMissing) {
  auto [broker, first, second] = Pair(run(), {kOpenTwo});
  Answer missing = first.Do("barrier wait 50");
  EXPECT_EQ(missing.status, GPUSHM_TIMEOUT);
  EXPECT_EQ(missing.value, -1) << "the missing one has not joined, so the error can name no client";
  ASSERT_EQ(second.Do(kOpenTwo).status, GPUSHM_OK);
  EXPECT_EQ(second.Do("barrier wait 0").value, 1);
  missing = second.Do("barrier wait 50");
  EXPECT_EQ(missing.status, GPUSHM_TIMEOUT);
  EXPECT_GT(missing.value, 0) << "the error must name the client that is missing";
  EXPECT_EQ(first.Do("barrier wait 0").status, GPUSHM_OK);
}

TEST_F(BarrierTest, AllGiveTheSameNumber) {
  auto [broker, first, second] = Pair(run());
  Worker third(run());
  ASSERT_EQ(first.Do("barrier open step 0 0").status, GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(first.Do("barrier open step 129 0").status, GPUSHM_INVALID_ARGUMENT);
  const Answer old = first.Do(kOpenTwo);
  ASSERT_EQ(old.status, GPUSHM_OK);
  EXPECT_EQ(third.Do(kOpenThree).status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(third.Do("signal open step r -1").status, GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(second.Do(kOpenTwo).status, GPUSHM_OK);
  EXPECT_EQ(third.Do("barrier open step 2 -1").status, GPUSHM_BUSY);
  EXPECT_EQ(third.Do("barrier open step 2 50").status, GPUSHM_TIMEOUT);
  // A process that waits for a place gets one in the next generation.
  ASSERT_TRUE(third.Begin(kOpenTwo));
  second.Kill();
  EXPECT_GT(third.Await("barrier open").value, old.value);
}

TEST_F(BarrierTest, StreamsPassTogether) {
  auto [broker, writer, reader] =
      Pair(run(), {"create frame 1048576"}, {"attach frame r 0", kOpenTwo});
  EXPECT_EQ(reader.Do("barrier await 0").status, GPUSHM_BUSY)
      << "a stream must not wait before all participants have joined";
  ASSERT_EQ(writer.Do(kOpenTwo).status, GPUSHM_OK);
  for (int i = 1; i <= 20; ++i) {
    ASSERT_EQ(reader.Do("barrier await 0").status, GPUSHM_OK);
    ASSERT_EQ(reader.Do("signal get 0").status, 0);
    EXPECT_EQ(reader.Do("signal sync 0 2").status, GPUSHM_TIMEOUT);
    EXPECT_EQ(reader.Do("barrier check").status, GPUSHM_BUSY);
    ASSERT_EQ(writer.Do(Concat("signal put 0 ", 1000 + i)).status, 0);
    ASSERT_EQ(writer.Do("barrier await 0").status, GPUSHM_OK);
    ASSERT_EQ(reader.Do("signal sync 0 20000").status, 0);
    ASSERT_EQ(writer.Do("signal sync 0 20000").status, 0);
    EXPECT_EQ(reader.Do("signal word").value, 1000 + i);
    EXPECT_EQ(reader.Do("barrier check").status, GPUSHM_OK);
    EXPECT_EQ(writer.Do("barrier check").status, GPUSHM_OK);
  }
  // At the next point, the host takes part just as a stream does.
  ASSERT_EQ(reader.Do("barrier await 3").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("barrier wait 0").value, 21);
  EXPECT_EQ(reader.Do("signal sync 3 20000").status, 0);
}

TEST_F(BarrierTest, OneStreamArrivesAtATime) {
  auto [broker, first, second] = Pair(run(), {kOpenTwo}, {kOpenTwo});
  ASSERT_EQ(first.Do("barrier await 0").status, GPUSHM_OK);
  ASSERT_EQ(first.Do("barrier await 0").status, GPUSHM_OK)
      << "the same stream may arrive again behind its first wait";
  EXPECT_EQ(first.Do("barrier await 1").status, GPUSHM_BUSY);
  EXPECT_EQ(first.Do("barrier wait 0").status, GPUSHM_BUSY);
  EXPECT_EQ(first.Do("barrier close").status, GPUSHM_BUSY);
  EXPECT_EQ(second.Do("barrier wait 0").value, 1);
  EXPECT_EQ(second.Do("barrier wait 0").value, 2);
  ASSERT_EQ(first.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(first.Do("barrier check").status, GPUSHM_OK);
  EXPECT_EQ(first.Do("barrier close").status, GPUSHM_OK);
  EXPECT_EQ(second.Do("barrier wait 0").status, GPUSHM_ENDED)
      << "the barrier must end when a participant leaves";
}

TEST_F(BarrierTest, TheStreamsOfAProcessWaitForEventsOfTheirOwn) {
  Broker broker(run(), "64Mi");
  Worker worker(run());
  ASSERT_EQ(worker.Do(kOpenTwo).status, GPUSHM_OK);
  ASSERT_EQ(worker.Do(kOpenTwo).status, GPUSHM_OK);
  EXPECT_EQ(worker.Do("barrier joined").value, 2);
  EXPECT_EQ(worker.Do("barrier await 0").status, GPUSHM_INVALID_ARGUMENT);
}

TEST_F(BarrierTest, AStreamThatWaitsGoesOnWhenOneIsKilled) {
  auto [broker, first, second] = Pair(run());
  std::optional<Worker> doomed(run());
  for (Worker* const worker : {&first, &second, &*doomed}) {
    ASSERT_EQ(worker->Do(kOpenThree).status, GPUSHM_OK);
  }
  ASSERT_EQ(first.Do("barrier await 0").status, GPUSHM_OK);
  doomed->Kill();
  EXPECT_EQ(first.Do("signal sync 0 20").status, GPUSHM_TIMEOUT)
      << "the stream must wait while the second participant may still arrive";
  // The second one does not arrive but learns of the death, so the first one need not wait for it.
  EXPECT_EQ(second.Do("barrier wait 20000").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(first.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(first.Do("barrier check").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(first.Do("barrier await 0").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(first.Do("barrier close").status, GPUSHM_OK);
  EXPECT_EQ(second.Do("barrier close").status, GPUSHM_OK);
}

TEST_F(BarrierTest, NobodyNoticesThatTheBrokerWasKilled) {
  StartKeeper();
  auto [broker, first, second] = Pair(run(), {}, {}, Linked());
  const Answer old = first.Do(kOpenTwo);
  ASSERT_EQ(second.Do(kOpenTwo).value, old.value);
  for (int point = 1; point <= 6; ++point) {
    broker.Kill();
    ASSERT_TRUE(first.Begin("barrier wait 20000"));
    if (point % 2 == 0) broker.Start();
    EXPECT_EQ(second.Do("barrier wait 20000").value, point);
    EXPECT_EQ(first.Await("barrier wait").value, point);
  }
  broker.Kill();
  second.Kill();
  EXPECT_EQ(first.Do("barrier wait 50").status, GPUSHM_TIMEOUT)
      << "without a broker, nobody can report the death";
  broker.Start();
  EXPECT_EQ(first.Do("barrier wait 20000").status, GPUSHM_PEER_DIED);
  ASSERT_EQ(first.Do("barrier close").status, GPUSHM_OK);
  EXPECT_THAT(first.Do(kOpenTwo).value, Ne(old.value));
}

// A participant and the broker are killed at random moments: the others agree about the last point.
TEST_F(BarrierTest, WhoeverIsKilledTheOthersAgree) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  std::mt19937 random(20261122);
  const auto later = [&] {
    const std::chrono::microseconds moment(random() % 10'000);
    std::this_thread::sleep_for(moment);  // sleep: a random moment
  };
  Worker first(run());
  Worker second(run());
  int64_t points = 0;
  for (int round = 0; round < 100; ++round) {
    std::optional<Worker> doomed(run());
    const std::array<Worker*, 3> all{&first, &second, &*doomed};
    for (Worker* const worker : all) ASSERT_TRUE(worker->Begin(kOpenThree));
    for (Worker* const worker : all) {
      ASSERT_EQ(worker->Await("barrier open").status, GPUSHM_OK) << "in round " << round;
    }
    for (Worker* const worker : all) ASSERT_TRUE(worker->Begin("barrier pump"));
    later();
    broker.Kill();
    later();
    doomed->Kill();
    later();
    broker.Start();
    const Answer one = first.Await("barrier pump");
    const Answer other = second.Await("barrier pump");
    EXPECT_EQ(one.status, GPUSHM_PEER_DIED) << "in round " << round;
    EXPECT_EQ(other.status, GPUSHM_PEER_DIED) << "in round " << round;
    EXPECT_EQ(one.value, other.value) << "in round " << round;
    points += one.value;
    ASSERT_EQ(first.Do("barrier close").status, GPUSHM_OK);
    ASSERT_EQ(second.Do("barrier close").status, GPUSHM_OK);
  }
  EXPECT_GT(points, 100) << "the participants must pass points before they are killed";
}

}  // namespace
}  // namespace gpushm::integration
