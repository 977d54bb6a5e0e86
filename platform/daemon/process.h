// Process-wide settings that the daemons make before anything else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <expected>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

// Raises the descriptor limit to the hard limit: each buffer and each client needs one or two.
void RaiseDescriptorLimit();

// For a daemon with many mostly idle threads that sometimes builds a text of megabytes: one heap
// for all threads, and such texts are given back to the system at once. By default glibc makes up
// to eight heaps for each core, and each keeps its peak size. Call it before any thread starts.
void KeepHeapSmall();

// Blocks these signals and returns a descriptor that reports them (signalfd, non-blocking). Call it
// before any thread starts, because threads inherit the mask.
UniqueFd SignalDescriptor(std::initializer_list<int> signals);

// Locks a file, which is created if missing; closing the descriptor unlocks it. kBusy: another
// process or descriptor has the lock.
Result<UniqueFd> TryLockFile(const std::string& path);
// Whether somebody has the lock, this process included.
bool IsLocked(const std::string& path);

// Creates the file at `path` and locks it for this process; the lock ends with the process, however
// that ends (flock). `taken`: the error if another process still has the lock after half a second.
// kSystem.
Result<UniqueFd> LockFile(const std::string& path, const Status& taken);

// Starts the program `words.front()`, looked up in PATH unless it has a slash, with these words and
// no signal blocked. `descriptors`: pairs of a descriptor of this process and the number that it
// has there. On failure, the error number.
std::expected<pid_t, int> StartProgram(std::vector<std::string> words,
                                       std::initializer_list<std::pair<int, int>> descriptors);

// "ended by signal 9" or "ended with exit code 1", of the status from waitpid().
std::string HowItEnded(int status);

// A thread that is blocked in the kernel.
struct HeldThread {
  pid_t tid = 0;
  std::string name = {};
  std::string system_call = {};      // Its name or its number; empty: not known.
  std::string kernel_function = {};  // Where it waits (/proc/PID/wchan); empty: not known.
};

// The threads of `process` (except the caller's own) that wait in a system call which may never
// end, not even by SIGKILL. Waits for other threads, for time or for events do not count.
std::vector<HeldThread> HeldThreads(pid_t process);

}  // namespace gpushm
