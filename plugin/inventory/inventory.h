// What GPUs the node has, and what of them the plugin advertises to the kubelet.
//
// Threads: functions, from any thread; NVML is thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/nvml_api.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin {

inline constexpr uint32_t kNoInstance = ~uint32_t{0};  // As in nvmlEventData_t.

// One thing that a pod can be bound to: a GPU, or an instance of one that MIG has cut up.
struct Device {
  std::string uuid;         // "GPU-..." or "MIG-..."
  std::string parent_uuid;  // Of a MIG instance: its GPU. Else empty.
  std::string name;         // "NVIDIA H200", of an instance "NVIDIA H200 MIG 1g.18gb".
  uint32_t index = 0;       // Of the physical GPU, as nvidia-smi counts.
  uint32_t minor = 0;       // Of the physical GPU: /dev/nvidia<minor>.
  uint64_t total_bytes = 0;
  std::string pci_address = {};  // Of the physical GPU, as "0000:3b:00.0"; empty: not known.
  // NVML's IDs of a MIG instance; kNoInstance of a GPU, and where the driver does not tell.
  uint32_t gpu_instance = kNoInstance;
  uint32_t compute_instance = kNoInstance;

  // "1g.18gb", "1c.2g.35gb", "1g.18gb+me"; empty unless it is a MIG instance.
  std::string_view profile() const;
};

// GPUs by index; in place of one in MIG mode its instances, in NVML's order. One that cannot be
// read, as after it fell off the bus, is left out, and `unread` says why; null: nobody asks.
// kDriver: NVML fails, or all of them do, and which call.
Result<std::vector<Device>> ReadDevices(const NvmlApi& nvml,
                                        std::vector<std::string>* unread = nullptr);

struct Rules {
  // UUIDs, indices of physical GPUs (with all their instances), or MIG profiles such as "1g.18gb"
  // (all instances of that profile). Empty: all there are.
  std::vector<std::string> select;
  // What one ID of gpushm.io/memory stands for; a multiple of 2 MiB, the granularity of GPUs.
  uint64_t unit_bytes = uint64_t{1} << 30;
  // Of each device, kept back: the driver itself takes 0.6 GiB of an H200.
  uint64_t reserve_bytes = uint64_t{1} << 30;
  // IDs of gpushm.io/attach for each device: how many containers can use it.
  uint32_t tokens = 64;

  friend bool operator==(const Rules&, const Rules&) = default;
};

// A list of 4,096 IDs is 90 KB to the kubelet, which takes 4 MiB, and 370 KB of a pod that holds
// them all (research: volcano-vgpu-device-plugin #140).
inline constexpr uint32_t kMaxIds = 4096;

struct Advertisement {
  std::vector<Device> devices;       // Selected ones.
  std::vector<Device> on_node;       // All there are.
  std::vector<std::string> missing;  // What Rules::select names and this node has not.
  std::vector<Gpu> gpus;             // The same for the book, in that order; all healthy.
  DeviceIds memory_ids;              // "m0000", ...: no place, no topology; the same at each start.
  DeviceIds attach_ids;              // "a0000", ...

  const DeviceIds& IdsOf(Resource resource) const {
    return resource == Resource::kMemory ? memory_ids : attach_ids;
  }
};

// kInvalidArgument: a rule makes no sense. kNotFound: the node has no GPU. kExhausted: more than
// kMaxIds, with the unit that would fit. A GPU that is named and not there costs the others
// nothing: it was exchanged or has fallen off the bus.
Result<Advertisement> Advertise(const std::vector<Device>& devices, const Rules& rules);

}  // namespace gpushm::plugin
