#include "plugin/dra/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "platform/base/testing.h"

namespace gpushm::plugin::dra {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kGiB = uint64_t{1} << 30;

Offer TwoGpus() {
  Offer offer;
  offer.devices = {
      {.uuid = "GPU-AAAA-1",
       .name = "NVIDIA H200",
       .index = 0,
       .nvlink = {"GPU-AAAA-2"},
       .pci_address = "0000:17:00.0"},
      {.uuid = "GPU-AAAA-2", .name = "NVIDIA H200", .index = 1, .nvlink = {"GPU-AAAA-1"}}};
  offer.gpus = {
      {.uuid = "GPU-AAAA-1", .units = 15, .tokens = 64, .bytes = 15 * kGiB + 512 * 1024 * 1024},
      {.uuid = "GPU-AAAA-2", .units = 15, .tokens = 64, .bytes = 15 * kGiB}};
  offer.places["0000:17:00.0"] = {.root = "pci0000:16", .numa_node = 1};
  return offer;
}

TEST(DevicesTest, ADeviceIsDivisibleByBytes) {
  const Json devices = DevicesOf(TwoGpus());
  ASSERT_EQ(devices.size(), 2U);
  const Json& one = devices[0];
  EXPECT_EQ(one["name"], "gpu-aaaa-1");
  EXPECT_EQ(one["allowMultipleAllocations"], true);
  EXPECT_EQ(one["capacity"]["memory"]["value"], "15872Mi");
  EXPECT_EQ(one["capacity"]["memory"]["requestPolicy"],
            Json::parse(R"({"default":"0","validRange":{"min":"0","step":"2Mi"}})"));
  EXPECT_EQ(one["capacity"]["attach"]["value"], "64");
  EXPECT_EQ(one["capacity"]["attach"]["requestPolicy"]["default"], "1");
  EXPECT_FALSE(one.contains("taints"));
}

TEST(DevicesTest, AttributesSayWhereTheGpuIs) {
  const Json attributes = DevicesOf(TwoGpus())[0]["attributes"];
  EXPECT_EQ(attributes["uuid"]["string"], "GPU-AAAA-1");
  EXPECT_EQ(attributes["nvlinkDomain"]["string"], "GPU-AAAA-1");
  EXPECT_EQ(attributes["resource.kubernetes.io/pciBusID"]["string"], "0000:17:00.0");
  EXPECT_EQ(attributes["resource.kubernetes.io/pcieRoot"]["string"], "pci0000:16");
  EXPECT_EQ(attributes["resource.kubernetes.io/numaNode"]["int"], 1);
  const Json without = DevicesOf(TwoGpus())[1]["attributes"];
  EXPECT_FALSE(without.contains("resource.kubernetes.io/pcieRoot"));
}

// Three in a row: the ends do not reach each other, so no two of them are in a group of three.
TEST(DevicesTest, ADomainIsAGroupOfWhichEachTwoHaveNvlink) {
  Offer offer = TwoGpus();
  offer.devices.push_back(
      {.uuid = "GPU-AAAA-3", .name = "x", .index = 2, .nvlink = {"GPU-AAAA-2"}});
  offer.devices[1].nvlink.insert("GPU-AAAA-3");
  offer.gpus.push_back({.uuid = "GPU-AAAA-3", .bytes = kGiB});
  for (const Json& device : DevicesOf(offer)) {
    EXPECT_FALSE(device["attributes"].contains("nvlinkDomain")) << device.dump();
  }
}

TEST(DevicesTest, ASickOrDrainedGpuHasATaint) {
  Offer offer = TwoGpus();
  offer.gpus[0].healthy = false;
  offer.gpus[1].drained = "fan";
  const Json devices = DevicesOf(offer);
  EXPECT_EQ(
      devices[0]["taints"],
      Json::parse(R"([{"key":"gpushm.io/health","value":"unhealthy","effect":"NoSchedule"}])"));
  EXPECT_EQ(devices[1]["taints"][0]["key"], "gpushm.io/drained");
}

TEST(DevicesTest, AGpuThatSomebodyElseHandsOutIsNotOffered) {
  Offer offer = TwoGpus();
  offer.gpus[0].taken_by = "nvidia.com/gpu";
  const Json devices = DevicesOf(offer);
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0]["name"], "gpu-aaaa-2");
}

TEST(DevicesTest, NamesAreDnsLabels) {
  EXPECT_EQ(DeviceName("MIG-GPU-5F1C/11/0"), "mig-gpu-5f1c-11-0");
  EXPECT_EQ(DeviceName(std::string(62, 'a') + "--b").size(), 62U);
}

TEST(DevicesTest, ThePlaceIsReadFromTheKernelsFiles) {
  const gpushm::testing::TempFolder folder;
  namespace fs = std::filesystem;
  const fs::path device = fs::path(folder / "devices/pci0000:16/0000:16:01.0/0000:17:00.0");
  fs::create_directories(device);
  fs::create_directories(fs::path(folder / "bus/pci/devices"));
  fs::create_symlink(device, fs::path(folder / "bus/pci/devices/0000:17:00.0"));
  std::ofstream(device / "numa_node") << "1\n";
  const PciPlace place = ReadPciPlace("0000:17:00.0", folder / ".");
  EXPECT_EQ(place.root, "pci0000:16");
  EXPECT_EQ(place.numa_node, 1);
  const PciPlace none = ReadPciPlace("0000:18:00.0", folder / ".");
  EXPECT_EQ(none.root, "");
  EXPECT_EQ(none.numa_node, -1);
}

}  // namespace
}  // namespace gpushm::plugin::dra
