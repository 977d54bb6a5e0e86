// The broker's connections. The server accepts them, reads whole requests, writes replies, and
// learns by pidfd when a client's process ends. The Handler decides what a request means.
//
// No client can block the loop (docs/guides/security.md describes the attacks):
//   (1) Nothing here blocks. Sockets are non-blocking. Descriptors that clients sent, and their
//       sockets, are closed on threads of their own container only (platform/daemon/closing.h).
//       While one of them is not closed, the container may send no other.
//   (2) One request of a connection is in progress at a time; the next is read after its reply.
//   (3) A connection has at most one unread reply with a descriptor. The next such reply is refused
//       with CONTENDED.
//   (4) A client that does not read its replies, or breaks the protocol, is disconnected. At most
//       about 16 KiB of replies lie unread in a connection.
//   (5) Connections are counted: limits::kClients in total, of which each container keeps a share.
//   (6) Descriptor passing is off (SO_PASSRIGHTS, Linux 6.16) except for one announced request.
//
// A client is a process and has a record. Its connection may break and be made again. A connection
// that shows the record's token, in the same container and from the same process (as far as the
// kernel can tell), takes the record over. A record without a connection still counts. A container
// whose share is used up by such records may still connect in order to take one over.
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

// What a reply answers. It goes to no other connection: a client that resumed has given up its old
// request.
struct ReplyTo {
  uint64_t client_id = 0;
  uint64_t connection = 0;
  protocol::Kind kind{};
  uint64_t request_id = 0;
};

struct Request {
  Client client;
  ReplyTo to;
  protocol::Message* message = nullptr;      // The handler may take descriptors out of it.
  bool resumed = false;                      // For Hello: whether the client existed before.
  uint16_t version = protocol::kMinVersion;  // The version of the connection.
};

class Handler {
 public:
  virtual ~Handler() = default;
  // Must lead to exactly one Reply or ReplyError for the client, now or later. A returned Status is
  // sent as a reply, except kCorrupt, which disconnects the client.
  virtual Result<void> OnRequest(Request& request) = 0;
  // The client's process has ended, or it left without holding anything.
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

  // Serves `container` at the socket `path`. May be called again if it failed; the container counts
  // from the first call on.
  Result<void> Listen(const std::string& path, unsigned mode, const std::string& container);
  // Serves `container` at a socket that listens already and that somebody else's file leads to.
  // Called again, another socket takes the place of the former one; existing connections stay.
  Result<void> ListenAt(UniqueFd socket, const std::string& container);
  // Breaks the connections of a container's clients, who can resume them with the next broker.
  void Disconnect(const std::string& container);
  // Its clients, with and without a connection.
  std::vector<uint64_t> ClientsOf(const std::string& container) const;
  // Accepts no more connections. Existing ones stay.
  void StopListening();

  // Adds a client of an earlier broker, which may connect and resume. Fails with kNotFound if its
  // container is not served.
  Result<void> Restore(const Client& client, const protocol::ResumeToken& token,
                       const protocol::PodRequest& pod, UniqueFd pidfd);
  // Ends the clients whose processes have already ended, without waiting for the loop to notice.
  void EndDead();

  // Returns false if the reply was refused, see (3); the client then got an error instead. A client
  // that is gone is not an error.
  template <typename Body>
  bool Reply(const ReplyTo& to, const Body& body, int descriptor = -1) {
    Outgoing out;
    out.size_bytes = protocol::EncodeReply(to.kind, to.request_id, body, &out.bytes);
    out.descriptor = descriptor;
    out.to = to;
    return Deliver(out);
  }
  void ReplyError(const ReplyTo& to, const Status& status);

  // Whether the requesting process lives and still has the same connection.
  bool IsConnected(const ReplyTo& to) const;
  uint32_t connected() const { return connected_; }
  std::vector<std::string> containers() const;  // Containers that are, or will be, listened for.

  // What a successor needs to recognize a client. nullopt if there is no such client.
  struct Identity {
    Client client;
    protocol::ResumeToken token;
    protocol::PodRequest pod;  // Empty: it told none.
    int pidfd = -1;            // Owned by the server.
  };
  std::optional<Identity> Identify(uint64_t client_id) const;
  // Keeps what a client at a socket of ListenAt says of itself. False: nothing new.
  bool SetPod(uint64_t client_id, const protocol::PodRequest& pod);

 private:
  struct Outgoing {
    protocol::Buffer bytes;
    size_t size_bytes = 0;
    int descriptor = -1;  // Not owned; valid at least until delivered (see Deliver).
    ReplyTo to;
  };
  struct Listener {
    UniqueFd socket;
    std::string path;  // Empty: of ListenAt.
    std::string container;
    uint32_t connected = 0;  // Number of records, without guests.
    uint32_t absent = 0;     // Those of them that have no connection.
    Closing closing;         // For descriptors that its clients made.
    bool paused = false;     // Whether accepting is paused.
    // Connections accepted beyond the share so that they can resume; at most as many as are absent.
    uint32_t guests = 0;
  };
  struct Connection {
    Client client;
    Listener* listener = nullptr;
    UniqueFd socket;      // Invalid while the client is absent.
    uint64_t number = 0;  // Number of this connection; a client that resumes gets another one.
    UniqueFd pidfd;       // Invalid until Hello if the kernel does not provide it.
    protocol::ResumeToken token{};
    protocol::PodRequest pod{};
    bool guest = false;
    bool said_hello = false;
    uint16_t version = protocol::kMinVersion;  // Agreed on in Hello.
    bool busy = false;                         // Whether a request is in progress.
    bool announced = false;                    // Whether the next request may carry a descriptor.
    bool passed_descriptors = false;           // Whether descriptors may lie unread in its socket.
    // A reply that waits for ETOOMANYREFS to pass, with its own copy of the descriptor.
    std::unique_ptr<Outgoing> delayed;
    UniqueFd delayed_descriptor;
    int64_t delayed_until_ns = 0;
  };

  Result<void> Accept(Listener* listener, UniqueFd socket);
  void CloseListener(Listener* listener);
  void OnAcceptable(Listener* listener);
  void PauseAccepting(Listener* listener, std::string_view reason);
  bool HasRoom(const Listener& listener) const;
  void Admit(Listener* listener, UniqueFd socket, bool guest);
  void Refuse(Listener* listener, UniqueFd socket, const Status& why);
  void OnReadable(uint64_t client_id);
  void RefuseRequest(Connection& connection, const protocol::Message& message, const Status& why);
  void OnRequest(Connection& connection, protocol::Message& message);
  void Handle(uint64_t client_id, const protocol::Header& header, protocol::Message& message);
  // Returns the client's number, which is a different one if the client resumed.
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
  // Also returns null if the client has a different connection now.
  Connection* Find(const ReplyTo& to);

  EventLoop* loop_;
  Handler* handler_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::map<uint64_t, Connection> connections_;  // By client id.
  uint64_t next_client_ = 1;
  uint64_t next_connection_ = 1;
  bool refuses_descriptors_ = false;  // Whether new connections refuse descriptors (SO_PASSRIGHTS).
  uint32_t connected_ = 0;            // Connections with a socket.
};

}  // namespace gpushm::broker
