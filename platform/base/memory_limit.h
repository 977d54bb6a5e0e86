// Host memory that this container may use. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace gpushm {

// Bytes according to the container's cgroup and the ones around it; UINT64_MAX: no limit. `root`:
// for tests, replaces / for proc and sys.
uint64_t MemoryLimitBytes(const std::string& root = "");

// Bytes that programs could take now without swapping (MemAvailable of proc_meminfo(5));
// UINT64_MAX: not known.
uint64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace gpushm
