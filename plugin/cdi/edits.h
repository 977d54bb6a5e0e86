// What a container gets: the part of CDI's container edits that the plugin uses. Plain values, so
// that they can become a CDI spec or the kubelet's own device list (strategy "devices", which has
// no hooks and no groups).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gpushm::plugin {

struct Mount {
  std::string host_path;
  std::string container_path;
  bool read_only = true;
  friend bool operator==(const Mount&, const Mount&) = default;
};

struct DeviceNode {
  std::string host_path;
  std::string container_path;
  std::string permissions = "rw";  // Of the device cgroup: r, w, m.
  friend bool operator==(const DeviceNode&, const DeviceNode&) = default;
};

// A program of the host that the runtime runs while it makes the container.
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
  std::vector<Hook> hooks;                // Only from a spec of NVIDIA's.
  std::vector<uint32_t> additional_gids;  // The same; groups that may use the device nodes.
  friend bool operator==(const Edits&, const Edits&) = default;
};

// Adds what `more` has. A path of the container or a variable that both have is taken from `more`.
void Merge(Edits* edits, const Edits& more);

}  // namespace gpushm::plugin
