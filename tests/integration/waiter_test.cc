// Goal: a server that sleeps in poll() on one descriptor wakes for every event, and for almost
// nothing else, whoever dies. Method: the C API in processes of their own, streams of the driver,
// SIGKILL.
#include <gtest/gtest.h>

#include <optional>

#include "runtime/include/gpushm/wait.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

constexpr char kWaitedOldest[] = "ring write video oldest 4 65536 0";
constexpr char kWaitedPressure[] = "ring write video pressure 4 65536 0";
constexpr char kWaitedQueue[] = "ring write video queue 4 65536 0";
constexpr char kSoon[] = "waiter next 20000";
constexpr char kQuiet[] = "waiter next 300";

class WaiterTest : public LinkedTest {};

TEST_F(WaiterTest, EachChangeOfANameIsReportedOnce) {
  auto [broker, writer, server] = Pair(run(), {}, {"waiter name weights 0 7"});
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(server.Begin(kSoon));
  const Answer first = writer.Do("create weights 4096");
  ASSERT_EQ(first.status, GPUSHM_OK);
  EXPECT_EQ(server.Await(kSoon).value, 7);
  EXPECT_EQ(server.Do("waiter kind").value, GPUSHM_EVENT_NAME);
  EXPECT_EQ(server.Do("waiter generation").value, first.value);
  EXPECT_EQ(server.Do("waiter state").value, GPUSHM_BUFFER_READY);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  // Others change, too.
  ASSERT_EQ(writer.Do("create other 4096").status, GPUSHM_OK);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(server.Begin(kSoon));
  const Answer second = writer.Do("replace weights 4096");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_EQ(server.Await(kSoon).status, GPUSHM_OK);
  EXPECT_EQ(server.Do("waiter generation").value, second.value);
  ASSERT_TRUE(server.Begin(kSoon));
  ASSERT_EQ(writer.Do("detach").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("delete weights").status, GPUSHM_OK);
  EXPECT_EQ(server.Await(kSoon).status, GPUSHM_NOT_FOUND);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
}

TEST_F(WaiterTest, AKnownGenerationIsNoNews) {
  auto [broker, writer, server] = Pair(run());
  const Answer made = writer.Do("create weights 4096");
  ASSERT_EQ(server.Do(Concat("waiter name weights ", made.value, " 1")).status, GPUSHM_OK);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_EQ(server.Do(Concat("waiter name weights ", made.value - 1, " 2")).status, GPUSHM_OK);
  EXPECT_EQ(server.Do(kSoon).value, 2) << "a newer generation that exists already must be reported";
}

TEST_F(WaiterTest, AWriterOfABufferThatDiesIsReported) {
  auto [broker, writer, server] = Pair(run());
  const Answer made = writer.Do("create weights 4096");
  ASSERT_EQ(made.status, GPUSHM_OK);
  ASSERT_EQ(server.Do(Concat("waiter name weights ", made.value, " 1")).status, GPUSHM_OK);
  ASSERT_TRUE(server.Begin(kSoon));
  writer.Kill();
  EXPECT_EQ(server.Await(kSoon).status, GPUSHM_OK);
  EXPECT_EQ(server.Do("waiter state").value, GPUSHM_BUFFER_WRITER_DIED);
}

TEST_F(WaiterTest, AFrameOfAnotherContainerWakesUntilItIsTaken) {
  Broker broker(run(), "64Mi");
  IsolatedWorker writer(run());
  IsolatedWorker server(run());
  if (!writer.started() || !server.started()) GTEST_SKIP() << "this system forbids namespaces";
  ASSERT_EQ(writer.Do(kWaitedOldest).status, GPUSHM_OK);
  ASSERT_EQ(server.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter ring 3").status, GPUSHM_OK);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  for (int i = 1; i <= 20; ++i) {
    ASSERT_EQ(writer.Do(Concat("ring put ", i)).value, i);
    ASSERT_EQ(server.Do(kSoon).value, 3);
    EXPECT_EQ(server.Do("waiter readable").value, 1)
        << "the descriptor must be readable until the frame is taken";
    EXPECT_EQ(server.Do(kSoon).value, 3);
    ASSERT_EQ(server.Do("ring begin 0").value, i);
    ASSERT_EQ(server.Do("ring end").status, GPUSHM_OK);
    EXPECT_EQ(server.Do("waiter next 20").status, GPUSHM_TIMEOUT);
    EXPECT_EQ(server.Do("waiter readable").value, 0);
  }
}

TEST_F(WaiterTest, TheEndOfARingsWriterIsReportedOnce) {
  Broker broker(run(), "64Mi");
  for (const bool killed : {false, true}) {
    std::optional<Worker> writer(run());
    Worker server(run());
    ASSERT_EQ(writer->Do("ring write video oldest 4 65536 20000").status, GPUSHM_OK);
    ASSERT_EQ(server.Do("ring read video 0").status, GPUSHM_OK);
    ASSERT_EQ(server.Do("waiter ring 3").status, GPUSHM_OK);
    ASSERT_EQ(writer->Do("ring put 1").status, GPUSHM_OK);
    ASSERT_EQ(server.Do(kSoon).status, GPUSHM_OK);
    ASSERT_EQ(server.Do("ring begin 0").value, 1);
    ASSERT_EQ(server.Do("ring end").status, GPUSHM_OK);
    ASSERT_TRUE(server.Begin(kSoon));
    if (killed) {
      writer->Kill();
    } else {
      ASSERT_EQ(writer->Do("ring close").status, GPUSHM_OK);
    }
    EXPECT_EQ(server.Await(kSoon).status, killed ? GPUSHM_PEER_DIED : GPUSHM_ENDED);
    EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  }
}

TEST_F(WaiterTest, AWriterThatWaitsForReadersWakes) {
  auto [broker, writer, reader] = Pair(run(), {kWaitedPressure}, {"ring read video 0"});
  ASSERT_EQ(writer.Do("waiter ring 1").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring pump 4").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do(kQuiet).status, GPUSHM_TIMEOUT)
      << "a writer must not wake while its ring is full";
  ASSERT_TRUE(writer.Begin(kSoon));
  ASSERT_EQ(reader.Do("ring begin 0").value, 1);
  ASSERT_EQ(reader.Do("ring end").status, GPUSHM_OK);
  EXPECT_EQ(writer.Await(kSoon).value, 1);
  ASSERT_EQ(writer.Do("ring put 5").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(writer.Begin(kSoon));
  reader.Kill();
  EXPECT_EQ(writer.Await(kSoon).value, 1) << "a dead reader must not hold up the writer";
}

// One alarm is for all participants of a page. Readers ring it for what they give back only if the
// writer waits for that in an event loop.
TEST_F(WaiterTest, WhatOthersReadWakesNoReader) {
  auto [broker, writer, other] = Pair(run());
  Worker server(run());
  ASSERT_EQ(writer.Do(kWaitedPressure).status, GPUSHM_OK);
  ASSERT_EQ(other.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter ring 1").status, GPUSHM_OK);
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(writer.Do(Concat("ring put ", i)).value, i);
    ASSERT_EQ(server.Do(kSoon).value, 1);
    ASSERT_EQ(server.Do("ring begin 0").value, i);
    ASSERT_EQ(server.Do("ring end").status, GPUSHM_OK);
  }
  ASSERT_EQ(server.Do("waiter next 20").status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(server.Begin(kQuiet));
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(other.Do("ring begin 0").value, i);
    ASSERT_EQ(other.Do("ring end").status, GPUSHM_OK);
  }
  const Answer quiet = server.Await(kQuiet);
  EXPECT_EQ(quiet.status, GPUSHM_TIMEOUT);
  EXPECT_LE(quiet.value, 1) << "only the timer that covers a lost alarm may wake it";
}

TEST_F(WaiterTest, AWriterWithAnOpenFrameWaitsForItself) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do(kWaitedPressure).status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("waiter ring 1").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring open").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_EQ(writer.Do("ring abandon").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do(kSoon).value, 1);
}

TEST_F(WaiterTest, AWorkerWakesForItemsAndForThoseOfTheDead) {
  auto [broker, writer, first] = Pair(run());
  Worker second(run());
  ASSERT_EQ(writer.Do(kWaitedQueue).status, GPUSHM_OK);
  ASSERT_EQ(first.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(second.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(second.Do("waiter ring 1").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring put 11").status, GPUSHM_OK);
  ASSERT_EQ(second.Do(kSoon).status, GPUSHM_OK);
  ASSERT_EQ(first.Do("ring begin 0").value, 1);
  EXPECT_EQ(second.Do(kQuiet).status, GPUSHM_TIMEOUT)
      << "an item that another worker has must not wake this one";
  ASSERT_TRUE(second.Begin(kSoon));
  first.Kill();
  EXPECT_EQ(second.Await(kSoon).status, GPUSHM_OK);
  EXPECT_EQ(second.Do("ring begin 0").value, 1);
  EXPECT_EQ(second.Do("ring delivery").value, 2);
}

TEST_F(WaiterTest, ASignalIsReportedOnceWhoeverSetsIt) {
  auto [broker, writer, server] =
      Pair(run(), {"signal open ready w 0"}, {"signal open ready r 0", "waiter signal 1 4"});
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(server.Begin(kSoon));
  ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
  EXPECT_EQ(server.Await(kSoon).value, 4);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  // By a stream: the host has announced it.
  ASSERT_EQ(server.Do("waiter signal 2 5").status, GPUSHM_OK);
  ASSERT_TRUE(server.Begin(kSoon));
  ASSERT_EQ(writer.Do("signal record 0 2").status, GPUSHM_OK);
  EXPECT_EQ(server.Await(kSoon).value, 5);
  // By a store of which no host knows.
  ASSERT_EQ(server.Do("waiter signal 3 6").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal store 0 3").status, GPUSHM_OK);
  EXPECT_EQ(server.Do("waiter next 20000").value, 6);
  ASSERT_EQ(server.Do("waiter signal 9 7").status, GPUSHM_OK);
  ASSERT_TRUE(server.Begin(kSoon));
  writer.Kill();
  EXPECT_EQ(server.Await(kSoon).status, GPUSHM_PEER_DIED);
}

TEST_F(WaiterTest, ABrokersDeathLosesNothing) {
  StartKeeper();
  auto [broker, writer, server] =
      Pair(run(), {kWaitedPressure},
           {"ring read video 0", "waiter ring 1", "waiter name weights 0 2"}, Linked());
  for (int i = 1; i <= 6; ++i) {
    EXPECT_EQ(server.Do("waiter next 50").status, GPUSHM_TIMEOUT);
    broker.Kill();
    if (i % 2 == 0) broker.Start();
    ASSERT_TRUE(server.Begin(kSoon));
    ASSERT_EQ(writer.Do(Concat("ring put ", i)).status, GPUSHM_OK);
    ASSERT_EQ(server.Await(kSoon).value, 1) << "in round " << i;
    if (i % 2 != 0) broker.Start();
    ASSERT_EQ(server.Do("ring begin 0").value, i);
    ASSERT_EQ(server.Do("ring end").status, GPUSHM_OK);
  }
  EXPECT_EQ(server.Do("waiter next 500").status, GPUSHM_TIMEOUT);
  ASSERT_TRUE(server.Begin(kSoon));
  ASSERT_EQ(writer.Do("create weights 4096").status, GPUSHM_OK);
  EXPECT_EQ(server.Await(kSoon).value, 2);
}

// The waiter does not see the end of a connection that another call has replaced meanwhile.
TEST_F(WaiterTest, ABrokersDeathThatAnotherCallNoticesLosesNothing) {
  StartKeeper();
  auto [broker, writer, server] = Pair(run(), {}, {"waiter name weights 0 1"}, Linked());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(server.Do("waiter next 50").status, GPUSHM_TIMEOUT);
    broker.Kill();
    broker.Start();
    ASSERT_EQ(server.Do("holders weights").status, GPUSHM_OK);
    EXPECT_EQ(server.Do("waiter readable").value, 1);
    ASSERT_TRUE(server.Begin(kSoon));
    ASSERT_EQ(writer.Do(i == 0 ? "create weights 4096" : "replace weights 4096").status, GPUSHM_OK);
    EXPECT_EQ(server.Await(kSoon).value, 1);
  }
}

// The timer that covers a lost alarm expires once in a second, and nothing else wakes.
TEST_F(WaiterTest, NothingHappensAndNobodySpins) {
  auto [broker, writer, server] = Pair(run(), {kWaitedOldest, "signal open ready w 0"},
                                       {"ring read video 0", "signal open ready r 0"});
  const int64_t threads = server.Do("waiter threads").value;
  ASSERT_EQ(server.Do("waiter ring 1").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter signal 1 2").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter name weights 0 3").status, GPUSHM_OK);
  server.Do("waiter next 20");  // The first look.
  const Answer quiet = server.Do("waiter next 2500");
  EXPECT_EQ(quiet.status, GPUSHM_TIMEOUT);
  EXPECT_LE(quiet.value, 3);
  EXPECT_EQ(server.Do("waiter threads").value, threads);
}

TEST_F(WaiterTest, WhatIsRemovedOrClosedIsNotReported) {
  auto [broker, writer, server] = Pair(run(), {kWaitedOldest}, {"ring read video 0"});
  const int64_t descriptors = server.Do("waiter descriptors").value;
  ASSERT_EQ(server.Do("waiter ring 1").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter name weights 0 2").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter next 20").status, GPUSHM_TIMEOUT);
  ASSERT_EQ(server.Do("waiter remove 1").status, GPUSHM_OK);
  ASSERT_EQ(server.Do("waiter remove 2").status, GPUSHM_OK);
  EXPECT_EQ(server.Do("waiter remove 2").status, GPUSHM_NOT_FOUND);
  ASSERT_EQ(writer.Do("ring put 1").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("create weights 4096").status, GPUSHM_OK);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  ASSERT_EQ(server.Do("waiter ring 3").status, GPUSHM_OK);
  ASSERT_EQ(server.Do(kSoon).value, 3);
  ASSERT_EQ(server.Do("ring close").status, GPUSHM_OK);
  EXPECT_EQ(server.Do(kQuiet).status, GPUSHM_TIMEOUT);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(server.Do("waiter reopen").status, GPUSHM_OK);
  EXPECT_LE(server.Do("waiter descriptors").value, descriptors + 1)
      << "only the descriptor of the names' alarm may remain";
}

}  // namespace
}  // namespace gpushm::integration
