#include "plugin/inventory/inventory.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "platform/driver/cuda_api.h"
#include "plugin/inventory/report.h"

namespace gpushm::plugin::inventory {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

std::vector<Device> Node(int gpus, uint64_t bytes) {
  std::vector<Device> devices;
  for (int i = 0; i < gpus; ++i) {
    devices.push_back({.uuid = Concat("GPU-", i),
                       .parent_uuid = "",
                       .name = "Test GPU",
                       .index = static_cast<uint32_t>(i),
                       .minor = static_cast<uint32_t>(i),
                       .total_bytes = bytes});
  }
  return devices;
}

TEST(Inventory, OneIdForEachUnitOfWhatIsNotReserved) {
  const auto all = Advertise(Node(8, 143'771 * kMiB), Rules{});  // Eight H200 GPUs.
  ASSERT_TRUE(all) << all.error().ToString();
  EXPECT_EQ(all->gpus[0].units, 139u);
  EXPECT_THAT(all->ids[binding::Resource::kMemory], SizeIs(8 * 139));
  EXPECT_THAT(all->ids[binding::Resource::kAttach], SizeIs(8 * 64));
  EXPECT_EQ(*all->ids[binding::Resource::kMemory].begin(), "m0000");
  EXPECT_EQ(*all->ids[binding::Resource::kMemory].rbegin(), "m1111");
}

TEST(Inventory, IdsAreTheSameAtEachStart) {
  const auto first = Advertise(Node(4, 80 * kGiB), Rules{});
  const auto second = Advertise(Node(4, 80 * kGiB), Rules{});
  EXPECT_EQ(first->ids[binding::Resource::kMemory], second->ids[binding::Resource::kMemory]);
  EXPECT_EQ(first->ids[binding::Resource::kAttach], second->ids[binding::Resource::kAttach]);
}

TEST(Inventory, TooManyIdsAreRefusedWithTheUnitThatFits) {
  Rules rules;
  rules.unit_bytes = 64 * kMiB;
  const auto refused = Advertise(Node(8, 143'771 * kMiB), rules);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_EQ(refused.error().remedy(), "use unit: 512Mi");
  rules.unit_bytes = 512 * kMiB;
  EXPECT_TRUE(Advertise(Node(8, 143'771 * kMiB), rules));
  Rules crowded;
  crowded.tokens = 1000;
  EXPECT_EQ(Advertise(Node(8, 80 * kGiB), crowded).error().remedy(), "use attach-tokens: 512");
}

TEST(Inventory, SelectsByUuidAndIndex) {
  Rules rules;
  rules.select = {"GPU-3", "0"};
  const auto chosen = Advertise(Node(4, 80 * kGiB), rules);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->gpus[0].uuid, "GPU-0");
  EXPECT_EQ(chosen->gpus[1].uuid, "GPU-3");
  EXPECT_THAT(chosen->missing, IsEmpty());
  rules.select = {"GPU-9", "GPU-2", "7"};
  const auto some = Advertise(Node(4, 80 * kGiB), rules);
  ASSERT_TRUE(some);
  ASSERT_EQ(some->gpus.size(), 1u);
  EXPECT_EQ(some->gpus[0].uuid, "GPU-2");
  EXPECT_THAT(some->missing, ElementsAre("GPU-9", "7"));
  rules.select = {"GPU-9"};
  const auto none = Advertise(Node(4, 80 * kGiB), rules);
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->gpus.empty() && none->ids[binding::Resource::kMemory].empty() &&
              none->ids[binding::Resource::kAttach].empty());
}

TEST(Inventory, SelectsByMigProfile) {
  std::vector<Device> devices = Node(2, 141 * kGiB);
  uint32_t instance = 0;
  for (const char* profile : {"1g.18gb", "1g.18gb+me", "3g.71gb", "1g.18gb"}) {
    Device device = devices[1];
    device.parent_uuid = "GPU-1";
    device.uuid = Concat("MIG-", ++instance);
    device.name = Concat("NVIDIA H200 MIG ", profile);
    devices.push_back(device);
  }
  devices.erase(devices.begin() + 1);
  Rules rules;
  rules.select = {"1g.18gb"};
  const auto chosen = Advertise(devices, rules);
  ASSERT_TRUE(chosen) << chosen.error().ToString();
  ASSERT_THAT(chosen->devices, SizeIs(2)) << "only exact profile names match, and no whole GPU";
  EXPECT_EQ(chosen->devices[0].uuid, "MIG-1");
  EXPECT_EQ(chosen->devices[1].uuid, "MIG-4");
  rules.select = {"3g.71gb", "0"};
  EXPECT_THAT(Advertise(devices, rules)->devices, SizeIs(2));
  rules.select = {"7g.141gb", ""};
  EXPECT_THAT(Advertise(devices, rules)->missing, ElementsAre("7g.141gb", ""))
      << "a GPU's profile is empty";
}

TEST(Inventory, RulesThatMakeNoSenseAreExplained) {
  Rules unit;
  unit.unit_bytes = kMiB;
  EXPECT_EQ(Advertise(Node(1, kGiB), unit).error().code(), Code::kInvalidArgument);
  Rules tokens;
  tokens.tokens = 0;
  EXPECT_EQ(Advertise(Node(1, kGiB), tokens).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Advertise({}, Rules{}).error().code(), Code::kNotFound);
}

TEST(Inventory, AGpuBelowReserveAndUnitHasNone) {
  const auto small = Advertise(Node(1, kGiB), Rules{});
  ASSERT_TRUE(small);
  EXPECT_EQ(small->gpus[0].units, 0u);
  EXPECT_TRUE(small->ids[binding::Resource::kMemory].empty());
}

TEST(Inventory, PrintsWhatItWouldAdvertise) {
  const Rules rules;
  const auto all = Advertise(Node(2, 80 * kGiB), rules);
  EXPECT_EQ(Table(*all, rules),
            "INDEX  NAME      UUID       MEMORY  UNITS\n"
            "    0  Test GPU  GPU-0     81920Mi     79\n"
            "    1  Test GPU  GPU-1     81920Mi     79\n"
            "\n"
            "gpushm.io/memory: 158 (units of 1024Mi, 1024Mi of each device reserved)\n"
            "gpushm.io/attach: 128 (64 for each device)\n"
            "gpushm.io/exclusive: 2 (one for each device)\n"
            "gpushm.io/gpus: 128 (64 for each device; none if there are not two that are whole "
            "GPUs)\n"
            "gpushm.io/nvlink: 0 (64 for each device; none if no two have NVLink between them)\n");
  const auto json = nlohmann::json::parse(Json(*all, rules));
  EXPECT_EQ(json["devices"][1]["uuid"], "GPU-1");
  EXPECT_EQ(json["devices"][1]["units"], 79);
  EXPECT_EQ(json["resources"]["gpushm.io/memory"], 158);
}

// Goal: the inventory has what NVML reports, with MIG instances in place of their GPU. Method: a
// simulated node.
TEST(Inventory, ReadsTheNode) {
  const char* const state = std::getenv("GPUSHM_SIM_DIR");
  ASSERT_NE(state, nullptr) << "ctest must set it";
  std::filesystem::create_directories(state);
  std::ofstream(std::string(state) + "/cards.yaml")
      << "gpus:\n"
         "- {name: Simulated H200, memory: 141Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000001}\n"
         "- memory: 80Gi\n"
         "  mig:\n"
         "  - {profile: 1g.10gb, memory: 10Gi, uuid: MIG-aaaaaaaa-0000-0000-0000-000000000002}\n"
         "  - {profile: 2g.20gb, memory: 20Gi, uuid: MIG-aaaaaaaa-0000-0000-0000-000000000003}\n";
  const auto nvml = NvmlApi::Load(DriverFolderFromEnvironment());
  ASSERT_TRUE(nvml) << nvml.error().ToString();
  const auto devices = ReadDevices(**nvml);
  ASSERT_TRUE(devices) << devices.error().ToString();
  ASSERT_THAT(*devices, SizeIs(3));
  EXPECT_EQ((*devices)[0].uuid, "GPU-aaaaaaaa-0000-0000-0000-000000000001");
  EXPECT_EQ((*devices)[0].total_bytes, 141 * kGiB);
  EXPECT_EQ((*devices)[0].parent_uuid, "");
  EXPECT_EQ((*devices)[1].uuid, "MIG-aaaaaaaa-0000-0000-0000-000000000002");
  EXPECT_THAT((*devices)[1].parent_uuid, StartsWith("GPU-"));
  EXPECT_EQ((*devices)[2].total_bytes, 20 * kGiB);
  EXPECT_EQ((*devices)[2].index, 1u);
  EXPECT_EQ((*devices)[2].profile(), "2g.20gb");
  EXPECT_EQ((*devices)[0].gpu_instance, kNoInstance);
  EXPECT_EQ((*devices)[1].gpu_instance, 1u);
  EXPECT_EQ((*devices)[2].gpu_instance, 2u);
  EXPECT_EQ((*devices)[2].compute_instance, 0u);
  Rules rules;
  rules.select = {"1"};
  EXPECT_THAT(Advertise(*devices, rules)->devices, SizeIs(2)) << "all instances of GPU 1";
  EXPECT_THAT(Advertise(*devices, Rules{})->ids[binding::Resource::kGpus], IsEmpty())
      << "one whole GPU";
}

TEST(Inventory, KnowsWhichGpusHaveNvlinkBetweenThem) {
  const std::string state = std::string(std::getenv("GPUSHM_SIM_DIR")) + "/nvlink";
  ASSERT_EQ(setenv("GPUSHM_SIM_DIR", state.c_str(), 1), 0);
  std::filesystem::create_directories(state);
  std::ofstream(state + "/cards.yaml")
      << "gpus:\n"
         "- {memory: 80Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000001}\n"
         "- {memory: 80Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000002}\n"
         "- {memory: 80Gi, uuid: GPU-aaaaaaaa-0000-0000-0000-000000000003, link: pcie}\n";
  const auto nvml = NvmlApi::Load(DriverFolderFromEnvironment());
  ASSERT_TRUE(nvml) << nvml.error().ToString();
  ASSERT_EQ((*nvml)->Restart(), NVML_SUCCESS);
  const auto devices = ReadDevices(**nvml);
  ASSERT_TRUE(devices) << devices.error().ToString();
  ASSERT_THAT(*devices, SizeIs(3));
  EXPECT_THAT((*devices)[0].nvlink, ElementsAre((*devices)[1].uuid));
  EXPECT_THAT((*devices)[1].nvlink, ElementsAre((*devices)[0].uuid));
  EXPECT_THAT((*devices)[2].nvlink, IsEmpty());
  const auto all = Advertise(*devices, Rules{});
  EXPECT_THAT(all->ids[binding::Resource::kGpus], SizeIs(192));
  EXPECT_THAT(all->ids[binding::Resource::kNvlink], SizeIs(192));
  EXPECT_EQ(all->gpus[0].nvlink, (*devices)[0].nvlink);
  Rules rules;
  rules.select = {"0", "2"};
  EXPECT_THAT(Advertise(*devices, rules)->ids[binding::Resource::kNvlink], IsEmpty());
}

}  // namespace
}  // namespace gpushm::plugin::inventory
