#include "runtime/client/alarm.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "platform/base/alarm.h"
#include "runtime/client/client.h"

namespace gpushm::client {
namespace {

using protocol::Kind;

// One who waits looks by itself after a second. So whoever rings does not wait long for a broker,
// nor often: any participant can write the number, and a wrong one must not cost a request each
// time.
constexpr int64_t kAskMs = 20;
constexpr int64_t kSameNumberPauseNs = 1'000'000'000;
constexpr int64_t kNewNumberPauseNs = 10'000'000;

Result<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return FailSystem(errno, "fcntl F_DUPFD_CLOEXEC");
  return copy;
}

}  // namespace

Result<UniqueFd> Alarm::Hear(Client* client, const Lease& page, uint64_t connection,
                             const Deadline& deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (given_.descriptor && given_.connection == connection) {
      return Duplicate(given_.descriptor.get());
    }
  }
  auto got = AskBroker(client, page, deadline);
  if (!got) return std::unexpected(got.error());
  const std::lock_guard lock(mutex_);
  given_ = std::move(*got);
  return Duplicate(given_.descriptor.get());
}

void Alarm::Ring(Client* client, const Lease& page, uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (given_.number != number) {
    const int64_t now_ns = MonotonicNs();
    const int64_t pause_ns = number == asked_number_ ? kSameNumberPauseNs : kNewNumberPauseNs;
    if (asked_ns_ == 0 || now_ns - asked_ns_ >= pause_ns) {
      asked_number_ = number;
      asked_ns_ = now_ns;
      auto got = AskBroker(client, page, Deadline::AfterMs(kAskMs));
      if (got) given_ = std::move(*got);
    }
  }
  RingAlarm(given_.descriptor.get());
}

Result<Alarm::Given> Alarm::AskBroker(Client* client, const Lease& page, const Deadline& deadline) {
  Session& session = client->session();
  const Result<SessionLock> lock = session.Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = session.EnsureConnected(*lock, /*wait=*/false, deadline); !done) {
    return std::unexpected(done.error());
  }
  std::vector<UniqueFd> received;
  const auto reply = session.Ask<protocol::AlarmReply>(*lock, Kind::kAlarm,
                                                       protocol::AlarmRequest{page.id}, deadline,
                                                       {.loss = Call::Loss::kRepeatable,
                                                        .serial = page.serial,
                                                        .received = &received,
                                                        .grants_lease = false});
  if (!reply) return std::unexpected(reply.error());
  if (received.size() != 1) {
    session.Drop(*lock);
    return Fail(Code::kCorrupt, Concat("the broker broke the protocol: an alarm came with ",
                                       received.size(), " descriptors"));
  }
  return Given{.descriptor = std::move(received[0]),
               .number = reply->number,
               .connection = session.connections()};
}

Result<Connection> Connect(Client* client, const Deadline& deadline) {
  Session& session = client->session();
  const Result<SessionLock> lock = session.Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  session.StillConnected(*lock);
  if (auto done = session.EnsureConnected(*lock, /*wait=*/false, deadline); !done) {
    return std::unexpected(done.error());
  }
  auto socket = Duplicate(session.socket(*lock));
  if (!socket) return std::unexpected(socket.error());
  return Connection{.socket = std::move(*socket), .number = session.connections()};
}

}  // namespace gpushm::client
