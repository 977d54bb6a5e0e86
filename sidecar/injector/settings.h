// What the cluster's operator decides for all pods: the chart's values, given as flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpushm::injector {

struct Settings {
  std::string sidecar_image;
  std::string pull_policy = "IfNotPresent";
  // Added to the pods' own, since the sidecar's image may be behind another registry than theirs.
  std::vector<std::string> pull_secrets;

  // Taints of GPU nodes that pods with a sidecar tolerate, by key: platforms that taint such nodes
  // add tolerations for their own resources only.
  std::vector<std::string> tolerations;

  // Of the sidecar. A pod that would be Guaranteed without it stays so: request = limit there.
  uint64_t cpu_millis = 50;
  uint64_t cpu_limit_millis = 500;
  uint64_t memory_bytes = uint64_t{64} << 20;
  // Where something is loaded: a process with a context of its own does it.
  uint64_t loader_cpu_limit_millis = 2000;
  uint64_t loader_memory_bytes = uint64_t{512} << 20;  // In addition.

  uint64_t unit_bytes = uint64_t{1} << 30;  // As the plugin's.
  bool coexist = false;                     // As the plugin's.
  // What the cluster's largest GPU gives to one pod, at least a unit; 0: no limit. A pod that asks
  // for more would stay Pending for ever.
  uint64_t max_pod_bytes = 0;
  // Patterns of fnmatch(3) of RuntimeClasses whose containers can get no descriptor of GPU memory.
  std::vector<std::string> denied_runtime_classes;

  // False where the platform gives every container its uid (OpenShift).
  bool assign_uid = true;
  int64_t host_ipc_group = 65532;
};

}  // namespace gpushm::injector
