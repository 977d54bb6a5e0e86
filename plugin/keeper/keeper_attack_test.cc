// Goal: whatever a broker sends, the keeper survives, other links are unaffected, and the
// offender's kept state stays unless link.h says otherwise. Method: one broken rule at a time, then
// random changes to valid messages, in parallel with a link that must keep working.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>

#include "contract/registry/layout.h"
#include "platform/base/testing.h"
#include "plugin/keeper/testing/counter_segment.h"
#include "plugin/keeper/testing/keeper_fixture.h"

namespace gpushm::plugin::keeper::testing {
namespace {

using protocol::LinkKind;

// A message of a kind, with its raw bytes.
template <typename T>
std::vector<std::byte> Encoded(LinkKind kind, const T& body) {
  protocol::Buffer bytes;
  const size_t size = protocol::EncodeLink(kind, body, &bytes);
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)};
}

UniqueFd UnsealedRegistry() {
  UniqueFd fd = Memfd();
  EXPECT_EQ(ftruncate(fd.get(), 1 << 20), 0);
  return fd;
}
// A sealed memfd of the right size that is not a registry.
UniqueFd EmptyRegistry() {
  auto segment = registry::MakeSealedSegment(1 << 20);
  return segment ? std::move(segment->fd) : UniqueFd();
}
UniqueFd Pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  close(ends[1]);
  return UniqueFd(ends[0]);
}
UniqueFd OpenPath(const char* path, int flags) { return UniqueFd(open(path, flags | O_CLOEXEC)); }

class KeeperAttackTest : public KeeperTest {
 protected:
  void SetUp() override {
    KeeperTest::SetUp();
    StartBystander();
  }

  // A broker that has stated one of each sends this message. It must be disconnected, and its kept
  // state must stay.
  void ExpectBreach(const char* what, const std::vector<std::byte>& message,
                    std::vector<UniqueFd> descriptors = {}) {
    SCOPED_TRACE(what);
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(false));
    ASSERT_TRUE(broker.Registry());
    ASSERT_TRUE(broker.Counters());
    ASSERT_TRUE(SayOneOfEach(&broker));
    ASSERT_TRUE(broker.End());
    std::vector<int> fds;
    for (const UniqueFd& fd : descriptors) {
      EXPECT_TRUE(fd.valid());
      fds.push_back(fd.get());
    }
    ASSERT_TRUE(protocol::Send(broker.socket(), message, fds, Deadline::AfterMs(kSoonMs)));
    EXPECT_TRUE(broker.WaitForEnd());
    EXPECT_EQ(Look("m0000").kept, kOneOfEach);
    EXPECT_TRUE(Look("m0000").open) << "its process is running";
  }
  template <typename... Fds>
  static std::vector<UniqueFd> Of(Fds... fds) {
    std::vector<UniqueFd> all;
    (all.push_back(std::move(fds)), ...);
    return all;
  }
};

TEST_F(KeeperAttackTest, MessagesThatBreakTheProtocol) {
  const protocol::LinkLease lease = LeaseOf(2, 1, 7);
  std::vector<std::byte> message = Encoded(LinkKind::kLease, lease);
  message[0] ^= std::byte{1};
  ExpectBreach("magic", message);
  message = Encoded(LinkKind::kLease, lease);
  message[4] = std::byte{protocol::kLinkMaxVersion + 1};
  ExpectBreach("version", message);
  message = Encoded(LinkKind::kLease, lease);
  message.pop_back();
  ExpectBreach("cut off", message);
  ExpectBreach("one byte", {std::byte{0}});
  ExpectBreach("too long", std::vector<std::byte>(protocol::Buffer{}.size() + 1));
  ExpectBreach("unknown kind", Encoded(static_cast<LinkKind>(protocol::kMaxLinkKind + 1), lease));
  ExpectBreach("another kind's body", Encoded(LinkKind::kClient, lease));
  ExpectBreach("access", Encoded(LinkKind::kLease, protocol::LinkLease{.lease_id = 2,
                                                                       .client_id = 1,
                                                                       .generation = 7,
                                                                       .since_unix_ns = 0,
                                                                       .access = 7,
                                                                       .peer_way = 0}));
  ExpectBreach("a second hello", Encoded(LinkKind::kHello, protocol::LinkHello{1, 1, 0, 1, {}}));
  ExpectBreach("a second end", Encoded(LinkKind::kEnd, protocol::LinkEnd{}));
  ExpectBreach("what only the plugin says",
               Encoded(LinkKind::kDevice, protocol::LinkDevice{1, 0, {}}));
  protocol::LinkWelcome welcome{};
  welcome.allocation = protocol::ToNameField("m0001");
  ExpectBreach("the plugin's greeting", Encoded(LinkKind::kWelcome, welcome));
  ExpectBreach("a lease of nobody", Encoded(LinkKind::kLease, LeaseOf(2, 9, 7)));
  ExpectBreach("a lease on nothing", Encoded(LinkKind::kLease, LeaseOf(2, 1, 9)));
  ExpectUnharmed();
}

TEST_F(KeeperAttackTest, DescriptorsThatAreNotWhatTheyShouldBe) {
  const std::vector<std::byte> client = Encoded(LinkKind::kClient, ClientOf(2));
  ExpectBreach("no pidfd", client);
  ExpectBreach("a file as pidfd", client, Of(Memfd()));
  ExpectBreach("an event as pidfd", client, Of(UniqueFd(eventfd(0, EFD_CLOEXEC))));
  ExpectBreach("two pidfds", client, Of(PidfdOf(getpid()), PidfdOf(getpid())));
  ExpectBreach("more than a message may have", client, Of(Memfd(), Memfd(), Memfd(), Memfd()));
  const std::vector<std::byte> memory = Encoded(LinkKind::kGeneration, GenerationOf("weights", 8));
  ExpectBreach("no memory", memory);
  ExpectBreach("a lease with a descriptor", Encoded(LinkKind::kLease, LeaseOf(2, 1, 7)),
               Of(Memfd()));
  ExpectBreach("a second registry", Encoded(LinkKind::kRegistry, protocol::LinkRegistry{1}),
               Of(Memfd()));
  const std::vector<std::byte> counters =
      Encoded(LinkKind::kCounters, protocol::LinkCounters{1, 0});
  ExpectBreach("counters a second time", counters, Of(CounterSegment({"app"}).TakeFd()));
  ExpectUnharmed();
}

// A process that sends something else as memory is refused from then on; what was kept before
// stays.
TEST_F(KeeperAttackTest, WhatIsNotMemoryCostsTheLink) {
  const auto socket_fd = [] { return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); };
  const auto folder = [] { return OpenPath("/", O_RDONLY | O_DIRECTORY); };
  const auto path = [] { return OpenPath("/dev/null", O_PATH); };
  const auto device = [] { return OpenPath("/dev/null", O_RDWR); };
  const auto file = [] { return OpenPath("/proc/self/exe", O_RDONLY); };
  const auto process = [] { return PidfdOf(getpid()); };
  const std::vector<std::pair<const char*, std::function<UniqueFd()>>> foreign = {
      {"socket", socket_fd}, {"pipe", Pipe},       {"folder", folder},  {"path", path},
      {"device", device},    {"other file", file}, {"process", process}};
  int refused = 0;
  for (const auto& [what, make] : foreign) {
    SCOPED_TRACE(what);
    ASSERT_TRUE(Eventually([&] { return Look("m0000").closing == 0; }))
        << "otherwise nobody is accepted";
    const UniqueFd fd = make();
    const bool may_block = MayHoldUpItsCloser(fd.get());
    Process sender([&] {
      FakeBroker broker(folder_.Socket("m0000"));
      (void)broker.Greet(false);
      (void)SayOneOfEach(&broker);
      (void)broker.Say(BufferOf("odd", 8));
      (void)broker.Say(GenerationOf("odd", 8), fd.get());
      if (!broker.WaitForEnd()) return;
      FakeBroker again(folder_.Socket("m0000"));
      if (may_block ? bool{again.Greet(false)} : !again.Greet(false)) return;
      _exit(0);
    });
    EXPECT_TRUE(sender.WaitForEnd());
    EXPECT_EQ(sender.status(), 0) << "it was not disconnected, or was accepted again";
    refused += may_block ? 1 : 0;
    EXPECT_EQ(Count(ForeignStep::kRefused), refused);
    EXPECT_EQ(Look("m0000").kept.generations, 1u);
  }
  ExpectUnharmed();
}

// Not an attack: kept state must not be dropped because the plugin has no free descriptor.
TEST_F(KeeperAttackTest, WithoutAFreeDescriptorWhatIsKeptStays) {
  FakeBroker broker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  ASSERT_TRUE(SayOneOfEach(&broker));
  ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
  const UniqueFd memory = Memfd();
  {
    const gpushm::testing::FewDescriptors few(0);
    ASSERT_TRUE(broker.Say(GenerationOf("weights", 8), memory.get()));
    EXPECT_TRUE(broker.WaitForEnd()) << "it must connect and state everything again";
  }
  EXPECT_EQ(Look("m0000").kept, kOneOfEach);
  broker = FakeBroker(folder_.Socket("m0000"));
  ASSERT_TRUE(broker.Greet(false));
  ASSERT_TRUE(SayOneOfEach(&broker));
  ASSERT_TRUE(broker.Say(GenerationOf("weights", 8), memory.get()));
  EXPECT_TRUE(Eventually([&] { return Look("m0000").kept.generations == 2; }));
  ExpectUnharmed();
}

TEST_F(KeeperAttackTest, SegmentsThatCouldKillTheirReader) {
  const auto broken = [&](const auto& say) {
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(false));
    ASSERT_TRUE(say(&broker));
    EXPECT_TRUE(broker.WaitForEnd());
    EXPECT_TRUE(Look("m0000").counters.empty());
    EXPECT_EQ(Look("m0000").registry, nullptr);
  };
  std::vector<UniqueFd> bad;
  for (const auto& make : {UnsealedRegistry, EmptyRegistry, Pipe, Memfd}) bad.push_back(make());
  for (const UniqueFd& fd : bad) {
    broken([&](FakeBroker* broker) {
      return broker->Say(LinkKind::kRegistry, protocol::LinkRegistry{1}, fd.get());
    });
  }
  bad.push_back(std::move(MakeSealed("x", 4096, Writers::kAll)->fd));
  bad.push_back(PidfdOf(getpid()));
  bad.push_back(UniqueFd());  // None at all.
  bad.push_back(CounterSegment({"app", "app"}).TakeFd());
  for (const UniqueFd& fd : bad) {
    broken([&](FakeBroker* broker) {
      return broker->Say(LinkKind::kCounters, protocol::LinkCounters{1, 0}, fd.get());
    });
  }
  ExpectUnharmed();
}

// Counters of a later version are not a breach.
TEST_F(KeeperAttackTest, CountersOfAnotherVersion) {
  const CounterSegment segment({"app"});
  FakeBroker later(folder_.Socket("m0000"));
  ASSERT_TRUE(later.Greet(false));
  ASSERT_TRUE(later.Say(LinkKind::kCounters, protocol::LinkCounters{7, 0}, segment.fd().get()));
  ASSERT_TRUE(SayOneOfEach(&later));
  EXPECT_TRUE(WaitForKept("m0000", kOneOfEach));
  EXPECT_TRUE(Look("m0000").counters.empty());
  ExpectUnharmed();
}

TEST_F(KeeperAttackTest, GreetingsThatAreNone) {
  const auto refused = [&](const std::vector<std::byte>& message) {
    FakeBroker broker(folder_.Socket("m0000"));
    return protocol::Send(broker.socket(), message, {}, Deadline::AfterMs(kSoonMs)) &&
           broker.WaitForEnd();
  };
  EXPECT_TRUE(refused(Encoded(LinkKind::kEnd, protocol::LinkEnd{})));
  constexpr uint16_t kNow = protocol::kLinkMaxVersion;
  EXPECT_TRUE(refused(Encoded(LinkKind::kHello, protocol::LinkHello{kNow + 1, kNow, 0, 1, {}})))
      << "its least version is above its highest";
  EXPECT_TRUE(refused(Encoded(LinkKind::kHello, protocol::LinkHello{kNow, kNow, 7, 1, {}})));
  EXPECT_EQ(events_.Count("m0000", true), 0);
  ExpectUnharmed();
}

// A broker states and takes back as fast as it can, until others were served a hundred times.
TEST_F(KeeperAttackTest, AFloodStarvesNobody) {
  Process flood([&] {
    FakeBroker broker(folder_.Socket("m0000"));
    if (!broker.Greet(false) || !SayOneOfEach(&broker)) return;
    const UniqueFd memory = Memfd();
    for (uint64_t id = 2;; ++id) {
      if (!broker.Say(GenerationOf("weights", id), memory.get())) return;
      if (!broker.Say(protocol::LinkDrop{.what = 3, .reserved = 0, .id = id, .name = {}})) return;
    }
  });
  ASSERT_TRUE(events_.Wait("m0000", true));
  for (int i = 0; i < 100; ++i) ExpectUnharmed();
  flood.Kill();
  EXPECT_TRUE(events_.Wait("m0000", false));
  EXPECT_TRUE(Eventually([&] { return Look("m0000").closing == 0; }));
}

TEST_F(KeeperAttackTest, MutatedMessages) {
  const int rounds = 3000 / gpushm::testing::Stride();
  SCOPED_TRACE(gpushm::testing::StrideNote());
  Random random(static_cast<uint64_t>(1 + gpushm::testing::Offset()));
  const size_t before = OpenDescriptors();
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(Pick(random, 0, 1) == 0, Pick(random, 1, 3)));
    for (int i = 0; i < 8; ++i) {
      const Body body = RandomBody(random);
      protocol::Buffer bytes{};
      size_t size = std::visit(
          [&](const auto& stated) { return protocol::EncodeLink(KindOf(body), stated, &bytes); },
          body);
      if (Pick(random, 0, 1) == 0) {
        for (uint64_t flips = Pick(random, 1, 3); flips > 0; --flips) {
          bytes[Pick(random, 0, size - 1)] ^= static_cast<std::byte>(1 << Pick(random, 0, 7));
        }
      }
      if (Pick(random, 0, 20) == 0) size = Pick(random, 1, bytes.size());
      std::array<UniqueFd, 3> fds = {PidfdOf(getpid()), Memfd()};
      uint64_t which = Pick(random, 0, 1);
      if (Pick(random, 0, 9) == 0) {
        CounterSegment segment({"app", "other"});
        auto* const segment_bytes = reinterpret_cast<std::byte*>(&segment.header());
        if (Pick(random, 0, 1) == 0) {
          segment_bytes[Pick(random, 0, 80)] ^= static_cast<std::byte>(1 << Pick(random, 0, 7));
        }
        fds[which = 2] = segment.TakeFd();
        size = protocol::EncodeLink(LinkKind::kCounters, protocol::LinkCounters{1, 0}, &bytes);
      }
      const int fd = fds[which].get();
      const uint64_t count = Pick(random, 0, 3) == 0 ? 0 : 1;
      if (!protocol::Send(broker.socket(), {bytes.data(), size}, {&fd, count},
                          Deadline::AfterMs(kSoonMs))) {
        ++refused;
        break;
      }
    }
  }
  EXPECT_GT(refused, rounds / 100);
  ExpectUnharmed();
  keeper_->Drop({"m0000"});
  EXPECT_TRUE(Eventually([&] { return Look("m0000").closing == 0; }));
  EXPECT_LE(OpenDescriptors(), before + 2)
      << "the descriptors of its broker's process and of the dead socket";
}

}  // namespace
}  // namespace gpushm::plugin::keeper::testing
