#include "tests/bench/raw.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "contract/protocol/messages.h"
#include "tests/bench/harness.h"

namespace gpushm::bench {
namespace {

// One byte and one descriptor, ready for sendmsg and recvmsg.
struct Datagram {
  char byte = 'd';
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};

  Datagram() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Datagram(const Datagram&) = delete;
  Datagram& operator=(const Datagram&) = delete;

  void Put(int descriptor) {
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof descriptor);
  }
  UniqueFd Take() {
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    if (item == nullptr || item->cmsg_type != SCM_RIGHTS) return {};
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(item), sizeof descriptor);
    return UniqueFd(descriptor);
  }
};

}  // namespace

Result<void> RawServer::Serve(Channel& parent, const std::vector<std::string>&) {
  const Result<Heard> first = parent.Hear(Deadline::AfterMs(kStepMs));
  if (!first) return std::unexpected(first.error());
  for (;;) {
    char request = 0;
    if (recv(parent.socket(), &request, 1, 0) <= 0) return {};
    Datagram reply;
    reply.Put(first->descriptor.get());
    if (sendmsg(parent.socket(), &reply.header, MSG_NOSIGNAL) != 1) {
      return FailSystem(errno, "sendmsg");
    }
  }
}

Result<RawServer> RawServer::Start(int descriptor) {
  Result<Child> child = Child::Start(kRole, {});
  if (!child) return std::unexpected(child.error());
  if (auto r = child->channel().Say("serve", descriptor); !r) return std::unexpected(r.error());
  return RawServer(std::move(*child));
}

Result<UniqueFd> RawServer::Fetch() {
  const char request = 'r';
  const int socket = child_.channel().socket();
  if (send(socket, &request, 1, MSG_NOSIGNAL) != 1) return FailSystem(errno, "send");
  Datagram reply;
  if (recvmsg(socket, &reply.header, MSG_CMSG_CLOEXEC) != 1) return FailSystem(errno, "recvmsg");
  UniqueFd descriptor = reply.Take();
  if (!descriptor) return Fail(Code::kCorrupt, "the raw server sent no descriptor");
  return descriptor;
}

Result<BorrowedDescriptor> BorrowedDescriptor::Borrow(const std::filesystem::path& folder,
                                                      const std::string& name) {
  const Deadline deadline = Deadline::AfterMs(kStepMs);
  BorrowedDescriptor borrowed;
  borrowed.session_ = std::make_unique<client::Session>(
      client::Session::Place{.socket_path = folder / protocol::kSocketName}, nullptr);
  const Result<client::SessionLock> lock = borrowed.session_->Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(name);
  request.access = static_cast<uint32_t>(protocol::WireAccess::kRead);
  request.gpu_uuid = ThisMachine().device.uuid.bytes;
  std::vector<UniqueFd> received;
  const auto reply = borrowed.session_->Ask<protocol::AttachReply>(
      *lock, protocol::Kind::kAttach, request, deadline, {.received = &received});
  if (!reply) return std::unexpected(reply.error());
  if (received.size() != 1) return Fail(Code::kCorrupt, "the broker sent no descriptor");
  borrowed.descriptor_ = std::move(received.front());
  return borrowed;
}

}  // namespace gpushm::bench
