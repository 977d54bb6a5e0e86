// What a descriptor is, asked before one that another process sent is used or kept.
//
// Nothing here can be held up by whoever made the descriptor. A file of a FUSE file system whose
// daemon does not answer blocks fstat, fstatfs, ioctl, poll, lseek, pread and even close, also in a
// process that SIGKILL has hit. fcntl(F_GETFL, F_GET_SEALS), readlink of /proc/self/fd/N and statx
// with AT_STATX_DONT_SYNC do not block (measured on Linux 6.18; docs/guides/security.md), and are
// all that is asked of a descriptor until it is known to be none of those.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

// Whether it is a pidfd. Anything else could claim to live for ever, or to have ended.
bool IsPidfd(int fd);

// Whether it is a memfd, or another file of the kernel's own shared memory.
bool IsMemfd(int fd);

// How GPU memory is told from everything else on this machine.
struct MemoryKind {
  // The file system (st_dev) that holds the simulated driver's memory; absent: that driver is not
  // in use.
  std::optional<dev_t> simulated = {};

  // `simulated_state`: the simulated driver's state folder (GPUSHM_SIM_DIR), made if it is not
  // there. Empty: the real driver.
  static MemoryKind Of(const std::string& simulated_state);
};

// Whether the descriptor is what cuMemExportToShareableHandle gives: a device node of NVIDIA's
// driver, or a file of the simulated driver. kInvalidArgument, with what it is: anything else.
// Broker and plugin ask the same, so that no client can make the one say what the other refuses.
Result<void> CheckMemory(int fd, const MemoryKind& kind);

// Whether closing it may wait for somebody: true for sockets, files and whatever is unknown, false
// for pidfds, memfds, pipes, device nodes and anonymous inodes (events, epoll ...). If so it must
// be closed on a thread that nobody else needs.
bool MayHoldUpItsCloser(int fd);

// The file system of the file, st_dev; 0: the kernel does not say.
dev_t FileSystemOf(int fd);

// The process at the other end of a connected socket. Invalid: the kernel does not tell (before
// Linux 6.5), or the process is gone already.
UniqueFd PeerProcess(int socket);

// Whether the process has ended.
bool HasEnded(const UniqueFd& pidfd);

// The PID of a pidfd's process: 0 if it is not in our PID namespace, -1 if it has ended.
int PidOf(int pidfd);

enum class Same { kNo, kYes, kUnknown };
// Whether two pidfds stand for one process. Linux 6.9 and later know; before that only in the
// PID namespace of the asker.
Same IsSameProcess(const UniqueFd& a, const UniqueFd& b);

}  // namespace gpushm
