// The HTTP server of the daemons: metrics, probes and the status page, and the webhook over TLS.
//
// cpp-httplib reads requests, writes answers and has the threads. Sockets and limits are here,
// because httplib (0.10 to 0.17) limits each single wait, but neither the bytes of a request's head
// nor the time of all of it.
//
// Invariants
//   (1) Without Options::max_body_bytes the server accepts only GET and HEAD, without a body, and
//       one request for each connection. With it, it accepts only POST, whose Content-Length is at
//       most that, and keeps a connection for further requests. A request that is refused ends its
//       connection; its body is not read.
//   (2) A TLS handshake, the wait for a request, its head of at most kMaxHeadBytes, and its body
//       take at most kReadMs each; the caller takes the whole answer within kAnswerMs. The server
//       cuts off other callers, with a log line.
//   (3) At most Options::callers are served at the same time, each by a thread; as many wait in the
//       process, more in the kernel. Callers that have sent nothing yet stay in the kernel for 30 s
//       and take no place. While somebody waits for a thread, connections end with their answer,
//       and the server cuts off who keeps it waiting for kCrowdedMs (kCrowdedTlsMs with TLS). So N
//       callers that stop in the middle delay others by N / callers times that, once. Somebody who
//       opens such connections again and again delays others for as long; a server of its own, and
//       a NetworkPolicy, protect what must not wait.
//   (4) The server sends the body that the handler gave, without a copy; answers may share one.
//
// Handlers must return soon: nothing interrupts them, and each takes a thread.
//
// Threads: handlers are called from several threads; Start, Drain and the destructor from one.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/status.h"

namespace gpushm::http {

inline constexpr size_t kMaxHeadBytes = 64 << 10;
inline constexpr int kReadMs = 5000;
inline constexpr int kAnswerMs = 10'000;
inline constexpr int kCrowdedMs = 500;
// A handshake needs answers of a machine that a burst may have made slow.
inline constexpr int kCrowdedTlsMs = 2000;

struct Request {
  std::string host;  // The header; empty if absent.
  std::string from;  // The caller's address.
  size_t body_bytes = 0;
  // Returns false if the body does not arrive in time. Call it at most once.
  std::function<bool(std::string* body)> read_body{};
};

// A text that answers may share; it lives until the last of them is sent.
class Body {
 public:
  Body() : Body(std::string()) {}
  Body(const char* text) : Body(std::string(text)) {}
  Body(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  Body(std::shared_ptr<const std::string> text) : text_(std::move(text)) {}
  const std::shared_ptr<const std::string>& text() const { return text_; }

 private:
  std::shared_ptr<const std::string> text_;  // Never null.
};

struct Answer {
  int status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  Body body;
  std::vector<std::pair<std::string, std::string>> headers{};  // Additional headers.
};

class Server {
 public:
  using Handler = std::function<Answer(const Request&)>;
  using Paths = std::map<std::string, Handler>;  // By path; any other path is a 404.

  struct Options {
    std::string host;  // An address of this machine; empty: all, IPv6 and IPv4.
    int port = 0;      // 0: any free one.
    size_t callers = 16;
    size_t max_body_bytes = 0;
    SSL_CTX* tls = nullptr;  // Null: plain HTTP. It must outlive the server.
  };
  // kInvalidArgument: `host` is not an IP address. kSystem: the port is in use, or the address does
  // not belong to this machine.
  static Result<std::unique_ptr<Server>> Start(const Options& options, Paths paths);
  // Finishes calls whose request has arrived, and ends the other connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  // From now on each connection ends with its next answer.
  void Drain();

 private:
  class Impl;
  Server(std::unique_ptr<Impl> impl, int port);
  const std::unique_ptr<Impl> impl_;
  const int port_;
};

// Whether a browser that sends this Host header meant this machine. A foreign web page whose name
// was made to resolve to 127.0.0.1 (DNS rebinding) sends its own name.
bool IsLocalHost(std::string_view host);

}  // namespace gpushm::http
