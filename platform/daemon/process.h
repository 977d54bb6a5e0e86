// What the daemons do as processes before they do anything else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

// To as many descriptors as the hard limit allows: each buffer and each client has one or two.
void RaiseDescriptorLimit();

// Bytes of host memory that this container may take, as its cgroup or one around it says;
// UINT64_MAX: no limit. `root`: for tests, in place of / for proc and sys.
uint64_t MemoryLimitBytes(const std::string& root = "");

// For a daemon with many threads that do little, and now and then make a text of megabytes: one
// heap for all of them, and such texts given back at once. By itself glibc makes eight heaps a
// core, each of which keeps what it once had. Before any thread starts.
void KeepHeapSmall();

// Blocks these signals and gives a descriptor that tells of them (signalfd, not blocking). Before
// any thread starts: threads inherit the mask.
UniqueFd SignalDescriptor(std::initializer_list<int> signals);

// The lock of a file that is made if need be; it goes with the descriptor. kBusy: somebody has it.
Result<UniqueFd> TryLockFile(const std::string& path);
// Whether somebody has it; this process counts as well.
bool IsLocked(const std::string& path);

// Makes the file at `path` and locks it for this process, however it ends (flock). `taken`: the
// error when another process has it, and keeps it for half a second. kSystem.
Result<UniqueFd> LockFile(const std::string& path, const Status& taken);

// A thread that waits in the kernel.
struct HeldThread {
  pid_t tid = 0;
  std::string name = {};
  std::string system_call = {};      // Its name, or its number; empty: not known.
  std::string kernel_function = {};  // In which it waits (/proc/PID/wchan); empty: not known.
};

// The threads of `process` (not the caller's own) that wait in a system call which may not end, not
// even by SIGKILL: any but a wait for other threads, for time or for events.
std::vector<HeldThread> HeldThreads(pid_t process);

}  // namespace gpushm
