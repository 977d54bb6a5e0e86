#include "sidecar/broker/server.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/daemon/descriptor.h"
#include "platform/daemon/log.h"

// Newer than the C library's headers of Debian 12. The numbers are the kernel's
// (include/uapi/asm-generic/socket.h).
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace gpushm::broker {
namespace {

// Connections that each container can have, whatever the others do.
constexpr uint32_t kReservedPerContainer = 4;
// After this time a reply whose descriptor cannot be sent (ETOOMANYREFS) is given up.
constexpr int64_t kDelayMaxMs = 2000;
constexpr int64_t kDelayStepMs = 5;
// If more descriptors of one container than this are waiting to be closed, no more are accepted
// from it. One message can bring 253.
constexpr size_t kCloserBacklog = 512;
// A close that takes longer than this delays the container's next descriptor. The close of a file
// that was only read takes a round trip to its file system's server.
constexpr int64_t kCloseMs = 1000;
// Pause of a listener if descriptors or memory run out, or while kCloserBacklog is reached.
constexpr int64_t kAcceptPauseMs = 100;

bool HasUnread(int socket) {
  int unread = 0;
  return ioctl(socket, SIOCOUTQ, &unread) == 0 && unread > 0;
}

protocol::ResumeToken NewToken() {
  protocol::ResumeToken token{};
  while (token == protocol::ResumeToken{}) {
    GPUSHM_ASSERT(getrandom(token.data(), token.size(), 0) == ssize_t{token.size()});
  }
  return token;
}

// Takes the same time whatever part of the token is right.
bool IsSameToken(const protocol::ResumeToken& a, const protocol::ResumeToken& b) {
  volatile unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ = differ | static_cast<unsigned>(a[i] ^ b[i]);
  return differ == 0;
}

}  // namespace

Server::~Server() {
  for (auto& [id, connection] : connections_) {
    if (connection.socket) loop_->Unwatch(connection.socket.get());
    if (connection.pidfd) loop_->Unwatch(connection.pidfd.get());
    if (connection.passed_descriptors) {
      connection.listener->closing.CloseForeign(std::move(connection.socket));
    }
  }
  StopListening();
}

Result<void> Server::Listen(const std::string& path, unsigned mode, const std::string& container) {
  auto found = std::ranges::find_if(listeners_, [&](const auto& l) { return l->path == path; });
  if (found == listeners_.end()) {
    found = listeners_.insert(listeners_.end(), std::make_unique<Listener>());
    (*found)->path = path;
    (*found)->container = container;
  }
  Result<UniqueFd> socket = protocol::Listen(path, mode);
  if (!socket) return std::unexpected(socket.error());
  return Accept(found->get(), std::move(*socket));
}

Result<void> Server::ListenAt(UniqueFd socket, const std::string& container) {
  auto found = std::ranges::find_if(
      listeners_, [&](const auto& l) { return l->path.empty() && l->container == container; });
  if (found == listeners_.end()) {
    found = listeners_.insert(listeners_.end(), std::make_unique<Listener>());
    (*found)->container = container;
  }
  // Clients that ask who listens are told this process.
  if (listen(socket.get(), SOMAXCONN) != 0) return FailSystem(errno, "listen for other pods");
  CloseListener(found->get());
  return Accept(found->get(), std::move(socket));
}

Result<void> Server::Accept(Listener* listener, UniqueFd socket) {
  listener->socket = std::move(socket);
  // Accepted sockets inherit this, so that no descriptor can arrive before the broker sets their
  // option.
  const int off = 0;
  refuses_descriptors_ =
      setsockopt(listener->socket.get(), SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
  return loop_->Watch(listener->socket.get(), EPOLLIN,
                      [this, listener](uint32_t) { OnAcceptable(listener); });
}

std::vector<std::string> Server::containers() const {
  std::vector<std::string> containers;
  for (const auto& listener : listeners_) containers.push_back(listener->container);
  return containers;
}

void Server::StopListening() {
  for (const auto& listener : listeners_) {
    if (!listener->socket) continue;
    CloseListener(listener.get());
    if (!listener->path.empty()) unlink(listener->path.c_str());
  }
}

void Server::CloseListener(Listener* listener) {
  if (!listener->socket) return;
  loop_->Unwatch(listener->socket.get());
  // Processes that connected and were not accepted may have sent descriptors already.
  listener->closing.CloseForeign(std::move(listener->socket));
}

Result<void> Server::Restore(const Client& client, const protocol::ResumeToken& token,
                             const protocol::PodRequest& pod, UniqueFd pidfd) {
  const auto listener = std::find_if(listeners_.begin(), listeners_.end(), [&](const auto& l) {
    return l->container == client.container;
  });
  if (listener == listeners_.end()) {
    return Fail(Code::kNotFound,
                Concat("this broker does not serve container \"", client.container, '"'));
  }
  if (!pidfd || !IsPidfd(pidfd.get())) {
    return Fail(Code::kCorrupt, Concat("client ", client.id, " was stated without a pidfd"));
  }
  if (connections_.contains(client.id)) {
    return Fail(Code::kCorrupt, Concat("duplicate client id ", client.id));
  }
  if (client.id >= kMaxNumber) {
    return Fail(Code::kCorrupt,
                Concat("invalid client id ", client.id, " (never issued by a broker)"));
  }
  next_client_ = std::max(next_client_, client.id + 1);
  Connection& connection = connections_[client.id];
  connection.client = client;
  connection.listener = listener->get();
  connection.pidfd = std::move(pidfd);
  connection.token = token;
  connection.pod = pod;
  connection.said_hello = true;
  ++connection.listener->connected;
  ++connection.listener->absent;
  return WatchProcess(connection);
}

void Server::EndDead() {
  std::vector<uint64_t> dead;
  for (const auto& [id, connection] : connections_) {
    if (connection.pidfd && HasEnded(connection.pidfd)) dead.push_back(id);
  }
  for (const uint64_t id : dead) OnProcessEnded(id);
}

// ---- connections

void Server::OnAcceptable(Listener* listener) {
  // Each connection is one more descriptor to be closed there.
  if (listener->closing.foreign_pending() >= kCloserBacklog) {
    return PauseAccepting(listener, "sockets of this container are still being closed");
  }
  UniqueFd socket(accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EINVAL) return CloseListener(listener);  // It was shut down.
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    return PauseAccepting(listener, std::strerror(errno));
  }
  listener->paused = false;
  const bool guest = !HasRoom(*listener);
  if (guest && listener->guests >= listener->absent) {
    return Refuse(
        listener, std::move(socket),
        Status(Code::kExhausted,
               Concat("container \"", listener->container, "\" has ", listener->connected,
                      " clients; the broker has ", connected_, " of at most ", limits::kClients),
               "close clients that are not used; see docs/reference/limits.md"));
  }
  // The kernel charges unread replies to the broker, so 256 clients that read nothing would fill
  // its memory. The kernel doubles this value.
  constexpr int kSendBytes = 8 << 10;
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBytes, sizeof kSendBytes);
  Admit(listener, std::move(socket), guest);
}

void Server::PauseAccepting(Listener* listener, std::string_view reason) {
  if (!std::exchange(listener->paused, true)) {
    LogWarning("accept-paused", {{"container", listener->container}, {"reason", reason}});
  }
  loop_->Change(listener->socket.get(), 0);
  loop_->After(kAcceptPauseMs, [this, listener] {
    if (listener->socket) loop_->Change(listener->socket.get(), EPOLLIN);
  });
}

// Sends the reason, if the socket has room, and closes the connection.
void Server::Refuse(Listener* listener, UniqueFd socket, const Status& why) {
  protocol::Buffer bytes;
  const size_t size = protocol::EncodeError(protocol::Kind::kHello, 0, why, &bytes);
  [[maybe_unused]] const auto sent = protocol::TrySend(socket.get(), {bytes.data(), size}, {});
  if (!refuses_descriptors_ || listener->path.empty())
    listener->closing.CloseForeign(std::move(socket));
}

bool Server::HasRoom(const Listener& listener) const {
  const uint32_t reserved = std::min<uint32_t>(
      kReservedPerContainer, limits::kClients / static_cast<uint32_t>(listeners_.size()));
  if (listener.connected < reserved) return true;
  uint32_t taken = 0;
  for (const auto& other : listeners_) taken += std::max(other->connected, reserved);
  return taken < limits::kClients;
}

void Server::Admit(Listener* listener, UniqueFd socket, bool guest) {
  const uint64_t id = next_client_++;
  Connection connection;
  connection.client = Client{id, listener->container};
  connection.listener = listener;
  connection.number = next_connection_++;
  connection.guest = guest;
  connection.socket = std::move(socket);
  // A socket of ListenAt may have had connections before this process could refuse descriptors.
  connection.passed_descriptors = listener->path.empty();
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
    connection.pidfd.Reset(pidfd);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
    const Status full = Status(Code::kExhausted, "the sidecar has no free descriptor for a client",
                               "raise its limit of open files (ulimit -n)", errno);
    LogWarning("descriptors-exhausted",
               {{"container", listener->container}, {"reason", full.ToString()}});
    return Refuse(listener, std::move(connection.socket), full);
  } else if (errno != ENOPROTOOPT) {  // The peer has already gone.
    listener->closing.CloseForeign(std::move(connection.socket));
    return;
  }
  const bool has_pidfd = connection.pidfd.valid();
  if (!has_pidfd) connection.announced = true;  // Hello brings it.
  SetPassDescriptors(connection, connection.announced);
  const Result<void> watched =
      loop_->Watch(connection.socket.get(), EPOLLIN, [this, id](uint32_t) { OnReadable(id); });
  if (!watched) {
    listener->closing.CloseForeign(std::move(connection.socket));
    return;
  }
  ++(guest ? listener->guests : listener->connected);
  ++connected_;
  Connection& stored = connections_.emplace(id, std::move(connection)).first->second;
  if (has_pidfd) {
    if (auto r = WatchProcess(stored); !r) Disconnect(stored, r.error().what());
  }
}

Result<void> Server::WatchProcess(Connection& connection) {
  return loop_->Watch(connection.pidfd.get(), EPOLLIN,
                      [this, id = connection.client.id](uint32_t) { OnProcessEnded(id); });
}

void Server::SetPassDescriptors(Connection& connection, bool on) const {
  const int value = on ? 1 : 0;
  // Fails before Linux 6.16. Descriptors that arrive unannounced are then closed on the worker's
  // thread.
  const bool can =
      setsockopt(connection.socket.get(), SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof value) == 0;
  if (on || !can) connection.passed_descriptors = true;
}

Server::Connection* Server::Find(uint64_t client_id) {
  const auto found = connections_.find(client_id);
  return found == connections_.end() ? nullptr : &found->second;
}

Server::Connection* Server::Find(const ReplyTo& to) {
  Connection* const connection = Find(to.client_id);
  const bool same =
      connection != nullptr && connection->socket.valid() && connection->number == to.connection;
  return same ? connection : nullptr;
}

bool Server::IsConnected(const ReplyTo& to) const {
  const auto found = connections_.find(to.client_id);
  return found != connections_.end() && found->second.socket.valid() &&
         found->second.number == to.connection;
}

std::optional<Server::Identity> Server::Identify(uint64_t client_id) const {
  const auto found = connections_.find(client_id);
  if (found == connections_.end() || !found->second.pidfd) return std::nullopt;
  const Connection& connection = found->second;
  return Identity{connection.client, connection.token, connection.pod, connection.pidfd.get()};
}

bool Server::SetPod(uint64_t client_id, const protocol::PodRequest& pod) {
  Connection* const connection = Find(client_id);
  if (connection == nullptr || !connection->listener->path.empty()) return false;
  if (connection->pod.pod[0] != '\0') return false;  // A process does not move.
  connection->pod = pod;
  return true;
}

// ---- requests

void Server::OnReadable(uint64_t client_id) {
  Connection* const connection = Find(client_id);
  if (connection == nullptr || !connection->socket) return;
  if (connection->busy) {  // In this state only the end is reported: nobody waits for the reply.
    Disconnect(*connection, "");
    return;
  }
  Closing& closing = connection->listener->closing;  // The connection may be gone afterwards.
  protocol::Message message;
  const Result<bool> received = protocol::TryReceive(connection->socket.get(), &message);
  if (!received && received.error().code() == Code::kExhausted) {
    RefuseRequest(*connection, message, received.error());
  } else if (!received) {
    Disconnect(*connection,
               received.error().code() == Code::kUnavailable ? "" : received.error().what());
  } else if (*received) {
    OnRequest(*connection, message);
  }
  // The descriptors that the handler did not take were made by a client.
  closing.CloseForeign(std::move(message.descriptors));
}

// This process is out of descriptors, which is not the client's fault.
void Server::RefuseRequest(Connection& connection, const protocol::Message& message,
                           const Status& why) {
  const Result<protocol::Header> header = protocol::ParseHeader(message.span());
  if (!header || !connection.announced || (header->kind & protocol::kReplyBit) != 0) {
    Disconnect(connection, why.what());
    return;
  }
  LogWarning("descriptors-exhausted",
             {{"container", connection.client.container}, {"reason", why.ToString()}});
  connection.announced = false;
  SetPassDescriptors(connection, false);
  ReplyError({connection.client.id, connection.number, static_cast<protocol::Kind>(header->kind),
              header->request_id},
             why.WithContext("the sidecar"));
}

void Server::OnRequest(Connection& connection, protocol::Message& message) {
  const uint64_t id = connection.client.id;
  const Result<protocol::Header> header = protocol::ParseHeader(message.span());
  const size_t announced = connection.announced ? 1 : 0;
  if (message.descriptors.size() > announced) {
    Disconnect(connection, Concat("the client sent ", message.descriptors.size(),
                                  " descriptors, but may send ", announced, " now"));
    return;
  }
  if (connection.announced) {
    connection.announced = false;
    SetPassDescriptors(connection, false);
  }
  if (!header) {
    if (header.error().code() == Code::kIncompatible) {
      ReplyError({id, connection.number, protocol::Kind::kHello, 0}, header.error());
    }
    if (Connection* const still = Find(id)) Disconnect(*still, header.error().what());
    return;
  }
  const auto kind = static_cast<protocol::Kind>(header->kind);
  if ((header->kind & protocol::kReplyBit) != 0 || header->status != 0 ||
      (kind == protocol::Kind::kHello) == connection.said_hello) {
    Disconnect(
        connection,
        Concat("the client sent a request out of order: kind ", header->kind, ", status ",
               header->status, connection.said_hello ? ", after its hello" : ", before its hello"));
    return;
  }
  connection.busy = true;
  loop_->Change(connection.socket.get(), 0);  // (2)
  Handle(id, *header, message);
}

void Server::Handle(uint64_t client_id, const protocol::Header& header,
                    protocol::Message& message) {
  Connection* connection = Find(client_id);
  const bool guest = connection->guest;
  Request request{.client = connection->client,
                  .to = {client_id, connection->number, static_cast<protocol::Kind>(header.kind),
                         header.request_id},
                  .message = &message,
                  .resumed = false,
                  .version = connection->version};
  Result<void> handled;
  if (request.to.kind == protocol::Kind::kHello) {
    const Result<uint64_t> accepted = AcceptHello(*connection, message);
    if (accepted) {
      connection = Find(*accepted);
      request.resumed = *accepted != client_id;
      request.client = connection->client;
      request.to.client_id = *accepted;
      request.version = connection->version;
    } else {
      handled = std::unexpected(accepted.error());
    }
  }
  if (handled && request.to.kind == protocol::Kind::kAnnounceDescriptor) {
    handled = Announce(*connection, request.to, message);
  } else if (handled) {
    handled = handler_->OnRequest(request);
  }
  if (handled) return;
  const bool corrupt = handled.error().code() == Code::kCorrupt;
  if (!corrupt) ReplyError(request.to, handled.error());
  if (!corrupt && !guest) return;
  if (Connection* const still = Find(request.to)) {
    Disconnect(*still, corrupt ? handled.error().what() : "");
  }
}

Result<void> Server::Announce(Connection& connection, const ReplyTo& to,
                              const protocol::Message& message) {
  const auto body = protocol::Parse<protocol::AnnounceDescriptorRequest>(message.span());
  if (!body) return std::unexpected(body.error());
  const Closing& closing = connection.listener->closing;
  if (!closing.HeldUp(kCloseMs).empty() || closing.pending() >= kCloserBacklog) {
    return Fail(Code::kBusy,
                Concat("a descriptor that container \"", connection.client.container,
                       "\" sent is still being closed"),
                "try again; if this persists, the container sent a socket, "
                "or a file whose file system does not respond");
  }
  connection.announced = true;
  SetPassDescriptors(connection, true);
  Reply(to, protocol::EmptyReply{});
  return {};
}

Result<uint64_t> Server::AcceptHello(Connection& connection, protocol::Message& message) {
  const auto body = protocol::Parse<protocol::HelloRequest>(message.span());
  if (!body) return std::unexpected(body.error());
  if (body->min_version > protocol::kMaxVersion || body->max_version < protocol::kMinVersion) {
    return Fail(Code::kIncompatible,
                Concat("the library supports protocol versions ", body->min_version, " to ",
                       body->max_version, ", but the broker supports ", protocol::kMinVersion,
                       " to ", protocol::kMaxVersion),
                protocol::kOtherVersion);
  }
  connection.version = std::min(body->max_version, protocol::kMaxVersion);
  if (!connection.pidfd) {
    if (message.descriptors.empty() || !IsPidfd(message.descriptors[0].get())) {
      connection.announced = true;
      return Fail(
          Code::kUnsupported,
          "this kernel does not identify the connecting process, so the client must send a pidfd",
          "Linux 6.5 and later do not need one; otherwise the library sends it automatically");
    }
    connection.pidfd = std::move(message.descriptors[0]);
    if (auto watched = WatchProcess(connection); !watched) {
      return std::unexpected(watched.error());
    }
  }
  if (Connection* const old = FindResumable(connection, *body)) {
    const uint64_t id = old->client.id;
    TakeOver(*old, connection);
    return id;
  }
  if (connection.guest) {
    return Fail(Code::kExhausted,
                Concat("container \"", connection.client.container,
                       "\" already has as many clients as it may have"),
                "close clients that are not used; see docs/reference/limits.md");
  }
  connection.said_hello = true;
  connection.token = NewToken();
  return connection.client.id;
}

Server::Connection* Server::FindResumable(const Connection& fresh,
                                          const protocol::HelloRequest& hello) {
  if (hello.resume_client_id == 0) return nullptr;
  Connection* const old = Find(hello.resume_client_id);
  const bool may = old != nullptr && old != &fresh && old->said_hello &&
                   old->listener == fresh.listener && IsSameToken(old->token, hello.resume_token) &&
                   // If unknown, the token decides.
                   IsSameProcess(old->pidfd, fresh.pidfd) != Same::kNo;
  return may ? old : nullptr;
}

void Server::TakeOver(Connection& old, Connection& fresh) {
  CloseSocket(old);
  old.delayed.reset();
  old.listener->closing.Close(std::move(old.delayed_descriptor));
  loop_->Unwatch(fresh.socket.get());
  loop_->Unwatch(fresh.pidfd.get());
  fresh.listener->closing.Close(std::move(fresh.pidfd));
  old.socket = std::move(fresh.socket);
  old.number = fresh.number;
  old.version = fresh.version;
  old.passed_descriptors = fresh.passed_descriptors;
  old.announced = false;
  old.busy = true;
  --old.listener->absent;
  --(fresh.guest ? fresh.listener->guests : fresh.listener->connected);
  connections_.erase(fresh.client.id);
  const Result<void> watched =
      loop_->Watch(old.socket.get(), 0, [this, id = old.client.id](uint32_t) { OnReadable(id); });
  GPUSHM_ASSERT(watched.has_value());  // It was watched a moment ago.
}

// ---- replies

void Server::ReplyError(const ReplyTo& to, const Status& status) {
  Outgoing out;
  out.size_bytes = protocol::EncodeError(to.kind, to.request_id, status, &out.bytes);
  out.to = to;
  Deliver(out);
}

bool Server::Deliver(const Outgoing& out) {
  Connection* const connection = Find(out.to);
  if (connection == nullptr) return true;
  const int socket = connection->socket.get();
  if (out.descriptor >= 0 && HasUnread(socket)) {  // (3)
    ReplyError(out.to, Status(Code::kContended, "the last reply has not been read yet",
                              "read it, then repeat the request"));
    return false;
  }
  const std::span<const int> descriptors(&out.descriptor, out.descriptor >= 0 ? 1 : 0);
  const Result<bool> sent =
      protocol::TrySend(socket, {out.bytes.data(), out.size_bytes}, descriptors);
  if (!sent) {
    Disconnect(*connection, sent.error().code() == Code::kUnavailable ? "" : sent.error().what());
    return true;
  }
  if (!*sent) {
    pollfd writable{.fd = socket, .events = POLLOUT, .revents = 0};
    if (out.descriptor < 0 || poll(&writable, 1, 0) == 0) {
      Disconnect(*connection, "the client does not read its replies");  // (4)
      return true;
    }
    // ETOOMANYREFS: too many descriptors of this user are in flight on the whole node.
    connection->delayed = std::make_unique<Outgoing>(out);
    connection->delayed_descriptor.Reset(dup(out.descriptor));
    connection->delayed->descriptor = connection->delayed_descriptor.get();
    connection->delayed_until_ns = MonotonicNs() + kDelayMaxMs * 1'000'000;
    loop_->After(kDelayStepMs, [this, to = out.to] { RetryDelayed(to); });
    return true;
  }
  connection->busy = false;
  loop_->Change(socket, EPOLLIN);
  return true;
}

void Server::RetryDelayed(const ReplyTo& to) {
  Connection* const connection = Find(to);
  if (connection == nullptr || !connection->delayed) return;
  const Outgoing& out = *connection->delayed;
  const Result<bool> sent = protocol::TrySend(
      connection->socket.get(), {out.bytes.data(), out.size_bytes}, {&out.descriptor, 1});
  if (sent && !*sent && MonotonicNs() < connection->delayed_until_ns) {
    loop_->After(kDelayStepMs, [this, to] { RetryDelayed(to); });
    return;
  }
  const bool delivered = sent && *sent;
  connection->delayed.reset();
  connection->listener->closing.Close(std::move(connection->delayed_descriptor));
  if (!delivered) {
    Disconnect(*connection, "too many descriptors of this user are in flight");
    return;
  }
  connection->busy = false;
  loop_->Change(connection->socket.get(), EPOLLIN);
}

// ---- ends

// The socket is closed. Whatever its process holds stays until the process ends. An empty reason
// means that the client left.
void Server::Disconnect(Connection& connection, std::string_view reason) {
  const uint64_t id = connection.client.id;
  if (!reason.empty()) {
    LogWarning("client-disconnected",
               {{"container", connection.client.container}, {"client", id}, {"reason", reason}});
  }
  CloseSocket(connection);
  connection.delayed.reset();
  connection.listener->closing.Close(std::move(connection.delayed_descriptor));
  if (!connection.pidfd || !handler_->Holds(id)) Forget(id);
}

void Server::Disconnect(const std::string& container) {
  for (const uint64_t id : ClientsOf(container)) {
    if (Connection* const connection = Find(id)) Disconnect(*connection, "");
  }
}

std::vector<uint64_t> Server::ClientsOf(const std::string& container) const {
  std::vector<uint64_t> clients;
  for (const auto& [id, connection] : connections_) {
    if (connection.client.container == container) clients.push_back(id);
  }
  return clients;
}

// The client sees the end at once. If descriptors may lie unread in the socket, the worker closes
// it; otherwise the loop does. So a blocked worker cannot pile up sockets until there are no
// descriptors left.
void Server::CloseSocket(Connection& connection) {
  if (!connection.socket) return;
  loop_->Unwatch(connection.socket.get());
  shutdown(connection.socket.get(), SHUT_RDWR);
  if (connection.passed_descriptors) {
    connection.listener->closing.CloseForeign(std::move(connection.socket));
  }
  connection.socket.Reset();
  --connected_;
  if (!connection.guest) ++connection.listener->absent;
}

void Server::OnProcessEnded(uint64_t client_id) {
  Connection* const connection = Find(client_id);
  if (connection == nullptr) return;
  CloseSocket(*connection);
  Forget(client_id);
}

void Server::Forget(uint64_t client_id) {
  const auto found = connections_.find(client_id);
  const Client client = found->second.client;
  Listener& listener = *found->second.listener;
  if (found->second.guest) {
    --listener.guests;
  } else {
    --listener.connected;
    --listener.absent;  // CloseSocket was called before.
  }
  if (found->second.pidfd) loop_->Unwatch(found->second.pidfd.get());
  listener.closing.Close(std::move(found->second.pidfd));
  connections_.erase(found);
  handler_->OnEnded(client);
}

}  // namespace gpushm::broker
