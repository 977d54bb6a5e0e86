#include "platform/base/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace gpushm {

// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; for version 2 CONTROLLERS is empty
// (cgroups(7)). In a container with a cgroup namespace, PATH is "/". A privileged container has
// none: /sys/fs/cgroup is then the node's, and PATH leads to the container's group.
uint64_t MemoryLimitBytes(const std::string& root) {
  uint64_t least = UINT64_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string id;
    std::string controllers;
    std::string path;
    std::getline(std::getline(fields, id, ':'), controllers, ':');
    std::getline(fields, path);
    const bool version_2 = controllers.empty();
    if (!version_2 && controllers != "memory") continue;
    const std::string mounted = root + (version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const char* const file = version_2 ? "/memory.max" : "/memory.limit_in_bytes";
    for (bool more = true; more;) {
      uint64_t bytes = 0;
      if (std::ifstream(mounted + path + file) >> bytes) least = std::min(least, bytes);
      more = !path.empty();
      path.erase(more ? path.rfind('/') : 0);
    }
  }
  return least;
}

uint64_t AvailableMemoryBytes(const std::string& root) {
  std::ifstream memory(root + "/proc/meminfo");
  for (std::string line; std::getline(memory, line);) {
    std::istringstream fields(line);
    std::string name;
    uint64_t kib = 0;
    if (fields >> name >> kib && name == "MemAvailable:") return kib << 10;
  }
  return UINT64_MAX;
}

}  // namespace gpushm
