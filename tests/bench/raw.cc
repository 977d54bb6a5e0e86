#include "tests/bench/raw.h"

#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "contract/protocol/messages.h"
#include "platform/base/testing/descriptors.h"
#include "tests/bench/harness.h"

namespace gpushm::bench {
void RawServer::Serve(Channel& parent, const std::vector<std::string>&) {
  const Heard first = Must(parent.Hear(Deadline::AfterMs(kStepMs)));
  for (;;) {
    char request = 0;
    if (recv(parent.socket(), &request, 1, 0) <= 0) return;
    if (!testing::SendWithDescriptor(parent.socket(), first.descriptor.get())) {
      throw Failure(FailSystem(errno, "sendmsg"));
    }
  }
}

RawServer RawServer::Start(int descriptor) {
  Child child = Child::Start(kRole, {});
  child.channel().Say("serve", descriptor);
  return RawServer(std::move(child));
}

UniqueFd RawServer::Fetch() {
  const char request = 'r';
  const int socket = child_.channel().socket();
  if (send(socket, &request, 1, MSG_NOSIGNAL) != 1) throw Failure(FailSystem(errno, "send"));
  UniqueFd descriptor = testing::ReceiveDescriptor(socket);
  if (!descriptor) throw Failure(Code::kCorrupt, "the raw server sent no descriptor");
  return descriptor;
}

BorrowedDescriptor BorrowedDescriptor::Borrow(const std::filesystem::path& folder,
                                              const std::string& name) {
  const Deadline deadline = Deadline::AfterMs(kStepMs);
  BorrowedDescriptor borrowed;
  borrowed.session_ = std::make_unique<client::Session>(
      client::Session::Place{.socket_path = folder / protocol::kSocketName}, nullptr);
  const client::SessionLock lock = Must(borrowed.session_->Lock(deadline));
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(name);
  request.access = gpushm::Access::kRead;
  request.gpu_uuid = ThisMachine().device.uuid.bytes;
  std::vector<UniqueFd> received;
  Must(borrowed.session_->Ask<protocol::AttachReply>(lock, protocol::Kind::kAttach, request,
                                                     deadline, {.received = &received}));
  if (received.size() != 1) throw Failure(Code::kCorrupt, "the broker sent no descriptor");
  borrowed.descriptor_ = std::move(received.front());
  return borrowed;
}

}  // namespace gpushm::bench
