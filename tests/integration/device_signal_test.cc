// Goal: a signal in device memory hands work over like one on a host page. Streams that wait for it
// go on even if the writer, the broker or the releaser dies. Method: broker, plugin's keeper and
// clients as processes, killed while GPU work is pending.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include "runtime/include/gpushm/sync.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

constexpr char kFrame[] = "create frame 1048576";
// Room for the frame and one word, so no word of a former signal may stay.
constexpr char kTightPool[] = "4Mi";

class DeviceSignalTest : public LinkedTest {};

TEST_F(DeviceSignalTest, WorkFollowsThatOfAnotherContainer) {
  Broker broker(run(), "64Mi");
  IsolatedWorker writer(run());
  IsolatedWorker waiter(run());
  if (!writer.started() || !waiter.started()) GTEST_SKIP() << "this system forbids namespaces";
  ASSERT_EQ(writer.Do(kFrame).status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("attach frame r 0").status, GPUSHM_OK);
  const Answer made = writer.Do("signal open ready d 0");
  ASSERT_EQ(made.status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").value, made.value);
  EXPECT_EQ(waiter.Do("signal memory").value, GPUSHM_SIGNAL_DEVICE_MEMORY);
  for (int i = 1; i <= 20; ++i) {
    ASSERT_EQ(waiter.Do(Concat("signal await 0 ", i)).status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal get 0").status, 0);
    EXPECT_EQ(waiter.Do("signal sync 0 2").status, GPUSHM_TIMEOUT)
        << "the stream must wait until the value is recorded";
    ASSERT_EQ(writer.Do(Concat("signal put 0 ", 1000 + i)).status, 0);
    ASSERT_EQ(writer.Do(Concat("signal record 0 ", i)).status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal sync 0 20000").status, 0);
    EXPECT_EQ(waiter.Do("signal word").value, 1000 + i);
    EXPECT_EQ(waiter.Do(Concat("signal check ", i)).status, GPUSHM_OK);
  }
}

TEST_F(DeviceSignalTest, HostsWaitForItAndDoNotSetIt) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  Worker waiter(run());
  ASSERT_EQ(writer.Do("signal open ready d 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("signal set 1").status, GPUSHM_UNSUPPORTED);
  ASSERT_TRUE(waiter.Begin("signal wait 3 20000"));
  ASSERT_EQ(writer.Do("signal record 0 3").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Await("signal wait").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal value").value, 3);
  EXPECT_EQ(writer.Do("signal await 0 9").status, GPUSHM_INVALID_ARGUMENT)
      << "a process must not wait for a signal that it writes itself";
}

TEST_F(DeviceSignalTest, AKilledWriterReleasesStreamsAndHosts) {
  Broker broker(run(), "64Mi");
  std::optional<Worker> writer(run());
  Worker host(run());
  Worker stream(run());
  const Answer first = writer->Do("signal open ready d 0");
  ASSERT_EQ(host.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(stream.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(writer->Do("signal record 0 3").status, GPUSHM_OK);
  ASSERT_TRUE(host.Begin("signal wait 4 20000"));
  ASSERT_EQ(stream.Do("signal await 7 4").status, GPUSHM_OK);
  EXPECT_EQ(stream.Do("signal close").status, GPUSHM_BUSY);
  ASSERT_EQ(writer->Do("signal sync 0 20000").status, 0);
  writer->Kill();
  EXPECT_EQ(host.Await("signal wait").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(stream.Do("signal sync 7 20000").status, 0)
      << "the stream must go on after the writer's death";
  EXPECT_EQ(stream.Do("signal check 4").status, GPUSHM_PEER_DIED)
      << "4 was never recorded, so work that waited for it must not count";
  EXPECT_EQ(stream.Do("signal check 3").status, GPUSHM_OK)
      << "3 was recorded before the writer died, so it must count";
  EXPECT_EQ(stream.Do("signal close").status, GPUSHM_OK);
  // A successor makes a new generation, here on a host page.
  Worker successor(run());
  const Answer second = successor.Do("signal open ready w 0");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_GT(second.value, first.value);
  EXPECT_EQ(stream.Do("signal open ready r 0").value, second.value);
  EXPECT_EQ(stream.Do("signal memory").value, GPUSHM_SIGNAL_HOST_PAGE);
}

// The writer's stream waits for a third process, so the record is never carried out.
TEST_F(DeviceSignalTest, AWriterThatIsKilledWithWorkPendingReleasesStreams) {
  Broker broker(run(), "64Mi");
  Worker other(run());
  std::optional<Worker> writer(run());
  Worker waiter(run());
  ASSERT_EQ(other.Do("signal open never d 0").status, GPUSHM_OK);
  ASSERT_EQ(writer->Do("signal open ready d 0").status, GPUSHM_OK);
  ASSERT_EQ(writer->Do("signal swap").status, 0);
  ASSERT_EQ(writer->Do("signal open never r 0").status, GPUSHM_OK);
  ASSERT_EQ(writer->Do("signal await 0 1").status, GPUSHM_OK);
  ASSERT_EQ(writer->Do("signal swap").status, 0);
  ASSERT_EQ(writer->Do("signal record 0 5").status, GPUSHM_OK);
  EXPECT_EQ(writer->Do("signal close").status, GPUSHM_BUSY);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 5").status, GPUSHM_OK);
  writer->Kill();
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("signal check 5").status, GPUSHM_PEER_DIED);
}

TEST_F(DeviceSignalTest, AWriterThatClosesReleasesStreamsAndLeavesNoMemory) {
  Broker broker(run(), kTightPool);
  Worker writer(run());
  Worker waiter(run());
  ASSERT_EQ(writer.Do(kFrame).status, GPUSHM_OK);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(writer.Do("signal open ready d 0").status, GPUSHM_OK) << "in round " << round;
    ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal await 0 3").status, GPUSHM_OK);
    ASSERT_EQ(writer.Do("signal record 0 2").status, GPUSHM_OK);
    ASSERT_EQ(writer.Do("signal sync 0 20000").status, 0);
    ASSERT_EQ(writer.Do("signal close").status, GPUSHM_OK);
    EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
    EXPECT_EQ(waiter.Do("signal check 3").status, GPUSHM_ENDED);
    EXPECT_EQ(waiter.Do("signal check 2").status, GPUSHM_OK);
    EXPECT_EQ(waiter.Do("signal state").value, GPUSHM_SIGNAL_LEFT);
    // While any process holds the word, the pool has no room for another one.
    EXPECT_EQ(writer.Do("signal open ready d -1").status, GPUSHM_EXHAUSTED);
    EXPECT_EQ(writer.Do("signal open ready d 50").status, GPUSHM_TIMEOUT);
    EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_OK);
  }
}

TEST_F(DeviceSignalTest, ItsNameIsNoOtherBuffers) {
  Broker broker(run(), "64Mi");
  Worker worker(run());
  ASSERT_EQ(worker.Do("create ready-signal 1048576").status, GPUSHM_OK);
  EXPECT_EQ(worker.Do("signal open ready d 0").status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(worker.Do("signal open ready w 0").status, GPUSHM_OK);
}

TEST_F(DeviceSignalTest, ASidecarThatCouldNotReleaseStreamsRefusesIt) {
  Broker broker(run(), kTightPool, {"--test-memory-limit", "67108864"});
  Worker worker(run());
  ASSERT_EQ(worker.Do(kFrame).status, GPUSHM_OK);
  EXPECT_EQ(worker.Do("signal open ready d 0").status, GPUSHM_UNSUPPORTED);
  EXPECT_EQ(worker.Do("signal open ready d 0").status, GPUSHM_UNSUPPORTED)
      << "the first refused open must leave no memory behind";
  EXPECT_EQ(worker.Do("signal open ready w 0").status, GPUSHM_OK);
}

TEST_F(DeviceSignalTest, StreamsThatWaitAreCountedUntilTheyArePast) {
  const Variable connections("CUDA_DEVICE_MAX_CONNECTIONS", "8");
  Broker broker(run(), "64Mi");
  Worker writer(run());
  Worker waiter(run());
  ASSERT_EQ(writer.Do("signal open ready d 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(waiter.Do(Concat("signal sync ", i, " 0")).status, 0);
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 10; ++i) {
      const int expected = i < 7 ? GPUSHM_OK : GPUSHM_EXHAUSTED;
      ASSERT_EQ(waiter.Do(Concat("signal await ", i, ' ', round)).status, expected)
          << "stream " << i;
    }
    EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_BUSY);
    ASSERT_EQ(writer.Do(Concat("signal record 0 ", round)).status, GPUSHM_OK);
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(waiter.Do(Concat("signal sync ", i, " 20000")).status, 0) << "stream " << i;
    }
  }
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_OK);
}

TEST_F(DeviceSignalTest, ABrokersRestartChangesNothing) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  std::optional<Worker> writer(run());
  Worker waiter(run());
  ASSERT_EQ(writer->Do("signal open ready d 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_OK);
  broker.Kill();
  ASSERT_EQ(writer->Do("signal record 0 1").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0)
      << "the value must reach the stream without a broker";
  broker.Start();
  ASSERT_EQ(waiter.Do("signal await 0 2").status, GPUSHM_OK);
  writer->Kill();
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("signal check 2").status, GPUSHM_PEER_DIED);
}

TEST_F(DeviceSignalTest, AWriterThatDiesWhileNoBrokerLivesIsFoundOut) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  std::optional<Worker> writer(run());
  Worker waiter(run());
  ASSERT_EQ(writer->Do("signal open ready d 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_OK);
  broker.Kill();
  writer->Kill();
  EXPECT_EQ(waiter.Do("signal sync 0 50").status, GPUSHM_TIMEOUT)
      << "without a broker, nobody can release the stream";
  broker.Start();
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("signal check 1").status, GPUSHM_PEER_DIED);
}

TEST_F(DeviceSignalTest, AKilledReleaserHasASuccessor) {
  Broker broker(run(), "64Mi", {"--test-first-releasers-die", "3"});
  std::optional<Worker> writer(run());
  Worker waiter(run());
  ASSERT_EQ(writer->Do("signal open ready d 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_OK);
  writer->Kill();
  EXPECT_EQ(waiter.Do("signal wait 1 20000").status, GPUSHM_PEER_DIED)
      << "a wait on the host must end without the releaser";
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_BUSY)
      << "the signal must not close while a stream waits";
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_OK);
}

// The former broker told the plugin that the writer's lease is gone, but did not release the
// streams.
TEST_F(DeviceSignalTest, ABrokersSuccessorReleasesWhatItDidNot) {
  StartKeeper();
  std::vector<std::string> arguments = Linked();
  arguments.insert(arguments.end(), {"--test-first-releasers-die", "1000000"});
  Worker waiter(run());
  {
    Broker broker(run(), "64Mi", arguments);
    std::optional<Worker> writer(run());
    ASSERT_EQ(writer->Do("signal open ready d 0").status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_OK);
    writer->Kill();
    EXPECT_EQ(waiter.Do("signal wait 1 20000").status, GPUSHM_PEER_DIED);
    EXPECT_EQ(waiter.Do("signal sync 0 50").status, GPUSHM_TIMEOUT);
    broker.Kill();
  }
  Broker successor(run(), "64Mi", Linked());
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("signal check 1").status, GPUSHM_PEER_DIED);
}

// Writer, waiter or broker is killed at random moments once values arrive: every stream ends, and
// every value that counts is valid.
TEST_F(DeviceSignalTest, WhoeverIsKilledStreamsEndAndNoMemoryStays) {
  StartKeeper();
  Broker broker(run(), "8Mi", Linked());  // Room for the frame, and for words of two generations.
  std::mt19937 random(20261122);
  Worker waiter(run());
  ASSERT_EQ(waiter.Do(kFrame).status, GPUSHM_OK);
  int64_t values = 0;
  for (int round = 0; round < 100; ++round) {
    std::optional<Worker> writer(run());
    std::optional<Worker> doomed(run());
    ASSERT_EQ(writer->Do("attach frame w 0").status, GPUSHM_OK) << "in round " << round;
    ASSERT_EQ(writer->Do("write 0").status, 0) << "in round " << round;
    ASSERT_EQ(doomed->Do("attach frame r 0").status, GPUSHM_OK) << "in round " << round;
    ASSERT_EQ(writer->Do("signal open ready d 20000").status, GPUSHM_OK) << "in round " << round;
    for (Worker* const reader : {&*doomed, &waiter}) {
      ASSERT_EQ(reader->Do("signal open ready r 20000").status, GPUSHM_OK) << "in round " << round;
    }
    ASSERT_TRUE(doomed->Begin("signal follow 0 0"));
    ASSERT_TRUE(waiter.Begin("signal follow 0 1"));
    ASSERT_TRUE(writer->Begin("signal run 0"));
    const Answer first = waiter.Await("signal follow");
    ASSERT_EQ(first.status, 0) << "in round " << round;
    ASSERT_EQ(first.value, 1) << "in round " << round;
    ASSERT_TRUE(waiter.Begin("signal follow 0 0"));
    const auto later = [&] {
      const std::chrono::microseconds moment(random() % 20'000);
      std::this_thread::sleep_for(moment);  // sleep: until a random moment
    };
    later();
    if (round % 2 == 0) broker.Kill();
    later();
    doomed->Kill();
    later();
    writer->Kill();
    later();
    if (round % 2 == 0) {
      broker.Start();
    } else if (round % 4 == 1) {
      broker.Kill();  // Its releaser may be running at this moment.
      broker.Start();
    }
    const Answer followed = waiter.Await("signal follow");
    EXPECT_EQ(followed.status, 0) << "in round " << round;
    values += followed.value;
    EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_OK) << "in round " << round;
  }
  EXPECT_GT(values, 200) << "values must come while others are killed";
}

}  // namespace
}  // namespace gpushm::integration
