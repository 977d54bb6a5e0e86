// Which GPUs the node has, and what of them the plugin advertises to the kubelet.
//
// Threads: functions, from any thread; NVML is thread-safe.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/nvml_api.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin::inventory {

inline constexpr uint32_t kNoInstance = ~uint32_t{0};  // As in nvmlEventData_t.

// What a pod can be bound to: a GPU, or an instance of a GPU in MIG mode.
struct Device {
  std::string uuid;              // "GPU-..." or "MIG-..."
  std::string parent_uuid = {};  // GPU of a MIG instance; otherwise empty.
  std::string name;              // "NVIDIA H200", for an instance "NVIDIA H200 MIG 1g.18gb".
  uint32_t index = 0;            // Of the physical GPU, as in nvidia-smi.
  uint32_t minor = 0;            // Of the physical GPU: /dev/nvidia<minor>.
  uint64_t total_bytes = 0;
  // UUIDs of the node's other GPUs that this one reaches over NVLink, directly or through switches.
  std::set<std::string> nvlink = {};
  std::string pci_address = {};  // Of the physical GPU, as "0000:3b:00.0"; empty: unknown.
  // NVML's IDs of a MIG instance; kNoInstance for a GPU, and if the driver does not report them.
  uint32_t gpu_instance = kNoInstance;
  uint32_t compute_instance = kNoInstance;

  // "1g.18gb", "1c.2g.35gb", "1g.18gb+me"; empty unless it is a MIG instance.
  std::string_view profile() const;
};

// GPUs by index, with the instances of a GPU in MIG mode in its place, in NVML's order. A GPU that
// cannot be read, for example after it fell off the bus, is left out, and `unread` says why (may be
// null). kDriver: NVML fails, or it fails for all GPUs; the error names the call.
Result<std::vector<Device>> ReadDevices(const NvmlApi& nvml,
                                        std::vector<std::string>* unread = nullptr);

struct Rules {
  // UUIDs, indices of physical GPUs (with all their instances), or MIG profiles such as "1g.18gb"
  // (all instances of that profile). Empty: all.
  std::vector<std::string> select;
  // Memory of one ID of gpushm.io/memory; a multiple of 2 MiB, the granularity of GPUs.
  uint64_t unit_bytes = uint64_t{1} << 30;
  // Memory of each device that is not advertised: the driver itself takes 0.6 GiB of an H200.
  uint64_t reserve_bytes = uint64_t{1} << 30;
  // IDs of gpushm.io/attach for each device: the number of containers that can use it.
  uint32_t tokens = 64;

  friend bool operator==(const Rules&, const Rules&) = default;
};

// The kubelet receives a list of 4,096 IDs as 90 KB, of the 4 MiB that it accepts. A pod that holds
// all of them takes 370 KB there (research: volcano-vgpu-device-plugin #140).
inline constexpr uint32_t kMaxIds = 4096;

struct Advertisement {
  std::vector<Device> devices;       // Selected ones.
  std::vector<Device> on_node;       // All devices of the node.
  std::vector<std::string> missing;  // Named in Rules::select, but not on this node.
  std::vector<binding::Gpu> gpus;    // The same for the book, in that order; all healthy.
  // A letter and four digits: "m0000", "a0000", "x0000", "g0000", "n0000". Without place or
  // topology, and the same at each start. Of kExclusive one for each device. Of kGpus and kNvlink
  // as many as of kAttach, or none if pods cannot have several GPUs here, so that the scheduler
  // does not send them.
  binding::PerResource<binding::DeviceIds> ids;
};

// kInvalidArgument: a rule is invalid. kNotFound: the node has no GPU. kExhausted: more than
// kMaxIds IDs; the error names a unit that fits. A GPU that is named and missing does not affect
// the others: it was replaced, or has fallen off the bus.
Result<Advertisement> Advertise(const std::vector<Device>& devices, const Rules& rules);

}  // namespace gpushm::plugin::inventory
