// The broker's connections: accepts, reads whole requests, writes replies, and knows by pidfd when
// a client's process is gone. What a request means is the Handler's business.
//
// No client can hold the loop up (docs/security.md has the attacks):
//   (1) Nothing here blocks. Sockets are non-blocking; descriptors that clients sent, and their
//       sockets, are closed on a worker's thread.
//   (2) One request of a connection is under way at a time; the next is read after its reply.
//   (3) At most one unread descriptor reply per connection: the next is refused with CONTENDED.
//   (4) A client that does not read its replies, or breaks the protocol, is disconnected.
//   (5) Connections are counted: limits::kClients in all, of which every container keeps a share.
//   (6) Descriptor passing is off (SO_PASSRIGHTS, Linux 6.16) but for one announced request.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/daemon/event_loop.h"
#include "runtime/daemon/worker.h"
#include "runtime/protocol/channel.h"
#include "runtime/protocol/messages.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

struct Request {
  Client client;
  protocol::Kind kind;
  uint64_t request_id = 0;
  protocol::Message* message = nullptr;  // Descriptors may be taken out of it.
};

class Handler {
 public:
  virtual ~Handler() = default;
  // Must lead to exactly one Reply or ReplyError for the client, now or later. A Status returned is
  // replied; kCorrupt disconnects the client instead.
  virtual Result<void> OnRequest(Request& request) = 0;
  // The client's process is gone, or it left without holding anything.
  virtual void OnEnded(const Client& client) = 0;
  // Whether the client's record must be kept until its process ends.
  virtual bool Holds(uint64_t client_id) const = 0;
};

class Server {
 public:
  Server(EventLoop* loop, Worker* closer, Handler* handler)
      : loop_(loop), closer_(closer), handler_(handler) {}
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves `container` at the socket `path`.
  Result<void> Listen(const std::string& path, unsigned mode, const std::string& container);
  // Accepts no more; those that are connected stay.
  void StopListening();

  // False: refused, see (3); the client got an error instead. A client that is gone is no error.
  template <typename Body>
  bool Reply(uint64_t client_id, protocol::Kind kind, uint64_t request_id, const Body& body,
             int descriptor = -1) {
    Outgoing out;
    out.size_bytes = protocol::EncodeReply(kind, request_id, body, &out.bytes);
    out.descriptor = descriptor;
    out.kind = kind;
    out.request_id = request_id;
    return Deliver(client_id, out);
  }
  void ReplyError(uint64_t client_id, protocol::Kind kind, uint64_t request_id,
                  const Status& status);

  // True while the client's process lives and is connected.
  bool IsConnected(uint64_t client_id) const;
  uint32_t connected() const { return connected_; }

 private:
  struct Outgoing {
    protocol::Buffer bytes;
    size_t size_bytes = 0;
    int descriptor = -1;  // Not owned; lives at least until delivered (see Deliver).
    protocol::Kind kind{};
    uint64_t request_id = 0;
  };
  struct Listener {
    UniqueFd socket;
    std::string path;
    std::string container;
    uint32_t connected = 0;
  };
  struct Connection {
    Client client;
    Listener* listener = nullptr;
    UniqueFd socket;
    UniqueFd pidfd;  // Invalid until Hello where the kernel does not give it.
    bool said_hello = false;
    bool busy = false;                // A request is under way.
    bool announced = false;           // The next request may carry a descriptor.
    bool passed_descriptors = false;  // Some may lie unread in its socket.
    // A reply that waits for ETOOMANYREFS to pass, with a descriptor of its own.
    std::unique_ptr<Outgoing> delayed;
    UniqueFd delayed_descriptor;
    int64_t delayed_until_ns = 0;
  };

  void OnAcceptable(Listener* listener);
  bool HasRoom(const Listener& listener) const;
  void Admit(Listener* listener, UniqueFd socket);
  void OnReadable(uint64_t client_id);
  void OnRequest(Connection& connection, protocol::Message& message);
  Result<void> AcceptHello(Connection& connection, const protocol::Header& header,
                           protocol::Message& message);
  void OnProcessEnded(uint64_t client_id);
  Result<void> WatchProcess(Connection& connection);
  void SetPassDescriptors(Connection& connection, bool on) const;
  bool Deliver(uint64_t client_id, const Outgoing& out);
  void RetryDelayed(uint64_t client_id);
  void CloseSocket(Connection& connection);
  void Disconnect(Connection& connection, std::string_view reason);
  void Forget(uint64_t client_id);
  Connection* Find(uint64_t client_id);

  EventLoop* loop_;
  Worker* closer_;
  Handler* handler_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::map<uint64_t, Connection> connections_;  // By client id.
  uint64_t next_client_ = 1;
  bool refuses_descriptors_ = false;  // New connections do (SO_PASSRIGHTS).
  uint32_t connected_ = 0;            // Those with a socket.
};

}  // namespace gpushm::broker
