// Goal: any process may bind a name in /dev/shm. A guest accepts only the owner of the pod's list
// as the pod's broker. Method: the fake broker under the name of a pod's socket, and lists that
// belong to different users.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "contract/registry/host_list.h"
#include "runtime/client/testing/client_fixture.h"

namespace gpushm::client {
namespace {

constexpr char kPod[] = "0b6f9a5e-0000-4000-8000-000000000001";
constexpr uid_t kOtherUser = 12345;

class HostIpcTest : public ConnectionTest {
 protected:
  void SetUp() override {
    Start();
    std::filesystem::rename(InFolder(protocol::kSocketName),
                            InFolder(registry::HostSocketFile(kPod)));
  }
  std::string InFolder(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string list() const { return InFolder(registry::HostListFile(kPod)); }
  void WriteList() { ASSERT_TRUE(registry::WriteHostList(folder_.path(), kPod, {})); }

  gpushm_status OpenPod(int64_t timeout_ms) {
    auto options = Sized<gpushm_open_options>();
    options.folder = folder_.path().c_str();
    options.pod_uid = kPod;
    options.timeout_ms = timeout_ms;
    gpushm_client* client = nullptr;
    const gpushm_status status = gpushm_open(&options, &client);
    client_.reset(client);
    return status;
  }
};

TEST_F(HostIpcTest, TheListsOwnerIsTheBroker) {
  WriteList();
  EXPECT_EQ(OpenPod(GPUSHM_DONT_WAIT), GPUSHM_OK) << gpushm_last_error()->text;
}

TEST_F(HostIpcTest, WhoHasNoListIsNotTheBrokerYet) {
  EXPECT_EQ(OpenPod(GPUSHM_DONT_WAIT), GPUSHM_UNAVAILABLE);
  std::thread broker([this] { WriteList(); });
  EXPECT_EQ(OpenPod(kPatienceMs), GPUSHM_OK) << gpushm_last_error()->text;
  broker.join();
}

TEST_F(HostIpcTest, ALinkIsNoList) {
  const std::string elsewhere = InFolder("elsewhere");
  WriteList();
  std::filesystem::rename(list(), elsewhere);
  std::filesystem::create_symlink(elsewhere, list());
  EXPECT_EQ(OpenPod(GPUSHM_DONT_WAIT), GPUSHM_DENIED);
}

TEST_F(HostIpcTest, AnotherUserIsNotTheBroker) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files to other users";
  WriteList();
  ASSERT_EQ(chown(list().c_str(), kOtherUser, kOtherUser), 0);
  EXPECT_EQ(OpenPod(kPatienceMs), GPUSHM_DENIED);
  EXPECT_NE(std::string(gpushm_last_error()->what).find("user 0"), std::string::npos);
  EXPECT_NE(std::string(gpushm_last_error()->what).find("user 12345"), std::string::npos);
}

// If another process takes the name while the broker is away, the guest notices at its next
// connect.
TEST_F(HostIpcTest, AnotherUserIsNotItsSuccessor) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files to other users";
  WriteList();
  ASSERT_EQ(OpenPod(GPUSHM_DONT_WAIT), GPUSHM_OK) << gpushm_last_error()->text;
  std::filesystem::remove(InFolder(registry::HostSocketFile(kPod)));
  Start(/*epoch=*/2);
  std::filesystem::rename(InFolder(protocol::kSocketName),
                          InFolder(registry::HostSocketFile(kPod)));
  ASSERT_EQ(chown(list().c_str(), kOtherUser, kOtherUser), 0);
  EXPECT_EQ(BrokerInfo(), GPUSHM_DENIED);
}

}  // namespace
}  // namespace gpushm::client
