// Goal: a program finds the memory limit of its container, wherever the runtime shows it.
// Method: the files of cgroups as runtimes mount them, under a folder that replaces the root.
#include "platform/base/memory_limit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "platform/base/testing.h"

namespace gpushm {
namespace {

class MemoryLimitTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = folder_.path() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << '\n';
  }
  uint64_t Limit() const { return MemoryLimitBytes(folder_.path()); }

  const testing::TempFolder folder_;
};

TEST_F(MemoryLimitTest, NoneWhereNothingSaysSo) {
  EXPECT_EQ(Limit(), UINT64_MAX);
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", "max");
  EXPECT_EQ(Limit(), UINT64_MAX);
}

TEST_F(MemoryLimitTest, InACgroupNamespace) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", "268435456");
  EXPECT_EQ(Limit(), 268435456u);
}

// A privileged container: the node's cgroups are mounted.
TEST_F(MemoryLimitTest, WithoutOneTheGroupIsBelow) {
  Write("/proc/self/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope");
  Write("/sys/fs/cgroup/kubepods.slice/memory.max", "8589934592");
  Write("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/memory.max", "max");
  Write("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope/memory.max",
        "268435456");
  EXPECT_EQ(Limit(), 268435456u);
  Write("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/memory.max", "134217728");
  EXPECT_EQ(Limit(), 134217728u) << "the pod's limit is lower";
}

TEST_F(MemoryLimitTest, OfVersion1) {
  Write("/proc/self/cgroup", "9:name=systemd:/a\n4:memory:/kubepods/pod1/2\n0::/");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(Limit(), 9223372036854771712u);
  Write("/sys/fs/cgroup/memory/kubepods/pod1/2/memory.limit_in_bytes", "268435456");
  EXPECT_EQ(Limit(), 268435456u);
}

TEST_F(MemoryLimitTest, WhatIsAvailable) {
  EXPECT_EQ(AvailableMemoryBytes(folder_.path()), UINT64_MAX);
  Write("/proc/meminfo", "MemTotal:       49368192 kB\nMemFree: 7 kB\nMemAvailable:   1024 kB");
  EXPECT_EQ(AvailableMemoryBytes(folder_.path()), uint64_t{1} << 20);
}

}  // namespace
}  // namespace gpushm
