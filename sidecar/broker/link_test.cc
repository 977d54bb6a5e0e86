// Goal: a plugin that breaks the protocol, names another GPU or sends more than it announced costs
// the broker at most its link. Method: the real broker, and a hand-made plugin.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/link.h"
#include "contract/protocol/testing/link.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/fake_plugin.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::LinkKind;
using ::testing::HasSubstr;

// A plugin that welcomes the broker, which has nothing to restore, and stays until it ends.
Plugin::Talk Welcomes(const std::array<uint8_t, 16>& gpu) {
  return [gpu](int socket, int) {
    Plugin::Say(socket, LinkKind::kWelcome, Plugin::Welcome(gpu));
    Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
    protocol::Message message;
    while (protocol::Receive(socket, &message, Deadline::AfterMs(kSoonMs))) {
    }
  };
}

BrokerSettings LinkedTo(const std::string& folder) {
  BrokerSettings settings = TwoContainers();
  settings.arguments.insert(settings.arguments.end(),
                            {"--link", folder, "--start-timeout-ms", "2000"});
  return settings;
}

TEST(Link, AtStartAPluginThatTalksNonsenseIsAnError) {
  const auto gpu = SomeGpu();
  const TempFolder link;
  using Talk = std::function<void(int socket)>;
  const auto content = [](int socket) {
    Plugin::Say(socket, LinkKind::kContent, protocol::LinkContent{7, 5});
  };
  const std::vector<std::pair<Talk, std::string>> cases = {
      {[](int socket) {
         Plugin::Say(socket, LinkKind::kLease, protocol::LinkLease{1, 1, 1, 0, 1, 0});
       },
       "0 of 0 generations, 1 of 0 leases"},
      {[](int socket) {
         Plugin::Say(socket, LinkKind::kHello, protocol::LinkHello{1, 1, 0, 0, {}});
       },
       Concat("a message out of order: kind ", static_cast<uint16_t>(LinkKind::kHello))},
      {content, "content of generation 7, which it did not state before"},
      {[&](int socket) {
         Plugin::Say(socket, LinkKind::kGeneration,
                     protocol::testing::ValidLink<protocol::LinkGeneration>());
         content(socket);
         content(socket);
       },
       "or of which it stated this before"},
  };
  size_t talks = 0;
  const Plugin plugin(link.path(), [&](int socket, int) {
    protocol::LinkWelcome welcome = Plugin::Welcome(gpu);
    welcome.generations = talks == 3 ? 1 : 0;
    Plugin::Say(socket, LinkKind::kWelcome, welcome);
    cases.at(talks++).first(socket);
  });
  for (const auto& [talk, said] : cases) {
    const TempFolder folder;
    BrokerProcess broker(folder.path(), LinkedTo(link.path()));
    EXPECT_EQ(broker.WaitForEnd(), 1);
    EXPECT_THAT(broker.log(), HasSubstr(said));
  }
}

// Goal: a plugin of 1.0.0-rc.1, or one that speaks only a later version, is refused with what to
// do.
TEST(Link, AnotherVersionIsRefused) {
  const auto gpu = SomeGpu();
  for (const int version : {9, protocol::kLinkMaxVersion + 1}) {
    const TempFolder link;
    const Plugin plugin(link.path(), [&](int socket, int) {
      protocol::LinkWelcome welcome = Plugin::Welcome(gpu);
      welcome.version = static_cast<uint16_t>(version);
      Plugin::Say(socket, LinkKind::kWelcome, welcome);
    });
    const TempFolder folder;
    BrokerProcess broker(folder.path(), LinkedTo(link.path()));
    EXPECT_EQ(broker.WaitForEnd(), 1);
    EXPECT_THAT(
        broker.log(),
        HasSubstr(Concat("start-failed reason=\"INCOMPATIBLE: the plugin chose link version ",
                         version, ", but this program supports ", protocol::kLinkMinVersion, " to ",
                         protocol::kLinkMaxVersion,
                         ". Remedy: finish the update of gpushm on this node")));
  }
}

// Goal: a plugin that was replaced by one of another version is logged once, not at each attempt.
// Method: the fourth refusal comes after three attempts with the same answer.
TEST(Link, TheSameRefusalIsLoggedOnce) {
  const auto gpu = SomeGpu();
  const TempFolder link;
  const TempFolder folder;
  int refused = 0;
  std::promise<void> fourth;
  const Plugin plugin(link.path(), [&](int socket, int connection) {
    protocol::LinkWelcome welcome = Plugin::Welcome(gpu);
    if (connection > 1) welcome.version = protocol::kLinkMaxVersion + 1;
    Plugin::Say(socket, LinkKind::kWelcome, welcome);
    if (connection == 1) Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
    if (connection > 1 && ++refused < 4) return;
    if (refused == 4) fourth.set_value();
    protocol::Message message;  // Until the broker disconnects, or ends.
    while (connection > 1 && protocol::Receive(socket, &message, Deadline::AfterMs(kSoonMs))) {
    }
  });
  const BrokerProcess broker(folder.path(), LinkedTo(link.path()));
  ASSERT_TRUE(broker.ready()) << broker.log();
  ASSERT_EQ(fourth.get_future().wait_for(std::chrono::milliseconds(kSoonMs)),
            std::future_status::ready);
  const std::string log = broker.log();
  const std::string_view what = "the plugin chose link version";
  const size_t first = log.find(what);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(what, first + 1), std::string::npos) << log;
}

TEST(Link, BuffersThatDoNotFitWhatThePodWasGivenAreItsLastWords) {
  const TempFolder link;
  const TempFolder folder;
  const Plugin plugin(link.path(), Welcomes(SomeGpu()));
  BrokerSettings settings;
  settings.arguments = {"--link", link.path(), "--container", "app"};
  settings.buffers = "buffers.gpushm.io/weights: 1Gi";
  BrokerProcess broker(folder.path(), settings);
  EXPECT_EQ(broker.WaitForEnd(), 1);
  EXPECT_THAT(broker.log(),
              HasSubstr("start-failed reason=\"EXHAUSTED: the buffers and the pool need 1073741824 "
                        "bytes, but the pod was given 268435456. Remedy: request more "
                        "gpushm.io/memory, or use smaller buffers\"\n"));
}

// Goal: memory that the pod reserved for its containers is not the pool's; what rounding up to
// units left over is. Method: the plugin gives 256 MiB to a pod with 64 MiB of buffers and 128 MiB
// of private memory.
TEST(Link, ThePoolLeavesOutWhatContainersReserved) {
  const TempFolder link;
  const TempFolder folder;
  const Plugin plugin(link.path(), Welcomes(SomeGpu()));
  BrokerSettings settings;
  settings.arguments = {"--link", link.path(), "--container", "app"};
  settings.buffers = "buffers.gpushm.io/weights: 64Mi\nprivate.gpushm.io/app: 128Mi";
  const BrokerProcess broker(folder.path(), settings);
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  EXPECT_EQ(client.Info()->pool_bytes, uint64_t{128} << 20);
}

TEST(Link, LaterItCostsTheLinkAlone) {
  const auto gpu = SomeGpu();
  const TempFolder link;
  const TempFolder folder;
  const Plugin plugin(link.path(), [&](int socket, int connection) {
    auto welcome = Plugin::Welcome(gpu);
    if (connection == 2) welcome.gpu_uuid[0] ^= 1;
    Plugin::Say(socket, LinkKind::kWelcome, welcome);
    if (connection == 1) Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
    if (connection == 3) Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});  // Not due.
    if (connection == 4) {
      protocol::LinkDevice device{};
      device.lost = 1;
      device.reason[0] = 'X';
      Plugin::Say(socket, LinkKind::kDevice, device);
    }
    protocol::Message message;  // Until the broker disconnects, or ends.
    while (connection >= 3 && protocol::Receive(socket, &message, Deadline::AfterMs(kSoonMs))) {
    }
  });
  const BrokerProcess broker(folder.path(), LinkedTo(link.path()));
  ASSERT_TRUE(broker.ready()) << broker.log();
  EXPECT_TRUE(broker.WaitForLog("a different GPU or allocation"));
  EXPECT_TRUE(broker.WaitForLog("out of order"));
  EXPECT_TRUE(broker.WaitForLog("gpu-unhealthy"));
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto attached = client.Attach("weights");
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code(), Code::kDeviceLost);
  EXPECT_TRUE(client.Info());
}

}  // namespace
}  // namespace gpushm::broker::testing
