// How the containers of a pod run under MPS: the container with the daemon, and what the others get
// (docs/design/mps.md).
//
// Threads: pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/yaml/error_list.h"
#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// For a pod that wants MPS. Returns nullopt if its containers cannot run under one daemon.
std::optional<MpsPlan> PlanMps(const Pod& pod);

// For a pod that wants MPS. One that cannot have it is denied if it asked for it, and gets a
// warning otherwise.
void CheckMps(const Pod& pod, Findings* found);

// For a pod with `mps`: the container with the daemon. It passes Pod Security "restricted" if the
// uid is known, and "baseline" otherwise. In a pod that runs under its claim's daemon, it is an
// init container that waits for the daemon, because a process that starts before runs without MPS,
// and nobody tells it.
Json MpsContainer(const Pod& pod);
// What the environment of a container must say to use it; empty without MPS.
std::vector<std::pair<std::string, std::string>> MpsVariables(const Pod& pod,
                                                              const std::string& container);
// Clients see the folder read-only, which is enough to connect.
Json MpsMount(bool writable);

}  // namespace gpushm::injector
