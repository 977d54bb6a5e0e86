// Every reason in the pod itself for which a pod with annotations of gpushm is denied, in words
// that name the field and a correct example. docs/design/injector.md lists them.
//
// Threads: pure functions; any thread.
#pragma once

#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// For a pod that asks for something.
Findings Check(const Pod& pod);

}  // namespace gpushm::injector
