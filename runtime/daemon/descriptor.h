// What a descriptor is, asked before one that a stranger sent is used or kept. Nothing here blocks.
#pragma once

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace gpushm {

// Whether it is a pidfd. Anything else could claim to live for ever, or to have ended.
bool IsPidfd(int fd);

// Whether it can stand for GPU memory: /dev/nvidiactl or an anonymous inode from NVIDIA's driver,
// a file from the simulated one. kInvalidArgument for what certainly is neither: sockets, pipes,
// folders, block devices, pidfds, and descriptors that hold nothing (O_PATH). Broker and plugin ask
// the same, so that no client can make the one say what the other refuses.
Result<void> CheckMemory(int fd);

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
