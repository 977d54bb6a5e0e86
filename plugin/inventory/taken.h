// Determines which GPUs of this node somebody else hands out to pods, so that no GPU is allocated
// twice. That can be another device plugin (NVIDIA's, GKE's, those that share or partition GPUs),
// or NVIDIA's driver for dynamic resource allocation.
//
// After a plugin is replaced or the kubelet restarts, a plugin advertises nothing for a while, and
// then the same as before. So a GPU that was seen once counts as taken until it was not seen for
// kForgetMs, also over restarts of this plugin and of the node.
//
// Threads: functions, any; TakenGpus, one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::inventory {

// Who hands out a GPU.
struct Taker {
  std::string by;  // For people: "nvidia.com/gpu"
  std::string id;  // The device ID by which it was seen.
};
// By UUID of a Device, or kAnyGpu.
using Takers = std::map<std::string, Taker>;
// Somebody hands out GPUs and it is unknown which, so it may be any GPU.
inline constexpr char kAnyGpu[] = "*";

// Device IDs, keyed by their resource. Recognised for any resource:
//   GPU-<uuid>, MIG-<uuid>           NVIDIA's plugin
//   <uuid>::3, <uuid>-3              its replicas, and those of plugins that share GPUs
//   0000:3b:00.0                     a PCI address; if not a GPU's, it is a network card's, or that
//                                    of a GPU that was given to virtual machines
// and for those of nvidia.com:
//   nvidia0, nvidia0/gi1, nvidia0/gi1/vgpu2   GKE's plugin: /dev/nvidia0
// Any other ID under nvidia.com stands for kAnyGpu, unless its resource is one of `not_gpus`: a
// number may be the IOMMU group of a GPU for virtual machines (KubeVirt), or a network card.
Takers FindTaken(const std::vector<Device>& devices,
                 const std::map<std::string, binding::DeviceIds>& offers,
                 const std::vector<std::string>& not_gpus);

// The name that podresources uses for what that driver gave to a container.
inline constexpr char kDraDriver[] = "gpu.nvidia.com";
// Whether NVIDIA's driver for dynamic resource allocation serves this node's GPUs: it listens in
// the kubelet's folder of plugin registrations. It reports its GPUs only to the API server.
bool DraDriverServes(const std::string& plugins_registry_folder);

class TakenGpus {
 public:
  // As long as the kubelet remembers a plugin that has ended (endpointStopGracePeriod). While that
  // plugin advertises other devices, a device that it no longer advertises is not forgotten at all:
  // it may be unhealthy there, and come back.
  static constexpr int64_t kForgetMs = 300'000;

  // Reads what an earlier run knew from `path`, except what resources of `not_gpus` took. A file
  // that cannot be read counts as empty.
  TakenGpus(std::string path, const std::vector<std::string>& not_gpus, int64_t now_ms);

  // Takes what is seen now, and the resources that advertise any device. Logs and writes down what
  // is new or forgotten.
  void Observe(const Takers& seen, const std::set<std::string>& offering, int64_t now_ms);

  // Who hands out that GPU; empty: nobody else.
  std::string By(const std::string& uuid) const;

 private:
  struct Entry {
    std::string by;
    int64_t seen_ms = 0;
    bool told = false;  // Whether this process has logged it.
  };
  void Write() const;

  const std::string path_;
  std::map<std::string, Entry> entries_;
};

}  // namespace gpushm::plugin::inventory
