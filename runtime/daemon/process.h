// What the daemons do as processes before they do anything else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace gpushm {

// To as many descriptors as the hard limit allows: each buffer and each client has one or two.
void RaiseDescriptorLimit();

// Bytes of host memory that this container may take, as its cgroup says; UINT64_MAX: no limit.
uint64_t MemoryLimitBytes();

// For a daemon with many threads that do little, and now and then make a text of megabytes: one
// heap for all of them, and such texts given back at once. By itself glibc makes eight heaps a
// core, each of which keeps what it once had. Before any thread starts.
void KeepHeapSmall();

// Blocks these signals and gives a descriptor that tells of them (signalfd, not blocking). Before
// any thread starts: threads inherit the mask.
UniqueFd SignalDescriptor(std::initializer_list<int> signals);

// Makes the file at `path` and locks it for this process, however it ends (flock). `taken`: the
// error when another process has it, and keeps it for half a second. kSystem.
Result<UniqueFd> LockFile(const std::string& path, const Status& taken);

}  // namespace gpushm
