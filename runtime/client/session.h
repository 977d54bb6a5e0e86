// The connection to the broker: one socket, one request at a time, reconnected when it breaks.
//
// Threads: any. A request needs the session's lock, which Lock() gives within a deadline. Functions
// that take a SessionLock are called by its holder.
//
// Invariants
//   (1) The broker's knowledge of this process has a number (`serial`, from 1). A connection that
//       resumes the previous one keeps its serial; any other connection gets a new one. Lease and
//       transfer numbers are valid only with the serial with which they came, so requests that
//       carry one also name the serial.
//   (2) Bytes that break the protocol close the connection. So does giving up a request that may be
//       granted a lease. Replies to other abandoned requests are skipped.
//   (3) A request that was sent is sent again on a new connection only if it may be carried out
//       twice (Call::kRepeatable).
//   (4) After the first connection the registry is never empty: while no broker answers, it is that
//       of the last broker.
//   (5) A connection has a page for counters, unless the broker refused one.
//       While there is no connection, Counters counts in its own page.
//   (6) Only the process that made the session resumes it. A child of fork() is a different client.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/messages.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "runtime/client/counters.h"
#include "runtime/client/registry_handle.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

using SessionLock = std::unique_lock<std::timed_mutex>;

// What the broker reported when this connection was made.
struct Peer {
  uint64_t serial = 0;
  uint64_t epoch = 0;
  uint64_t client_id = 0;
  protocol::ResumeToken token{};
  std::array<uint8_t, 16> gpu_uuid{};
  std::string container;
  bool simulated = false;
};

// How a later connection relates to the previous one.
struct Return {
  bool same_broker = false;
  bool resumed = false;    // Also by a successor of the broker that was told of the leases.
  uint32_t leases = 0;     // If resumed: how many leases the broker has for this process,
  uint64_t lease_sum = 0;  // and the sum of their numbers.
};

// The peer sent what it may not send; the caller drops the connection.
std::unexpected<Status> BrokeProtocol(std::string_view rule);

class SessionObserver {
 public:
  // A second or later connection was made. The callee may send requests with Session::AskHere, and
  // may find the connection dead again.
  virtual void Reconnected(const SessionLock& lock, const Return& how,
                           const Deadline& deadline) = 0;

 protected:
  ~SessionObserver() = default;
};

// How one request is sent.
struct Call {
  enum class Loss { kOnce, kRepeatable };
  Loss loss = Loss::kOnce;
  uint64_t serial = 0;                        // If not 0: only with this serial, see (1).
  std::span<const int> descriptors = {};      // Sent with the request; announced first.
  std::vector<UniqueFd>* received = nullptr;  // If null, no descriptors may come.
  bool grants_lease = true;                   // If descriptors come.
};

class Session {
 public:
  // Where the broker listens.
  struct Place {
    std::string socket_path;
    // If not empty: a file whose owner must be the user of the broker. For a folder where any
    // process may bind a name: /dev/shm.
    std::string owned_file = {};
    // If not empty: the pod and the container to show for this process, which shares the claim of
    // another pod.
    std::string pod = {};
    std::string container = {};
  };

  // Observer and counters may be null. If not, they must outlive the session.
  Session(Place place, SessionObserver* observer, Counters* counters = nullptr);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { HangUp(); }

  // kTimeout: other threads held the lock until the deadline.
  Result<SessionLock> Lock(const Deadline& deadline);

  // Connects if there is no connection. With `wait`, waits for a broker; otherwise tries once.
  Result<void> EnsureConnected(const SessionLock& lock, bool wait, const Deadline& deadline);

  // Locks and connects, within the call's time.
  Result<SessionLock> LockConnected(const Wait& wait);

  // Sends one request and gets one reply. Connects first if there is no connection.
  template <typename Reply, typename Request>
  Result<Reply> Ask(const SessionLock& lock, protocol::Kind kind, const Request& request,
                    const Deadline& deadline, const Call& call = {}) {
    return Finish<Reply>(Send(lock, kind, request, deadline, call, /*reconnect=*/true), call);
  }

  // The same as Ask, but never connects.
  template <typename Reply, typename Request>
  Result<Reply> AskHere(const SessionLock& lock, protocol::Kind kind, const Request& request,
                        const Deadline& deadline, const Call& call = {}) {
    return Finish<Reply>(Send(lock, kind, request, deadline, call, /*reconnect=*/false), call);
  }

  // Closes the connection: the peer broke the protocol.
  void Drop(const SessionLock& lock);

  // Drops the connection if its other end is gone. Costs one poll().
  bool StillConnected(const SessionLock& lock);

  // If the broker is gone, makes one attempt to reach its successor, without waiting for the lock.
  // It uses the time that the caller's call has, but at most kAnswerMs. The observer and the
  // registry show the result. False: no broker answers.
  bool NoticeLoss(const Deadline& call_deadline);

  bool connected(const SessionLock&) const { return socket_.valid(); }
  const Peer& peer(const SessionLock&) const { return peer_; }
  int socket(const SessionLock&) const { return socket_.get(); }
  // How many connections there have been.
  uint64_t connections() const { return connections_.load(std::memory_order_acquire); }
  const RegistryHandle& registry() const { return registry_; }
  const std::string& socket_path() const { return place_.socket_path; }

 private:
  template <typename Request>
  Result<void> Send(const SessionLock& lock, protocol::Kind kind, const Request& request,
                    const Deadline& deadline, const Call& call, bool reconnect) {
    protocol::EncodeRequest(kind, 0, request, &request_);
    return SendEncoded(lock, kind, sizeof(protocol::Header) + sizeof(Request), deadline, call,
                       reconnect);
  }
  template <typename Reply>
  Result<Reply> Finish(Result<void> sent, const Call& call) {
    if (!sent) return std::unexpected(sent.error());
    Result<Reply> reply = protocol::Parse<Reply>(reply_.span());
    if (reply && call.received == nullptr && !reply_.descriptors.empty()) {
      reply = Fail(Code::kCorrupt, "a peer broke the protocol: an unexpected descriptor");
    }
    if (!reply) {
      HangUp();
      reply_.descriptors.clear();
    } else if (call.received != nullptr) {
      *call.received = std::move(reply_.descriptors);
    }
    return reply;
  }

  Result<void> SendEncoded(const SessionLock& lock, protocol::Kind kind, size_t size_bytes,
                           const Deadline& deadline, const Call& call, bool reconnect);
  Result<void> Exchange(int socket, protocol::Kind kind, std::span<std::byte> request,
                        std::span<const int> descriptors, const Deadline& deadline, bool* sent);
  Result<void> Announce(const Deadline& deadline, bool* sent);
  Result<void> Connect(const SessionLock& lock, const Deadline& deadline);
  Result<void> AskForPage(int socket, const Deadline& deadline);
  Result<void> TellPod(int socket, const Deadline& deadline);
  Result<void> CheckOwner(int socket) const;
  Result<UniqueFd> Greet(const Deadline& deadline, bool with_pidfd, protocol::HelloReply* hello);

  // Ends the connection for the broker, too, even if a child of fork() also has the socket.
  void HangUp();

  const pid_t owner_;  // The process.
  const Place place_;
  SessionObserver* const observer_;
  Counters* const counters_;
  std::timed_mutex mutex_;
  // All of these are guarded by mutex_, except for registry_ and connections_.
  UniqueFd socket_;
  Peer peer_;
  uint64_t last_request_id_ = 0;
  bool error_from_broker_ = false;  // The last failure was a reply, not a broken connection.
  protocol::Buffer request_;
  protocol::Message reply_;
  RegistryHandle registry_;
  std::atomic<uint64_t> connections_{0};
};

}  // namespace gpushm::client
