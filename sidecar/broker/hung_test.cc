// Goal: what does not respond (a GPU's driver, a file system behind a descriptor that a client
// sends) holds up nobody else, and the log names it. Method: the real broker, and a FUSE file
// system whose daemon stops responding.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "platform/base/testing/code.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using ::testing::HasSubstr;

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }

bool AnyThreadSleepsIn(pid_t pid, const std::string& function) {
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(Concat("/proc/", pid, "/task"), error)) {
    std::ifstream file(thread.path() / "wchan");
    std::string where;
    std::getline(file, where);  // Unlike an iterator, it does not throw if the thread has ended.
    if (where == function) return true;
  }
  return false;
}

// Goal: the log names the driver's thread if the kernel holds it, whether the broker is told to end
// during its start or gives up. Method: the simulated GPUs are on a file system that hangs.
TEST(HungDriver, ACallOfTheDriverThatTheKernelHoldsIsNamed) {
  if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
  for (const bool told : {true, false}) {
    const TempFolder cards;
    auto fuse = HungFuse::Mount(cards.path(), HangAt::kLookup);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    BrokerSettings settings;
    settings.arguments = {"--start-timeout-ms", told ? "60000" : "300"};
    settings.simulated_state = cards.path();
    settings.wait = false;
    const TempFolder folder;
    BrokerProcess broker(folder.path(), settings);
    ASSERT_TRUE(fuse->WaitUntilHung());
    // The file system has the request a moment before the thread that made it sleeps.
    EXPECT_TRUE(Eventually([&] { return AnyThreadSleepsIn(broker.pid(), "request_wait_answer"); }));
    if (told) broker.Signal(SIGTERM);
    EXPECT_TRUE(broker.WaitForLog(told ? "stopped" : "start-failed"));
    EXPECT_TRUE(broker.WaitForLog("name=gpushm-driver"));
    EXPECT_THAT(broker.log(), HasSubstr("thread-hangs"));
    EXPECT_THAT(broker.log(), HasSubstr("kernel_function=request_wait_answer"));
    fuse->Abort();
    EXPECT_EQ(broker.WaitForEnd(), told ? 0 : 1);
  }
}

// Goal: a descriptor of a hanging file, sent instead of GPU memory, harms only the container that
// sent it. Method: the file system does not respond once its file is open, so that fstat and close
// block. Another container is served meanwhile.
class HungDescriptorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    auto fuse = HungFuse::Mount(files_.path(), HangAt::kAllOnceOpen, 1 << 20);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    fuse_.emplace(std::move(*fuse));
    broker_.emplace(folder_.path(),
                    BrokerSettings{.arguments = {"--container", "app", "--container", "other",
                                                 "--pool", "64Mi", "--drain-timeout-ms", "200"},
                                   .buffers = "buffers.gpushm.io/good: 2Mi"});
    ASSERT_TRUE(broker_->ready()) << broker_->log();
    const auto file = fuse_->Open(O_RDWR);
    ASSERT_TRUE(file) << file.error().ToString();
    file_ = *file;
  }
  void TearDown() override {
    if (fuse_) fuse_->Abort();  // Before the broker's log is read to its end.
  }
  void ExpectOthersAreServed() {
    RawClient other(broker_->Socket("other"));
    ASSERT_TRUE(other.Hello());
    EXPECT_TRUE(other.Attach("good"));
    const UniqueFd regular(memfd_create("no memory of a GPU", MFD_CLOEXEC));
    EXPECT_EQ(CodeOf(other.Offer("none", regular.get())), As(Code::kInvalidArgument))
        << "a descriptor is taken and looked at";
  }

  const TempFolder folder_;
  const TempFolder files_;
  std::optional<HungFuse> fuse_;
  std::optional<BrokerProcess> broker_;
  int file_ = -1;
};

TEST_F(HungDescriptorTest, OfferedAsMemory) {
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto offered = client.Offer("mine", file_);
  EXPECT_EQ(CodeOf(offered), As(Code::kInvalidArgument));
  EXPECT_THAT(offered.error().what(), HasSubstr("is a file"));
  ASSERT_TRUE(fuse_->WaitUntilHung()) << "it is being closed";
  ExpectOthersAreServed();
  EXPECT_TRUE(client.Attach("good")) << "it is served as well";
  // Until it is closed, the container may not send another descriptor.
  EXPECT_TRUE(Eventually([&] { return CodeOf(client.Announce()) == As(Code::kBusy); }));
  fuse_->Answer();
  EXPECT_TRUE(Eventually([&] { return client.Announce().has_value(); }));
}

// The connection of a client that sends an unannounced descriptor, or too many, is closed.
TEST_F(HungDescriptorTest, WhereNoneBelongs) {
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  ASSERT_TRUE(client.Announce());
  const std::array two = {file_, file_};
  (void)client.Post(protocol::Kind::kBrokerInfo, protocol::BrokerInfoRequest{}, two);
  EXPECT_TRUE(client.IsDisconnected());
  ASSERT_TRUE(fuse_->WaitUntilHung());
  ExpectOthersAreServed();
}

TEST_F(HungDescriptorTest, TheBrokerEndsOnceTheFileSystemDoes) {
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  EXPECT_FALSE(client.Offer("mine", file_));
  ASSERT_TRUE(fuse_->WaitUntilHung());
  broker_->Signal(SIGTERM);
  EXPECT_TRUE(broker_->WaitForLog("thread-hangs"));
  fuse_->Abort();
  EXPECT_EQ(broker_->WaitForEnd(), 0);
}

}  // namespace
}  // namespace gpushm::broker::testing
