// Goal: whatever a container does to a path in a volume that it may write, the broker never leaves
// that volume. Method: two volumes side by side with symbolic links between them, which are
// followed with openat2 and without it.
#include "sidecar/broker/volume_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "platform/base/testing.h"

namespace gpushm::broker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class VolumeFileTest : public ::testing::TestWithParam<Follow> {
 protected:
  VolumeFileTest() {
    fs::create_directories(mine_ + "/folder");
    fs::create_directories(theirs_);
    std::ofstream(mine_ + "/folder/file") << "mine";
    std::ofstream(theirs_ + "/secret") << "theirs";
  }
  // The content of the file, or the error.
  std::string Read(const std::string& path) const {
    const auto file = OpenFileOf(mine_, path, GetParam());
    if (!file) return file.error().ToString();
    std::array<char, 64> text{};
    const ssize_t length = read(file->get(), text.data(), text.size());
    return {text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0))};
  }
  void Link(const std::string& to, const std::string& at) const {
    fs::remove_all(mine_ + "/" + at);
    fs::create_symlink(to, mine_ + "/" + at);
  }
  bool by_hand() const { return GetParam() == Follow::kByHand; }

  const testing::TempFolder folder_;
  const std::string mine_ = folder_.path() + "/mine";
  const std::string theirs_ = folder_.path() + "/theirs";
};

INSTANTIATE_TEST_SUITE_P(Both, VolumeFileTest,
                         ::testing::Values(Follow::kByKernel, Follow::kByHand),
                         [](const auto& which) {
                           return which.param == Follow::kByHand ? "ByHand" : "ByKernel";
                         });

TEST_P(VolumeFileTest, FilesInFoldersOpen) {
  EXPECT_EQ(Read("folder/file"), "mine");
  EXPECT_EQ(OpenFileOf("", mine_ + "/folder/file", GetParam()).has_value(), true);
}

TEST_P(VolumeFileTest, NoLinkLeadsOutOfTheVolume) {
  for (const std::string& to : {theirs_ + "/secret", std::string("../theirs/secret"),
                                std::string("folder/../../theirs/secret")}) {
    Link(to, "x");
    EXPECT_THAT(Read("x"), HasSubstr(by_hand() ? "UNSUPPORTED" : "NOT_FOUND")) << to;
  }
  for (const std::string& to : {theirs_, std::string("../theirs")}) {
    Link(to, "x");
    EXPECT_THAT(Read("x/secret"), HasSubstr(by_hand() ? "UNSUPPORTED" : "NOT_FOUND")) << to;
  }
  EXPECT_THAT(Read("../theirs/secret"), HasSubstr(by_hand() ? "SYSTEM" : "NOT_FOUND"));
  // Symbolic links in /proc lead to what a process has open, wherever that is.
  Link("/proc/self/root" + theirs_ + "/secret", "x");
  EXPECT_THAT(Read("x"), HasSubstr(by_hand() ? "UNSUPPORTED" : "NOT_FOUND"));
}

// As the kubelet makes them: a file is a symbolic link to ..data/file, and ..data is one to a
// folder.
TEST_P(VolumeFileTest, FilesOfConfigMapsOpen) {
  fs::create_directories(mine_ + "/..2026_01_01");
  std::ofstream(mine_ + "/..2026_01_01/key") << "value";
  Link("..2026_01_01", "..data");
  Link("..data/key", "key");
  if (by_hand()) {
    EXPECT_THAT(Read("key"), AllOf(HasSubstr("a part of the path is a symbolic link"),
                                   HasSubstr("file: models/weights.bin")));
  } else {
    EXPECT_EQ(Read("key"), "value");
  }
}

TEST_P(VolumeFileTest, WhatIsNotThereIsWaitedFor) {
  EXPECT_THAT(Read("folder/none"), HasSubstr("NOT_FOUND"));
  EXPECT_THAT(Read("none/none"), HasSubstr("NOT_FOUND"));
  const auto none = OpenFileOf(folder_.path() + "/none", "x", GetParam());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
}

TEST_P(VolumeFileTest, AnErrorTellsOfTheFileThatWasRefused) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become a user that may not read";
  std::ofstream(mine_ + "/mine") << "x";
  ASSERT_EQ(chmod((mine_ + "/mine").c_str(), 0640), 0);
  ASSERT_EQ(chown((mine_ + "/mine").c_str(), 12, 34), 0);
  fs::permissions(folder_.path(), fs::perms(0755));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setgid(31'341) != 0 || setuid(31'341) != 0) std::_Exit(2);
    const std::string said = Read("mine");
    const bool right =
        said.find("(uid 12, gid 34, mode 640) as uid 31341, gid 31341") != std::string::npos &&
        said.find("allow the sidecar's user or group to read it") != std::string::npos;
    std::_Exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpushm::broker
