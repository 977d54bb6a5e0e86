// Which processes of a pod with MPS use the GPU without it. A process that initialises CUDA while
// the daemon is dead, or without the variable that names it, is not told; its kernels take turns
// with those of the others.
//
// Threads: any.
#pragma once

#include <nvml.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plugin/keeper/link_view.h"

namespace gpushm::plugin::metrics {

// Their number for each pod, by allocation, without those of the broker's container and the MPS
// server. `on_gpu` and `served`: NVML's lists of all processes and of the clients of MPS. A process
// belongs to the pod whose cgroup it is in, as `proc` says, the folder of the node's processes.
std::map<std::string, uint64_t> OutsideMps(const std::vector<nvmlProcessInfo_t>& on_gpu,
                                           const std::vector<nvmlProcessInfo_t>& served,
                                           const std::vector<keeper::MpsPod>& pods,
                                           const std::string& proc);

}  // namespace gpushm::plugin::metrics
