// Finds out what a descriptor from another process is before it is used or kept.
//
// Nothing here can be blocked by the process that made the descriptor. A file of a FUSE file system
// whose daemon does not answer blocks fstat, fstatfs, ioctl, poll, lseek, pread and even close,
// also in a process that received SIGKILL. fcntl(F_GETFL, F_GET_SEALS), readlink of /proc/self/fd/N
// and statx with AT_STATX_DONT_SYNC do not block (measured on Linux 6.18; docs/guides/security.md).
// Only these calls are used until it is known that the descriptor is not such a file.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

// Whether it is a pidfd. Any other descriptor could falsely show a process that never ends or has
// ended.
bool IsPidfd(int fd);

// Whether it is a memfd, or another file of the kernel's internal shared memory.
bool IsMemfd(int fd);

// How to recognise GPU memory on this machine.
struct MemoryKind {
  // The file system (st_dev) that holds the simulated driver's memory; absent if that driver is not
  // in use.
  std::optional<dev_t> simulated = {};

  // `simulated_state`: the simulated driver's state folder (GPUSHM_SIM_DIR), which is created if
  // missing. Empty: the real driver.
  static MemoryKind Of(const std::string& simulated_state);
};

// Whether the descriptor is what cuMemExportToShareableHandle gives: a device node of NVIDIA's
// driver, or a file of the simulated driver. kInvalidArgument for anything else; the text says what
// it is. Broker and plugin use the same check, so that a client cannot make the broker state memory
// that the plugin refuses.
Result<void> CheckMemory(int fd, const MemoryKind& kind);

// Whether closing it may block: true for sockets, files and unknown kinds, false for pidfds,
// memfds, pipes, device nodes and anonymous inodes (events, epoll ...). If true, it must be closed
// on a thread that nobody else needs.
bool MayHoldUpItsCloser(int fd);

// The file system of the file (st_dev); 0 if the kernel does not say.
dev_t FileSystemOf(int fd);

// The process at the other end of a connected socket. Invalid if the kernel cannot tell (before
// Linux 6.5) or the process has ended already.
UniqueFd PeerProcess(int socket);

// Whether the process has ended.
bool HasEnded(const UniqueFd& pidfd);

// The PID of a pidfd's process: 0 if it is not in our PID namespace, -1 if it has ended.
int PidOf(int pidfd);

enum class Same { kNo, kYes, kUnknown };
// Whether two pidfds refer to the same process. Linux 6.9 and later can always tell; older kernels
// only if the process is in the caller's PID namespace.
Same IsSameProcess(const UniqueFd& a, const UniqueFd& b);

}  // namespace gpushm
