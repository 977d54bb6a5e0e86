// SOCK_SEQPACKET with descriptors in ancillary data, one datagram at a time.
//
// Received descriptors are close-on-exec and owned from the moment they arrive, also those of a
// message that is refused. The Message owns them and closes them when it goes out of scope, unless
// its owner closes them elsewhere, because closing a foreign descriptor can block. More than
// limits::kMessageDescriptors or a truncated message is kCorrupt.
//
// If this process has no free descriptor for one that was sent (RLIMIT_NOFILE), the result is
// kExhausted, which is not the peer's fault. The message then has its bytes, so that it can be
// answered, and the descriptors that did arrive.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "contract/limits.h"
#include "contract/protocol/messages.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::protocol {

struct Message {
  Buffer bytes;  // Only the first size_bytes are valid.
  size_t size_bytes = 0;
  std::vector<UniqueFd> descriptors;
  std::span<const std::byte> span() const { return {bytes.data(), size_bytes}; }
};

// Sends one datagram; waits until `deadline` for room. kUnavailable: the peer is gone; kTimeout.
// ETOOMANYREFS (the kernel counts descriptors in flight for each user) is retried until the
// deadline.
Result<void> Send(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                  const Deadline& deadline);

// Like Send, but does not wait: false if the socket's buffer is full or the kernel refuses
// descriptors for now (ETOOMANYREFS).
Result<bool> TrySend(int socket, std::span<const std::byte> bytes,
                     std::span<const int> descriptors);

// Receives one datagram; waits until `deadline`. kUnavailable: end-of-file; kTimeout; kCorrupt;
// kExhausted, see above.
Result<void> Receive(int socket, Message* message, const Deadline& deadline);

// Like Receive, but does not wait: false if no message is queued.
Result<bool> TryReceive(int socket, Message* message);

// Connects to the socket at `path`. kUnavailable: it does not exist or nobody listens; kDenied.
Result<UniqueFd> Connect(const std::string& path);

// Makes a socket, binds it (mode 0666 whatever the umask, unless `mode` differs) and listens at
// `path`, replacing an existing file. The name is never free for others to take in between, because
// the socket is bound under another name and then renamed. kDenied: the existing file belongs to
// another user, in a folder with the sticky bit, such as /dev/shm. The socket is non-blocking.
Result<UniqueFd> Listen(const std::string& path, unsigned mode);

}  // namespace gpushm::protocol
