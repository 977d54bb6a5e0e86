#include "plugin/cdi/host_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "platform/base/testing/stopping_files.h"

namespace gpushm::plugin::cdi {
namespace {

namespace fs = std::filesystem;
using gpushm::testing::ReadText;
using gpushm::testing::RunKilled;
using gpushm::testing::TempFolder;
using gpushm::testing::WriteText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

mode_t ModeOf(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777U;
}

constexpr int kNoNamespace = 77;

// The result of `work` in a mount namespace of its own; kNoNamespace without the right to make one.
int InNamespace(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      _exit(kNoNamespace);
    }
    _exit(work());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class HostFilesTest : public ::testing::Test {
 protected:
  HostFilesTest() {
    Image("library 1", "program 1");
    umask(0077);  // Modes must not depend on it.
  }
  ~HostFilesTest() override { umask(0022); }

  void Image(const std::string& library, const std::string& program) const {
    WriteText(folder_ / "image/libgpushm.so.0.1.0", library);
    WriteText(folder_ / "image/gpushmctl", program);
    fs::remove(folder_ / "image/libgpushm.so.0");
    fs::create_symlink("libgpushm.so.0.1.0", folder_ / "image/libgpushm.so.0");
  }
  HostFiles Open(Files& files = SystemFiles()) const {
    Result<HostFiles> host = HostFiles::Open("/var/lib/gpushm", folder_ / "state", files);
    EXPECT_TRUE(host) << host.error().ToString();
    return *host;
  }
  Result<bool> Install(HostFiles host) const {
    return host.Install(folder_ / "image/libgpushm.so.0", folder_ / "image/gpushmctl");
  }

  const TempFolder folder_;
};

TEST_F(HostFilesTest, InstallsLibraryAndProgram) {
  HostFiles host = Open();
  EXPECT_TRUE(*Install(host));
  EXPECT_EQ(ReadText(folder_ / "state/lib/libgpushm.so.0"), "library 1");
  EXPECT_EQ(ReadText(folder_ / "state/bin/gpushmctl"), "program 1");
  EXPECT_FALSE(fs::is_symlink(folder_ / "state/lib/libgpushm.so.0"));
  EXPECT_EQ(ModeOf(folder_ / "state"), 0755U);
  EXPECT_EQ(ModeOf(folder_ / "state/lib"), 0755U);
  EXPECT_EQ(ModeOf(folder_ / "state/lib/libgpushm.so.0"), 0644U);
  EXPECT_EQ(ModeOf(folder_ / "state/bin/gpushmctl"), 0755U);
  EXPECT_EQ(ModeOf(folder_ / "state/links"), 0700U);
  EXPECT_EQ(host.library(), "/var/lib/gpushm/lib/libgpushm.so.0") << "the host's path";
  EXPECT_EQ(host.ctl(), "/var/lib/gpushm/bin/gpushmctl");
  const auto written = fs::last_write_time(folder_ / "state/bin/gpushmctl");
  EXPECT_FALSE(*Install(Open())) << "the same files are left alone";
  EXPECT_EQ(fs::last_write_time(folder_ / "state/bin/gpushmctl"), written);
}

// Goal: invariant (1), as a container sees it. Method: a descriptor takes the place of the bind
// mount, because it also holds the inode.
TEST_F(HostFilesTest, AnUpgradeLeavesTheOldFileToThoseWhoHaveIt) {
  ASSERT_TRUE(*Install(Open()));
  const UniqueFd mounted(open((folder_ / "state/lib/libgpushm.so.0").c_str(), O_RDONLY));
  Image("library two", "program 1");
  EXPECT_TRUE(*Install(Open()));
  std::string content(32, '\0');
  content.resize(static_cast<size_t>(read(mounted.get(), content.data(), content.size())));
  EXPECT_EQ(content, "library 1");
  EXPECT_EQ(ReadText(folder_ / "state/lib/libgpushm.so.0"), "library two");
}

TEST_F(HostFilesTest, ChangedFilesAndModesAreMended) {
  ASSERT_TRUE(*Install(Open()));
  WriteText(folder_ / "state/bin/gpushmctl", "");
  EXPECT_TRUE(*Install(Open()));
  EXPECT_EQ(ReadText(folder_ / "state/bin/gpushmctl"), "program 1");
  ASSERT_EQ(chmod((folder_ / "state/bin/gpushmctl").c_str(), 0600), 0);
  EXPECT_TRUE(*Install(Open()));
  EXPECT_EQ(ModeOf(folder_ / "state/bin/gpushmctl"), 0755U);
  fs::remove(folder_ / "state/bin/gpushmctl");
  WriteText(folder_ / "elsewhere", "program 1");
  ASSERT_EQ(chmod((folder_ / "elsewhere").c_str(), 0755), 0);
  fs::create_symlink(folder_ / "elsewhere", folder_ / "state/bin/gpushmctl");
  EXPECT_TRUE(*Install(Open()));
  EXPECT_FALSE(fs::is_symlink(folder_ / "state/bin/gpushmctl"));
}

TEST_F(HostFilesTest, AnIncompleteImageIsNamed) {
  fs::remove(folder_ / "image/gpushmctl");
  const auto installed = Install(Open());
  ASSERT_FALSE(installed);
  EXPECT_EQ(installed.error().code(), Code::kNotFound);
  EXPECT_THAT(installed.error().what(), HasSubstr("image"));
}

TEST_F(HostFilesTest, InstallsTheSimulatedDriver) {
  WriteText(folder_ / "sim/libcuda.so.1", "cuda");
  WriteText(folder_ / "sim/libnvidia-ml.so.1", "nvml");
  WriteText(folder_ / "sim/nvidia-cuda-mps-control", "control");
  WriteText(folder_ / "sim/nvidia-cuda-mps-server", "server");
  HostFiles host = Open();
  EXPECT_TRUE(*host.InstallSimulatedDriver(folder_ / "sim"));
  EXPECT_FALSE(*host.InstallSimulatedDriver(folder_ / "sim"));
  EXPECT_EQ(ReadText(folder_ / "state/driver-sim/libcuda.so.1"), "cuda");
  EXPECT_EQ(ReadText(folder_ / "state/driver-sim/nvidia-cuda-mps-control"), "control");
  EXPECT_EQ(access((folder_ / "state/driver-sim/nvidia-cuda-mps-control").c_str(), X_OK), 0);
  EXPECT_EQ(host.simulated_driver(), "/var/lib/gpushm/driver-sim");
}

TEST_F(HostFilesTest, MakesTheCardsOfTheSimulatedDriver) {
  HostFiles host = Open();
  EXPECT_TRUE(*host.InstallSimulatedCards(2, 16));
  EXPECT_FALSE(*host.InstallSimulatedCards(2, 16));
  EXPECT_EQ(ReadText(folder_ / "state/cards/cards.yaml"),
            "gpus:\n- {name: Simulated GPU, memory: 16}\n- {name: Simulated GPU, memory: 16}\n");
  EXPECT_TRUE(*host.InstallSimulatedCards(1, 16));
  EXPECT_EQ(ModeOf(folder_ / "state/cards"), 0777U);  // Containers run as different users.
  EXPECT_EQ(ModeOf(folder_ / "state/cards/cards.yaml"), 0644U);
  EXPECT_EQ(host.simulated_cards(), "/var/lib/gpushm/cards");
}

// Goal: an upgrade that is killed anywhere leaves working files, and the next start completes it.
TEST_F(HostFilesTest, AKilledUpgradeLeavesOldOrNewFiles) {
  for (int step = 1;; ++step) {
    Image("library 1", "program 1");
    ASSERT_TRUE(Install(Open()));
    Image("library two", "program two");
    const bool killed = RunKilled(step, [&](Files& files) {
      Result<HostFiles> host = HostFiles::Open("/var/lib/gpushm", folder_ / "state", files);
      (void)host->Install(folder_ / "image/libgpushm.so.0", folder_ / "image/gpushmctl");
      (void)host->MakeLinkFolder("m0001");
    });
    EXPECT_THAT(ReadText(folder_ / "state/lib/libgpushm.so.0"),
                ::testing::AnyOf("library 1", "library two"));
    EXPECT_EQ(ModeOf(folder_ / "state/lib/libgpushm.so.0"), 0644U);
    EXPECT_THAT(ReadText(folder_ / "state/bin/gpushmctl"),
                ::testing::AnyOf("program 1", "program two"));
    EXPECT_EQ(ModeOf(folder_ / "state/bin/gpushmctl"), 0755U);
    ASSERT_TRUE(Install(Open()));
    ASSERT_TRUE(Open().MakeLinkFolder("m0001"));
    EXPECT_EQ(ModeOf(folder_ / "state/links/m0001"), 0755U);
    EXPECT_EQ(ReadText(folder_ / "state/bin/gpushmctl"), "program two");
    EXPECT_THAT(*ListFolder(folder_ / "state/lib"), ElementsAre("libgpushm.so.0")) << "swept";
    EXPECT_THAT(*ListFolder(folder_ / "state/bin"), ElementsAre("gpushmctl"));
    ASSERT_TRUE(Open().RemoveLinkFolder("m0001"));
    if (!killed) {
      EXPECT_GT(step, 14);
      break;
    }
  }
}

TEST_F(HostFilesTest, AFullDiskLeavesTheOldFile) {
  ASSERT_TRUE(*Install(Open()));
  Image("library two", "program 1");
  for (int step = 6;; ++step) {  // After the five folders.
    gpushm::testing::StoppingFiles files = gpushm::testing::FailingFiles(step);
    if (Install(Open(files))) break;
    EXPECT_EQ(ReadText(folder_ / "state/lib/libgpushm.so.0"), "library 1");
    EXPECT_THAT(*ListFolder(folder_ / "state/lib"), ElementsAre("libgpushm.so.0"));
  }
  EXPECT_EQ(ReadText(folder_ / "state/lib/libgpushm.so.0"), "library two");
}

// Goal: a state folder from which no library can be loaded is refused at the start, instead of
// failing in each container. Method: a file system mounted noexec, in a child's mount namespace;
// needs root.
TEST_F(HostFilesTest, AFolderWithoutExecutionIsRefused) {
  const int result = InNamespace([this] {
    if (mount("tmpfs", folder_.path().c_str(), "tmpfs", MS_NOEXEC, nullptr) != 0) {
      return kNoNamespace;
    }
    Image("library 1", "program 1");
    const auto installed = Install(Open());
    return !installed && installed.error().code() == Code::kUnsupported ? 0 : 1;
  });
  if (result == kNoNamespace) GTEST_SKIP() << "needs root and namespaces";
  EXPECT_EQ(result, 0);
}

TEST_F(HostFilesTest, LinkFolders) {
  HostFiles host = Open();
  const auto made = host.MakeLinkFolder("m0003");
  ASSERT_TRUE(made) << made.error().ToString();
  EXPECT_EQ(*made, folder_ / "state/links/m0003");
  EXPECT_EQ(host.LinkFolder("m0003"), "/var/lib/gpushm/links/m0003");
  EXPECT_EQ(ModeOf(*made), 0755U);
  struct stat before{};
  ASSERT_EQ(stat(made->c_str(), &before), 0);
  ASSERT_EQ(chmod(made->c_str(), 0700), 0);
  WriteText(*made + "/plugin.sock", "");
  ASSERT_TRUE(host.MakeLinkFolder("m0003"));
  struct stat after{};
  ASSERT_EQ(stat(made->c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "invariant (3): it stays because it is mounted";
  EXPECT_EQ(ModeOf(*made), 0755U);
  ASSERT_TRUE(host.MakeLinkFolder("m0000"));
  EXPECT_THAT(*host.LinkFolders(), ElementsAre("m0000", "m0003"));
  EXPECT_TRUE(host.RemoveLinkFolder("m0003")) << "with its socket";
  EXPECT_TRUE(host.RemoveLinkFolder("m0003"));
  EXPECT_THAT(*host.LinkFolders(), ElementsAre("m0000"));
}

TEST_F(HostFilesTest, NoNameLeadsOutOfTheLinks) {
  HostFiles host = Open();
  for (const char* const name :
       {"", ".", "..", "../lib", "a/b", "/etc", "m0000/../..", "-", "A", "m.0"}) {
    EXPECT_EQ(host.MakeLinkFolder(name).error().code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(host.RemoveLinkFolder(name).error().code(), Code::kInvalidArgument) << name;
  }
  EXPECT_THAT(*host.LinkFolders(), IsEmpty());
}

// Goal: a pod can write in the folder of its claim's MPS daemon, but little, and nothing of it
// stays. Method: in a mount namespace of its own, with the folder shared as the chart has it.
TEST_F(HostFilesTest, TheFolderOfAClaimsMpsIsASmallTmpfs) {
  HostFiles host = Open();
  EXPECT_FALSE(host.MakeMpsFolder("uid")) << "there are no such claims";
  const std::string run = folder_ / "run";
  fs::create_directory(run);
  host.UseRunFolder(run);
  const auto refused = host.MakeMpsFolder("uid");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("mountPropagation: Bidirectional"));
  EXPECT_THAT(*ListFolder(run), IsEmpty());
  const int result = InNamespace([&] {
    if (mount(run.c_str(), run.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        mount("", run.c_str(), nullptr, MS_SHARED, nullptr) != 0) {
      return kNoNamespace;
    }
    // Each step has its own result.
    const auto made = host.MakeMpsFolder("uid");
    if (!made || !host.MakeMpsFolder("uid")) return 1;
    struct stat inner{};
    if (stat(made->c_str(), &inner) != 0 || (inner.st_mode & 0777) != 0777) return 2;
    fs::create_directories(*made + "/1/2/3/4/5/6/7/8/9/10");
    int files = 0;
    while (files < 1000 &&
           close(open(Concat(*made, "/file", files).c_str(), O_CREAT | O_WRONLY, 0600)) == 0) {
      ++files;
    }
    if (files >= 300) return 3;
    if (*host.LinkFolders() != std::vector<std::string>{"uid"}) return 4;
    if (!host.RemoveLinkFolder("uid") || !host.RemoveLinkFolder("uid")) return 5;
    return ListFolder(run)->empty() ? 0 : 6;
  });
  if (result == kNoNamespace) GTEST_SKIP() << "needs root and namespaces";
  EXPECT_EQ(result, 0);
}

TEST_F(HostFilesTest, WhatIsNoFolderMakesPlace) {
  HostFiles host = Open();
  fs::create_directory(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "state/links/m0001");
  WriteText(folder_ / "state/links/m0002", "a file");
  for (const char* const name : {"m0001", "m0002"}) {
    ASSERT_TRUE(host.MakeLinkFolder(name)) << name;
    EXPECT_TRUE(fs::is_directory(fs::symlink_status(folder_ / "state/links/" + name)));
  }
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere"));
}

TEST_F(HostFilesTest, APathTooLongForASocketIsRefusedAtOnce) {
  const auto opened = HostFiles::Open("/state", folder_ / std::string(100, 'x'));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpushm::plugin::cdi
