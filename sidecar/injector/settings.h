// What the cluster's operator decides for all pods: the chart's values, passed as flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/annotations/annotations.h"

namespace gpushm::injector {

// What the nodes' labels gpushm.io/largest-free mean for where pods go.
enum class LargestFree {
  kIgnore,
  kPrefer,  // Nodes with room come first.
};

struct Settings {
  std::string sidecar_image;
  std::string pull_policy = "IfNotPresent";
  // Added to the pods' own pull secrets, because the sidecar's image may be in a different
  // registry.
  std::vector<std::string> pull_secrets;

  // Keys of the GPU nodes' taints that pods with a sidecar tolerate. Platforms that taint such
  // nodes add tolerations only for their own resources.
  std::vector<std::string> tolerations;

  // Resources of the sidecar. A pod that would be Guaranteed without the sidecar stays so, because
  // its request then equals its limit.
  uint64_t cpu_millis = 50;
  uint64_t cpu_limit_millis = 500;
  uint64_t memory_bytes = uint64_t{64} << 20;
  // Of each container that loads a file. Its request of memory is what it has when the load is
  // done; the load itself needs host memory for a context and for pinned chunks.
  uint64_t loader_cpu_millis = 50;
  uint64_t loader_cpu_limit_millis = 2000;
  uint64_t loader_memory_bytes = uint64_t{32} << 20;
  uint64_t loader_memory_limit_bytes = uint64_t{640} << 20;

  uint64_t unit_bytes = uint64_t{1} << 30;  // Must match the plugin's.
  bool coexist = false;                     // Must match the plugin's.
  // How pods get their GPU memory if neither they nor their namespace say it.
  annotations::Allocation allocation = annotations::Allocation::kDevicePlugin;
  bool makes_claims = false;  // Whether it may write ResourceClaimTemplates.
  bool mps = false;           // Of pods that do not say gpushm.io/mps.
  // The memory that the cluster's largest GPU can give to one pod, at least one unit; 0 for no
  // limit. A pod that requests more would stay Pending indefinitely.
  uint64_t max_pod_bytes = 0;
  // The nodes' label with the number of their GPUs, such as nvidia.com/gpu.count. Pods of several
  // GPUs then go only to nodes that have so many. Empty if the nodes have none.
  std::string gpu_count_label;
  LargestFree largest_free = LargestFree::kIgnore;
  // fnmatch(3) patterns for RuntimeClasses whose containers cannot receive a descriptor of GPU
  // memory.
  std::vector<std::string> denied_runtime_classes;

  // False if the platform gives every container its uid (OpenShift).
  bool assign_uid = true;
  int64_t host_ipc_group = 65532;
};

}  // namespace gpushm::injector
