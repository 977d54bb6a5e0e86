#include "plugin/metrics/mps_processes.h"

#include <algorithm>
#include <fstream>

#include "platform/base/status.h"

namespace gpushm::plugin::metrics {
namespace {

// The container's cgroup: .../POD/CONTAINER. Empty: the process has ended, or is in none. A line of
// /proc/PID/cgroup is ID:CONTROLLERS:PATH; for version 2 CONTROLLERS is empty (cgroups(7)).
std::string CgroupOf(uint32_t pid, const std::string& proc) {
  std::ifstream file(Concat(proc, "/", pid, "/cgroup"));
  std::string path;
  for (std::string line; std::getline(file, line);) {
    const size_t controllers = line.find(':') + 1;
    const size_t end = line.find(':', controllers);
    if (controllers == 0 || end == std::string::npos) continue;
    const std::string_view names = std::string_view(line).substr(controllers, end - controllers);
    if (names == "memory") return line.substr(end + 1);  // Version 1.
    if (names.empty()) path = line.substr(end + 1);
  }
  return path;
}

// Containers may make cgroups of their own in theirs.
bool IsIn(std::string_view cgroup, const std::string& outer) {
  return cgroup.starts_with(outer) &&
         (cgroup.size() == outer.size() || cgroup[outer.size()] == '/');
}

bool IsServer(uint32_t pid, const std::string& proc) {
  std::ifstream file(Concat(proc, "/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name.starts_with("nvidia-cuda-mps");  // The kernel keeps 15 characters.
}

}  // namespace

std::map<std::string, uint64_t> OutsideMps(const std::vector<nvmlProcessInfo_t>& on_gpu,
                                           const std::vector<nvmlProcessInfo_t>& served,
                                           const std::vector<keeper::MpsPod>& pods,
                                           const std::string& proc) {
  std::vector<std::string> unserved;  // Cgroups of processes.
  for (const nvmlProcessInfo_t& process : on_gpu) {
    if (std::ranges::find(served, process.pid, &nvmlProcessInfo_t::pid) != served.end()) continue;
    if (!IsServer(process.pid, proc)) unserved.push_back(CgroupOf(process.pid, proc));
  }
  std::map<std::string, uint64_t> counts;
  for (const keeper::MpsPod& pod : pods) {
    const std::string broker = CgroupOf(pod.broker_pid, proc);
    const std::string whole = broker.substr(0, std::min(broker.rfind('/'), broker.size()));
    // Kubelets name it .../podUID or ...-podUID.slice. Without one, the parent has other services
    // too.
    const std::string_view name = std::string_view(whole).substr(whole.rfind('/') + 1);
    if (!name.starts_with("pod") && !name.contains("-pod")) continue;
    counts[pod.allocation] =
        static_cast<uint64_t>(std::ranges::count_if(unserved, [&](const auto& cgroup) {
          return IsIn(cgroup, whole) && !IsIn(cgroup, broker);
        }));
  }
  return counts;
}

}  // namespace gpushm::plugin::metrics
