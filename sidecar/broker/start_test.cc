// Goal: a broker that is told to end during its start ends at once. It then waits for the plugin
// and for the driver, for up to a minute each.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "contract/protocol/channel.h"
#include "contract/protocol/link.h"
#include "sidecar/broker/testing/broker_process.h"

namespace gpushm::broker::testing {
namespace {

BrokerSettings NotWaitedFor() {
  BrokerSettings settings = TwoContainers();
  settings.wait = false;
  return settings;
}

BrokerSettings Linked(const std::string& folder) {
  BrokerSettings settings = NotWaitedFor();
  settings.arguments.insert(settings.arguments.end(), {"--link", folder});
  return settings;
}

TEST(BrokerStart, TermWhileThePluginDoesNotAnswer) {
  const TempFolder folder;
  const TempFolder link;
  BrokerProcess absent(folder.path(), Linked(link.path()));
  ASSERT_TRUE(absent.WaitForLog("link-waiting"));
  absent.Signal(SIGTERM);
  EXPECT_EQ(absent.WaitForEnd(), 0);
  EXPECT_TRUE(absent.WaitForLog("stopped"));

  // The same with a plugin that accepts connections and sends nothing.
  const auto silent =
      protocol::Listen(Concat(link.path(), '/', protocol::kLinkSocketName), /*mode=*/0600);
  ASSERT_TRUE(silent);
  BrokerProcess broker(folder.path(), Linked(link.path()));
  pollfd connected{.fd = silent->get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&connected, 1, static_cast<int>(kSoonMs)), 1);
  broker.Signal(SIGTERM);
  EXPECT_EQ(broker.WaitForEnd(), 0);
}

// Goal: a mistyped UUID is reported at once, not as a GPU that does not exist.
TEST(BrokerStart, AMalformedGpuUuidIsAnErrorOfTheFlag) {
  const TempFolder folder;
  BrokerSettings settings = NotWaitedFor();
  settings.arguments.insert(settings.arguments.end(), {"--gpu", "GPU-12"});
  BrokerProcess broker(folder.path(), settings);
  EXPECT_NE(broker.WaitForEnd(), 0);
  EXPECT_THAT(broker.log(), ::testing::AllOf(::testing::HasSubstr("GPU-12"),
                                             ::testing::HasSubstr("is not a valid GPU UUID")));
}

// Whether a thread with that name exists. The broker's threads start once it handles signals.
bool HasThread(pid_t process, const std::string& name) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(Concat("/proc/", process, "/task"), error)) {
    std::ifstream file(entry.path() / "comm");
    std::string comm;
    std::getline(file, comm);
    if (comm == name) return true;
  }
  return false;
}

TEST(BrokerStart, TermWhileTheDriverHangs) {
  for (const char* call : {"cuInit", "cuMemCreate"}) {
    simulated::SetFaults(Concat("hang: {", call, ": 40000}"));
    const TempFolder folder;
    BrokerProcess broker(folder.path(), NotWaitedFor());
    EXPECT_TRUE(Eventually([&] { return HasThread(broker.pid(), "gpushm-driver"); }));
    broker.Signal(SIGTERM);
    EXPECT_EQ(broker.WaitForEnd(), 0) << call;
    EXPECT_TRUE(broker.WaitForLog("stopped"));
  }
  simulated::SetFaults("");
}

}  // namespace
}  // namespace gpushm::broker::testing
