#include "contract/protocol/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "contract/limits.h"
#include "contract/protocol/messages.h"

namespace gpushm::protocol {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kMaxFds = limits::kMessageDescriptors;
// The most descriptors that the kernel carries in one message (SCM_MAX_FD). There is room for all
// of them. Otherwise the kernel would close the rest in the receiver's system call, and a socket
// with SO_LINGER would block it there.
constexpr size_t kKernelMaxFds = 253;
constexpr int kRetryMs = 1;

// A path longer than sun_path (108 bytes) is reached through /proc/self/fd/<folder>.
struct Address {
  sockaddr_un address{};
  UniqueFd folder;
};

Result<Address> AddressFor(const std::string& path) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::string shorter = path;
  if (path.size() >= sizeof result.address.sun_path) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
    result.folder.Reset(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!result.folder) return FailSystem(errno, Concat("open ", folder));
    const std::string name = path.substr(slash + 1);
    shorter = Concat("/proc/self/fd/", result.folder.get(), "/", name);
    if (shorter.size() >= sizeof result.address.sun_path) {
      return Fail(Code::kInvalidArgument,
                  Concat("invalid socket path ", path, ": the name after the last \"/\" has ",
                         name.size(), " bytes, but may have ",
                         sizeof result.address.sun_path - 1 - (shorter.size() - name.size())),
                  "use a shorter name");
    }
  }
  shorter.copy(result.address.sun_path, sizeof result.address.sun_path - 1);
  return result;
}

// Calls poll() for one event. kTimeout if the deadline passes first.
Result<void> WaitFor(int socket, short events, const Deadline& deadline, std::string_view what) {
  for (;;) {
    pollfd poller{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&poller, 1, deadline.RemainingMs());
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return FailSystem(errno, "poll");
    if (deadline.Passed()) {
      return Fail(Code::kTimeout, Concat(what, ": the deadline has passed"),
                  "allow more time, or read the sidecar's log");
    }
  }
}

std::unexpected<Status> PeerGone() {
  return Fail(Code::kUnavailable, "the peer closed the connection",
              "the library reconnects when the broker is back");
}

// An unpredictable name in the same folder.
Result<std::string> NameBeside(const std::string& path) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != ssize_t{sizeof number}) {
    return FailSystem(errno, "getrandom");
  }
  std::string beside = Concat(path, '.', std::hex, number);
  if (beside.size() < sizeof(sockaddr_un::sun_path)) return beside;
  return Concat(path.substr(0, path.rfind('/') + 1), ".g", std::hex, number & 0xffffffff);
}

}  // namespace

Result<bool> TrySend(int socket, std::span<const std::byte> bytes,
                     std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    if (descriptors.size() > kMaxFds) {
      return Fail(Code::kInternal, Concat("a message to send has ", descriptors.size(),
                                          " descriptors, but may have ", kMaxFds));
    }
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const ancillary = CMSG_FIRSTHDR(&header);
    ancillary->cmsg_level = SOL_SOCKET;
    ancillary->cmsg_type = SCM_RIGHTS;
    ancillary->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(ancillary), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return true;
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
      case ETOOMANYREFS:
        return false;
      case EPIPE:
      case ECONNRESET:
      case ENOTCONN:
        return PeerGone();
      default:
        return FailSystem(errno, "sendmsg");
    }
  }
}

Result<void> Send(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                  const Deadline& deadline) {
  for (;;) {
    const Result<bool> sent = TrySend(socket, bytes, descriptors);
    if (!sent) return std::unexpected(sent.error());
    if (*sent) return {};
    if (auto ready = WaitFor(socket, POLLOUT, deadline, "send"); !ready) return ready;
    if (deadline.Passed()) {
      return Fail(Code::kTimeout, "send: too many descriptors of this user are in flight",
                  "processes of the same user on this node must receive theirs first");
    }
    // The socket was writable at once and refused again: ETOOMANYREFS. No event announces its end.
    poll(nullptr, 0, kRetryMs);
  }
}

Result<bool> TryReceive(int socket, Message* message) {
  message->descriptors.clear();
  message->size_bytes = 0;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kKernelMaxFds * sizeof(int))> control;
  iovec vector{message->bytes.data(), message->bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t received = 0;
  // ECONNRESET means that the peer closed while a request was unread. The kernel reports it once,
  // before the data that the peer had sent earlier, such as its reason for refusing.
  int resets = 0;
  do {
    received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (received < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
  if (received < 0) {
    if (errno == EAGAIN) return false;
    if (errno == ECONNRESET || errno == ENOTCONN) return PeerGone();
    return FailSystem(errno, "recvmsg");
  }
  for (cmsghdr* ancillary = CMSG_FIRSTHDR(&header); ancillary != nullptr;
       ancillary = CMSG_NXTHDR(&header, ancillary)) {
    if (ancillary->cmsg_level != SOL_SOCKET || ancillary->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (ancillary->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(ancillary) + i * sizeof(int), sizeof fd);
      message->descriptors.emplace_back(fd);
    }
  }
  // An empty datagram looks like end-of-file and breaks the protocol anyway.
  if (received == 0) return PeerGone();
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    return Fail(Code::kCorrupt,
                Concat("a peer broke the protocol: a message is longer than ",
                       message->bytes.size(), " bytes"),
                kOtherPeer);
  }
  if (message->descriptors.size() > kMaxFds) {
    return Fail(Code::kCorrupt,
                Concat("a peer broke the protocol: a message has ", message->descriptors.size(),
                       " descriptors, but may have ", kMaxFds),
                kOtherPeer);
  }
  message->size_bytes = static_cast<size_t>(received);
  // There is room for all that the kernel carries, so a peer cannot cause this.
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return Fail(Code::kExhausted, "this process has no free descriptor for one that was sent",
                "raise RLIMIT_NOFILE (ulimit -n 65536) or close unused descriptors. "
                "If the limit is not reached, a security module (SELinux) forbids the descriptor");
  }
  return true;
}

Result<void> Receive(int socket, Message* message, const Deadline& deadline) {
  for (;;) {
    const Result<bool> received = TryReceive(socket, message);
    if (!received) return std::unexpected(received.error());
    if (*received) return {};
    if (auto ready = WaitFor(socket, POLLIN, deadline, "receive"); !ready) return ready;
  }
}

Result<UniqueFd> Connect(const std::string& path) {
  Result<Address> address = AddressFor(path);
  if (!address) return std::unexpected(address.error());
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd) return FailSystem(errno, "socket");
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address->address),
              sizeof address->address) != 0) {
    const int error = errno;
    const std::string what = Concat("connect to ", path, ": ", std::strerror(error));
    switch (error) {
      case ENOENT:
      case ECONNREFUSED:
      case EAGAIN:  // Its backlog is full.
        return Fail(Code::kUnavailable, what,
                    "check that the sidecar is running and that its folder is mounted here");
      case EACCES:
      case EPERM:
        return Fail(Code::kDenied, what, "the socket belongs to another container or group");
      default:
        return FailSystem(error, Concat("connect to ", path));
    }
  }
  return socket_fd;
}

Result<UniqueFd> Listen(const std::string& path, unsigned mode) {
  const Result<std::string> beside = NameBeside(path);
  if (!beside) return std::unexpected(beside.error());
  Result<Address> address = AddressFor(*beside);
  if (!address) return std::unexpected(address.error());
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd) return FailSystem(errno, "socket");
  if (bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address->address),
           sizeof address->address) != 0) {
    return FailSystem(errno, Concat("bind ", *beside));
  }
  const auto fail = [&beside](std::string_view what, const std::string& at) {
    const auto failed = FailSystem(errno, Concat(what, ' ', at));
    unlink(beside->c_str());
    return failed;
  };
  if (chmod(beside->c_str(), mode) != 0) return fail("chmod", *beside);
  if (listen(socket_fd.get(), kBacklog) != 0) return fail("listen at", *beside);
  if (rename(beside->c_str(), path.c_str()) == 0) return socket_fd;
  const int error = errno;
  if (error != EPERM && error != EACCES && error != EISDIR) return fail("rename to", path);
  unlink(beside->c_str());
  return Fail(Code::kDenied, Concat("another user's file is at ", path, ": ", std::strerror(error)),
              "its owner or root must remove it");
}

}  // namespace gpushm::protocol
