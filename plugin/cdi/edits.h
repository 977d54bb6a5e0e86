// What a container gets: the part of CDI's container edits that the plugin uses, as plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gpushm::plugin::cdi {

struct Mount {
  std::string host_path;
  std::string container_path;
  bool read_only = true;
  friend bool operator==(const Mount&, const Mount&) = default;
};

struct DeviceNode {
  std::string host_path;
  std::string container_path;
  std::string permissions = "rw";  // For the device cgroup: r, w, m.
  friend bool operator==(const DeviceNode&, const DeviceNode&) = default;
};

// A program of the host that the runtime runs while it creates the container.
struct Hook {
  std::string name;  // An OCI hook: "createContainer".
  std::string path;
  std::vector<std::string> args;
  std::vector<std::string> env;  // "NAME=value"
  friend bool operator==(const Hook&, const Hook&) = default;
};

struct Edits {
  std::map<std::string, std::string> env;
  std::vector<DeviceNode> device_nodes;
  std::vector<Mount> mounts;
  std::vector<Hook> hooks;  // Only from NVIDIA's spec.
  // Groups that may use the device nodes; only from NVIDIA's spec.
  std::vector<uint32_t> additional_gids;
  friend bool operator==(const Edits&, const Edits&) = default;
};

// Adds `more`, which wins if both have the same container path or variable.
void Merge(Edits* edits, const Edits& more);

}  // namespace gpushm::plugin::cdi
