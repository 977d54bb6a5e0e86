// What other webhooks made of a pod after its patch.
//
// Threads: pure functions; any thread.
#pragma once

#include <string>

#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// Why a pod that WritePatch has patched cannot run in its current form; empty if it can.
std::string ChangedByOthers(const Pod& pod);

}  // namespace gpushm::injector
