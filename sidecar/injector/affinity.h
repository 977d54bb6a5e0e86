// Node affinities for what a node's resources do not say: how many GPUs it has, and how much room
// one of them has (docs/design/placement.md).
//
// Threads: pure; any thread.
#pragma once

#include "sidecar/injector/patch.h"
#include "sidecar/injector/plan.h"
#include "sidecar/injector/pod.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

void PutAffinity(const PodView& pod, const Plan& plan, const Settings& settings, Patch* patch);

}  // namespace gpushm::injector
