// Goal: a broker that was killed gets back its buffers, generations, leases and clients, and no
// client notices. Method: broker, the plugin's keeper and clients as processes, killed and stopped.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <tuple>

#include "runtime/include/gpushm/gpushm.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

class RestoreTest : public LinkedTest {
 protected:
  plugin::keeper::KeptCounts Kept() {
    for (const plugin::keeper::LinkView& view : keeper_->Look()) {
      if (view.name == kAllocation) return view.kept;
    }
    return {};
  }

  // As `gpushmctl stat NAME` lists them: buffer, container, generation, client, lease, access.
  using Holder = std::tuple<std::string, std::string, uint64_t, uint64_t, uint64_t, uint32_t>;
  std::vector<Holder> Holders() const {
    std::vector<Holder> holders;
    gpushm_client* const client = OpenClient(run());
    std::vector<gpushm_holder> found(64);
    GPUSHM_INIT(&found[0]);
    size_t count = 0;
    EXPECT_EQ(gpushm_list_holders(client, nullptr, found.data(), found.size(), &count), GPUSHM_OK);
    for (size_t i = 0; i < count; ++i) {
      holders.emplace_back(found[i].buffer, found[i].container, found[i].generation,
                           found[i].client_id, found[i].lease_id, found[i].access);
    }
    gpushm_close(client);
    return holders;
  }
  uint32_t StateOf(const char* name) const {
    gpushm_client* const client = OpenClient(run());
    gpushm_info info;
    GPUSHM_INIT(&info);
    const gpushm_status status = gpushm_lookup(client, name, &info);
    gpushm_close(client);
    return status == GPUSHM_OK ? info.state : 0;
  }
};

TEST_F(RestoreTest, NobodyNoticesThatTheBrokerWasKilled) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  IsolatedWorker writer(run());
  IsolatedWorker reader(run());
  IsolatedWorker maker(run());
  if (!writer.started() || !reader.started() || !maker.started()) {
    GTEST_SKIP() << "this system forbids namespaces";
  }
  Worker owner(run());
  Worker waiter(run());
  const Answer weights = writer.Do(std::string("create weights ") + kMiBText);
  ASSERT_EQ(weights.status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 4711").status, 0);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  const Answer next = maker.Do(std::string("create-unpublished next ") + kMiBText);
  ASSERT_EQ(next.status, GPUSHM_OK);
  ASSERT_EQ(maker.Do("write 12").status, 0);
  ASSERT_EQ(owner.Do("offer mine 2097152 99 malloc").status, GPUSHM_OK);
  ASSERT_TRUE(waiter.Begin("attach later r 15000"));
  const std::vector<Holder> before = Holders();
  ASSERT_EQ(before.size(), 3u);

  for (int round = 0; round < 3; ++round) {
    broker.Kill();
    EXPECT_EQ(reader.Do("read").value, 4711 + round) << "a mapping must work without a broker";
    broker.Start();
    EXPECT_THAT(Holders(), UnorderedElementsAreArray(before));
    EXPECT_EQ(writer.Do("current").status, GPUSHM_OK);
    EXPECT_EQ(writer.Do("write " + std::to_string(4712 + round)).status, 0);
    EXPECT_EQ(reader.Do("read").value, 4712 + round);
    const Answer again = reader.Do("attach weights r 0");
    EXPECT_EQ(again.status, GPUSHM_OK);
    EXPECT_EQ(again.value, weights.value);
    EXPECT_EQ(reader.Do("current").status, GPUSHM_OK);
    EXPECT_EQ(maker.Do("current").status, GPUSHM_OK);
  }
  EXPECT_EQ(maker.Do("publish").status, GPUSHM_OK);
  Worker late(run());
  const Answer published = late.Do("attach next r 0");
  EXPECT_EQ(published.status, GPUSHM_OK);
  EXPECT_EQ(published.value, next.value);
  EXPECT_EQ(late.Do("read").value, 12);
  EXPECT_EQ(late.Do("attach mine r 0").status, GPUSHM_OK);
  EXPECT_EQ(late.Do("read").value, 99);
  EXPECT_EQ(writer.Do(std::string("create later ") + kMiBText).status, GPUSHM_OK);
  EXPECT_EQ(waiter.Await("attach later").status, GPUSHM_OK);
}

TEST_F(RestoreTest, ARangeAcrossAllocationsIsRestoredWithAllOfThem) {
  StartKeeper();
  auto [broker, owner, reader] =
      Pair(run(), {"offer wide 9000000 98 blocks"}, {"attach wide r 0"}, Linked());
  const std::vector<Holder> before = Holders();
  ASSERT_EQ(before.size(), 1u);
  broker.Kill();
  broker.Start();
  EXPECT_THAT(Holders(), UnorderedElementsAreArray(before));
  EXPECT_EQ(reader.Do("current").status, GPUSHM_OK);
  EXPECT_EQ(owner.Do("offer-state wide").value, 1);
  Worker late(run());
  ASSERT_EQ(late.Do("attach wide r 0").status, GPUSHM_OK);
  EXPECT_EQ(late.Do("read").value, 98);
  EXPECT_EQ(late.Do("read-last").value, 99);
}

TEST_F(RestoreTest, WhoDiedWhileNoBrokerRanIsTreatedAsDeclared) {
  StartKeeper();
  setenv("GPUSHM_BUFFERS",
         "buffers.gpushm.io/marked: 2Mi\n"
         "buffers.gpushm.io/kept: {size: 2Mi, on-writer-exit: keep}\n"
         "buffers.gpushm.io/dropped: {size: 2Mi, on-writer-exit: drop}\n",
         1);
  Broker broker(run(), "64Mi", Linked());
  std::vector<Worker> writers;
  for (const char* name : {"marked", "kept", "dropped"}) {
    writers.emplace_back(run());
    ASSERT_EQ(writers.back().Do(std::string("attach ") + name + " w 0").status, GPUSHM_OK);
  }
  Worker maker(run());
  ASSERT_EQ(maker.Do(std::string("create-unpublished next ") + kMiBText).status, GPUSHM_OK);
  Worker owner(run());
  ASSERT_EQ(owner.Do("offer mine 2097152 99 malloc").status, GPUSHM_OK);
  broker.Kill();
  for (Worker& writer : writers) writer.Kill();
  maker.Kill();
  owner.Kill();
  broker.Start();
  EXPECT_EQ(StateOf("marked"), GPUSHM_BUFFER_WRITER_DIED);
  EXPECT_EQ(StateOf("kept"), GPUSHM_BUFFER_READY);
  EXPECT_EQ(StateOf("dropped"), 0u);
  EXPECT_EQ(StateOf("mine"), 0u);
  EXPECT_TRUE(Holders().empty());
  EXPECT_TRUE(Eventually([&] { return Kept().clients == 0 && Kept().leases == 0; }));
  Worker other(run());
  EXPECT_EQ(other.Do(std::string("create next ") + kMiBText).status, GPUSHM_OK);
  EXPECT_EQ(other.Do(std::string("create dropped ") + kMiBText).status, GPUSHM_OK)
      << "the new broker must not make the dropped buffer again";
  unsetenv("GPUSHM_BUFFERS");
}

TEST_F(RestoreTest, APluginThatIsStoppedHoldsNobodyUp) {
  const std::vector<std::string> command = {"/proc/self/exe", "plugin", links(), gpu_};
  Process plugin(command, -1);
  Broker broker(run(), "64Mi", Linked());
  Worker writer(run());
  ASSERT_EQ(writer.Do(std::string("create weights ") + kMiBText).status, GPUSHM_OK);
  ASSERT_EQ(kill(plugin.pid(), SIGSTOP), 0);
  for (int i = 0; i < 2000; ++i) {  // More than fits in a socket's queue.
    ASSERT_EQ(writer.Do("attach weights r 0").status, GPUSHM_OK);
    ASSERT_EQ(writer.Do("detach").status, GPUSHM_OK);
  }
  ASSERT_EQ(writer.Do(std::string("create more ") + kMiBText).status, GPUSHM_OK);
  const std::vector<Holder> before = Holders();
  ASSERT_EQ(kill(plugin.pid(), SIGCONT), 0);
  EXPECT_TRUE(Eventually([&] {
    size_t generations = 0;
    size_t leases = 0;
    std::ifstream(links() + "/kept") >> generations >> leases;
    return generations == 2 && leases == before.size();
  })) << "the plugin must receive what was queued while it was stopped";
  broker.Kill();
  broker.Start();
  EXPECT_EQ(writer.Do("current").status, GPUSHM_OK);
  EXPECT_THAT(Holders(), UnorderedElementsAreArray(before));
  plugin.Kill();
  plugin = Process(command, -1);
  ASSERT_EQ(writer.Do(std::string("create third ") + kMiBText).status, GPUSHM_OK);
}

TEST_F(RestoreTest, AnotherHolderOfTheAllocationInheritsNothing) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  Worker writer(run());
  ASSERT_EQ(writer.Do(std::string("create weights ") + kMiBText).status, GPUSHM_OK);
  ASSERT_TRUE(Eventually([&] { return Kept().leases == 1; }));
  broker.Kill();
  keeper_->Drop({kAllocation});
  Open();
  broker.Start();
  EXPECT_TRUE(Holders().empty());
  EXPECT_EQ(StateOf("weights"), 0u);
  EXPECT_EQ(writer.Do("holders weights").value, 0);
  EXPECT_EQ(writer.Do("current").status, GPUSHM_ORPHANED);
}

TEST_F(RestoreTest, ALostGpuIsToldToWhoAsksAndToWhoWaits) {
  StartKeeper();
  auto [broker, writer, waiter] =
      Pair(run(), {std::string("create weights ") + kMiBText}, {}, Linked());
  ASSERT_TRUE(waiter.Begin("attach later r 15000"));
  keeper_->SetDevice(gpu_, true, "XID 79: the GPU has fallen off the bus");
  EXPECT_EQ(waiter.Await("attach later").status, GPUSHM_DEVICE_LOST);
  EXPECT_EQ(writer.Do("attach weights r 0").status, GPUSHM_DEVICE_LOST);
  EXPECT_EQ(writer.Do(std::string("create more ") + kMiBText).status, GPUSHM_DEVICE_LOST);
  broker.Kill();
  broker.Start();
  EXPECT_EQ(waiter.Do("attach weights r 0").status, GPUSHM_DEVICE_LOST);
  keeper_->SetDevice(gpu_, false, "");
  EXPECT_TRUE(Eventually([&] { return waiter.Do("attach weights r 0").status == GPUSHM_OK; }));
  EXPECT_EQ(writer.Do(std::string("create more ") + kMiBText).status, GPUSHM_OK);
}

TEST_F(RestoreTest, ABrokerTakesWhatThePluginSaysAndNoMore) {
  StartKeeper();
  std::vector<std::string> arguments = Linked();
  arguments.insert(arguments.end(), {"--pool", "129Mi"});
  EXPECT_THAT(LogOfBroker(run(), arguments), HasSubstr("the pod was given 134217728"));
  arguments = Linked();
  arguments.insert(arguments.end(), {"--gpu", "GPU-00000000-1111-2222-3333-444444444444"});
  EXPECT_THAT(LogOfBroker(run(), arguments), HasSubstr("is not the GPU that this pod was given"));
  Broker broker(run(), "128Mi", Linked());
  Worker worker(run());
  EXPECT_EQ(worker.Do("create all 134217728").status, GPUSHM_OK);
}

}  // namespace
}  // namespace gpushm::integration
