// SOCK_SEQPACKET with descriptors in ancillary data: one datagram at a time.
//
// Received descriptors are close-on-exec and owned from the moment they arrive, also those of a
// message that is refused: the Message has them, and closes them by going out of scope unless its
// owner closes them elsewhere (closing what a stranger made can block). More than
// limits::kMessageDescriptors or a truncated message is kCorrupt.
//
// Where this process has no descriptor free for one that was sent (RLIMIT_NOFILE) it is kExhausted,
// which is no fault of the peer: the message has its bytes, for an answer, and those descriptors
// that did arrive.
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
  Buffer bytes;  // Only the first size_bytes are set.
  size_t size_bytes = 0;
  std::vector<UniqueFd> descriptors;
  std::span<const std::byte> span() const { return {bytes.data(), size_bytes}; }
};

// Sends one datagram, waiting until `deadline` for room. kUnavailable: the peer is gone; kTimeout.
// ETOOMANYREFS (descriptors in flight are counted per user) is retried until the deadline.
Result<void> Send(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                  const Deadline& deadline);

// As Send without waiting: false when the socket's buffer is full or descriptors are refused for
// now (ETOOMANYREFS).
Result<bool> TrySend(int socket, std::span<const std::byte> bytes,
                     std::span<const int> descriptors);

// Receives one datagram, waiting until `deadline`. kUnavailable: end-of-file; kTimeout; kCorrupt;
// kExhausted, see above.
Result<void> Receive(int socket, Message* message, const Deadline& deadline);

// As Receive without waiting: false when nothing is there.
Result<bool> TryReceive(int socket, Message* message);

// Connects to the socket at `path`. kUnavailable: it does not exist or nobody listens; kDenied.
Result<UniqueFd> Connect(const std::string& path);

// Makes, binds (mode 0666 whatever the umask unless `mode` says otherwise) and listens at `path`,
// replacing what is there. At no time is the name free for others to take: the socket is bound
// beside it, then renamed. kDenied: what is there is another user's, in a folder with the sticky
// bit, as /dev/shm. Non-blocking.
Result<UniqueFd> Listen(const std::string& path, unsigned mode);

}  // namespace gpushm::protocol
