// Goal: what a descriptor is, is told by the kernel and not by a name that its sender chose.
// Method: real descriptors of each kind, and files whose names look like the kernel's own objects.
#include "platform/daemon/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string>

#include "platform/base/testing.h"

namespace gpushm {
namespace {

using testing::TempFolder;

UniqueFd OwnPidfd() { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))); }

std::string WhyNoMemory(int fd) {
  const Result<void> checked = CheckMemory(fd, {});
  return checked ? "" : checked.error().what();
}

TEST(Descriptor, KindsAreTold) {
  const UniqueFd pidfd = OwnPidfd();
  EXPECT_TRUE(IsPidfd(pidfd.get()));
  EXPECT_FALSE(MayHoldUpItsCloser(pidfd.get()));
  EXPECT_EQ(PidOf(pidfd.get()), getpid());
  EXPECT_NE(WhyNoMemory(pidfd.get()).find("a pidfd"), std::string::npos);

  const UniqueFd memfd(memfd_create("pidfd:[1]", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_TRUE(IsMemfd(memfd.get()));
  EXPECT_FALSE(IsPidfd(memfd.get()));
  EXPECT_FALSE(MayHoldUpItsCloser(memfd.get()));

  const UniqueFd event(eventfd(0, EFD_CLOEXEC));
  EXPECT_FALSE(MayHoldUpItsCloser(event.get()));

  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  EXPECT_TRUE(MayHoldUpItsCloser(one.get()));
  EXPECT_NE(WhyNoMemory(one.get()).find("a socket"), std::string::npos);

  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(MayHoldUpItsCloser(null.get()));
  EXPECT_NE(WhyNoMemory(null.get()).find("another driver"), std::string::npos);
}

// A text that begins with '/' is the path of a file, which its sender names as it likes.
TEST(Descriptor, NamesOfFilesAreNotBelieved) {
  const TempFolder folder;
  for (const char* name : {"pidfd:[1]", "anon_inode:[pidfd]", "anon_inode:[eventfd]", "memfd:x",
                           "nvidiactl", "socket:[1]"}) {
    SCOPED_TRACE(name);
    const UniqueFd file(
        open((folder.path() + "/" + name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_TRUE(file);
    EXPECT_FALSE(IsPidfd(file.get()));
    EXPECT_TRUE(MayHoldUpItsCloser(file.get()) || IsMemfd(file.get())) << "a tmpfs has seals";
    EXPECT_NE(WhyNoMemory(file.get()).find("a file"), std::string::npos) << WhyNoMemory(file.get());
  }
}

TEST(Descriptor, APathIsNoMemory) {
  const UniqueFd path(open("/dev/null", O_PATH | O_CLOEXEC));
  EXPECT_NE(WhyNoMemory(path.get()).find("O_PATH"), std::string::npos);
}

}  // namespace
}  // namespace gpushm
