// Writes what a pod gets: the fewest operations that turn it into one with the sidecar and all that
// belongs to it.
//
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// For a pod in which Check has found no errors. Returns an array of RFC 6902, empty if the pod has
// all. `random` returns a different number on each call.
Json WritePatch(const Pod& pod, const std::function<uint64_t()>& random);

}  // namespace gpushm::injector
