// The alarms with which waiters sleep and participants wake them (Client's members; see client.h).
#include "platform/base/alarm.h"
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;

Result<uint64_t> Client::Connect(const std::function<bool(uint64_t, int)>& watch,
                                 const Deadline& deadline) {
  const Result<SessionLock> lock = session_.Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  session_.StillConnected(*lock);
  if (auto done = session_.EnsureConnected(*lock, /*wait=*/false, deadline); !done) {
    return std::unexpected(done.error());
  }
  const uint64_t number = session_.connections();
  if (watch(number, session_.socket(*lock))) return number;
  return Fail(Code::kExhausted, "the connection cannot be watched",
              "raise the container's limit of open files");
}

Result<int> Client::ConnectionAlarm() {
  const std::lock_guard table(table_mutex_);
  if (!connection_alarm_) {
    Result<UniqueFd> made = MakeAlarm();
    if (!made) return std::unexpected(made.error());
    connection_alarm_ = std::move(*made);
    session_.Notify(connection_alarm_.get());
  }
  return connection_alarm_.get();
}

Result<Client::Alarm> Client::GetAlarm(const Lease& page, protocol::AlarmUse use, signal::News news,
                                       const Deadline& deadline) {
  const Result<SessionLock> lock = session_.Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = session_.EnsureConnected(*lock, /*wait=*/false, deadline); !done) {
    return std::unexpected(done.error());
  }
  const protocol::AlarmRequest request{
      .lease_id = page.id, .use = static_cast<uint32_t>(use), .news = static_cast<uint32_t>(news)};
  std::vector<UniqueFd> received;
  const auto reply = session_.Ask<protocol::AlarmReply>(*lock, Kind::kAlarm, request, deadline,
                                                        {.loss = Call::Loss::kRepeatable,
                                                         .serial = page.serial,
                                                         .received = &received,
                                                         .grants_lease = false});
  if (!reply) return std::unexpected(reply.error());
  if (received.size() != 1) {
    session_.Drop(*lock);
    return Fail(Code::kCorrupt, Concat("the broker broke the protocol: an alarm came with ",
                                       received.size(), " descriptors"));
  }
  return Alarm{.descriptor = std::move(received[0]), .number = reply->number};
}

}  // namespace gpushm::client
