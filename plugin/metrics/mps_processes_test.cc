// Goal: exactly those processes of a pod count that use the GPU and are not served by its MPS.
// Method: NVML's lists as tables, and a folder with cgroups as container runtimes name them.
#include "plugin/metrics/mps_processes.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "platform/base/testing.h"

namespace gpushm::plugin::metrics {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

nvmlProcessInfo_t Process(uint32_t pid) {
  nvmlProcessInfo_t process{};
  process.pid = pid;
  return process;
}

class MpsProcessesTest : public ::testing::Test {
 protected:
  // Adds a process that uses the GPU.
  uint32_t Add(const std::string& cgroup, const std::string& name = "python3") {
    const uint32_t pid = next_++;
    const std::string folder = Concat(proc_.path(), "/", pid);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/cgroup") << cgroup << "\n";
    std::ofstream(folder + "/comm") << name << "\n";
    on_gpu_.push_back(Process(pid));
    return pid;
  }
  std::map<std::string, uint64_t> Count(const std::vector<keeper::MpsPod>& pods) const {
    return OutsideMps(on_gpu_, served_, pods, proc_.path());
  }

  gpushm::testing::TempFolder proc_;
  uint32_t next_ = 10;
  std::vector<nvmlProcessInfo_t> on_gpu_;
  std::vector<nvmlProcessInfo_t> served_;
};

TEST_F(MpsProcessesTest, ThePodsOwnWithoutSidecarAndServer) {
  const std::string pod = "0::/kubepods.slice/kubepods-pod1.slice";
  const uint32_t broker = Add(pod + "/cri-containerd-a.scope");
  Add(pod + "/cri-containerd-a.scope");  // Its child that loads.
  Add(pod + "/cri-containerd-b.scope", "nvidia-cuda-mps");
  served_.push_back(Process(Add(pod + "/cri-containerd-c.scope")));
  EXPECT_THAT(Count({{"m0000", broker}}), UnorderedElementsAre(Pair("m0000", 0)));
  Add(pod + "/cri-containerd-c.scope");
  Add(pod + "/cri-containerd-d.scope/of-its-own");
  Add("0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-e.scope");  // Another pod's.
  EXPECT_THAT(Count({{"m0000", broker}}), UnorderedElementsAre(Pair("m0000", 2)));
}

TEST_F(MpsProcessesTest, CgroupsOfVersionOneAndOfAnotherNamespace) {
  const uint32_t first =
      Add("5:cpu,cpuacct:/x/y\n4:memory:/kubepods/burstable/pod1/a\n0::/system.slice");
  Add("4:memory:/kubepods/burstable/pod1/b\n0::/system.slice");
  const uint32_t second = Add("0::/../kubepods-pod2.slice/cri-containerd-a.scope");
  Add("0::/../kubepods-pod2.slice/cri-containerd-b.scope");
  EXPECT_THAT(Count({{"m0000", first}, {"m0001", second}}),
              UnorderedElementsAre(Pair("m0000", 1), Pair("m0001", 1)));
}

TEST_F(MpsProcessesTest, WhatEndedOrIsInNoPodIsNotCounted) {
  const uint32_t outside = Add("0::/");
  const uint32_t service = Add("0::/system.slice/docker-a.scope");
  Add("0::/system.slice/docker-b.scope");
  const uint32_t podman = Add("0::/libpod_parent/libpod-a");
  Add("0::/libpod_parent/libpod-b");
  Add("0::/");
  Add("no cgroup at all");
  on_gpu_.push_back(Process(9'999'999));
  EXPECT_THAT(
      Count({{"m0000", outside}, {"m0001", 8'888'888}, {"m0002", service}, {"m0003", podman}}),
      IsEmpty());
}

}  // namespace
}  // namespace gpushm::plugin::metrics
