// The plugin's configuration: one strict YAML file. Every key has a default, so an empty file is
// right on most nodes. docs/reference/plugin-config.md is made from the table of keys.
//
// Contract
//   1. As for annotations: all errors of a file are reported together, each with its place, the
//      reason and a valid example. An unknown key gets the nearest known one. Nothing is ignored.
//   2. The file is read once, at the start.
// Threads: pure functions except ReadPluginConfig; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/log_config.h"
#include "platform/base/status.h"
#include "platform/yaml/keyed_reader.h"
#include "plugin/binding/book.h"
#include "plugin/inventory/health_tracker.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::config {

// How pods get memory: which front end the plugin has. Never both on a node, because neither the
// scheduler nor the kubelet would know what the other one has given away.
enum class Allocation {
  kDevicePlugin,
  kDra,  // Dynamic resource allocation.
};

enum class KubeletMode {
  kAuto,  // Registers with the kubelet, and waits for it if it does not run yet.
  kNone,  // One machine without Kubernetes: only `allocations` exist.
};

// A buffer pool on a machine without Kubernetes.
struct NodeAllocation {
  std::string name;  // A DNS label.
  uint64_t memory_bytes = 0;
  std::optional<yaml::GpuChoice> gpu;  // None: any GPU with room.

  friend bool operator==(const NodeAllocation&, const NodeAllocation&) = default;
};

// What the plugin reports about itself and the node, and where. Addresses as in listen_address.h;
// an empty one is not served.
struct MonitoringConfig {
  std::string metrics_address{":9400"};
  std::string status_address{"127.0.0.1:9401"};
  std::string probes_address;
  uint32_t sample_ms = 5000;  // Between two reads from NVML.
  bool host_pids = false;     // Whether the plugin sees the PIDs that NVML reports.

  friend bool operator==(const MonitoringConfig&, const MonitoringConfig&) = default;
};

struct PluginConfig {
  inventory::Rules rules;  // gpus, unit, reserve, attach-tokens
  binding::Tenancy tenancy = binding::Tenancy::kShared;
  std::string driver_root;  // Empty: search for it.
  std::string host_root;    // Where this process sees the node's root. Empty: not in a container.
  bool coexist = false;     // Containers may also request nvidia.com/gpu.
  KubeletMode kubelet = KubeletMode::kAuto;
  Allocation allocation = Allocation::kDevicePlugin;
  std::string api_server;  // "host:port"; empty: as pods find it.
  std::string api_credentials{"/var/run/secrets/kubernetes.io/serviceaccount"};
  std::string kubelet_folder{"/var/lib/kubelet/device-plugins"};
  std::string pod_resources_socket{"/var/lib/kubelet/pod-resources/kubelet.sock"};
  std::string plugins_registry_folder{"/var/lib/kubelet/plugins_registry"};
  std::string plugins_folder{"/var/lib/kubelet/plugins"};
  std::string claims_folder{"/run/gpushm-claims"};
  std::vector<std::string> not_gpus;  // Resources of nvidia.com that are not GPUs.
  std::string cdi_folder{"/var/run/cdi"};
  std::string state_folder{"/var/lib/gpushm"};
  std::string features_folder;  // Of Node Feature Discovery. Empty: nothing is written.
  std::vector<NodeAllocation> allocations;
  inventory::HealthRules health;
  MonitoringConfig monitoring;
  LogConfig log;

  friend bool operator==(const PluginConfig&, const PluginConfig&) = default;
};

inline constexpr size_t kMaxAllocations = 1024;

// `file_name` is used only in messages.
Result<PluginConfig> ParsePluginConfig(std::string_view yaml_text, std::string_view file_name);
yaml::OrErrors<PluginConfig> ParsePluginConfigOrErrors(std::string_view yaml_text,
                                                       std::string_view file_name);
// kNotFound: the file does not exist. kSystem: it cannot be read. kInvalidArgument: the error lists
// what is wrong in it.
Result<PluginConfig> ReadPluginConfig(const std::string& path);

// The keys of the file; those inside maps as "log.level".
std::span<const yaml::KeyInfo> PluginKeys();

}  // namespace gpushm::plugin::config
