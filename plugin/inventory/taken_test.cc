#include "plugin/inventory/taken.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <fstream>

#include "platform/base/testing.h"
#include "platform/daemon/unix_socket.h"

namespace gpushm::plugin::inventory {
namespace {

using gpushm::testing::TempFolder;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kA[] = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77";
constexpr char kB[] = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c";
constexpr char kMig1[] = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f";
constexpr char kMig2[] = "MIG-9c1f0fbb-9c1f-5de3-91c7-45d71c87eb3f";

// GPU A, and two MIG instances of GPU B.
std::vector<Device> Devices() {
  return {{.uuid = kA, .parent_uuid = {}, .name = {}, .minor = 0, .pci_address = "0000:3b:00.0"},
          {.uuid = kMig1,
           .parent_uuid = kB,
           .name = {},
           .minor = 1,
           .pci_address = "0000:af:00.0",
           .gpu_instance = 1},
          {.uuid = kMig2,
           .parent_uuid = kB,
           .name = {},
           .minor = 1,
           .pci_address = "0000:af:00.0",
           .gpu_instance = 2}};
}

// The UUIDs that result from one ID of a resource.
std::vector<std::string> TakenBy(const std::string& resource, const std::string& id,
                                 const std::vector<std::string>& not_gpus = {}) {
  std::vector<std::string> uuids;
  for (const auto& [uuid, taker] : FindTaken(Devices(), {{resource, {id}}}, not_gpus)) {
    uuids.push_back(uuid);
  }
  return uuids;
}
std::vector<std::string> TakenByNvidia(const std::string& id) {
  return TakenBy("nvidia.com/gpu", id);
}

// The forms of IDs: NVIDIA/k8s-device-plugin (internal/rm/devices.go: AnnotatedID, MIG's UUIDs),
// GKE's container-engine-accelerators (pkg/gpu/nvidia: nvidia0/gi1/vgpu2), HAMi and Volcano
// ("<uuid>-<n>"), KubeVirt's and network operators' PCI addresses.
TEST(FindTaken, KnowsTheFormsOfOthersIds) {
  using ::testing::ElementsAre;
  EXPECT_THAT(TakenByNvidia(kA), ElementsAre(kA));
  EXPECT_THAT(TakenByNvidia(Concat(kA, "::0")), ElementsAre(kA));
  EXPECT_THAT(TakenByNvidia(Concat(kA, "::15")), ElementsAre(kA));
  EXPECT_THAT(TakenByNvidia(Concat(kA, "-3")), ElementsAre(kA));
  EXPECT_THAT(TakenByNvidia("nvidia0"), ElementsAre(kA));
  EXPECT_THAT(TakenByNvidia("nvidia0/vgpu1"), ElementsAre(kA));
  EXPECT_THAT(TakenByNvidia(kMig1), ElementsAre(kMig1));
  EXPECT_THAT(TakenByNvidia(Concat(kMig2, "::1")), ElementsAre(kMig2));
  EXPECT_THAT(TakenByNvidia("nvidia1/gi2"), ElementsAre(kMig2));
  EXPECT_THAT(TakenByNvidia("nvidia1/gi1/vgpu2"), ElementsAre(kMig1));
  EXPECT_THAT(TakenBy("nvidia.com/GA100_A100", "0000:3b:00.0"), ElementsAre(kA));
  EXPECT_THAT(TakenBy("nvidia.com/GA100_A100", "00000000:3B:00.0"), ElementsAre(kA));
}

TEST(FindTaken, AWholeGpuIsAllOfItsInstances) {
  EXPECT_THAT(TakenByNvidia(kB), UnorderedElementsAre(kMig1, kMig2));
  EXPECT_THAT(TakenByNvidia("nvidia1"), UnorderedElementsAre(kMig1, kMig2));
  EXPECT_THAT(TakenBy("nvidia.com/pgpu", "0000:af:00.0"), UnorderedElementsAre(kMig1, kMig2));
}

TEST(FindTaken, AUuidCountsWhateverTheResource) {
  EXPECT_THAT(TakenBy("volcano.sh/vgpu-number", Concat(kA, "-0")), ::testing::ElementsAre(kA));
  EXPECT_THAT(TakenBy("example.com/gpu", kA), ::testing::ElementsAre(kA));
}

TEST(FindTaken, WhatIsNoGpuOfThisNodeTakesNone) {
  // A GPU that NVML does not show.
  EXPECT_THAT(TakenByNvidia("GPU-00000000-06c0-7d70-1a51-e59b25b2c16c"), IsEmpty());
  EXPECT_THAT(TakenByNvidia("nvidia7"), IsEmpty());
  // Network cards of NVIDIA's operator.
  EXPECT_THAT(TakenBy("nvidia.com/hostdev", "0000:d8:00.2"), IsEmpty());
  // Names of other vendors do not count.
  EXPECT_THAT(TakenBy("intel.com/sriov", "nvidia0"), IsEmpty());
  EXPECT_THAT(TakenBy("example.com/fuse", "17"), IsEmpty());
}

TEST(FindTaken, AnUnknownIdOfNvidiaMayBeAnyGpu) {
  for (const char* id : {"17", "", "GPU", "nvidia", "nvidia0x", "nvidia0/gi", "nvidia0/vgpu",
                         "nvidia99999999999", "0000:3b:00", "0000:3b:00.00", "gpu-0"}) {
    const Takers taken = FindTaken(Devices(), {{"nvidia.com/thing", {id}}}, {});
    ASSERT_THAT(taken, UnorderedElementsAre(Pair(kAnyGpu, ::testing::_)));
    EXPECT_EQ(taken.at(kAnyGpu).by, "nvidia.com/thing");
    EXPECT_EQ(taken.at(kAnyGpu).id, id);
    EXPECT_THAT(TakenBy("nvidia.com/thing", id, {"nvidia.com/thing"}), IsEmpty());
  }
  // A MIG instance that was created after the GPUs were read: its GPU is unknown. So is that of the
  // form of drivers before 470, which are too old for gpushm.
  for (const std::string& id :
       {std::string("MIG-00000000-42e4-5de3-91c7-45d71c87eb3f"), Concat("MIG-", kB, "/2/0")}) {
    EXPECT_THAT(TakenByNvidia(id), ::testing::ElementsAre(kAnyGpu));
  }
}

TEST(TakenGpus, RemembersForAsLongAsTheKubeletDoes) {
  const TempFolder folder;
  const std::string path = folder / "taken.json";
  TakenGpus taken(path, {}, 0);
  EXPECT_EQ(taken.By(kA), "");
  taken.Observe({{kA, {"nvidia.com/gpu", kA}}}, {}, 1000);
  EXPECT_EQ(taken.By(kA), "nvidia.com/gpu");
  EXPECT_EQ(taken.By(kB), "");
  // A kubelet that has restarted has an empty list at first.
  taken.Observe({}, {}, 1000 + TakenGpus::kForgetMs - 1);
  EXPECT_EQ(taken.By(kA), "nvidia.com/gpu");
  // So has this plugin after a restart, or a reboot of the node.
  TakenGpus restarted(path, {}, 50);
  EXPECT_EQ(restarted.By(kA), "nvidia.com/gpu");
  restarted.Observe({}, {}, 50 + TakenGpus::kForgetMs);
  EXPECT_EQ(restarted.By(kA), "");
  EXPECT_EQ(TakenGpus(path, {}, 0).By(kA), "");
}

// A device that is unhealthy there is not advertised, and returns later.
TEST(TakenGpus, IsNotForgottenWhileItsPluginOffersOthers) {
  const TempFolder folder;
  TakenGpus taken(folder / "taken.json", {}, 0);
  taken.Observe({{kA, {"nvidia.com/gpu", kA}}, {kB, {"nvidia.com/gpu", kB}}}, {"nvidia.com/gpu"},
                0);
  taken.Observe({{kB, {"nvidia.com/gpu", kB}}}, {"nvidia.com/gpu"}, 2 * TakenGpus::kForgetMs);
  EXPECT_EQ(taken.By(kA), "nvidia.com/gpu");
  taken.Observe({}, {}, 4 * TakenGpus::kForgetMs);
  EXPECT_EQ(taken.By(kA), "");
}

TEST(TakenGpus, AnyGpuIsEachOfThem) {
  const TempFolder folder;
  TakenGpus taken(folder / "taken.json", {}, 0);
  taken.Observe({{kAnyGpu, {"nvidia.com/thing", "17"}}}, {}, 0);
  EXPECT_EQ(taken.By(kA), "nvidia.com/thing");
  EXPECT_EQ(taken.By(kAnyGpu), "nvidia.com/thing");
  EXPECT_EQ(TakenGpus(folder / "taken.json", {}, 0).By(kA), "nvidia.com/thing");
  EXPECT_EQ(TakenGpus(folder / "taken.json", {"nvidia.com/thing"}, 0).By(kA), "");
}

TEST(TakenGpus, AFileThatCannotBeReadIsAnEmptyOne) {
  const TempFolder folder;
  const std::string path = folder / "taken.json";
  for (const char* text : {"", "[]", "{\"x\": 1}", "{", "null"}) {
    std::ofstream(path) << text;
    TakenGpus taken(path, {}, 0);
    EXPECT_EQ(taken.By(kA), "") << text;
    taken.Observe({{kA, {"nvidia.com/gpu", kA}}}, {}, 0);
    EXPECT_EQ(TakenGpus(path, {}, 0).By(kA), "nvidia.com/gpu") << text;
  }
}

TEST(DraDriverServes, WhileItsSocketIsListenedTo) {
  const TempFolder folder;
  EXPECT_FALSE(DraDriverServes(folder / "none"));
  const auto listen = [&](const std::string& name) { return ListeningSocket::Bind(folder / name); };
  const auto other = listen("compute-domain.nvidia.com-reg.sock");
  EXPECT_FALSE(DraDriverServes(folder / "")) << "it hands out no GPU";
  const std::ofstream left(folder / "gpu.nvidia.com-reg.sock");
  EXPECT_FALSE(DraDriverServes(folder / "")) << "a stale socket file";
  const auto gpus = listen("gpu.nvidia.com-4b1e-reg.sock");
  ASSERT_TRUE(gpus);
  EXPECT_TRUE(DraDriverServes(folder / ""));
}

}  // namespace
}  // namespace gpushm::plugin::inventory
