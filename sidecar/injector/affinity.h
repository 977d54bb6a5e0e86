// Node affinities for what a node's resources do not say: how many GPUs it has, and how much room
// one of them has (docs/design/placement.md).
//
// Threads: pure; any thread.
#pragma once

#include "sidecar/injector/patch.h"
#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// For a pod of several GPUs: only nodes that have so many, if their labels say it.
void RequireGpus(const Pod& pod, Patch* patch);

// Nodes on which one GPU has room come first.
void PreferRoom(const Pod& pod, Patch* patch);

}  // namespace gpushm::injector
