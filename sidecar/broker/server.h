// The broker's connections: accepts, reads whole requests, writes replies, and knows by pidfd when
// a client's process is gone. What a request means is the Handler's business.
//
// No client can hold the loop up (docs/guides/security.md has the attacks):
//   (1) Nothing here blocks. Sockets are non-blocking; descriptors that clients sent, and their
//       sockets, are closed on threads of their container alone (platform/daemon/closing.h). While
//       one is not closed, the container may send no other.
//   (2) One request of a connection is under way at a time; the next is read after its reply.
//   (3) At most one unread descriptor reply per connection: the next is refused with CONTENDED.
//   (4) A client that does not read its replies, or breaks the protocol, is disconnected. Some
//       16 KiB of replies lie unread in a connection at most.
//   (5) Connections are counted: limits::kClients in all, of which every container keeps a share.
//   (6) Descriptor passing is off (SO_PASSRIGHTS, Linux 6.16) but for one announced request.
//
// A client is a process, and has a record. Its connection may break and come again: whoever shows
// the record's token, in the same container and in the same process (as far as the kernel tells),
// takes the record over with a new connection. A record without a connection counts on, and a
// container whose share is used up by such records may still connect to take one over.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "contract/protocol/channel.h"
#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/closing.h"
#include "platform/daemon/event_loop.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

// What a reply answers. It goes to no other connection: the client that resumed has given it up.
struct ReplyTo {
  uint64_t client_id = 0;
  uint64_t connection = 0;
  protocol::Kind kind{};
  uint64_t request_id = 0;
};

struct Request {
  Client client;
  ReplyTo to;
  protocol::Message* message = nullptr;      // Descriptors may be taken out of it.
  bool resumed = false;                      // Hello: the client is one that was there before.
  uint16_t version = protocol::kMinVersion;  // Of the connection.
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
  Server(EventLoop* loop, Handler* handler) : loop_(loop), handler_(handler) {}
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves `container` at the socket `path`. May be called again for one that failed: its container
  // counts from the first call on.
  Result<void> Listen(const std::string& path, unsigned mode, const std::string& container);
  // Accepts no more; those that are connected stay.
  void StopListening();

  // A client of a former broker, which may come and resume. kNotFound: nobody serves its container.
  Result<void> Restore(const Client& client, const protocol::ResumeToken& token, UniqueFd pidfd);
  // Those whose process is gone by now end, before the loop looks.
  void EndDead();

  // False: refused, see (3); the client got an error instead. A client that is gone is no error.
  template <typename Body>
  bool Reply(const ReplyTo& to, const Body& body, int descriptor = -1) {
    Outgoing out;
    out.size_bytes = protocol::EncodeReply(to.kind, to.request_id, body, &out.bytes);
    out.descriptor = descriptor;
    out.to = to;
    return Deliver(out);
  }
  void ReplyError(const ReplyTo& to, const Status& status);

  // True while the process that asked lives and is connected as it was.
  bool IsConnected(const ReplyTo& to) const;
  uint32_t connected() const { return connected_; }
  std::vector<std::string> containers() const;  // That are, or will be, listened for.

  // What a successor needs to know a client again. Null: there is none.
  struct Identity {
    Client client;
    protocol::ResumeToken token;
    int pidfd = -1;  // Stays the server's.
  };
  std::optional<Identity> Identify(uint64_t client_id) const;

 private:
  struct Outgoing {
    protocol::Buffer bytes;
    size_t size_bytes = 0;
    int descriptor = -1;  // Not owned; lives at least until delivered (see Deliver).
    ReplyTo to;
  };
  struct Listener {
    UniqueFd socket;
    std::string path;
    std::string container;
    uint32_t connected = 0;  // Records, but for guests.
    uint32_t absent = 0;     // Of those: without a connection.
    Closing closing;         // What its clients made.
    bool paused = false;     // Nobody is accepted for the moment.
    uint32_t guests = 0;     // Let in beyond the share to resume; at most as many as are absent.
  };
  struct Connection {
    Client client;
    Listener* listener = nullptr;
    UniqueFd socket;      // Invalid: absent.
    uint64_t number = 0;  // Of this connection: resumed, the client has another.
    UniqueFd pidfd;       // Invalid until Hello where the kernel does not give it.
    protocol::ResumeToken token{};
    bool guest = false;
    bool said_hello = false;
    uint16_t version = protocol::kMinVersion;  // Agreed on in Hello.
    bool busy = false;                         // A request is under way.
    bool announced = false;                    // The next request may carry a descriptor.
    bool passed_descriptors = false;           // Some may lie unread in its socket.
    // A reply that waits for ETOOMANYREFS to pass, with a descriptor of its own.
    std::unique_ptr<Outgoing> delayed;
    UniqueFd delayed_descriptor;
    int64_t delayed_until_ns = 0;
  };

  void OnAcceptable(Listener* listener);
  void PauseAccepting(Listener* listener, std::string_view reason);
  bool HasRoom(const Listener& listener) const;
  void Admit(Listener* listener, UniqueFd socket, bool guest);
  void Refuse(Listener* listener, UniqueFd socket, const Status& why);
  void OnReadable(uint64_t client_id);
  void RefuseRequest(Connection& connection, const protocol::Message& message, const Status& why);
  void OnRequest(Connection& connection, protocol::Message& message);
  void Handle(uint64_t client_id, const protocol::Header& header, protocol::Message& message);
  // The client's number: another one if it resumed.
  Result<uint64_t> AcceptHello(Connection& connection, protocol::Message& message);
  Connection* FindResumable(const Connection& fresh, const protocol::HelloRequest& hello);
  void TakeOver(Connection& old, Connection& fresh);
  Result<void> Announce(Connection& connection, const ReplyTo& to,
                        const protocol::Message& message);
  void OnProcessEnded(uint64_t client_id);
  Result<void> WatchProcess(Connection& connection);
  void SetPassDescriptors(Connection& connection, bool on) const;
  bool Deliver(const Outgoing& out);
  void RetryDelayed(const ReplyTo& to);
  void CloseSocket(Connection& connection);
  void Disconnect(Connection& connection, std::string_view reason);
  void Forget(uint64_t client_id);
  Connection* Find(uint64_t client_id);
  // Null also where the client has another connection by now.
  Connection* Find(const ReplyTo& to);

  EventLoop* loop_;
  Handler* handler_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::map<uint64_t, Connection> connections_;  // By client id.
  uint64_t next_client_ = 1;
  uint64_t next_connection_ = 1;
  bool refuses_descriptors_ = false;  // New connections do (SO_PASSRIGHTS).
  uint32_t connected_ = 0;            // Those with a socket.
};

}  // namespace gpushm::broker
