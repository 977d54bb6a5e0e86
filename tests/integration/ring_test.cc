// Goal: frames go from one container to others complete, in order and counted, whichever process
// dies. Method: broker, the plugin's keeper and clients as processes, streams of the driver,
// SIGKILL at random moments.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <thread>

#include "runtime/include/gpushm/sync.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

constexpr char kOldest[] = "ring write video oldest 4 65536 0";
constexpr char kPressure[] = "ring write video pressure 4 65536 0";
constexpr char kQueue[] = "ring write video queue 4 65536 0";

class RingTest : public LinkedTest {};

TEST_F(RingTest, FramesReachTwoContainersInOrder) {
  Broker broker(run(), "64Mi");
  IsolatedWorker writer(run());
  IsolatedWorker first(run());
  IsolatedWorker second(run());
  if (!writer.started() || !first.started() || !second.started()) {
    GTEST_SKIP() << "this system forbids namespaces";
  }
  const Answer made = writer.Do(kPressure);
  ASSERT_EQ(made.status, GPUSHM_OK);
  ASSERT_EQ(first.Do("ring read video 0").value, made.value);
  ASSERT_EQ(second.Do("ring read video 0").value, made.value);
  for (int i = 1; i <= 20; ++i) {
    ASSERT_EQ(writer.Do(Concat("ring put ", 100 + i)).value, i);
    for (IsolatedWorker* const reader : {&first, &second}) {
      ASSERT_EQ(reader->Do("ring begin 0").value, i);
      const Answer looked = reader->Do("ring look");
      EXPECT_EQ(looked.status, 0);
      EXPECT_EQ(looked.value, 100 + i);
      EXPECT_EQ(reader->Do("ring lost").value, 0);
      ASSERT_EQ(reader->Do("ring end").status, GPUSHM_OK);
    }
  }
  ASSERT_EQ(writer.Do("ring close").status, GPUSHM_OK);
  EXPECT_EQ(first.Do("ring begin 0").status, GPUSHM_ENDED);
  EXPECT_EQ(first.Do("ring close").status, GPUSHM_OK);
}

TEST_F(RingTest, AWriterClosesWhenItsFrameHasEnded) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do(kOldest).status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring open").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("ring close").status, GPUSHM_BUSY);
  EXPECT_EQ(writer.Do("ring abandon").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("ring close").status, GPUSHM_OK);
}

TEST_F(RingTest, AReaderThatComesFirstWaitsForTheFrame) {
  auto [broker, writer, reader] = Pair(run());
  ASSERT_TRUE(reader.Begin("ring read video 20000"));
  ASSERT_EQ(writer.Do(kOldest).status, GPUSHM_OK);
  ASSERT_EQ(reader.Await("ring read").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring begin 50").status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(reader.Begin("ring begin 20000"));
  ASSERT_EQ(writer.Do("ring put 7").status, GPUSHM_OK);
  ASSERT_EQ(reader.Await("ring begin").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring look").value, 7);
  EXPECT_EQ(reader.Do("ring end").status, GPUSHM_OK);
}

TEST_F(RingTest, ASlowReaderIsToldWhatItLost) {
  auto [broker, writer, reader] = Pair(run(), {kOldest}, {"ring read video 0"});
  ASSERT_EQ(writer.Do("ring put 1").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("ring begin 0").value, 1);
  // The reader holds the first frame, and later frames use the other slots.
  ASSERT_EQ(writer.Do("ring pump 30").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring look").value, 1)
      << "the writer must not change a frame that a reader holds";
  ASSERT_EQ(reader.Do("ring end").status, GPUSHM_OK);
  const Answer next = reader.Do("ring begin 0");
  ASSERT_EQ(next.status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring lost").value, next.value - 2);
  EXPECT_GT(next.value, 20);
  EXPECT_EQ(reader.Do("ring look").status, 0);
}

TEST_F(RingTest, WithBackPressureTheWriterWaitsForTheSlowest) {
  auto [broker, writer, reader] = Pair(run(), {kPressure}, {"ring read video 0"});
  ASSERT_EQ(writer.Do("ring pump 4").status, GPUSHM_OK);
  ASSERT_TRUE(writer.Begin("ring put 5"));
  ASSERT_EQ(reader.Do("ring begin 0").value, 1);
  ASSERT_EQ(reader.Do("ring end").status, GPUSHM_OK);
  EXPECT_EQ(writer.Await("ring put").value, 5);
  // A reader that dies blocks no other process.
  ASSERT_TRUE(writer.Begin("ring put 6"));
  reader.Kill();
  EXPECT_EQ(writer.Await("ring put").value, 6);
}

TEST_F(RingTest, AQueuesItemOfADeadWorkerGoesToAnother) {
  auto [broker, writer, first] = Pair(run());
  Worker second(run());
  ASSERT_EQ(writer.Do(kQueue).status, GPUSHM_OK);
  ASSERT_EQ(first.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(second.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring put 11").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring put 12").status, GPUSHM_OK);
  ASSERT_EQ(first.Do("ring begin 0").value, 1);
  ASSERT_EQ(second.Do("ring begin 0").value, 2) << "each item must go to one worker only";
  ASSERT_EQ(second.Do("ring end").status, GPUSHM_OK);
  ASSERT_TRUE(second.Begin("ring begin 20000"));
  first.Kill();
  EXPECT_EQ(second.Await("ring begin").value, 1);
  EXPECT_EQ(second.Do("ring delivery").value, 2);
  EXPECT_EQ(second.Do("ring look").value, 11);
  EXPECT_EQ(second.Do("ring end").status, GPUSHM_OK);
}

TEST_F(RingTest, AWritersSuccessorLeavesReadersOfTheFormerOneInPeace) {
  auto [broker, writer, reader] = Pair(run());
  const Answer first = writer.Do(kOldest);
  ASSERT_EQ(reader.Do("ring read video 0").value, first.value);
  ASSERT_EQ(writer.Do("ring put 3").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("ring begin 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("ring look").value, 3);
  writer.Kill();
  Worker successor(run());
  const Answer second = successor.Do("ring write video oldest 4 65536 20000");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_GT(second.value, first.value);
  ASSERT_EQ(successor.Do("ring pump 9").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring look").value, 3);
  EXPECT_EQ(reader.Do("ring end").status, GPUSHM_OK)
      << "the frame was complete before its writer died, so it must count";
  EXPECT_EQ(reader.Do("ring begin 0").status, GPUSHM_PEER_DIED);
  ASSERT_EQ(reader.Do("ring close").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("ring read video 0").value, second.value);
}

// Of two processes that wait to write, one makes the next ring, and readers find that one's frames.
TEST_F(RingTest, OfTwoSuccessorsOneWrites) {
  Broker broker(run(), "64Mi");
  std::optional<Worker> writer(run());
  ASSERT_EQ(writer->Do(kOldest).status, GPUSHM_OK);
  for (int round = 0; round < 5; ++round) {
    std::optional<Worker> successors[] = {std::optional<Worker>(run()),
                                          std::optional<Worker>(run())};
    for (auto& successor : successors) {
      ASSERT_TRUE(successor->Begin("ring write video oldest 4 65536 1000"));
    }
    writer->Kill();
    const Answer first = successors[0]->Await("ring write");
    const Answer second = successors[1]->Await("ring write");
    ASSERT_TRUE((first.status == GPUSHM_OK) != (second.status == GPUSHM_OK))
        << "in round " << round;
    const Answer& made = first.status == GPUSHM_OK ? first : second;
    ASSERT_EQ(Worker(run()).Do("ring read video 0").value, made.value) << "in round " << round;
    writer = std::move(successors[first.status == GPUSHM_OK ? 0 : 1]);
  }
}

// Writer, reader or broker is killed at random moments once frames arrive: no process hangs, and no
// frame that counts is torn.
TEST_F(RingTest, WhoeverIsKilledNoFrameIsTornAndAllEnd) {
  StartKeeper();
  Broker broker(run(), "128Mi", Linked());
  std::mt19937 random(20261122);
  int64_t frames = 0;
  for (int round = 0; round < 100; ++round) {
    const std::string policy = round % 2 == 0 ? "oldest" : "pressure";
    std::optional<Worker> writer(run());
    std::optional<Worker> doomed(run());
    Worker reader(run());
    ASSERT_EQ(writer->Do(Concat("ring write video ", policy, " 4 1048576 20000")).status, GPUSHM_OK)
        << "in round " << round;
    ASSERT_EQ(reader.Do("ring read video 0").status, GPUSHM_OK);
    ASSERT_EQ(doomed->Do("ring read video 0").status, GPUSHM_OK);
    ASSERT_TRUE(writer->Begin("ring pump 0"));
    ASSERT_TRUE(doomed->Begin("ring drain 0"));
    const Answer first = reader.Do("ring drain 1");
    ASSERT_EQ(first.status, 0) << "in round " << round;
    ASSERT_EQ(first.value, 1) << "in round " << round;
    ASSERT_TRUE(reader.Begin("ring drain 0"));
    const auto later = [&] {
      const std::chrono::microseconds moment(random() % 20'000);
      std::this_thread::sleep_for(moment);  // sleep: until a random moment
    };
    later();
    broker.Kill();
    later();
    doomed->Kill();
    later();
    writer->Kill();
    broker.Start();
    const Answer drained = reader.Await("ring drain");
    EXPECT_EQ(drained.status, 0) << "in round " << round;
    frames += drained.value;
  }
  EXPECT_GT(frames, 100) << "frames must be read while others are killed";
}

}  // namespace
}  // namespace gpushm::integration
