// What a container gets: the part of CDI's container edits that the plugin uses. Plain values, so
// that they can become a CDI spec or the kubelet's own device list (strategy "devices").
#pragma once

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

struct Edits {
  std::map<std::string, std::string> env;
  std::vector<DeviceNode> device_nodes;
  std::vector<Mount> mounts;
  friend bool operator==(const Edits&, const Edits&) = default;
};

}  // namespace gpushm::plugin
