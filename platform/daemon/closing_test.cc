// Goal: no descriptor that a peer sent prevents the closing of another one for which it waits, and
// none affects another peer.
// Method: a FUSE file whose daemon answers nothing, and sockets that linger, in every order.
#include "platform/daemon/closing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/testing.h"
#include "platform/base/testing/descriptors.h"
#include "platform/base/testing/must.h"
#include "platform/daemon/fuse.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "platform/daemon/testing/lingering_socket.h"

namespace gpushm {
namespace {

using ::gpushm::testing::Must;
using testing::HangAt;
using testing::HungFuse;
using testing::LingeringSocket;
using testing::TempFolder;

constexpr int64_t kPatienceMs = 20'000;

class ClosingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    auto mounted = Must(HungFuse::Mount(folder_.path(), HangAt::kAllOnceOpen));
    fuse_.emplace(std::move(mounted));
    const auto file = Must(fuse_->Open(O_RDWR));
    file_ = file;
    auto device = Must(fuse_->Device());
    device_ = std::move(device);
  }
  // Descriptors from a container that then exits: only Closing has the device.
  void ExpectAllClosed(Closing* closing) {
    fuse_->KillDaemon();
    EXPECT_TRUE(closing->WaitForAll(Deadline::AfterMs(kPatienceMs)))
        << "the file's close waits for the daemon's device, which waits behind it";
  }
  UniqueFd File() const { return UniqueFd(dup(file_)); }

  const TempFolder folder_;
  std::optional<HungFuse> fuse_;  // Its end frees everything that waits for it.
  int file_ = -1;
  UniqueFd device_;
};

TEST_F(ClosingTest, TheDeviceOfAFuseFileNeverWaitsForTheFile) {
  Closing closing;
  closing.CloseForeign(File());
  ASSERT_TRUE(fuse_->WaitUntilHung());
  closing.CloseForeign(std::move(device_));
  ExpectAllClosed(&closing);
}

TEST_F(ClosingTest, NorASocketInWhichTheDeviceLiesUnread) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  UniqueFd sender(ends[0]);
  UniqueFd receiver(ends[1]);
  ASSERT_TRUE(testing::SendWithDescriptor(sender.get(), device_.get()));
  device_.Reset();
  sender.Reset();
  Closing closing;
  std::vector<UniqueFd> message;
  message.push_back(File());
  message.push_back(std::move(receiver));
  closing.CloseForeign(std::move(message));
  ASSERT_TRUE(fuse_->WaitUntilHung());
  ExpectAllClosed(&closing);
}

TEST_F(ClosingTest, WhatIsHeldUpIsTold) {
  Closing closing;
  LingeringSocket socket;
  closing.CloseForeign(File());
  closing.CloseForeign(socket.TakeWrapped());
  EXPECT_TRUE(closing.HasForeignFile());
  EXPECT_EQ(closing.foreign_pending(), 2u);
  ASSERT_TRUE(fuse_->WaitUntilHung());
  const auto held = closing.HeldUp(0);
  ASSERT_EQ(held.size(), 2u);
  EXPECT_NE(held[0].device, 0u);
  EXPECT_FALSE(held[0].is_socket);
  EXPECT_TRUE(held[1].is_socket);
  closing.NewHolder();
  EXPECT_FALSE(closing.HasForeignFile());
  EXPECT_EQ(closing.foreign_pending(), 0u)
      << "the former holder's descriptors do not count for the new one";
  EXPECT_EQ(closing.pending(), 2u);
  fuse_->Answer();
  socket.Read();
  EXPECT_TRUE(closing.WaitForAll(Deadline::AfterMs(kPatienceMs)));
}

TEST(OthersMount, KnowsTheVolumesOfOnePod) {
  const auto others = [](const std::string& lines) {
    std::istringstream mountinfo(lines);
    return OthersMount(makedev(0, 77), mountinfo);
  };
  const std::string pod = "/host/var/lib/kubelet/pods/1a-2b/volumes/kubernetes.io~csi/d/mount";
  const std::string rest = " rw,relatime shared:1 - fuse.s3 s3 rw\n";
  EXPECT_EQ(others(""), "");
  EXPECT_EQ(others("30 20 0:7 / /srv" + rest), "");
  EXPECT_EQ(others("30 20 0:77 / " + pod + rest), "");
  EXPECT_EQ(others("30 20 0:77 / " + pod + rest + "31 20 0:77 /a " +
                   "/var/lib/kubelet/pods/1a-2b/volume-subpaths/d/app/0" + rest),
            "");
  EXPECT_EQ(others("30 20 0:77 / /srv" + rest), "/srv");
  EXPECT_EQ(others("30 20 0:77 / " + pod + rest + "31 20 0:77 / /srv" + rest), "/srv");
  EXPECT_EQ(others("30 20 0:77 / " + pod + rest +
                   "31 20 0:77 / /var/lib/kubelet/pods/other/volumes/x" + rest),
            "/var/lib/kubelet/pods/other/volumes/x");
  EXPECT_EQ(others("30 20 0:77 / /var/lib/kubelet/plugins/kubernetes.io/csi/s3/globalmount" + rest),
            "/var/lib/kubelet/plugins/kubernetes.io/csi/s3/globalmount");
  EXPECT_EQ(others("30 20 0:77 / /pods/1a/etc-hosts" + rest), "/pods/1a/etc-hosts");
}

}  // namespace
}  // namespace gpushm
