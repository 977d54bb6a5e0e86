// The plugin's configuration: one strict YAML file, of which every key has a default, so that an
// empty file is right on most nodes. docs/reference/plugin-config.md is made from the table of
// keys.
//
// Contract
//   1. As of annotations: every error of a file comes at once, with its place, the reason and an
//      example that itself parses; an unknown key names the nearest known one; nothing is ignored.
//   2. A running plugin takes over a changed file but for the keys that need a restart, which keep
//      their values (TakeOver).
// Threads: pure functions but for ReadPluginConfig; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/log_config.h"
#include "platform/base/status.h"
#include "platform/yaml/keyed_reader.h"
#include "plugin/inventory/health_book.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin {

enum class Strategy {
  kCdi,      // Devices come into containers by CDI names, bound when a container starts.
  kDevices,  // By device nodes and mounts, bound when a pod is admitted: older runtimes.
};

enum class KubeletMode {
  kAuto,  // Registers with the kubelet; waits for it where there is none yet.
  kNone,  // One machine without Kubernetes: `allocations` are all there is.
};

// A buffer pool on a machine without Kubernetes.
struct NodeAllocation {
  std::string name;  // A DNS label.
  uint64_t memory_bytes = 0;
  std::optional<config::GpuChoice> gpu;  // None: one with room.

  friend bool operator==(const NodeAllocation&, const NodeAllocation&) = default;
};

// What the plugin tells of itself and of the node, and where. Addresses as in listen_address.h;
// empty: not at all.
struct MonitoringConfig {
  std::string metrics_address{":9400"};
  std::string status_address{"127.0.0.1:9401"};
  std::string probes_address;
  uint32_t sample_ms = 5000;  // Between two questions to NVML.
  bool host_pids = false;     // The plugin sees the PIDs that NVML gives.

  friend bool operator==(const MonitoringConfig&, const MonitoringConfig&) = default;
};

struct PluginConfig {
  Rules rules;  // gpus, unit, reserve, attach-tokens
  Strategy strategy = Strategy::kCdi;
  std::string driver_root;  // Empty: found.
  std::string host_root;    // Where the node's root is visible here; empty: here is the node.
  bool coexist = false;     // Containers may also ask for nvidia.com/gpu.
  KubeletMode kubelet = KubeletMode::kAuto;
  std::string kubelet_folder{"/var/lib/kubelet/device-plugins"};
  std::string pod_resources_socket{"/var/lib/kubelet/pod-resources/kubelet.sock"};
  std::string plugins_registry_folder{"/var/lib/kubelet/plugins_registry"};
  std::vector<std::string> not_gpus;  // Resources of nvidia.com that are no GPUs.
  std::string cdi_folder{"/var/run/cdi"};
  std::string state_folder{"/var/lib/gpushm"};
  std::vector<NodeAllocation> allocations;
  HealthRules health;
  MonitoringConfig monitoring;
  LogConfig log;

  friend bool operator==(const PluginConfig&, const PluginConfig&) = default;
};

inline constexpr size_t kMaxAllocations = 1024;

// `file_name` is only for messages.
Result<PluginConfig> ParsePluginConfig(std::string_view yaml_text, std::string_view file_name);
config::OrErrors<PluginConfig> ParsePluginConfigOrErrors(std::string_view yaml_text,
                                                         std::string_view file_name);
// kNotFound: no such file. kSystem: it cannot be read. kInvalidArgument: what is wrong in it.
Result<PluginConfig> ReadPluginConfig(const std::string& path);
// Its text alone, at most config::kConfigBytes and one byte.
Result<std::string> ReadConfigText(const std::string& path);

// The keys of the file, those of maps as "log.level".
std::span<const config::KeyInfo> PluginKeys();

// What a plugin that runs with `now` does when the file says `next`: the keys that need a restart
// keep their values. `restart`: those of them that differ.
struct TakenOver {
  PluginConfig config;
  std::vector<std::string_view> restart;
};
TakenOver TakeOver(const PluginConfig& now, const PluginConfig& next);

// Whether a running plugin keeps its old value of `key` when the file changes.
bool NeedsRestart(std::string_view key);

}  // namespace gpushm::plugin
