// Goal: no client blocks the broker (server.h lists the defences). Method: the real broker on the
// simulated driver, with an attacker in one container and a bystander in the other, who must be
// served meanwhile. Where it is cheap, a control shows that the attack would work without the
// defence.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/base/testing/code.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace gpushm::broker::testing {
namespace {

using protocol::Kind;
using ::testing::HasSubstr;

// An attack lasts three times as long as a client here waits for an answer. A client that gets an
// answer was therefore not blocked, however slow the machine is.
constexpr int kLingerSeconds = 60;
static_assert(kLingerSeconds * 1000 >= 3 * kSoonMs);

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }

// A TCP socket whose close blocks: it has SO_LINGER, unsent data, and a peer that never reads.
struct Lingering {
  UniqueFd socket;
  UniqueFd peer;
};
Lingering MakeLingering() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  Lingering made;
  made.socket.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(made.socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  made.peer.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::vector<char> bytes(1 << 16);
  while (send(made.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  const linger on{.l_onoff = 1, .l_linger = kLingerSeconds};
  EXPECT_EQ(setsockopt(made.socket.get(), SOL_SOCKET, SO_LINGER, &on, sizeof on), 0);
  return made;
}

class AttackTest : public ::testing::Test {
 protected:
  AttackTest() : broker_(folder_.path(), TwoContainers()), attacker_(broker_.Socket("app")) {
    if (!broker_.ready()) return;
    before_ = broker_.Descriptors() - 2;  // Without the attacker's socket and pidfd ...
    EXPECT_TRUE(attacker_.Hello());       // ... which certainly exist now.
    EXPECT_TRUE(Eventually([&] { return broker_.Descriptors() >= 2; }));
    before_ = broker_.Descriptors() - 2;
  }
  void SetUp() override { ASSERT_TRUE(broker_.ready()); }
  void TearDown() override { simulated::SetFaults(""); }

  // Another client comes, attaches, and leaves.
  void ExpectOthersAreServed() const {
    RawClient bystander(broker_.Socket("other"));
    ASSERT_TRUE(bystander.Hello());
    const auto attached = bystander.Attach("weights");
    ASSERT_TRUE(attached) << attached.error().ToString();
    EXPECT_EQ(bystander.descriptors().size(), 1u);
    ASSERT_TRUE(bystander.Detach(attached->lease_id));
  }
  // After the attackers left, none of their descriptors is open.
  void ExpectNothingLeft() {
    attacker_.Close();
    EXPECT_TRUE(Eventually([&] { return broker_.Descriptors() <= before_; }))
        << broker_.Descriptors() << " descriptors, " << before_ << " before";
    EXPECT_EQ(broker_.WaitForEnd(0), -1000) << "it must run on";
  }
  RawClient Another(const std::string& container = "app") const {
    RawClient client(broker_.Socket(container));
    EXPECT_TRUE(client.Hello());
    return client;
  }

  TempFolder folder_;
  BrokerProcess broker_;
  RawClient attacker_;
  size_t before_ = 0;
};

// Goal: nobody gets another text than one line from a process that states a reason.
TEST_F(AttackTest, AReasonThatIsNoLineEndsTheConnection) {
  for (const std::string_view text : {"", "two\nlines", "\x1b[31mred", "\xff", "\xc2\x9b"}) {
    RawClient client = Another();
    protocol::ReasonRequest request{
        .name = protocol::ToNameField("weights"), .code = 2, .failed = 1, .text = {}};
    std::ranges::copy(text, request.text.begin());
    EXPECT_EQ(CodeOf(client.Call<protocol::EmptyReply>(Kind::kReason, request)),
              As(Code::kUnavailable))
        << text;
  }
  ExpectOthersAreServed();
  ExpectNothingLeft();
}

TEST_F(AttackTest, LingeringSocketsBlockWhoClosesThem) {  // The control.
  Lingering lingering = MakeLingering();
  const int64_t begun_ns = MonotonicNs();
  auto closed = std::async(std::launch::async, [&] { lingering.socket.Reset(); });
  EXPECT_EQ(closed.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  lingering.peer.Reset();  // Releases it.
  closed.wait();
  EXPECT_GT(MonotonicNs() - begun_ns, 200'000'000);
}

TEST_F(AttackTest, LingeringSocketsHoldNobodyUp) {
  // Every path by which a descriptor arrives and is not kept.
  using Way = std::function<void(RawClient&, int)>;
  const std::vector<std::byte> giant(limits::kMessageBytes + 1);
  const std::vector<std::byte> garbage(100);
  const std::vector<std::pair<const char*, Way>> ways = {
      {"an offer of what is no memory",
       [](RawClient& c, int fd) {
         EXPECT_EQ(CodeOf(c.Offer("lingering", fd)), As(Code::kInvalidArgument));
       }},
      {"beside a request that has none",
       [](RawClient& c, int fd) {
         ASSERT_TRUE(c.Announce());
         EXPECT_TRUE(c.Call<protocol::BrokerInfoReply>(Kind::kBrokerInfo,
                                                       protocol::BrokerInfoRequest{0}, {&fd, 1}));
       }},
      {"with garbage",
       [&](RawClient& c, int fd) {
         ASSERT_TRUE(c.Announce());
         SendRaw(c.socket(), garbage, {&fd, 1});
       }},
      {"with an empty message",
       [&](RawClient& c, int fd) {
         ASSERT_TRUE(c.Announce());
         SendRaw(c.socket(), {}, {&fd, 1});
       }},
      {"with a message that is too long",
       [&](RawClient& c, int fd) {
         ASSERT_TRUE(c.Announce());
         SendRaw(c.socket(), giant, {&fd, 1});
       }},
      {"more than a message may have",
       [&](RawClient& c, int fd) {
         ASSERT_TRUE(c.Announce());
         SendRaw(c.socket(), garbage, std::vector<int>(253, fd));
       }},
      {"unread in a socket that is closed", [](RawClient& c, int fd) {
         ASSERT_TRUE(c.Announce());
         const std::vector<std::byte> bad(100);
         for (int i = 0; i < 20; ++i) SendRaw(c.socket(), bad, {&fd, 1});
       }}};
  std::vector<UniqueFd> peers;
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    Lingering lingering = MakeLingering();
    RawClient client = Another();
    way(client, lingering.socket.get());
    lingering.socket.Reset();
    client.Close();
    peers.push_back(std::move(lingering.peer));  // Nobody reads it during the test.
    ExpectOthersAreServed();
  }
  peers.clear();  // Releases what still lingers.
  ExpectNothingLeft();
}

TEST_F(AttackTest, ALingeringOfferDoesNotDelayTheEnd) {
  Lingering lingering = MakeLingering();
  EXPECT_EQ(CodeOf(attacker_.Offer("kept", lingering.socket.get())), As(Code::kInvalidArgument));
  lingering.socket.Reset();
  broker_.Signal(SIGTERM);
  EXPECT_EQ(broker_.WaitForEnd(), 0);
}

TEST_F(AttackTest, UnannouncedDescriptorsAreRefusedAtTheSender) {
  int on = 0;
  if (setsockopt(attacker_.socket(), SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof on) != 0) {
    GTEST_SKIP() << "SO_PASSRIGHTS is of Linux 6.16";
  }
  protocol::Buffer buffer;
  const size_t size =
      protocol::EncodeRequest(Kind::kBrokerInfo, 1, protocol::BrokerInfoRequest{0}, &buffer);
  const int fd = attacker_.socket();
  EXPECT_EQ(SendRaw(attacker_.socket(), {buffer.data(), size}, {&fd, 1}), EPERM);
  EXPECT_TRUE(attacker_.Info()) << "the connection goes on";
  ASSERT_TRUE(attacker_.Announce());
  EXPECT_EQ(SendRaw(attacker_.socket(), {buffer.data(), size}, {&fd, 1}), 0);
  EXPECT_TRUE(attacker_.Await<protocol::BrokerInfoReply>());
  EXPECT_EQ(SendRaw(attacker_.socket(), {buffer.data(), size}, {&fd, 1}), EPERM) << "one request";
}

TEST_F(AttackTest, AFloodOfDescriptorsEndsWithItsConnection) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> many(253, null.get());
  const std::vector<std::byte> bytes(64);
  for (int round = 0; round < 20; ++round) {
    RawClient client = Another();
    ASSERT_TRUE(Eventually([&] { return client.Announce().has_value(); })) << "BUSY at most";
    for (int i = 0; i < 50; ++i) SendRaw(client.socket(), bytes, many);
    EXPECT_TRUE(client.IsDisconnected());
  }
  ExpectOthersAreServed();
  ExpectNothingLeft();
}

TEST_F(AttackTest, ASecondUnreadDescriptorIsRefusedAndLeavesNoLease) {
  RawClient client(broker_.Socket("app"));
  const auto hello = client.Hello();
  ASSERT_TRUE(hello);
  const protocol::AttachRequest attach{.name = protocol::ToNameField("weights"),
                                       .access = 1,
                                       .peer_way = 0,
                                       .generation = 0,
                                       .gpu_uuid = hello->gpu_uuid};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client.Post(Kind::kAttach, attach));
  // Nothing is read until all three were checked.
  RawClient watcher = Another("other");
  EXPECT_TRUE(Eventually([&] { return watcher.Info()->leases == 1; }));
  const auto first = client.Await<protocol::AttachReply>();
  ASSERT_TRUE(first);
  int contended = 0;
  for (int i = 0; i < 2; ++i) {
    contended += CodeOf(client.Await<protocol::AttachReply>()) == As(Code::kContended) ? 1 : 0;
  }
  EXPECT_GE(contended, 1);
  ASSERT_TRUE(client.Detach(first->lease_id));
}

TEST_F(AttackTest, BrokenMessagesEndOnlyTheirConnection) {
  const auto expect_end = [&](const char* what, const std::function<void(RawClient&)>& attack) {
    SCOPED_TRACE(what);
    RawClient client = Another();
    RawClient neighbour = Another();
    attack(client);
    EXPECT_TRUE(client.IsDisconnected());
    EXPECT_TRUE(neighbour.Info());
  };
  const auto raw = [](size_t size) {
    return [size](RawClient& c) {
      const std::vector<std::byte> bytes(size, std::byte{0x5a});
      SendRaw(c.socket(), bytes, {});
    };
  };
  for (const size_t size : {size_t{0}, size_t{1}, size_t{23}, size_t{24}, size_t{4096},
                            size_t{4097}, size_t{100'000}}) {
    expect_end("bytes", raw(size));
  }
  expect_end("half a request", [](RawClient& c) {
    protocol::Buffer buffer;
    const size_t all =
        protocol::EncodeRequest(Kind::kHolders, 1, protocol::HoldersRequest{}, &buffer);
    SendRaw(c.socket(), {buffer.data(), all / 2}, {});
  });
  expect_end("a second hello", [](RawClient& c) { EXPECT_FALSE(c.Hello()); });
  expect_end("a reply", [](RawClient& c) {
    protocol::Buffer buffer;
    const size_t all = protocol::EncodeReply(Kind::kDetach, 1, protocol::EmptyReply{0}, &buffer);
    SendRaw(c.socket(), {buffer.data(), all}, {});
  });
  expect_end("a name that is none", [](RawClient& c) { EXPECT_FALSE(c.Attach("../../etc")); });
  expect_end("an announced descriptor that is two", [](RawClient& c) {
    ASSERT_TRUE(c.Announce());
    const std::vector<int> two(2, c.socket());
    SendRaw(c.socket(), std::vector<std::byte>(32), two);
  });
  expect_end("an offer without memory", [](RawClient& c) {
    protocol::OfferRequest body{};
    body.name = protocol::ToNameField("x");
    body.size_bytes = body.mapped_bytes = 1;
    body.transport = 1;
    EXPECT_FALSE(c.Call<protocol::OfferReply>(Kind::kOffer, body));
  });
  expect_end("a request after the end of file", [](RawClient& c) {
    ASSERT_TRUE(c.Post(Kind::kBrokerInfo, protocol::BrokerInfoRequest{0}));
    shutdown(c.socket(), SHUT_WR);
  });
  RawClient early(broker_.Socket("app"));
  EXPECT_FALSE(early.Info()) << "before its hello";
  ExpectNothingLeft();
}

TEST_F(AttackTest, ASlowDriverHoldsUpOnlyWhoAsksIt) {
  simulated::SetFaults("hang: {cuMemCreate: 4000}");
  const int64_t begun_ns = MonotonicNs();
  protocol::CreateRequest body{};
  body.name = protocol::ToNameField("slow");
  body.size_bytes = 1;
  ASSERT_TRUE(attacker_.Post(Kind::kCreate, body));
  body.name = protocol::ToNameField("given-up");
  RawClient impatient = Another();
  body.flags = protocol::kFlagAttach;
  ASSERT_TRUE(impatient.Post(Kind::kCreate, body));
  impatient.Close();
  for (int i = 0; i < 20; ++i) ExpectOthersAreServed();
  EXPECT_LT(MonotonicNs() - begun_ns, 4'000'000'000) << "all while it hung";
  EXPECT_EQ(CodeOf(Another("other").Attach("slow")), As(Code::kNotFound));
  EXPECT_TRUE(attacker_.Await<protocol::MakeReply>());
  EXPECT_GE(MonotonicNs() - begun_ns, 4'000'000'000) << "the control: it did hang";
  simulated::SetFaults("");
  RawClient watcher = Another("other");
  EXPECT_TRUE(Eventually([&] { return watcher.Info()->used_bytes == (4u << 20) + (2u << 20); }))
      << "what was given up is freed";
}

TEST_F(AttackTest, AHangingDriverDoesNotKeepTheBrokerFromEnding) {
  TempFolder folder;
  BrokerSettings settings = TwoContainers();
  settings.arguments.insert(settings.arguments.end(), {"--drain-timeout-ms", "300"});
  BrokerProcess broker(folder.path(), settings);
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  simulated::SetFaults("hang: {cuMemCreate: 20000}");
  protocol::CreateRequest body{};
  body.name = protocol::ToNameField("slow");
  body.size_bytes = 1;
  ASSERT_TRUE(client.Post(Kind::kCreate, body));
  EXPECT_TRUE(client.connected());
  RawClient other(broker.Socket("other"));
  ASSERT_TRUE(other.Hello());
  broker.Signal(SIGTERM);
  EXPECT_EQ(broker.WaitForEnd(10'000), 0);
}

TEST_F(AttackTest, AHangingDriverDoesNotKeepTheBrokerFromSayingSo) {
  for (const auto& [call, step] :
       {std::pair("cuInit", "find its GPUs"), std::pair("cuMemCreate", "make \\\"weights")}) {
    simulated::SetFaults(Concat("hang: {", call, ": 20000}"));
    TempFolder folder;
    BrokerSettings settings = TwoContainers();
    settings.arguments.insert(settings.arguments.end(), {"--start-timeout-ms", "300"});
    BrokerProcess broker(folder.path(), settings);
    EXPECT_FALSE(broker.ready());
    EXPECT_EQ(broker.WaitForEnd(10'000), 1);
    EXPECT_THAT(broker.log(), HasSubstr(Concat("the driver did not ", step))) << call;
  }
}

TEST_F(AttackTest, TenThousandComeAndGo) {
  for (int i = 0; i < 10'000; ++i) {
    RawClient passer(broker_.Socket("app"));
    if (i % 10 == 0 && passer.connected()) {
      [[maybe_unused]] const auto hello = passer.Hello();  // May be EXHAUSTED, which ends at once.
    }
    if (i % 1000 == 0) ExpectOthersAreServed();
  }
  ExpectOthersAreServed();
  ExpectNothingLeft();
}

TEST_F(AttackTest, TheProcessCountsNotItsSocket) {
  // The socket survives in a grandchild, and the process that connected dies. The grandchild ends
  // with the test, when the last writer of this pipe is gone.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  ClientProcess parent([&] {
    static RawClient client(broker_.Socket("app"));
    if (!client.Hello() || !client.Attach("weights")) return 1;
    if (fork() != 0) return 0;
    writer.Reset();
    char byte = 0;
    [[maybe_unused]] const ssize_t end = read(reader.get(), &byte, 1);
    _exit(0);
  });
  ASSERT_EQ(parent.result(), 0);
  EXPECT_EQ(attacker_.Info()->leases, 1u);
  kill(parent.pid(), SIGKILL);
  waitpid(parent.pid(), nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return attacker_.Info()->leases == 0; }));
}

TEST_F(AttackTest, ForeignDescriptorsAreNoHarm) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const UniqueFd directory(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd zero(open("/dev/zero", O_RDWR | O_CLOEXEC));
  const UniqueFd shared(memfd_create("shared", MFD_CLOEXEC));
  // Regression: such offers were accepted, and the plugin broke the link that stated them.
  EXPECT_THAT(attacker_.Offer("odd", writer.get()).error().what(),
              HasSubstr("invalid memory descriptor: it is a pipe (pipe:"));
  for (const int fd :
       {writer.get(), directory.get(), attacker_.socket(), zero.get(), shared.get()}) {
    EXPECT_EQ(CodeOf(attacker_.Offer("odd", fd)), As(Code::kInvalidArgument));
  }
  ExpectNothingLeft();
}

// Descriptors in flight are counted per user over the whole node. Another process' flood makes the
// kernel refuse the broker's replies (ETOOMANYREFS) until the flood is read.
TEST(AttackOnAUser, RepliesWaitForDescriptorsInFlight) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to start a broker as another user";
  constexpr uid_t kUser = 31'339;
  TempFolder folder;
  ASSERT_EQ(chown(folder.path().c_str(), kUser, kUser), 0);
  BrokerSettings settings = TwoContainers();
  settings.uid = kUser;
  settings.descriptors = 100;
  BrokerProcess broker(folder.path(), settings);
  ASSERT_TRUE(broker.ready());
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  int parked[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, parked), 0);
  const UniqueFd near(parked[0]);
  UniqueFd far(parked[1]);
  ClientProcess flood([&] {
    if (setgid(kUser) != 0 || setuid(kUser) != 0) return 1;
    const std::vector<int> fds(250, near.get());
    return SendRaw(near.get(), std::vector<std::byte>(1), fds);
  });
  ASSERT_EQ(flood.result(), 0);
  auto attached = std::async(std::launch::async, [&] { return client.Attach("weights"); });
  EXPECT_EQ(attached.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout)
      << "the control: the kernel refuses";
  RawClient other(broker.Socket("other"));
  EXPECT_FALSE(broker.log().find("in flight") != std::string::npos);
  std::vector<std::byte> byte(1);
  ASSERT_EQ(recv(far.get(), byte.data(), 1, 0), 1);  // Drops them.
  ASSERT_EQ(attached.wait_for(std::chrono::milliseconds(kSoonMs)), std::future_status::ready);
  EXPECT_TRUE(attached.get());
}

TEST_F(AttackTest, NobodyReadingTheLogHoldsNobodyUp) {
  broker_.StallLog();
  for (int i = 0; i < 3; ++i) {  // At least one line each.
    ASSERT_TRUE(attacker_.Create("mine", 1 << 21));
    ASSERT_TRUE(attacker_.Delete("mine"));
  }
  ExpectOthersAreServed();
  broker_.ReadLogAgain();
  EXPECT_TRUE(Eventually([&] {  // Lost lines are counted.
    EXPECT_TRUE(attacker_.Create("mine", 1 << 21));
    EXPECT_TRUE(attacker_.Delete("mine"));
    return broker_.WaitForLog("lost_lines=", 100);
  }));
  ExpectNothingLeft();
}

}  // namespace
}  // namespace gpushm::broker::testing
