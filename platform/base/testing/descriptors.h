// Datagrams of tests that pass a descriptor on.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>

#include "platform/base/unique_fd.h"

namespace gpushm::testing {

// With the descriptor, unless it is -1. False if the kernel refused it.
inline bool SendWithDescriptor(int socket, int descriptor, const void* data = "d",
                               size_t size_bytes = 1) {
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = size_bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptor)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size_bytes);
}

// The descriptor that came with so many bytes; invalid if none did. False if they did not come.
inline bool ReceiveWithDescriptor(int socket, UniqueFd* descriptor, void* data, size_t size_bytes) {
  iovec part{.iov_base = data, .iov_len = size_bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(size_bytes)) return false;
  int received = -1;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) {
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
  }
  descriptor->Reset(received);
  return true;
}

// With one byte.
inline UniqueFd ReceiveDescriptor(int socket) {
  char byte = 0;
  UniqueFd descriptor;
  ReceiveWithDescriptor(socket, &descriptor, &byte, 1);
  return descriptor;
}

}  // namespace gpushm::testing
