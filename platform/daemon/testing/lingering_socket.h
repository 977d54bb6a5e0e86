// For tests: a TCP socket on loopback whose close blocks, because it has SO_LINGER, bytes in
// flight, and a peer that does not read. A signal ends that wait, and so does SIGKILL.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

#include "platform/base/status.h"
#include "platform/base/testing/descriptors.h"
#include "platform/base/unique_fd.h"

namespace gpushm::testing {

class LingeringSocket {
 public:
  LingeringSocket() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    GPUSHM_ASSERT(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    GPUSHM_ASSERT(listen(listener.get(), 1) == 0);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
    socket_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    GPUSHM_ASSERT(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    peer_.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::array<char, 65'536> bytes{};
    while (send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger on{.l_onoff = 1, .l_linger = 3600};
    GPUSHM_ASSERT(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &on, sizeof on) == 0);
  }

  int get() const { return socket_.get(); }
  // Closes the caller's copy, so that the receiver has the last one.
  void Forget() { socket_.Reset(); }

  // A socket in which the lingering one is queued unread. Closing it closes the lingering one as
  // well, and the closer cannot inspect that one first.
  UniqueFd TakeWrapped() {
    std::array<int, 2> ends{};
    GPUSHM_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const UniqueFd sender(ends[0]);
    UniqueFd receiver(ends[1]);
    GPUSHM_ASSERT(SendWithDescriptor(sender.get(), socket_.get()));
    Forget();
    return receiver;
  }

  // The peer hangs up, which ends the closer's wait.
  void Read() { peer_.Reset(); }

 private:
  UniqueFd socket_;
  UniqueFd peer_;
};

}  // namespace gpushm::testing
