// Goal: a signal hands work over between containers, on the host and in streams. If either side
// dies, every wait ends. Method: broker, plugin's keeper and clients as processes in their own
// namespaces, killed while GPU work is pending.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "runtime/include/gpushm/sync.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::testing::Ne;

class SignalTest : public IntegrationTest {};

TEST_F(SignalTest, AHostSignalReachesAnotherContainer) {
  Broker broker(run(), "64Mi");
  IsolatedWorker writer(run());
  IsolatedWorker waiter(run());
  if (!writer.started() || !waiter.started()) GTEST_SKIP() << "this system forbids namespaces";
  const Answer made = writer.Do("signal open ready w 0");
  ASSERT_EQ(made.status, GPUSHM_OK);
  const Answer opened = waiter.Do("signal open ready r 0");
  ASSERT_EQ(opened.status, GPUSHM_OK);
  EXPECT_EQ(opened.value, made.value);
  EXPECT_EQ(waiter.Do("signal check 1").status, GPUSHM_BUSY);
  EXPECT_EQ(waiter.Do("signal wait 1 50").status, GPUSHM_TIMEOUT);
  EXPECT_EQ(writer.Do("signal set 5").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal wait 5 0").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal value").value, 5);
  EXPECT_EQ(writer.Do("signal set 5").status, GPUSHM_INVALID_ARGUMENT)
      << "the value of a signal must only go up";
  EXPECT_EQ(waiter.Do("signal set 9").status, GPUSHM_INVALID_ARGUMENT)
      << "a waiter must not set the signal";
}

TEST_F(SignalTest, WorkOnAStreamFollowsWorkOfAnotherContainer) {
  auto [broker, writer, waiter] =
      Pair(run(), {std::string("create frame ") + kMiBText}, {"attach frame r 0"});
  ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  for (int i = 1; i <= 50; ++i) {
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

TEST_F(SignalTest, WhoWaitsForAKilledWriterIsReleasedAndTold) {
  auto [broker, writer, host] = Pair(run());
  Worker stream(run());
  const Answer first = writer.Do("signal open ready w 0");
  ASSERT_EQ(host.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(stream.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal record 0 3").status, GPUSHM_OK);
  ASSERT_TRUE(host.Begin("signal wait 4 20000"));
  ASSERT_EQ(stream.Do("signal await 7 4").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal sync 0 20000").status, 0);
  writer.Kill();
  EXPECT_EQ(host.Await("signal wait").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(stream.Do("signal sync 7 20000").status, 0)
      << "the stream must go on after the writer's death";
  EXPECT_EQ(stream.Do("signal check 4").status, GPUSHM_PEER_DIED)
      << "4 was never recorded, so work that waited for it must not count";
  EXPECT_EQ(stream.Do("signal check 3").status, GPUSHM_OK)
      << "3 was recorded before the writer died, so it must count";
  EXPECT_EQ(stream.Do("signal state").value, GPUSHM_SIGNAL_DIED);
  // A successor makes a new generation, which processes find when they open the signal again.
  ASSERT_TRUE(host.Begin("signal open ready r 20000"));
  Worker successor(run());
  const Answer second = successor.Do("signal open ready w 0");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_GT(second.value, first.value);
  EXPECT_EQ(host.Await("signal open").value, second.value);
  EXPECT_EQ(host.Do("signal value").value, 0);
}

// The writer's stream waits for a third process, so the record is never carried out.
TEST_F(SignalTest, AWriterThatIsKilledWithWorkPendingReleasesStreams) {
  auto [broker, other, writer] = Pair(run());
  Worker waiter(run());
  ASSERT_EQ(other.Do("signal open never w 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal swap").status, 0);
  ASSERT_EQ(writer.Do("signal open never r 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal await 0 1").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal swap").status, 0);
  ASSERT_EQ(writer.Do("signal record 0 5").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("signal close").status, GPUSHM_BUSY);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 5").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_BUSY);
  writer.Kill();
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("signal check 5").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_OK);
}

TEST_F(SignalTest, ASignalHasOneWriter) {
  auto [broker, first, second] = Pair(run(), {"signal open ready w 0"});
  EXPECT_EQ(second.Do("signal open ready w -1").status, GPUSHM_BUSY);
  EXPECT_EQ(second.Do("signal open ready w 50").status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(second.Begin("signal open ready w 20000"));
  first.Kill();
  EXPECT_EQ(second.Await("signal open").status, GPUSHM_OK);
}

// Goal: a standby may wait for hours without keeping the broker busy, and its deadline is exact.
// Method: the broker numbers its leases, and each attempt uses one.
TEST_F(SignalTest, WhoWaitsToWriteAsksSeldom) {
  auto [broker, writer, standby] = Pair(run(), {"signal open ready w 0", "create before 4096"});
  const int64_t before = writer.Do("lease").value;
  const int64_t begun_ns = MonotonicNs();
  EXPECT_EQ(standby.Do("signal open ready w 1000").status, GPUSHM_TIMEOUT);
  EXPECT_GE(MonotonicNs() - begun_ns, 1'000'000'000);
  ASSERT_EQ(writer.Do("create after 4096").status, GPUSHM_OK);
  const int64_t attempts = writer.Do("lease").value - before - 1;
  EXPECT_GE(attempts, 5);
  EXPECT_LE(attempts, 60)
      << "a standby must make about 28 attempts in growing steps, then 20 a second";
}

// The broker makes a page for which no process waits any more. That page must not block the process
// that requested it.
TEST_F(SignalTest, AnOpenThatWasGivenUpLeavesNothing) {
  Broker broker(run(), "64Mi");
  Worker worker(run());
  ASSERT_EQ(worker.Do("signal open other w 0").status, GPUSHM_OK)
      << "the worker must be connected before the broker is stopped";
  kill(broker.pid(), SIGSTOP);
  EXPECT_EQ(worker.Do("signal open ready w 50").status, GPUSHM_TIMEOUT);
  kill(broker.pid(), SIGCONT);
  EXPECT_EQ(worker.Do("signal open ready w 0").status, GPUSHM_OK);
}

TEST_F(SignalTest, NamesOfBuffersAndSignalsAreKeptApart) {
  Broker broker(run(), "64Mi");
  Worker worker(run());
  ASSERT_EQ(worker.Do(std::string("create frame ") + kMiBText).status, GPUSHM_OK);
  EXPECT_EQ(worker.Do("signal open frame w -1").status, GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(worker.Do("signal open ready w 0").status, GPUSHM_OK);
  EXPECT_EQ(worker.Do("attach ready r -1").status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(worker.Do(std::string("create ready ") + kMiBText).status, GPUSHM_ALREADY_EXISTS);
  EXPECT_EQ(worker.Do(std::string("replace ready ") + kMiBText).status, GPUSHM_INVALID_ARGUMENT);
  const std::string path = folder_ + "/content";
  std::ofstream(path) << "four";
  EXPECT_EQ(worker.Do(Concat("load ready ", path)).status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(worker.Do("signal open none r -1").status, GPUSHM_NOT_FOUND);
}

// A waiting stream can block others, so there is a limit, and its error text helps.
TEST_F(SignalTest, StreamsThatWaitAreCounted) {
  const Variable connections("CUDA_DEVICE_MAX_CONNECTIONS", "8");
  auto [broker, writer, waiter] = Pair(run(), {"signal open ready w 0"}, {"signal open ready r 0"});
  // Made beforehand: on an H200, making the 36th stream while seven wait did not return.
  for (int i = 0; i < 40; ++i) ASSERT_EQ(waiter.Do(Concat("signal sync ", i, " 0")).status, 0);
  for (int i = 0; i < 40; ++i) {
    const int expected = i < 7 ? GPUSHM_OK : GPUSHM_EXHAUSTED;
    ASSERT_EQ(waiter.Do(Concat("signal await ", i, " 1")).status, expected) << "stream " << i;
  }
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_BUSY);
  EXPECT_EQ(waiter.Do("signal await 3 1").status, GPUSHM_OK)
      << "a stream that already waits must be accepted again";
  ASSERT_EQ(writer.Do("signal record 0 1").status, GPUSHM_OK);
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(waiter.Do(Concat("signal sync ", i, " 20000")).status, 0) << "stream " << i;
    ASSERT_EQ(waiter.Do(Concat("signal await ", i, " 1")).status, GPUSHM_OK)
        << "the value is reached, so a wait for it must be accepted";
  }
  EXPECT_EQ(writer.Do("signal await 0 9").status, GPUSHM_INVALID_ARGUMENT)
      << "a process must not wait for a signal that it writes itself";
  EXPECT_EQ(waiter.Do("signal close").status, GPUSHM_OK);
}

// The driver forgets a page only when all streams are done: that would be a wait without a
// deadline.
TEST_F(SignalTest, WhileAStreamWaitsOthersAreClosed) {
  auto [broker, writer, waiter] =
      Pair(run(), {"signal open ready w 0"},
           {"signal open ready r 0", "ring write video oldest 4 65536 0", "ring put 1",
            "signal await 0 1", "ring close", "ring write video oldest 4 65536 0"});
  EXPECT_EQ(waiter.Do("signal sync 0 0").status, GPUSHM_TIMEOUT)
      << "the stream must still wait here, or the test proves nothing";
  ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do("ring close").status, GPUSHM_OK);
}

// Page-locked memory would be freed only when all streams are done, and the writer here may wait
// for the load.
TEST_F(SignalTest, WhileAStreamWaitsContentIsLoaded) {
  auto [broker, writer, waiter] = Pair(run());
  const std::string path = folder_ + "/content";
  std::ofstream(path) << std::string(std::stoul(kMiBText), 'x');
  // A load waits until what nothing announces has not changed for some seconds.
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) - std::chrono::hours(1));
  ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do(Concat("create weights ", kMiBText)).status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_OK);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(waiter.Do(Concat("load weights ", path)).status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do(Concat("save weights ", path, ".copy")).status, GPUSHM_OK);
  }
  EXPECT_EQ(waiter.Do("signal sync 0 0").status, GPUSHM_TIMEOUT)
      << "the stream must still wait here, or the test proves nothing";
  ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(waiter.Do(Concat("load weights ", path)).status, GPUSHM_OK);
}

// The driver must forget a page before its address is reused for something else.
TEST_F(SignalTest, AThreadWithoutAContextClosesIt) {
  auto [broker, writer, waiter] = Pair(run(), {"signal open ready w 0"});
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do(Concat("signal await 0 ", i)).status, GPUSHM_OK) << "in round " << i;
    ASSERT_EQ(writer.Do(Concat("signal set ", i)).status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal sync 0 20000").status, 0);
    ASSERT_EQ(waiter.Do("signal close-bare").status, GPUSHM_OK);
  }
}

TEST_F(SignalTest, WhatGraphsAndKernelsStoreCounts) {
  auto [broker, writer, waiter] =
      Pair(run(), {"signal open ready w 0"}, {"signal open ready r 0", "signal await 0 7"});
  ASSERT_EQ(writer.Do("signal store 0 7").status, 0);
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(writer.Do("signal set 5").status, GPUSHM_INVALID_ARGUMENT)
      << "the value must not go down from 7 to 5";
  EXPECT_EQ(writer.Do("signal record 0 7").status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(writer.Do("signal set 8").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal wait 8 0").status, GPUSHM_OK);
}

TEST_F(SignalTest, WithOneConnectionNoStreamWaits) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  const Variable connections("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  Worker waiter(run());
  ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_EXHAUSTED);
  ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal await 0 1").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal wait 1 0").status, GPUSHM_OK);
}

// A client of MPS has two connections unless it sets a number, so one of its streams may wait.
// Method: on the simulated driver a socket that listens stands in for the daemon.
TEST_F(SignalTest, UnderMpsOneStreamWaits) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  if (!simulated()) GTEST_SKIP() << "the conformance case ConnectionsUnlessSet is for real drivers";
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (run() + "/control").copy(address.sun_path, sizeof address.sun_path - 1);
  const UniqueFd daemon(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(daemon.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(daemon.get(), 8), 0);
  const Variable folder("CUDA_MPS_PIPE_DIRECTORY", run());
  for (const auto& [set, may_wait] : {std::pair("", 1), std::pair("4", 3)}) {
    const Variable connections("CUDA_DEVICE_MAX_CONNECTIONS", set);
    Worker waiter(run());
    ASSERT_EQ(writer.Do("signal open ready w 0").status, GPUSHM_OK);
    ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
    for (int i = 0; i < 6; ++i) {
      const int expected = i < may_wait ? GPUSHM_OK : GPUSHM_EXHAUSTED;
      EXPECT_EQ(waiter.Do(Concat("signal await ", i, " 1")).status, expected)
          << "stream " << i << ", CUDA_DEVICE_MAX_CONNECTIONS=\"" << set << '"';
    }
    ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
    EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
    ASSERT_EQ(writer.Do("signal close").status, GPUSHM_OK);
  }
}

class LinkedSignalTest : public LinkedTest {};

TEST_F(LinkedSignalTest, ABrokersRestartChangesNothing) {
  StartKeeper();
  auto [broker, writer, waiter] = Pair(run(), {"signal open ready w 0"},
                                       {"signal open ready r 0", "signal await 0 2"}, Linked());
  ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
  broker.Kill();
  EXPECT_EQ(waiter.Do("signal wait 1 0").status, GPUSHM_OK)
      << "a wait on the host must not need the broker";
  broker.Start();
  ASSERT_EQ(writer.Do("signal record 0 2").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0);
  Worker late(run());
  ASSERT_EQ(late.Do("signal open ready r 0").status, GPUSHM_OK);
  EXPECT_EQ(late.Do("signal value").value, 2);
  ASSERT_TRUE(late.Begin("signal wait 3 20000"));
  writer.Kill();
  EXPECT_EQ(late.Await("signal wait").status, GPUSHM_PEER_DIED)
      << "the new broker must know the writer's lease and report its death";
}

// Without a plugin that keeps them, signals end with their broker. Their handles still work and
// report that.
TEST_F(SignalTest, WithoutAPluginASuccessorDoesNotKnowThem) {
  auto [broker, writer, waiter] = Pair(run());
  const Answer first = writer.Do("signal open ready w 0");
  ASSERT_EQ(waiter.Do("signal open ready r 0").status, GPUSHM_OK);
  broker.Kill();
  broker.Start();
  EXPECT_EQ(writer.Do("holders none").status, GPUSHM_OK)
      << "this call must connect to the new broker";
  EXPECT_EQ(writer.Do("signal set 1").status, GPUSHM_ORPHANED);
  ASSERT_EQ(writer.Do("signal close").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Do("signal wait 1 20000").status, GPUSHM_ENDED)
      << "the writer closed the old signal, so waits for it must end";
  const Answer second = writer.Do("signal open ready w 0");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_THAT(second.value, Ne(first.value));
  EXPECT_EQ(waiter.Do("signal open ready r 0").value, second.value);
}

}  // namespace
}  // namespace gpushm::integration
