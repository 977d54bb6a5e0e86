#include "plugin/dra/devices.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "contract/claims.h"
#include "platform/yaml/quantity.h"

namespace gpushm::plugin::dra {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxNameBytes = 63;    // A DNS label.
constexpr size_t kMaxStringBytes = 64;  // Of an attribute.

Json String(const std::string& text) { return {{"string", text.substr(0, kMaxStringBytes)}}; }

// The name of the group of GPUs that all have NVLink between each other; empty if the GPU has no
// NVLink, or if some GPUs that it reaches do not reach each other.
std::string NvlinkDomain(const inventory::Device& device,
                         const std::vector<inventory::Device>& all) {
  if (device.nvlink.empty()) return {};
  std::set<std::string> group = device.nvlink;
  group.insert(device.uuid);
  for (const inventory::Device& other : all) {
    if (!group.contains(other.uuid)) continue;
    std::set<std::string> reached = other.nvlink;
    reached.insert(other.uuid);
    if (reached != group) return {};
  }
  return *group.begin();
}

Json Taint(const char* key, const std::string& value) {
  return {{"key", key}, {"value", value}, {"effect", "NoSchedule"}};
}

Json Attributes(const Offer& offer, const inventory::Device& device) {
  Json attributes = {{"uuid", String(device.uuid)}, {"model", String(device.name)}};
  if (!device.parent_uuid.empty()) attributes["parentUuid"] = String(device.parent_uuid);
  if (!device.profile().empty()) {
    attributes["profile"] = String(std::string(device.profile()));
  }
  if (const std::string domain = NvlinkDomain(device, offer.devices); !domain.empty()) {
    attributes["nvlinkDomain"] = String(domain);
  }
  if (device.pci_address.empty()) return attributes;
  // The names of these three are Kubernetes' own, so that a claim can compare them with those of
  // other drivers' devices.
  attributes["resource.kubernetes.io/pciBusID"] = String(device.pci_address);
  const auto place = offer.places.find(device.pci_address);
  if (place == offer.places.end()) return attributes;
  if (!place->second.root.empty()) {
    attributes["resource.kubernetes.io/pcieRoot"] = String(place->second.root);
  }
  if (place->second.numa_node >= 0) {
    attributes["resource.kubernetes.io/numaNode"] = {{"int", place->second.numa_node}};
  }
  return attributes;
}

}  // namespace

std::string DeviceName(const std::string& uuid) {
  std::string name;
  for (const char c : uuid.substr(0, kMaxNameBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    // Drivers before 470 write slashes into the UUIDs of MIG instances.
    name += std::isalnum(byte) != 0 ? static_cast<char>(std::tolower(byte)) : '-';
  }
  while (name.ends_with('-')) name.pop_back();
  return name;
}

PciPlace ReadPciPlace(const std::string& address, const std::string& sys_folder) {
  PciPlace place;
  const std::filesystem::path folder = sys_folder + "/bus/pci/devices/" + address;
  std::ifstream(folder / "numa_node") >> place.numa_node;
  // The link leads through the bridges above it: /sys/devices/pci0000:16/0000:16:01.0/...
  std::error_code error;
  for (const auto& part : std::filesystem::canonical(folder, error)) {
    if (error) break;
    if (part.string().starts_with("pci")) {
      place.root = part.string();
      break;
    }
  }
  return place;
}

Json DevicesOf(const Offer& offer) {
  Json devices = Json::array();
  for (size_t i = 0; i < std::min(offer.devices.size(), offer.gpus.size()); ++i) {
    const inventory::Device& device = offer.devices[i];
    const binding::Gpu& gpu = offer.gpus[i];
    if (!gpu.taken_by.empty() || gpu.bytes == 0) continue;
    Json one = {
        {"name", DeviceName(device.uuid)},
        {"allowMultipleAllocations", true},
        {"attributes", Attributes(offer, device)},
        {"capacity",
         {{"memory",
           {{"value", yaml::FormatBytes(gpu.bytes)},
            {"requestPolicy",
             {{"default", "0"}, {"validRange", {{"min", "0"}, {"step", "2Mi"}}}}}}},
          {"attach",
           {{"value", std::to_string(gpu.tokens)},
            {"requestPolicy", {{"default", "1"}, {"validRange", {{"min", "1"}, {"step", "1"}}}}}}},
          {"share",
           {{"value", std::to_string(claims::kShares)},
            {"requestPolicy",
             {{"default", "1"}, {"validRange", {{"min", "1"}, {"step", "1"}}}}}}}}}};
    Json taints = Json::array();
    if (!gpu.healthy) taints.push_back(Taint("gpushm.io/health", "unhealthy"));
    if (!gpu.drained.empty()) taints.push_back(Taint("gpushm.io/drained", "by-operator"));
    if (!taints.empty()) one["taints"] = std::move(taints);
    devices.push_back(std::move(one));
  }
  return devices;
}

}  // namespace gpushm::plugin::dra
