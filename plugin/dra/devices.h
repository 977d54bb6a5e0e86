// The node's GPUs as devices of ResourceSlices (resource.k8s.io/v1): what the scheduler reads.
//
// One device for each GPU or MIG instance. Claims share a device (allowMultipleAllocations), and
// each takes a part of its capacity: `memory` in bytes, and `attach`, the number of containers that
// use it. A pod's claim allocates its device twice: its broker takes the memory, and its
// application containers only attach. So memory is 0 where a request does not ask for it.
//
// Threads: functions, any.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/binding/book.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::dra {

// The UUID in small letters, because devices are named by DNS labels. A replaced card is another
// device.
std::string DeviceName(const std::string& uuid);

// Where a GPU is, as the kernel says.
struct PciPlace {
  std::string root;    // "pci0000:16"; empty if unknown.
  int numa_node = -1;  // -1: unknown.
};
PciPlace ReadPciPlace(const std::string& address, const std::string& sys_folder = "/sys");

// What the scheduler may know about the node at one moment.
struct Offer {
  std::vector<inventory::Device> devices;
  std::vector<binding::Gpu>
      gpus;  // The same ones, in that order, with health and who else hands them out.
  std::map<std::string, PciPlace> places;           // By PCI address.
  std::map<std::string, std::string> reasons = {};  // Why GPUs are unhealthy, by UUID.
};

// As a ResourceSlice's spec.devices. GPUs that somebody else hands out, and those without room for
// any memory, are left out. Unhealthy and drained ones have a taint.
nlohmann::json DevicesOf(const Offer& offer);

// The most devices of a slice: 128, or 64 if any of them can have a taint.
inline constexpr size_t kSliceDevices = 64;

}  // namespace gpushm::plugin::dra
