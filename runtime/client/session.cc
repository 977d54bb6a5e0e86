#include "runtime/client/session.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "platform/base/version.h"

namespace gpushm::client {
namespace {

using protocol::Kind;

// The pause between attempts to reach a broker that does not answer yet. An attempt costs about 10
// us, and a pod's start waits for the pause.
constexpr int kFirstConnectStepMs = 1;
constexpr int kLastConnectStepMs = 8;
// A request whose descriptor was refused, because one is unread already, is repeated this often.
constexpr int kContendedAttempts = 8;

std::unexpected<Status> Lost(std::string_view when) {
  return Fail(Code::kUnavailable, Concat("the broker closed the connection ", when),
              "call again: the library reconnects as soon as a broker answers");
}

// Failures after which the connection cannot be used. kTimeout is not one of them, except for
// requests that may be granted a lease: the late reply is skipped.
bool EndsConnection(Code code) {
  return code == Code::kUnavailable || code == Code::kCorrupt || code == Code::kSystem ||
         code == Code::kIncompatible;
}

void Pause(int wait_ms) { poll(nullptr, 0, wait_ms); }

}  // namespace

std::unexpected<Status> BrokeProtocol(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("a peer broke the protocol: ", rule),
              "use a library and a sidecar of the same release; see the sidecar's log");
}

Session::Session(Place place, SessionObserver* observer, Counters* counters)
    : owner_(getpid()), place_(std::move(place)), observer_(observer), counters_(counters) {}

Result<SessionLock> Session::Lock(const Deadline& deadline) {
  SessionLock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) return lock;
  const int64_t wait_ns = deadline.RemainingNs();
  if (lock.try_lock_for(std::chrono::nanoseconds(wait_ns))) return lock;
  return Fail(Code::kTimeout,
              Concat("other threads of this process keep the connection busy: waited ",
                     wait_ns / 1'000'000, " ms for it"),
              "use a longer timeout, or check the sidecar's log");
}

Result<SessionLock> Session::LockConnected(const Wait& wait) {
  Result<SessionLock> lock = Lock(wait.answer);
  if (!lock) return lock;
  if (auto done = EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
    return std::unexpected(done.error());
  }
  return lock;
}

void Session::HangUp() {
  if (!socket_.valid()) return;
  shutdown(socket_.get(), SHUT_RDWR);
  socket_.Reset();
}

void Session::Drop(const SessionLock&) { HangUp(); }

bool Session::StillConnected(const SessionLock&) {
  if (!socket_.valid()) return false;
  pollfd poller{.fd = socket_.get(), .events = 0, .revents = 0};
  if (poll(&poller, 1, 0) > 0 && (poller.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
    HangUp();
  }
  return socket_.valid();
}

bool Session::NoticeLoss(const Deadline& call_deadline) {
  const SessionLock lock(mutex_, std::try_to_lock);
  // If another thread holds the lock, that thread will notice the loss itself.
  if (!lock.owns_lock() || StillConnected(lock)) return true;
  return EnsureConnected(lock, /*wait=*/false, AnswerWithin(call_deadline)).has_value();
}

Result<void> Session::EnsureConnected(const SessionLock& lock, bool wait,
                                      const Deadline& deadline) {
  int step_ms = kFirstConnectStepMs;
  while (!socket_.valid()) {
    const Result<void> connected = Connect(lock, deadline);
    if (!connected) {
      if (connected.error().code() != Code::kUnavailable || !wait || deadline.Passed()) {
        return connected;
      }
    } else if (socket_.valid()) {
      return {};
    } else if (!wait || deadline.Passed()) {
      return Lost("immediately");
    }
    Pause(std::min(step_ms, deadline.RemainingMs()));
    step_ms = std::min(2 * step_ms, kLastConnectStepMs);
  }
  return {};
}

// Any process may have bound the socket's name, but the kernel says who listens. In a folder with
// the sticky bit, only its owner can replace the file.
Result<void> Session::CheckOwner(int socket) const {
  const std::string& file = place_.owned_file;
  if (file.empty()) return {};
  struct stat owned{};
  if (lstat(file.c_str(), &owned) != 0) {
    const int error = errno;
    if (error != ENOENT) return FailSystem(error, Concat("stat ", file));
    return Fail(Code::kUnavailable, Concat("the broker's list, ", file, ", does not exist"),
                "check that the pod is running and has gpushm.io/host-ipc");
  }
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return FailSystem(errno, "getsockopt SO_PEERCRED");
  }
  if (S_ISREG(owned.st_mode) && peer.uid == owned.st_uid) return {};
  return Fail(
      Code::kDenied,
      Concat("the process that listens on ", place_.socket_path, " runs as user ", peer.uid,
             ", but ", file, " ", S_ISREG(owned.st_mode) ? "" : "is not a regular file and ",
             "belongs to user ", owned.st_uid, ": the listener is not the pod's sidecar"),
      "find the process that listens there (ss -xlp), end it, and restart the pod");
}

Result<UniqueFd> Session::Greet(const Deadline& deadline, bool with_pidfd,
                                protocol::HelloReply* hello) {
  Result<UniqueFd> connection = protocol::Connect(place_.socket_path);
  if (!connection) return connection;
  if (auto right = CheckOwner(connection->get()); !right) return std::unexpected(right.error());
  UniqueFd pidfd;
  if (with_pidfd) {
    pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    if (!pidfd) {
      const int error = errno;
      return Fail(Code::kUnsupported, Concat("pidfd_open: ", std::strerror(error)),
                  "the broker needs a pidfd of this process: "
                  "use Linux 5.3 or newer, and a seccomp profile that allows pidfd_open");
    }
  }
  protocol::HelloRequest body{};
  body.min_version = protocol::kMinVersion;
  body.max_version = protocol::kMaxVersion;
  body.library = protocol::ToNameField(Concat("libgpushm ", kVersion));
  const bool resumes = peer_.serial != 0 && getpid() == owner_;
  if (resumes) {
    body.resume_client_id = peer_.client_id;
    body.resume_token = peer_.token;
  }
  const size_t size_bytes = protocol::EncodeRequest(Kind::kHello, 0, body, &request_);
  const int descriptor = pidfd.get();
  bool sent = false;
  if (auto done = Exchange(connection->get(), Kind::kHello, {request_.data(), size_bytes},
                           {&descriptor, with_pidfd ? size_t{1} : size_t{0}}, deadline, &sent);
      !done) {
    return std::unexpected(done.error());
  }
  const Result<protocol::HelloReply> reply = protocol::Parse<protocol::HelloReply>(reply_.span());
  if (!reply) return std::unexpected(reply.error());
  if (reply_.descriptors.size() != 1) {
    return BrokeProtocol(Concat("a hello reply needs 1 descriptor, the registry's, but has ",
                                reply_.descriptors.size()));
  }
  if (reply->version < protocol::kMinVersion || reply->version > protocol::kMaxVersion) {
    return Fail(
        Code::kIncompatible,
        Concat("the broker chose protocol version ", reply->version, ", but this library supports ",
               protocol::kMinVersion, " to ", protocol::kMaxVersion),
        protocol::kOtherVersion);
  }
  if (reply->resumed == 1 && (!resumes || reply->client_id != peer_.client_id)) {
    return BrokeProtocol(
        Concat("a hello reply that resumes the unknown connection of client ", reply->client_id));
  }
  *hello = *reply;
  return connection;
}

Result<void> Session::Connect(const SessionLock& lock, const Deadline& deadline) {
  if (counters_ != nullptr) counters_->UseOwn();
  // The greeting uses request_, which holds the request that waits for this connection.
  const protocol::Buffer pending = request_;
  protocol::HelloReply hello{};
  Result<UniqueFd> connection = Greet(deadline, /*with_pidfd=*/false, &hello);
  if (!connection && connection.error().code() == Code::kUnsupported) {
    connection = Greet(deadline, /*with_pidfd=*/true, &hello);
  }
  request_ = pending;
  if (!connection) return std::unexpected(connection.error());
  auto reader = registry::RegistryReader::Open(std::move(reply_.descriptors.front()));
  reply_.descriptors.clear();
  if (!reader) return std::unexpected(reader.error().WithContext("the broker's registry"));
  if (counters_ != nullptr) {
    if (auto asked = AskForPage(connection->get(), deadline); !asked) return asked;
  }
  if (!place_.pod.empty()) {
    if (auto told = TellPod(connection->get(), deadline); !told) return told;
  }

  const bool first = peer_.serial == 0;
  const Return how{.same_broker = !first && peer_.epoch == hello.epoch,
                   .resumed = hello.resumed == 1,
                   .leases = hello.leases,
                   .lease_sum = hello.lease_sum};
  peer_ = Peer{.serial = peer_.serial + (how.resumed ? 0 : 1),
               .epoch = hello.epoch,
               .client_id = hello.client_id,
               .token = hello.token,
               .gpu_uuid = hello.gpu_uuid,
               .container = std::string(protocol::FromNameField(hello.container)),
               .simulated = hello.simulated != 0};
  socket_ = std::move(*connection);
  registry_.Replace(RegistryHandle::Reader(std::move(*reader)));
  connections_.fetch_add(1, std::memory_order_release);
  if (!first && observer_ != nullptr) {
    observer_->Reconnected(lock, how, deadline);
    request_ = pending;
  }
  return {};
}

// A client that gets no page works without one. A broker that sends invalid bytes ends the
// connection.
Result<void> Session::AskForPage(int socket, const Deadline& deadline) {
  protocol::Buffer bytes;
  const size_t size_bytes =
      protocol::EncodeRequest(Kind::kCounters, 0, protocol::CountersRequest{}, &bytes);
  bool sent = false;
  error_from_broker_ = false;
  Result<void> done =
      Exchange(socket, Kind::kCounters, {bytes.data(), size_bytes}, {}, deadline, &sent);
  const std::vector<UniqueFd> descriptors = std::exchange(reply_.descriptors, {});
  if (!done) {
    const bool usable = error_from_broker_ || !EndsConnection(done.error().code());
    return usable ? Result<void>() : done;
  }
  const auto reply = protocol::Parse<protocol::CountersReply>(reply_.span());
  if (!reply) return std::unexpected(reply.error());
  if (descriptors.size() != 1) {
    return BrokeProtocol(
        Concat("a counters reply needs 1 descriptor, the page's, but has ", descriptors.size()));
  }
  if (reply->version != protocol::kCountersVersion) return {};
  constexpr uint64_t kBytes = sizeof(protocol::CounterPage);
  Result<Mapping> page = MapSealed(descriptors[0], "counters", kBytes, kBytes, Writers::kAll);
  if (!page && page.error().code() == Code::kCorrupt) return std::unexpected(page.error());
  if (page) counters_->Use(std::move(*page));
  return {};
}

Result<void> Session::TellPod(int socket, const Deadline& deadline) {
  const protocol::PodRequest body{.pod = protocol::ToPodField(place_.pod),
                                  .container = protocol::ToNameField(place_.container)};
  protocol::Buffer bytes;
  const size_t size_bytes = protocol::EncodeRequest(Kind::kPod, 0, body, &bytes);
  bool sent = false;
  error_from_broker_ = false;
  const Result<void> done =
      Exchange(socket, Kind::kPod, {bytes.data(), size_bytes}, {}, deadline, &sent);
  reply_.descriptors.clear();
  const bool usable = done || error_from_broker_ || !EndsConnection(done.error().code());
  return usable ? Result<void>() : done;
}

Result<void> Session::Exchange(int socket, Kind kind, std::span<std::byte> request,
                               std::span<const int> descriptors, const Deadline& deadline,
                               bool* sent) {
  const uint64_t request_id = ++last_request_id_;
  std::memcpy(request.data() + offsetof(protocol::Header, request_id), &request_id,
              sizeof request_id);
  if (auto done = protocol::Send(socket, request, descriptors, deadline); !done) {
    // A full broker says so before it closes the connection.
    const Result<bool> said = protocol::TryReceive(socket, &reply_);
    if (!said || !*said) return done;
    const Result<Status> why = protocol::ParseError(reply_.span());
    return std::unexpected(why ? *why : done.error());
  }
  *sent = true;
  for (;;) {
    if (auto done = protocol::Receive(socket, &reply_, deadline); !done) return done;
    const Result<protocol::Header> header = protocol::ParseHeader(reply_.span());
    if (!header) return std::unexpected(header.error());
    if ((header->kind & protocol::kReplyBit) == 0) {
      return BrokeProtocol(Concat("a request, kind ", header->kind, ", from the broker"));
    }
    // A broker that cannot read a request answers without its number, then closes the connection.
    const bool is_for_any = header->request_id == 0 && header->status != 0;
    if (header->request_id > request_id) {
      return BrokeProtocol(Concat("a reply to request ", header->request_id,
                                  ", which was not sent; the last request was ", request_id));
    }
    if (header->request_id < request_id && !is_for_any) {  // To a request that was given up.
      if (deadline.Passed()) return Fail(Code::kTimeout, "receive: the deadline passed");
      continue;
    }
    if (header->kind != (static_cast<uint16_t>(kind) | protocol::kReplyBit) && !is_for_any) {
      return BrokeProtocol(Concat("a reply of kind ", header->kind & ~protocol::kReplyBit,
                                  " to a request of kind ", static_cast<uint16_t>(kind)));
    }
    if (header->status == 0) return {};
    reply_.descriptors.clear();
    Result<Status> status = protocol::ParseError(reply_.span());
    if (!status) return std::unexpected(status.error());
    // An error that the broker reports about itself says nothing about this connection; see
    // EndsConnection.
    error_from_broker_ = true;
    return std::unexpected(*std::move(status));
  }
}

Result<void> Session::Announce(const Deadline& deadline, bool* sent) {
  protocol::Buffer bytes;
  const size_t size_bytes = protocol::EncodeRequest(Kind::kAnnounceDescriptor, 0,
                                                    protocol::AnnounceDescriptorRequest{}, &bytes);
  if (auto done = Exchange(socket_.get(), Kind::kAnnounceDescriptor, {bytes.data(), size_bytes}, {},
                           deadline, sent);
      !done) {
    return done;
  }
  *sent = false;  // The request itself has not been sent yet.
  const auto reply = protocol::Parse<protocol::EmptyReply>(reply_.span());
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Result<void> Session::SendEncoded(const SessionLock& lock, Kind kind, size_t size_bytes,
                                  const Deadline& deadline, const Call& call, bool reconnect) {
  int contended = 0;
  bool resent = false;
  for (;;) {
    if (!socket_.valid()) {
      if (!reconnect) return Lost("before this call");
      if (auto done = EnsureConnected(lock, /*wait=*/true, deadline); !done) return done;
    }
    if (call.serial != 0 && peer_.serial != call.serial)
      return Lost("to which this request belongs");
    bool sent = false;
    error_from_broker_ = false;
    Result<void> done;
    if (!call.descriptors.empty()) done = Announce(deadline, &sent);
    if (done) {
      done = Exchange(socket_.get(), kind, {request_.data(), size_bytes}, call.descriptors,
                      deadline, &sent);
    }
    if (done) return done;
    const Code code = done.error().code();
    reply_.descriptors.clear();
    if (error_from_broker_) {
      if (code != Code::kContended || ++contended == kContendedAttempts || deadline.Passed()) {
        return done;
      }
      Pause(std::min(contended, deadline.RemainingMs()));
      continue;
    }
    // Otherwise a lease that may yet be granted would belong to no object. The next connection
    // reports it.
    const bool leaves_lease =
        code == Code::kTimeout && sent && call.received != nullptr && call.grants_lease;
    // The same holds for a lease whose memory arrived when this process had no free descriptor.
    const bool lost_descriptor = code == Code::kExhausted && call.grants_lease;
    if (EndsConnection(code) || leaves_lease || lost_descriptor) HangUp();
    if (code != Code::kUnavailable) return done;
    const bool may_resend = !sent || call.loss == Call::Loss::kRepeatable;
    if (!may_resend) {
      return Fail(Code::kUnavailable,
                  "the broker closed the connection before it answered; "
                  "it may or may not have carried out the request",
                  "look up the buffer's state, then call again");
    }
    if (resent || !reconnect || deadline.Passed()) return done;
    resent = true;
  }
}

}  // namespace gpushm::client
