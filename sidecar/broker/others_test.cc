// Pods that share the claim of the broker's pod: the plugin gives the broker the socket that they
// connect to. The real broker, and a hand-made plugin.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "contract/protocol/link.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/fake_plugin.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::LinkKind;
using ::testing::HasSubstr;

constexpr char kBuffers[] =
    "buffers.gpushm.io/shared: 2Mi\n"
    "buffers.gpushm.io/listed: {size: 2Mi, containers: [app]}\n"
    "gpushm.io/pool-extra: 8Mi\n";

class OthersTest : public ::testing::Test {
 protected:
  // Talks as a plugin of a claim; each connection gets a new socket at the same path, as from a
  // plugin that was restarted.
  void Start(bool may_write) {
    plugin_.emplace(link_.path(), [this, may_write, gpu = SomeGpu()](int socket, int) {
      Plugin::Say(socket, LinkKind::kWelcome, Plugin::Welcome(gpu));
      const UniqueFd listener = *protocol::Listen(others_, 0666);
      const int fd = listener.get();
      Plugin::Say(socket, LinkKind::kOthers,
                  protocol::LinkOthers{.may_write = may_write ? 1U : 0U, .reserved = 0}, {&fd, 1});
      if (connections_++ == 0) Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
      protocol::Message message;
      while (!hang_up_) {
        const auto got = protocol::Receive(socket, &message, Deadline::AfterMs(20));
        if (!got && got.error().code() != Code::kTimeout) break;
        if (got) Note(message);
      }
      hang_up_ = false;
    });
    BrokerSettings settings;
    settings.arguments = {"--link", link_.path(), "--container", "app"};
    settings.buffers = kBuffers;
    broker_.emplace(folder_.path(), settings);
    ASSERT_TRUE(broker_->ready()) << broker_->log();
  }

  // Whatever the broker states of its pod and of clients in others.
  void Note(const protocol::Message& message) {
    const std::lock_guard lock(mutex_);
    if (const auto pod = protocol::ParseLink<protocol::LinkBrokerPod>(message.span())) {
      stated_.push_back(std::string(protocol::FromNameField(pod->pod)));
    }
    if (const auto client = protocol::ParseLink<protocol::LinkClient>(message.span())) {
      std::string text(protocol::FromNameField(client->container));
      if (client->pod[0] != '\0') {
        text += Concat(' ', protocol::FromNameField(client->pod), '/',
                       protocol::FromNameField(client->pod_container));
      }
      stated_.push_back(std::move(text));
    }
  }
  std::vector<std::string> stated() {
    const std::lock_guard lock(mutex_);
    return stated_;
  }

  ~OthersTest() override {
    broker_.reset();
    hang_up_ = true;
  }

  std::mutex mutex_;
  std::vector<std::string> stated_;
  TempFolder link_;
  TempFolder folder_;
  TempFolder claim_;
  const std::string others_ = claim_.path() + "/" + protocol::kSocketName;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> hang_up_ = false;
  std::optional<Plugin> plugin_;
  std::optional<BrokerProcess> broker_;
};

std::optional<Code> CodeOf(const auto& result) {
  return result ? std::nullopt : std::optional(result.error().code());
}

TEST_F(OthersTest, TheyReadAndDoNotWrite) {
  Start(/*may_write=*/false);
  RawClient other(others_);
  const auto hello = other.Hello();
  ASSERT_TRUE(hello) << hello.error().ToString();
  EXPECT_EQ(protocol::FromNameField(hello->container), protocol::kOtherPods);
  EXPECT_TRUE(other.Attach("shared"));
  const auto write = other.Attach("shared", 2);
  EXPECT_EQ(CodeOf(write), Code::kDenied);
  EXPECT_THAT(write.error().ToString(), HasSubstr("gpushm.io/others: write"));
  EXPECT_EQ(CodeOf(other.Create("mine", 2 << 20)), Code::kDenied);
  EXPECT_EQ(CodeOf(other.Delete("shared")), Code::kDenied);
  const protocol::ReasonRequest reason{.name = protocol::ToNameField("shared"),
                                       .code = 2,
                                       .failed = 0,
                                       .text = protocol::ToLineField("no file d.bin")};
  EXPECT_EQ(CodeOf(other.Call<protocol::EmptyReply>(protocol::Kind::kReason, reason)),
            Code::kDenied);
  EXPECT_EQ(CodeOf(other.Attach("listed")), Code::kDenied)
      << "the list names containers of the pod";
  EXPECT_TRUE(other.Info());
  RawClient own(broker_->Socket("app"));
  ASSERT_TRUE(own.Hello());
  EXPECT_TRUE(own.Attach("shared", 2)) << "the owner's own containers are as before";
}

TEST_F(OthersTest, TheyWriteIfTheClaimSaysSo) {
  Start(/*may_write=*/true);
  RawClient other(others_);
  ASSERT_TRUE(other.Hello());
  EXPECT_TRUE(other.Attach("shared", 2));
  EXPECT_TRUE(other.Create("mine", 2 << 20));
  EXPECT_EQ(CodeOf(other.Attach("listed", 2)), Code::kDenied);
}

protocol::PodRequest InPod(const char* pod) {
  return {.pod = protocol::ToNameField(pod), .container = protocol::ToNameField("server")};
}

// Goal: operators see which of the pods that share a claim holds what. Method: a client says its
// pod before it attaches, and another one after.
TEST_F(OthersTest, ThePluginLearnsWhichPodAClientIsIn) {
  setenv("GPUSHM_POD_NAMESPACE", "team", 1);
  setenv("GPUSHM_POD_NAME", "weights-0", 1);
  Start(/*may_write=*/false);
  RawClient first(others_);
  RawClient second(others_);
  ASSERT_TRUE(first.Hello() && second.Hello());
  using protocol::EmptyReply;
  ASSERT_TRUE(first.Call<EmptyReply>(protocol::Kind::kPod, InPod("servers-1")));
  ASSERT_TRUE(first.Attach("shared"));
  ASSERT_TRUE(second.Attach("shared"));
  ASSERT_TRUE(second.Call<EmptyReply>(protocol::Kind::kPod, InPod("servers-2")));
  EXPECT_TRUE(second.Call<EmptyReply>(protocol::Kind::kPod, InPod("servers-2")));
  ASSERT_TRUE(Eventually([&] { return stated().size() >= 4; }));
  EXPECT_THAT(stated(), ::testing::ElementsAre("weights-0", "other-pods servers-1/server",
                                               "other-pods", "other-pods servers-2/server"));
  RawClient own(broker_->Socket("app"));
  ASSERT_TRUE(own.Hello());
  EXPECT_TRUE(own.Call<EmptyReply>(protocol::Kind::kPod, InPod("liar")));
  ASSERT_TRUE(own.Attach("shared"));
  ASSERT_TRUE(Eventually([&] { return stated().size() >= 5; }));
  EXPECT_EQ(stated().back(), "app") << "the socket says that it is in the broker's own pod";
  EXPECT_EQ(CodeOf(first.Call<EmptyReply>(protocol::Kind::kPod, InPod("Bad_Name"))),
            Code::kUnavailable)
      << "it breaks the protocol";
}

// Goal: a plugin that is replaced costs the other pods nothing. Method: the link breaks, and the
// next one brings another socket.
TEST_F(OthersTest, AnotherSocketTakesTheFormerOnesPlace) {
  Start(/*may_write=*/false);
  RawClient before(others_);
  ASSERT_TRUE(before.Hello());
  const auto lease = before.Attach("shared");
  ASSERT_TRUE(lease);
  hang_up_ = true;
  ASSERT_TRUE(Eventually([&] { return connections_ == 2; }));
  ASSERT_TRUE(Eventually([&] {
    RawClient after(others_);
    return after.connected() && after.Hello().has_value();
  })) << broker_->log();
  EXPECT_TRUE(before.Detach(lease->lease_id)) << "its connection stays";
}

// Goal: the end of the owner's pod does not wait for other pods, and tells them nothing that they
// would take for an answer. Method: SIGTERM while one holds a lease and keeps its connection.
TEST_F(OthersTest, TheEndOfTheOwnerDoesNotWaitForThem) {
  Start(/*may_write=*/false);
  RawClient other(others_);
  ASSERT_TRUE(other.Hello());
  ASSERT_TRUE(other.Attach("shared"));
  broker_->Signal(SIGTERM);
  EXPECT_EQ(broker_->WaitForEnd(), 0) << broker_->log();
  EXPECT_THAT(broker_->log(), ::testing::Not(HasSubstr("drain-timeout")));
  const auto refused = other.Attach("shared");
  EXPECT_THAT(refused.error().ToString(), ::testing::Not(HasSubstr("shutting down")));
}

}  // namespace
}  // namespace gpushm::broker::testing
