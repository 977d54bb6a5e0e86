// The alarms with which waiters sleep and participants wake them (Client's members; see client.h).
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;

Result<Client::Connection> Client::Connect(const Deadline& deadline) {
  const Result<SessionLock> lock = session_.Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  session_.StillConnected(*lock);
  if (auto done = session_.EnsureConnected(*lock, /*wait=*/false, deadline); !done) {
    return std::unexpected(done.error());
  }
  return Connection{.number = session_.connections(), .socket = session_.socket(*lock)};
}

Result<Client::Alarm> Client::GetAlarm(const Attachment* page, protocol::AlarmUse use,
                                       signal::News news, const Deadline& deadline) {
  const Result<SessionLock> lock = session_.Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = session_.EnsureConnected(*lock, /*wait=*/false, deadline); !done) {
    return std::unexpected(done.error());
  }
  if (session_.peer(*lock).version < protocol::VersionOf(Kind::kAlarm)) {
    return Fail(Code::kUnsupported, "the pod's sidecar is too old for alarms",
                "update gpushm's images, then restart the pod");
  }
  const Lease lease = page == nullptr ? Lease{} : page->lease();
  if (page != nullptr && (lease.id == 0 || page->orphaned())) {
    return Fail(Code::kOrphaned, "the broker does not know this signal, barrier or ring");
  }
  const protocol::AlarmRequest request{
      .lease_id = lease.id, .use = static_cast<uint32_t>(use), .news = static_cast<uint32_t>(news)};
  std::vector<UniqueFd> received;
  const auto reply = session_.Ask<protocol::AlarmReply>(
      *lock, Kind::kAlarm, request, deadline,
      {.loss = Call::Loss::kRepeatable, .serial = lease.serial, .received = &received});
  if (!reply) return std::unexpected(reply.error());
  if (received.size() != 1) {
    session_.Drop(*lock);
    return Fail(Code::kCorrupt, Concat("the broker broke the protocol: an alarm came with ",
                                       received.size(), " descriptors"));
  }
  return Alarm{.descriptor = std::move(received[0]), .number = reply->number};
}

}  // namespace gpushm::client
