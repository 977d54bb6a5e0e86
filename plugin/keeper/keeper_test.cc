// Goal: what the keeper promises to brokers and to the plugin. Method: real sockets; the broker is
// this process, or a child if its process must end.
#include "plugin/keeper/keeper.h"

#include <fcntl.h>
#include <gmock/gmock-more-matchers.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <memory>
#include <vector>

#include "contract/limits.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "plugin/keeper/testing/counter_segment.h"
#include "plugin/keeper/testing/keeper_fixture.h"
#include "plugin/keeper/testing/old_kernel.h"

namespace gpushm::plugin::keeper::testing {
namespace {

using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using gpushm::testing::CodeOf;
using protocol::LinkKind;
constexpr int As(Code code) { return static_cast<int>(code); }

// A broker in a separate process that greets, runs `then` and waits to be killed.
class OtherProcess {
 public:
  OtherProcess(const std::string& socket, bool want_kept, uint64_t epoch,
               const std::function<void(FakeBroker*)>& then = {})
      : process_([&] {
          FakeBroker broker(socket);
          if (broker.Greet(want_kept, epoch) && then) then(&broker);
          WaitToBeKilled();
        }) {}
  void Kill() { process_.Kill(); }

 private:
  Process process_;
};

TEST_F(KeeperTest, WelcomesABrokerAndKnowsItByItsProcess) {
  Open("m0000", kGpu, 5 * kGiB);
  struct stat file{};
  ASSERT_EQ(stat(folder_.Socket("m0000").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0666u);
  FakeBroker broker(folder_.Socket("m0000"));
  const auto welcome = broker.Greet(true);
  ASSERT_TRUE(welcome) << welcome.error().ToString();
  EXPECT_EQ(welcome->pool_bytes, 5 * kGiB);
  EXPECT_EQ(protocol::FromNameField(welcome->allocation), "m0000");
  EXPECT_EQ(welcome->gpu_uuid[0], 0xaa);
  EXPECT_EQ(welcome->gpu_uuid[15], 1);
  EXPECT_EQ(welcome->device_lost, 0u);
  EXPECT_THAT(*broker.TakeKept(), IsEmpty());
  ASSERT_TRUE(events_.Wait("m0000", true));
  broker.Hangup();
  EXPECT_TRUE(Eventually([&] { return !Look("m0000").connected; }));
  EXPECT_TRUE(Look("m0000").open) << "its process is running";
  EXPECT_EQ(events_.Count("m0000", false), 0);
}

TEST_F(KeeperTest, OpenMayBeRepeated) {
  Open("m0000");
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  ASSERT_TRUE(SayOneOfEach(&broker));
  ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
  Open("m0000");
  EXPECT_EQ(Look("m0000").kept, kOneOfEach);
  std::filesystem::remove(folder_.Socket("m0000"));
  Open("m0000");
  FakeBroker again(folder_.Socket("m0000"));
  EXPECT_TRUE(again.Greet(true)) << "a removed socket is restored";
  EXPECT_THAT(*again.TakeKept(), SizeIs(4));
}

TEST_F(KeeperTest, OpenSaysWhatIsWrong) {
  folder_.Add("m0000");
  const auto code = [&](const std::string& name, const LinkTerms& terms) {
    return CodeOf(keeper_->Open(name, terms));
  };
  EXPECT_EQ(code("../m0000", {{kGpu}, 1}), As(Code::kInvalidArgument));
  EXPECT_EQ(code("m0000", {{"GPU-0"}, 1}), As(Code::kInvalidArgument));
  EXPECT_EQ(code("m0000", {{"GPU-aaaaaaaa-0000-0000-0000-00000000000x"}, 1}),
            As(Code::kInvalidArgument));
  EXPECT_EQ(code("m0000", {{kGpu}, ~uint64_t{0}}), As(Code::kInvalidArgument));
  EXPECT_EQ(code("m0000", {{}, 1}), As(Code::kInvalidArgument)) << "no GPU";
  EXPECT_EQ(code("m0000", {std::vector<std::string>(17, kGpu), 1}), As(Code::kInvalidArgument));
  EXPECT_EQ(code("m0001", {{kGpu}, 1}), As(Code::kSystem)) << "no folder";
  EXPECT_EQ(code("m0000", {{kOtherGpu}, 1}), 0);
  EXPECT_THAT(keeper_->Look(), SizeIs(1));
  Keeper::Options nowhere;
  nowhere.links_folder = folder_.path() + "/nowhere";
  EXPECT_FALSE(Keeper::Start(std::move(nowhere)));
}

// The pods that share a claim connect to a socket that the plugin makes and the broker listens on.
TEST_F(KeeperTest, EachBrokerGetsASocketForOtherPods) {
  folder_.Add("m0000");
  const gpushm::testing::TempFolder others;
  ASSERT_EQ(mkdir((others / "m0000").c_str(), 0755), 0);
  const std::string path = Concat(others / "m0000", "/", protocol::kSocketName);
  Keeper::Options options;
  options.links_folder = folder_.path();
  options.others_folder = others.path();
  options.on_link = [](const std::string&, bool) {};
  keeper_.reset();
  keeper_ = *Keeper::Start(std::move(options));
  const LinkTerms terms{.gpus = {kGpu}, .pool_bytes = kGiB, .pod = {}, .others = Others::kWrite};
  ASSERT_TRUE(keeper_->Open("m0000", terms));
  EXPECT_FALSE(protocol::Connect(path)) << "there is no broker";
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  const auto socket_of = [](FakeBroker& from) -> UniqueFd {
    auto message = from.Next();
    if (!message) return {};
    const auto body = protocol::ParseLink<protocol::LinkOthers>(message->span());
    EXPECT_TRUE(body && body->may_write == 1U);
    return body && message->descriptors.size() == 1 ? std::move(message->descriptors[0])
                                                    : UniqueFd();
  };
  const UniqueFd listener = socket_of(broker);
  ASSERT_TRUE(listener);
  const auto accepts = [](const UniqueFd& at) {
    return UniqueFd(accept4(at.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid();
  };
  ASSERT_TRUE(protocol::Connect(path));
  EXPECT_TRUE(accepts(listener));

  // Somebody removed it: it is made again, and the broker gets the new one.
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_TRUE(keeper_->Open("m0000", terms));
  EXPECT_TRUE(socket_of(broker));
  ASSERT_TRUE(keeper_->Open("m0000", terms)) << "no change";

  // The next broker gets one of its own, and what the former one has leads nowhere.
  broker.Hangup();
  FakeBroker next(folder_.Socket("m0000"));
  ASSERT_TRUE(Eventually([&] { return next.Greet(false, 2).has_value(); }));
  const UniqueFd its_own = socket_of(next);
  ASSERT_TRUE(its_own);
  ASSERT_TRUE(protocol::Connect(path));
  EXPECT_FALSE(accepts(listener));
  EXPECT_TRUE(accepts(its_own));

  // The claim has another holder: nobody can connect any more.
  keeper_->Drop({"m0000"});
  EXPECT_FALSE(protocol::Connect(path));
}

// Goal: which pod of a shared claim a process is in reaches the view, and its memory counts as used
// until its process has ended. Method: one that says its pod, one that does not, and one of the
// broker's own pod.
TEST_F(KeeperTest, ProcessesOfOtherPodsAreNamedAndCounted) {
  folder_.Add("m0000");
  ASSERT_TRUE(keeper_->Open("m0000", LinkTerms{.gpus = {kGpu}, .pool_bytes = kGiB}));
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  ASSERT_TRUE(broker.Registry());
  Process told([] { WaitToBeKilled(); });
  Process silent([] { WaitToBeKilled(); });
  const UniqueFd told_fd = PidfdOf(told.pid());
  const UniqueFd silent_fd = PidfdOf(silent.pid());
  ASSERT_TRUE(broker.Say(LinkKind::kBrokerPod,
                         protocol::LinkBrokerPod{protocol::ToNameField("weights-0")}));
  protocol::LinkClient foreign = ClientOf(1, protocol::kOtherPods);
  foreign.pod = protocol::ToNameField("servers-1");
  foreign.pod_container = protocol::ToNameField("server");
  ASSERT_TRUE(broker.Say(foreign, told_fd.get()));
  ASSERT_TRUE(broker.Say(ClientOf(2, protocol::kOtherPods), silent_fd.get()));
  ASSERT_TRUE(broker.Say(ClientOf(3, "app"), PidfdOf(getpid()).get()));
  ASSERT_TRUE(broker.End());
  ASSERT_TRUE(Eventually([&] { return Look("m0000").kept.clients == 3; }));
  const LinkView view = Look("m0000");
  EXPECT_EQ(view.broker_pod, "weights-0");
  EXPECT_EQ(view.clients[0].container, "servers-1/server");
  EXPECT_EQ(view.clients[1].container, "other-pods");
  const auto users = [&] { return keeper_->CountUsers("m0000", Deadline::AfterMs(kSoonMs)); };
  EXPECT_EQ(users(), 2U);
  EXPECT_EQ(keeper_->CountUsers("unknown", Deadline::AfterMs(kSoonMs)), 0U);
  told.Kill();
  silent.Kill();
  EXPECT_TRUE(Eventually([&] { return users() == 0U; }));
}

// A pod of two GPUs: the broker learns both, with their health, and states what is where.
TEST_F(KeeperTest, SeveralGpus) {
  folder_.Add("m0000");
  const LinkTerms terms{.gpus = {kGpu, kOtherGpu}, .pool_bytes = kGiB};
  ASSERT_TRUE(keeper_->Open("m0000", terms));
  keeper_->SetDevice(kOtherGpu, true, "XID 79");
  FakeBroker broker(folder_.Socket("m0000"));
  const auto welcome = broker.Greet(false);
  ASSERT_TRUE(welcome) << welcome.error().ToString();
  EXPECT_EQ(welcome->version, protocol::kLinkMaxVersion);
  EXPECT_EQ(welcome->other_gpus, 1);
  EXPECT_EQ(welcome->device_lost, 0u);
  EXPECT_EQ(welcome->pool_bytes, kGiB);
  const auto second = broker.Expect<protocol::LinkGpu>(LinkKind::kGpu);
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_EQ(second->number, 1u);
  EXPECT_EQ(second->lost, 1u);
  EXPECT_NE(second->gpu_uuid, welcome->gpu_uuid);
  const auto sick = broker.Expect<protocol::LinkDevice>(LinkKind::kDevice);
  ASSERT_TRUE(sick) << sick.error().ToString();
  EXPECT_EQ(sick->gpu, 1u);
  EXPECT_EQ(sick->lost, 1u);
  EXPECT_STREQ(sick->reason.data(), "XID 79");

  ASSERT_TRUE(broker.Registry());
  for (const uint16_t gpu : {uint16_t{0}, uint16_t{1}}) {
    const uint64_t number = 7 + gpu;
    ASSERT_TRUE(broker.Say(BufferOf(Concat("weights-", gpu), number)));
    protocol::LinkGeneration generation = GenerationOf(Concat("weights-", gpu), number);
    generation.gpu = gpu;
    ASSERT_TRUE(broker.Say(generation, Memfd().get()));
  }
  ASSERT_TRUE(broker.End());
  ASSERT_TRUE(Eventually([&] { return Look("m0000").kept.generations == 2; }));
  const LinkView view = Look("m0000");
  ASSERT_THAT(view.gpus, SizeIs(2));
  EXPECT_EQ(view.gpus[1].uuid, kOtherGpu);
  EXPECT_EQ(view.gpus[0].bytes.pooled, view.gpus[1].bytes.pooled);
  EXPECT_EQ(view.gpus[1].bytes.pooled * 2, view.kept.pooled_bytes);
  EXPECT_THAT(keeper_->BufferBytes(), ::testing::SizeIs(2));

  keeper_->SetDevice(kOtherGpu, false, "");
  EXPECT_EQ(broker.Expect<protocol::LinkDevice>(LinkKind::kDevice)->lost, 0u);
  keeper_->SetDevice(kGpu, true, "XID 48");
  const auto first = broker.Expect<protocol::LinkDevice>(LinkKind::kDevice);
  EXPECT_EQ(first->gpu, 0u);
  EXPECT_EQ(first->lost, 1u);

  // Its successor gets each generation with its GPU.
  broker.Hangup();
  FakeBroker next(folder_.Socket("m0000"));
  ASSERT_TRUE(Eventually([&] { return next.Greet(true, 2).has_value(); }));
  ASSERT_TRUE(next.Expect<protocol::LinkGpu>(LinkKind::kGpu));
  std::map<std::string, uint32_t> places;
  for (;;) {
    const auto message = next.Next();
    ASSERT_TRUE(message) << message.error().ToString();
    const auto kind = static_cast<LinkKind>(protocol::ParseLinkHeader(message->span())->kind);
    if (kind == LinkKind::kEnd) break;
    if (kind != LinkKind::kGeneration) continue;
    const auto generation = protocol::ParseLink<protocol::LinkGeneration>(message->span());
    places[std::string(protocol::FromNameField(generation->name))] = generation->gpu;
  }
  EXPECT_EQ(places, (std::map<std::string, uint32_t>{{"weights-0", 0}, {"weights-1", 1}}));
}

TEST_F(KeeperTest, AGenerationIsOnAGpuOfItsPod) {
  Open("m0000");
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  ASSERT_TRUE(broker.Say(BufferOf("weights", 7)));
  protocol::LinkGeneration generation = GenerationOf("weights", 7);
  generation.gpu = 1;
  ASSERT_TRUE(broker.Say(generation, Memfd().get()));
  EXPECT_TRUE(broker.WaitForEnd());
  EXPECT_EQ(Look("m0000").kept.generations, 0u);
}

// Goal: a broker of 1.0.0-rc.1, which speaks versions 1 to 9 of the link, is refused and learns
// which version the plugin speaks; so is one that speaks only a later version. One that also speaks
// this version is served in it.
TEST_F(KeeperTest, VersionsAreAgreedOn) {
  Open("m0000");
  const auto greet = [](FakeBroker* broker, int least, int most) {
    const protocol::LinkHello hello{.min_version = static_cast<uint16_t>(least),
                                    .max_version = static_cast<uint16_t>(most),
                                    .want_kept = 1,
                                    .epoch = 1,
                                    .program = {}};
    EXPECT_TRUE(broker->Say(LinkKind::kHello, hello));
    return broker->Expect<protocol::LinkWelcome>(LinkKind::kWelcome);
  };
  constexpr uint16_t kNow = protocol::kLinkMaxVersion;
  for (const auto& [least, most] : {std::pair{1, 9}, std::pair{kNow + 1, kNow + 2}}) {
    FakeBroker other(folder_.Socket("m0000"));
    const auto welcome = greet(&other, least, most);
    ASSERT_TRUE(welcome) << welcome.error().ToString();
    EXPECT_EQ(welcome->version, kNow);
    EXPECT_TRUE(other.WaitForEnd());
    EXPECT_FALSE(Look("m0000").connected);
  }
  FakeBroker later(folder_.Socket("m0000"));
  const auto welcome = greet(&later, kNow, kNow + 1);
  ASSERT_TRUE(welcome) << welcome.error().ToString();
  EXPECT_EQ(welcome->version, kNow);
  EXPECT_TRUE(Eventually([&] { return Look("m0000").connected; }));
}

TEST_F(KeeperTest, ShowsLeasesAndWhoseProcessIsGone) {
  Open("m0000");
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  Process client([] { WaitToBeKilled(); });
  const UniqueFd pidfd = PidfdOf(client.pid());
  ASSERT_TRUE(broker.Registry());
  ASSERT_TRUE(SayOneOfEach(&broker));
  ASSERT_TRUE(broker.Say(ClientOf(2, "other"), pidfd.get()));
  ASSERT_TRUE(broker.Say(LeaseOf(2, 2, 7)));
  ASSERT_TRUE(Eventually([&] { return Look("m0000").leases.size() == 2; }));
  client.Kill();
  const LinkView view = Look("m0000");
  ASSERT_THAT(view.gpus, SizeIs(1));
  EXPECT_EQ(view.gpus[0].uuid, kGpu);
  EXPECT_EQ(view.program, "fake broker");
  EXPECT_EQ(view.kept.pooled_bytes, 2 * kMiB);
  EXPECT_EQ(view.clients[view.leases[0].client].container, "app");
  EXPECT_EQ(view.leases[0].generation, 7U);
  EXPECT_EQ(view.leases[0].access, Access::kRead);
  EXPECT_TRUE(view.clients[view.leases[0].client].alive);
  EXPECT_FALSE(view.clients[view.leases[1].client].alive);
  ASSERT_NE(view.registry, nullptr);
  EXPECT_EQ(view.registry->slot_count(), 16u);
  broker.Hangup();
  FakeBroker next(folder_.Socket("m0000"));
  const auto welcome = next.Greet(true);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->clients, 2u) << "a dead client is given back, so that the broker learns of it";
  EXPECT_EQ(welcome->leases, 2u);
}

// A broker whose containers could connect after `ready_ns`, and whose client counted `counted`.
std::function<void(FakeBroker*)> Counting(uint64_t counted, uint64_t ready_ns) {
  return [=](FakeBroker* broker) {
    CounterSegment segment({"app"});
    (void)broker->Say(protocol::LinkKind::kCounters, protocol::LinkCounters{1, 0},
                      segment.fd().get());
    segment.word(0, protocol::Counter::kOffers) = counted;
    // Last: a reader that sees it ready must also see what it counted.
    segment.header().ready_ns = ready_ns;
    (void)broker->End();
    WaitToBeKilled();
  };
}

// Goal: totals of an allocation last exactly as long as the allocation, across brokers, their links
// and their ends. Method: two brokers in separate processes, and a drop.
TEST_F(KeeperTest, CountersOutliveBrokersAndNotTheAllocation) {
  Open("m0000");
  const auto offers = [&] {
    const LinkView view = Look("m0000");
    return view.counters.empty() ? 0 : view.counters[0].values[5];
  };
  OtherProcess first(folder_.Socket("m0000"), true, 1, Counting(7, 2'000'000'000));
  ASSERT_TRUE(Eventually([&] { return offers() == 7; }));
  EXPECT_EQ(Look("m0000").broker_ready_seconds, 2.0);
  first.Kill();
  ASSERT_TRUE(events_.Wait("m0000", false));
  EXPECT_EQ(offers(), 7u);
  EXPECT_EQ(Look("m0000").broker_ready_seconds, std::nullopt);
  OtherProcess second(folder_.Socket("m0000"), true, 2, Counting(5, 0));
  ASSERT_TRUE(Eventually([&] { return offers() == 12; }));
  EXPECT_EQ(Look("m0000").broker_ready_seconds, std::nullopt);
  keeper_->Drop({"m0000"});
  EXPECT_TRUE(Look("m0000").counters.empty());
  second.Kill();
  ASSERT_TRUE(events_.Wait("m0000", false, 2));
  Open("m0000");
  EXPECT_TRUE(Look("m0000").counters.empty());
}

// Goal: nothing that a broker counted is lost if nobody reads it, and no start is reported twice.
// Method: brokers that end before a count, by a kill and by a drop, and one that is counted.
TEST_F(KeeperTest, AStartIsToldOnceAlsoWhereNobodyCounts) {
  Open("m0000");
  const auto ready = [&](double seconds) {
    return Eventually([&] { return Look("m0000").broker_ready_seconds == seconds; });
  };
  {
    const OtherProcess killed(folder_.Socket("m0000"), true, 1, Counting(7, 2'000'000'000));
    ASSERT_TRUE(ready(2));
  }
  ASSERT_TRUE(events_.Wait("m0000", false));
  {
    const OtherProcess dropped(folder_.Socket("m0000"), true, 2, Counting(5, 3'000'000'000));
    ASSERT_TRUE(ready(3));
    keeper_->Drop({"m0000"});
  }
  ASSERT_TRUE(events_.Wait("m0000", false, 2));
  Open("m0000");
  const OtherProcess counted(folder_.Socket("m0000"), true, 3, Counting(1, 4'000'000'000));
  ASSERT_TRUE(ready(4));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(keeper_->Count(Deadline::AfterMs(kSoonMs))
                  .value()[protocol::WordOf(protocol::Counter::kOffers)],
              13u);
    EXPECT_THAT(ready_seconds_, ElementsAre(2, 3, 4));
  }
}

TEST_F(KeeperTest, BytesOfBuffersAreCountedByGpu) {
  Open("m0000");
  Open("m0001", kOtherGpu);
  Open("m0002", kOtherGpu);
  std::vector<std::unique_ptr<FakeBroker>> brokers;
  for (const char* const name : {"m0000", "m0001", "m0002"}) {
    brokers.push_back(std::make_unique<FakeBroker>(folder_.Socket(name)));
    ASSERT_TRUE(brokers.back()->Greet(false));
    ASSERT_TRUE(SayOneOfEach(brokers.back().get()));
    ASSERT_TRUE(WaitForKept(name, kOneOfEach));
  }
  const uint64_t bytes = kOneOfEach.pooled_bytes + kOneOfEach.offered_bytes;
  EXPECT_THAT(keeper_->BufferBytes(), ElementsAre(Pair(kGpu, bytes), Pair(kOtherGpu, 2 * bytes)));
  keeper_->Drop({"m0001"});
  EXPECT_THAT(keeper_->BufferBytes(), ElementsAre(Pair(kGpu, bytes), Pair(kOtherGpu, bytes)));
}

// What the same broker does not state again is forgotten. After a restart of the broker, everything
// is forgotten immediately.
TEST_F(KeeperTest, ABrokerWithStateReplacesWhatWasKept) {
  Open("m0000");
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false, 5));
  ASSERT_TRUE(SayOneOfEach(&broker));
  ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
  broker.Hangup();
  FakeBroker same(folder_.Socket("m0000"));
  ASSERT_TRUE(same.Greet(false, 5));
  EXPECT_EQ(Look("m0000").kept, kOneOfEach) << "it may be killed before it has stated everything";
  ASSERT_TRUE(same.Say(BufferOf("weights")));
  ASSERT_TRUE(same.End());
  KeptCounts one_buffer;
  one_buffer.buffers = 1;
  EXPECT_TRUE(WaitForKept("m0000", one_buffer));
  FakeBroker other(folder_.Socket("m0000"));
  ASSERT_TRUE(other.Greet(false, 6));
  EXPECT_TRUE(WaitForKept("m0000", {}));
}

TEST_F(KeeperTest, AfterDropNobodyInherits) {
  Open("m0000");
  {
    OtherProcess former(folder_.Socket("m0000"), false, 1, [&](FakeBroker* broker) {
      [[maybe_unused]] const auto said = SayOneOfEach(broker);
      broker->WaitForEnd();
      // It does not give up: it connects again as soon as it can.
      FakeBroker again(folder_.Socket("m0000"));
      [[maybe_unused]] const auto greeted = again.Greet(false, 1);
    });
    ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
    keeper_->Drop({"m0000", "never-opened"});
    EXPECT_EQ(Look("m0000").kept, KeptCounts{});
    EXPECT_TRUE(Look("m0000").open) << "until its process has ended";
    EXPECT_FALSE(protocol::Connect(folder_.Socket("m0000"))) << "not before the next Open";
    Open("m0000", kOtherGpu, 2 * kGiB);
    // The former one is always refused; so is the successor while the former one lives.
    EXPECT_FALSE(FakeBroker(folder_.Socket("m0000")).Greet(true, 2));
    EXPECT_EQ(events_.Count("m0000", false), 0);
    former.Kill();
    ASSERT_TRUE(events_.Wait("m0000", false));
  }
  FakeBroker successor(folder_.Socket("m0000"));
  const auto welcome = successor.Greet(true, 2);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->pool_bytes, 2 * kGiB);
  EXPECT_THAT(*successor.TakeKept(), IsEmpty());
}

TEST_F(KeeperTest, AnotherGrantUnderTheSameNameIsAnotherAllocation) {
  Open("m0000");
  OtherProcess former(folder_.Socket("m0000"), false, 1,
                      [](FakeBroker* broker) { (void)SayOneOfEach(broker); });
  ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
  Open("m0000", kGpu, 2 * kGiB);
  EXPECT_EQ(Look("m0000").kept, KeptCounts{});
  former.Kill();
  ASSERT_TRUE(events_.Wait("m0000", false));
  FakeBroker successor(folder_.Socket("m0000"));
  EXPECT_EQ(successor.Greet(true, 2)->generations, 0u);
}

TEST_F(KeeperTest, CloseTakesTheSocketAway) {
  Open("m0000");
  OtherProcess broker(folder_.Socket("m0000"), true, 1);
  ASSERT_TRUE(events_.Wait("m0000", true));
  keeper_->Close("m0000");
  EXPECT_FALSE(std::filesystem::exists(folder_.Socket("m0000")));
  EXPECT_TRUE(Look("m0000").open);
  broker.Kill();
  ASSERT_TRUE(events_.Wait("m0000", false));
  EXPECT_TRUE(Eventually([&] { return keeper_->Look().empty(); }));
  std::ofstream(folder_.Socket("m0000")) << "left by a former plugin";
  keeper_->Close("m0000");
  EXPECT_FALSE(std::filesystem::exists(folder_.Socket("m0000")));
}

TEST_F(KeeperTest, OneBrokerAtATime) {
  Open("m0000");
  OtherProcess first(folder_.Socket("m0000"), true, 1);
  ASSERT_TRUE(events_.Wait("m0000", true));
  FakeBroker second(folder_.Socket("m0000"));
  EXPECT_FALSE(second.Greet(true, 2)) << "the first broker's process is running";
  EXPECT_TRUE(Look("m0000").connected) << "and is not disturbed";
  first.Kill();
  FakeBroker third(folder_.Socket("m0000"));
  EXPECT_TRUE(third.Greet(true, 2)) << "immediately, whoever notices the end first";
  EXPECT_TRUE(events_.Wait("m0000", true, 2));
  EXPECT_EQ(events_.Count("m0000", false), 1);
  FakeBroker again(folder_.Socket("m0000"));
  EXPECT_TRUE(again.Greet(true, 2)) << "the same process";
  EXPECT_TRUE(third.WaitForEnd());
  EXPECT_EQ(events_.Count("m0000", false), 1);
}

TEST_F(KeeperTest, TellsTheHealthOfTheGpu) {
  Open("m0000", kGpu);
  Open("m0001", kOtherGpu);
  FakeBroker broker(folder_.Socket("m0000"));
  FakeBroker elsewhere(folder_.Socket("m0001"));
  ASSERT_TRUE(broker.Greet(false));
  ASSERT_TRUE(elsewhere.Greet(false));
  keeper_->SetDevice(kGpu, true, std::string(1000, 'x'));
  auto device = broker.Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice);
  ASSERT_TRUE(device) << device.error().ToString();
  EXPECT_EQ(device->lost, 1u);
  EXPECT_EQ(device->reason[254], 'x');
  EXPECT_EQ(elsewhere.Next(0).error().code(), Code::kTimeout);
  FakeBroker later(folder_.Socket("m0000"));
  EXPECT_EQ(later.Greet(true)->device_lost, 1u);
  EXPECT_TRUE(later.TakeKept());
  EXPECT_TRUE(later.Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice)) << "and why";
  keeper_->SetDevice(kGpu, false, "");
  device = later.Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice);
  ASSERT_TRUE(device);
  EXPECT_EQ(device->lost, 0u);
}

// Goal: a broker that is stopped, or does not read, holds nobody up. Method: it requests 20,000
// leases and reads nothing, while another one is served and the plugin reads the links.
TEST_F(KeeperTest, AStalledBrokerHoldsNobodyUp) {
  Open("m0000");
  Open("m0001");
  std::vector<std::string> stated;
  {
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(false));
    ASSERT_TRUE(SayOneOfEach(&broker));
    for (uint64_t id = 2; id <= 20'000; ++id) ASSERT_TRUE(broker.Say(LeaseOf(id, 1, 7)));
    ASSERT_TRUE(Eventually([&] { return Look("m0000").kept.leases == 20'000; }));
  }
  FakeBroker stalled(folder_.Socket("m0000"));
  ASSERT_TRUE(stalled.Greet(true));
  FakeBroker other(folder_.Socket("m0001"));
  ASSERT_TRUE(other.Greet(false));
  ASSERT_TRUE(SayOneOfEach(&other));
  EXPECT_TRUE(WaitForKept("m0001", kOneOfEach));
  keeper_->SetDevice(kGpu, true, "XID 79");
  EXPECT_TRUE(other.Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice));
  const auto kept = stalled.TakeKept();
  ASSERT_TRUE(kept);
  EXPECT_THAT(*kept, SizeIs(20'003)) << "once it reads, it gets everything";
  EXPECT_TRUE(stalled.Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice));
  ASSERT_TRUE(stalled.End());
  EXPECT_TRUE(WaitForKept("m0000", {})) << "and the keeper reads from it again";
}

TEST_F(KeeperTest, WhoSaysNothingIsDisconnected) {
  StartKeeper({.greeting_ms = 100});
  Open("m0000");
  FakeBroker silent(folder_.Socket("m0000"));
  EXPECT_TRUE(silent.WaitForEnd());
  EXPECT_EQ(events_.Count("m0000", true), 0);
  StartKeeper({.greeting_ms = 600'000});
  Open("m0000");
  std::vector<FakeBroker> crowd;
  for (int i = 0; i < 8; ++i) crowd.emplace_back(folder_.Socket("m0000"));
  FakeBroker ninth(folder_.Socket("m0000"));
  EXPECT_TRUE(ninth.WaitForEnd()) << "at most eight may wait";
  EXPECT_TRUE(crowd[3].Greet(true));
}

// A broker before Linux 6.5: the kernel does not identify its process.
TEST_F(KeeperTest, WithoutPeerProcessesTheSocketsEndAndSomeTimeAreTheEnd) {
  testing::BeforeLinux65([this] {
    StartKeeper({.greeting_ms = 5000, .gone_ms = 300});
    Open("m0000");
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(false, 1));
    ASSERT_TRUE(SayOneOfEach(&broker));
    ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
    EXPECT_FALSE(FakeBroker(folder_.Socket("m0000")).Greet(true, 2)) << "another one";
    FakeBroker again(folder_.Socket("m0000"));
    EXPECT_TRUE(again.Greet(true, 1)) << "the same, by its epoch";
    const int64_t ended_ns = MonotonicNs();
    again.Hangup();
    ASSERT_TRUE(events_.Wait("m0000", false));
    EXPECT_GE(MonotonicNs() - ended_ns, 299'000'000);
    FakeBroker next(folder_.Socket("m0000"));
    EXPECT_EQ(next.Greet(true, 2)->leases, 1u);
  });
}

// The next test runs this as a user without privileges.
TEST_F(KeeperTest, DISABLED_DumpsMoreDescriptorsThanMayBeInFlight) {
  constexpr rlim_t kInFlight = 60;  // RLIMIT_NOFILE is the limit, counted per user.
  constexpr uint64_t kGenerations = 150;
  std::vector<UniqueFd> low;
  while (low.empty() || low.back().get() < static_cast<int>(kInFlight)) low.push_back(Memfd());
  Open("m0000");
  {
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(false));
    ASSERT_TRUE(broker.Say(BufferOf("weights")));
    for (uint64_t id = 1; id <= kGenerations; ++id) {
      ASSERT_TRUE(broker.Say(GenerationOf("weights", id), Memfd().get()));
    }
    ASSERT_TRUE(Eventually([&] { return Look("m0000").kept.generations == kGenerations; }));
  }
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = kInFlight;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  low.resize(20);  // Room below the limit again.
  FakeBroker next(folder_.Socket("m0000"));
  ASSERT_TRUE(next.Greet(true));
  keeper_->SetDevice(kGpu, true, "XID 79");
  EXPECT_EQ(Look("m0000").kept.generations, kGenerations) << "it does not wait for the broker";
  const auto kept = next.TakeKept();
  ASSERT_TRUE(kept) << kept.error().ToString();
  EXPECT_THAT(*kept, SizeIs(kGenerations + 1));
  EXPECT_TRUE(next.Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice));
}

// Goal: ETOOMANYREFS only delays a dump. Method: root has no such limit, so this program runs the
// case again as another user.
TEST(Keeper, DumpsMoreDescriptorsThanMayBeInFlight) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become a user without descriptors in flight";
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobodyElse = 54'321;
    if (setresgid(kNobodyElse, kNobodyElse, kNobodyElse) != 0 ||
        setresuid(kNobodyElse, kNobodyElse, kNobodyElse) != 0) {
      _exit(3);
    }
    execl("/proc/self/exe", "keeper_test", "--gtest_also_run_disabled_tests",
          "--gtest_filter=*DISABLED_Dumps*", nullptr);
    _exit(2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(WIFEXITED(status));
}

// Goal: a name gets no new holder while its memory may still be held. Method: its close takes until
// a file system answers.
TEST(LinkServer, OpensAgainOnlyWhenMemoryIsClosed) {
  if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
  const LinksFolder folder;
  folder.Add("m0000");
  const gpushm::testing::TempFolder mount;
  auto slow = HungFuse::Mount(mount.path(), HangAt::kFlush);  // In place of an unhealthy GPU.
  ASSERT_TRUE(slow) << slow.error().ToString();
  const auto file = slow->Open(O_RDONLY);
  ASSERT_TRUE(file);
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  StatementBudget budget{.limit_bytes = kMiB};
  LinkServer link(loop->get(), {}, "m0000", folder.Socket("m0000"), "/nowhere", &budget,
                  {.on_open = [](bool) {}, .on_ready = {}, .make_room = {}, .on_foreign = {}});
  ASSERT_TRUE(link.Open({{kGpu}, kGiB}, {}));
  link.closing()->Close(UniqueFd(fcntl(*file, F_DUPFD_CLOEXEC, 0)));
  ASSERT_TRUE(slow->WaitUntilHung());
  link.Revoke();
  EXPECT_FALSE(link.finished());
  const auto refused = link.Open({{kGpu}, kGiB}, {});
  EXPECT_EQ(CodeOf(refused), As(Code::kBusy));
  EXPECT_THAT(refused.error().what(), HasSubstr("still being closed"));
  slow->Answer();
  ASSERT_TRUE(link.closing()->WaitForAll(Deadline::AfterMs(kSoonMs)));
  EXPECT_TRUE(link.finished());
  EXPECT_TRUE(link.Open({{kGpu}, kGiB}, {}));
}

}  // namespace
}  // namespace gpushm::plugin::keeper::testing
