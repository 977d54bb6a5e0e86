// Goal: a signal that the pod declares exists before any process writes it, for the containers that
// the pod names, and outlives its writers and its broker. Method: broker, plugin's keeper and
// clients as processes, in two containers, with the annotations of a pod.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "runtime/include/gpushm/sync.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

class DeclaredSignalTest : public LinkedTest {
 protected:
  DeclaredSignalTest() {
    setenv("GPUSHM_BUFFERS",
           "signals.gpushm.io/frame: {writers: [decoder]}\n"
           "signals.gpushm.io/inner: {containers: [decoder]}\n"
           "signals.gpushm.io/stop:\n",
           1);
  }
  ~DeclaredSignalTest() override { unsetenv("GPUSHM_BUFFERS"); }

  // Arguments of the broker: two containers, and more if given.
  static std::vector<std::string> Containers(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--container", "decoder", "--container", "model"});
    return more;
  }
  std::string In(const std::string& container) const { return run() + "/" + container; }
};

TEST_F(DeclaredSignalTest, WhoWaitsOpensItBeforeItsWriterComes) {
  Broker broker(run(), "64Mi", Containers());
  IsolatedWorker model(In("model"));
  if (!model.started()) GTEST_SKIP() << "this system forbids namespaces";
  const Answer opened = model.Do("signal open frame r -1");
  ASSERT_EQ(opened.status, GPUSHM_OK);
  EXPECT_EQ(model.Do("signal state").value, GPUSHM_SIGNAL_UNUSED);
  EXPECT_EQ(model.Do("signal check 1").status, GPUSHM_BUSY);
  EXPECT_EQ(model.Do("signal wait 1 50").status, GPUSHM_TIMEOUT);
  EXPECT_EQ(model.Do("signal await 0 1").status, GPUSHM_BUSY)
      << "a stream must not wait for a signal that has no writer";
  IsolatedWorker decoder(In("decoder"));
  const Answer writes = decoder.Do("signal open frame w -1");
  ASSERT_EQ(writes.status, GPUSHM_OK);
  EXPECT_EQ(writes.value, opened.value)
      << "the writer must open the existing signal, not make a new one";
  EXPECT_EQ(model.Do("signal await 0 1").status, GPUSHM_OK);
  ASSERT_EQ(decoder.Do("signal record 0 1").status, GPUSHM_OK);
  EXPECT_EQ(model.Do("signal wait 1 20000").status, GPUSHM_OK);
  EXPECT_EQ(model.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(model.Do("signal check 1").status, GPUSHM_OK);
}

TEST_F(DeclaredSignalTest, OneProcessAtATimeWritesIt) {
  Broker broker(run(), "64Mi", Containers());
  std::optional<Worker> first(In("decoder"));
  Worker second(In("model"));
  ASSERT_EQ(first->Do("signal open stop w 0").status, GPUSHM_OK);
  EXPECT_EQ(second.Do("signal open stop w -1").status, GPUSHM_BUSY);
  ASSERT_TRUE(second.Begin("signal open stop w 20000"));
  first->Kill();
  EXPECT_EQ(second.Await("signal open").status, GPUSHM_OK);
}

TEST_F(DeclaredSignalTest, RightsOutliveTheWriter) {
  Broker broker(run(), "64Mi", Containers());
  std::optional<Worker> decoder(In("decoder"));
  Worker model(In("model"));
  EXPECT_EQ(model.Do("signal open inner r -1").status, GPUSHM_DENIED);
  EXPECT_EQ(model.Do("signal open frame w -1").status, GPUSHM_DENIED);
  const Answer first = decoder->Do("signal open frame w -1");
  ASSERT_EQ(first.status, GPUSHM_OK);
  ASSERT_EQ(decoder->Do("signal set 3").status, GPUSHM_OK);
  ASSERT_EQ(model.Do("signal open frame r -1").status, GPUSHM_OK);
  ASSERT_EQ(model.Do("signal await 0 4").status, GPUSHM_OK);
  ASSERT_TRUE(model.Begin("signal wait 4 20000"));
  decoder->Kill();
  EXPECT_EQ(model.Await("signal wait").status, GPUSHM_PEER_DIED);
  EXPECT_EQ(model.Do("signal sync 0 20000").status, 0);
  EXPECT_EQ(model.Do("signal check 3").status, GPUSHM_OK);
  Worker usurper(In("model"));
  EXPECT_EQ(usurper.Do("signal open frame w -1").status, GPUSHM_DENIED)
      << "the next generation must have the same writers";
  decoder.emplace(In("decoder"));
  const Answer second = decoder->Do("signal open frame w 0");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_GT(second.value, first.value);
  EXPECT_EQ(usurper.Do("signal open frame w -1").status, GPUSHM_DENIED);
  EXPECT_EQ(usurper.Do("signal open frame r 20000").value, second.value);
}

TEST_F(DeclaredSignalTest, ABrokersRestartChangesNothing) {
  StartKeeper();
  Broker broker(run(), "64Mi", Containers(Linked()));
  Worker waiter(In("model"));
  const Answer frame = waiter.Do("signal open frame r -1");
  ASSERT_EQ(frame.status, GPUSHM_OK);
  broker.Kill();
  ASSERT_TRUE(waiter.Begin("signal wait 1 20000"));
  broker.Start();
  std::optional<Worker> decoder(In("decoder"));
  EXPECT_EQ(decoder->Do("signal open frame w -1").value, frame.value)
      << "nobody had written the signal, so its generation must not change";
  ASSERT_EQ(decoder->Do("signal set 1").status, GPUSHM_OK);
  EXPECT_EQ(waiter.Await("signal wait").status, GPUSHM_OK);
  ASSERT_EQ(waiter.Do("signal await 0 2").status, GPUSHM_OK);
  broker.Kill();
  decoder->Kill();
  broker.Start();
  EXPECT_EQ(waiter.Do("signal sync 0 20000").status, 0)
      << "the new broker must notice the writer's death and release the stream";
  EXPECT_EQ(waiter.Do("signal check 2").status, GPUSHM_PEER_DIED);
  Worker usurper(In("model"));
  EXPECT_EQ(usurper.Do("signal open frame w -1").status, GPUSHM_DENIED)
      << "the new broker must apply the pod's rules, too";
  decoder.emplace(In("decoder"));
  EXPECT_GT(decoder->Do("signal open frame w 20000").value, frame.value);
}

// If no plugin keeps the page, the successor makes another one.
TEST_F(DeclaredSignalTest, WithoutAPluginASuccessorDeclaresItAnew) {
  Broker broker(run(), "64Mi", Containers());
  Worker decoder(In("decoder"));
  const Answer first = decoder.Do("signal open frame w -1");
  ASSERT_EQ(first.status, GPUSHM_OK);
  broker.Kill();
  broker.Start();
  Worker model(In("model"));
  const Answer second = model.Do("signal open frame r -1");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_GT(second.value, first.value);
  EXPECT_EQ(model.Do("signal state").value, GPUSHM_SIGNAL_UNUSED);
  EXPECT_EQ(decoder.Do("holders none").status, GPUSHM_OK)
      << "this call must connect to the new broker";
  EXPECT_EQ(decoder.Do("signal set 1").status, GPUSHM_ORPHANED);
  ASSERT_EQ(decoder.Do("signal close").status, GPUSHM_OK);
  EXPECT_EQ(decoder.Do("signal open frame w -1").value, second.value);
}

}  // namespace
}  // namespace gpushm::integration
