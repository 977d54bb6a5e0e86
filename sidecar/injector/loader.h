// The containers that load the files of buffers, one for each.
//
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "platform/yaml/error_list.h"
#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// Whether the volumes of the files are there, and the loaders can read them as far as the pod shows
// it.
void CheckFiles(const Pod& pod, Findings* found);

// The container that loads the file of a buffer. `uid`: as which the sidecar runs.
Json LoaderContainer(const Pod& pod, const annotations::BufferSpec& buffer,
                     std::optional<int64_t> uid);

}  // namespace gpushm::injector
