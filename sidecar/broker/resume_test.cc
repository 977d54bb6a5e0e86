// Goal: a client that lost its connection continues with what it held, and nobody else can. Method:
// the real broker, and a hand-made client.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "platform/base/testing/code.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::Kind;

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }

BrokerSettings WithOneWriter() {
  BrokerSettings settings = TwoContainers();
  settings.buffers =
      "buffers.gpushm.io/weights: 4Mi\n"
      "buffers.gpushm.io/ring: {size: 2Mi, access: one-writer}\n";
  return settings;
}

// Whether this kernel can compare processes by their pidfds (Linux 6.9).
bool PidfdsTellProcesses() {
  const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const UniqueFd parent(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  struct stat a{};
  struct stat b{};
  return fstat(self.get(), &a) == 0 && fstat(parent.get(), &b) == 0 && a.st_ino != b.st_ino;
}

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(broker_.ready()) << broker_.log(); }
  RawClient To(const std::string& container = "app") const {
    return RawClient(broker_.Socket(container));
  }

  TempFolder folder_;
  BrokerProcess broker_{folder_.path(), WithOneWriter()};
};

// Regression: a buffer with one writer stayed BUSY for a process whose connection the broker had
// closed, until that process ended.
TEST_F(ResumeTest, AWriterWhoseConnectionWasClosedWritesOn) {
  RawClient first = To();
  const auto hello = first.Hello();
  ASSERT_TRUE(hello);
  const auto lease = first.Attach("ring", 2);
  ASSERT_TRUE(lease);
  const std::byte garbage[100] = {};
  ASSERT_EQ(SendRaw(first.socket(), garbage, {}), 0);
  ASSERT_TRUE(first.IsDisconnected());

  RawClient stranger = To();
  ASSERT_TRUE(stranger.Hello());
  EXPECT_EQ(CodeOf(stranger.Attach("ring", 2)), As(Code::kBusy)) << "the control";

  RawClient again = To();
  const auto resumed = again.Hello(hello->client_id, hello->token);
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  EXPECT_EQ(resumed->resumed, 1u);
  EXPECT_EQ(resumed->client_id, hello->client_id);
  EXPECT_EQ(resumed->token, hello->token);
  EXPECT_EQ(resumed->leases, 1u);
  EXPECT_EQ(resumed->lease_sum, lease->lease_id);
  ASSERT_TRUE(again.Detach(lease->lease_id));
  EXPECT_TRUE(again.Attach("ring", 2));
}

TEST_F(ResumeTest, AnUnpublishedGenerationIsPublishedOverAnotherConnection) {
  RawClient first = To();
  const auto hello = first.Hello();
  const auto made = first.Create("made", 1, protocol::kFlagAttach | protocol::kFlagUnpublished);
  ASSERT_TRUE(made);
  first.Close();
  RawClient again = To();
  ASSERT_EQ(again.Hello(hello->client_id, hello->token)->resumed, 1u);
  ASSERT_TRUE(
      again.Call<protocol::EmptyReply>(Kind::kPublish, protocol::PublishRequest{made->lease_id}));
  RawClient reader = To("other");
  ASSERT_TRUE(reader.Hello());
  const auto read = reader.Attach("made", 1, made->generation);
  EXPECT_TRUE(read) << read.error().ToString();
}

TEST_F(ResumeTest, TheConnectionThatWasLeftIsClosed) {
  RawClient first = To();
  const auto hello = first.Hello();
  ASSERT_TRUE(first.Attach("weights"));
  RawClient second = To();
  ASSERT_EQ(second.Hello(hello->client_id, hello->token)->resumed, 1u);
  EXPECT_TRUE(first.IsDisconnected());
  EXPECT_EQ(second.Info()->clients, 1u);
  EXPECT_EQ(second.Info()->leases, 1u);
}

// Goal: a request of a broken connection is not answered on the next one, and leaves nothing.
// Method: a create that the driver delays, and a connection that is closed meanwhile.
TEST_F(ResumeTest, ALateGrantGoesToNobody) {
  RawClient first = To();
  const auto hello = first.Hello();
  ASSERT_TRUE(first.Attach("weights"));
  simulated::SetFaults("hang: {cuMemCreate: 300}");
  protocol::CreateRequest create{};
  create.name = protocol::ToNameField("late");
  create.size_bytes = 1;
  create.flags = protocol::kFlagAttach;
  ASSERT_TRUE(first.Post(Kind::kCreate, create));
  RawClient second = To();
  ASSERT_EQ(second.Hello(hello->client_id, hello->token)->resumed, 1u);
  EXPECT_EQ(second.Info()->leases, 1u);
  EXPECT_TRUE(Eventually([&] { return second.Info()->used_bytes == 6u << 20; }))
      << "what was made is let go";
  simulated::SetFaults("");
  EXPECT_EQ(second.Info()->leases, 1u);
  EXPECT_TRUE(second.Create("late", 1));
}

TEST_F(ResumeTest, WhoHasNotTheTokenOrTheContainerIsSomebodyNew) {
  RawClient first = To();
  const auto hello = first.Hello();
  ASSERT_TRUE(first.Attach("weights"));
  protocol::ResumeToken wrong = hello->token;
  wrong.back() ^= 1;
  struct Try {
    const char* container;
    uint64_t id;
    protocol::ResumeToken token;
  };
  for (const Try& t :
       {Try{"app", hello->client_id, wrong}, Try{"other", hello->client_id, hello->token},
        Try{"app", hello->client_id + 1, hello->token}, Try{"app", 999, hello->token}}) {
    RawClient other = To(t.container);
    const auto fresh = other.Hello(t.id, t.token);
    ASSERT_TRUE(fresh);
    EXPECT_EQ(fresh->resumed, 0u);
    EXPECT_NE(fresh->client_id, hello->client_id);
    EXPECT_NE(fresh->token, hello->token);
    EXPECT_EQ(fresh->leases, 0u);
  }
  EXPECT_TRUE(first.Info()) << "it was not disturbed";
}

TEST_F(ResumeTest, AChildOfForkIsSomebodyNew) {
  if (!PidfdsTellProcesses()) GTEST_SKIP() << "this kernel does not tell processes by pidfd";
  RawClient first = To();
  const auto hello = first.Hello();
  ASSERT_TRUE(first.Attach("weights"));
  ClientProcess child([&] {
    static RawClient client(broker_.Socket("app"));
    const auto fresh = client.Hello(hello->client_id, hello->token);
    return fresh && fresh->resumed == 0 ? 0 : 1;
  });
  EXPECT_EQ(child.result(), 0);
  EXPECT_TRUE(first.Info());
}

// Goal: a container that has used up its share can still resume. Method: many clients fill the
// broker, lose their connections, and resume; new clients are refused all the while.
TEST_F(ResumeTest, AFullHouseCanComeBack) {
  struct Member {
    protocol::HelloReply hello;
    RawClient client;
    uint64_t lease;
  };
  std::vector<Member> crowd;
  for (;;) {
    RawClient client = To();
    const auto hello = client.Hello();
    if (!hello) {
      EXPECT_THAT(hello.error().ToString(), ::testing::HasSubstr("container \"app\""));
      break;
    }
    const auto lease = client.Attach("weights");
    ASSERT_TRUE(lease);
    crowd.push_back({*hello, std::move(client), lease->lease_id});
  }
  ASSERT_GT(crowd.size(), 100u);
  RawClient watcher = To("other");
  ASSERT_TRUE(watcher.Hello());
  for (Member& member : crowd) member.client.Close();
  ASSERT_TRUE(Eventually([&] { return watcher.Info()->clients == 1; }));
  for (Member& member : crowd) {
    RawClient stranger = To();
    EXPECT_EQ(CodeOf(stranger.Hello()), As(Code::kExhausted));
    EXPECT_TRUE(stranger.IsDisconnected());
    member.client = To();
    const auto back = member.client.Hello(member.hello.client_id, member.hello.token);
    ASSERT_TRUE(back) << back.error().ToString();
    EXPECT_EQ(back->resumed, 1u);
  }
  EXPECT_EQ(watcher.Info()->leases, crowd.size());
  ASSERT_TRUE(crowd.back().client.Detach(crowd.back().lease));
  crowd.pop_back();
  EXPECT_TRUE(Eventually([&] { return To().Hello().has_value(); })) << "for somebody new";
}

}  // namespace
}  // namespace gpushm::broker::testing
