// A small HTTP server for what a daemon serves over plain HTTP: metrics, probes, a status page.
// cpp-httplib reads requests and writes answers. The sockets, threads and bounds are here, because
// httplib bounds each single wait, but neither a whole request nor the load of all callers
// together.
//
// Invariants
//   (1) The server accepts only GET and HEAD, without a body, and one request for each connection.
//   (2) A request's head has at most kMaxHeadBytes and arrives within kHeadMs of being accepted;
//       the caller reads the whole answer within kAnswerMs. Callers that do not are cut off, with a
//       log line.
//   (3) Options::connections callers are served at the same time. When one more connects, the
//       server cuts off the caller that has kept it waiting for bytes the longest. So callers that
//       do nothing, however many, block nobody. Callers that have sent nothing yet stay in the
//       kernel and take no place.
//   (4) The server sends the body that the handler gave, without a copy; callers may share one
//       body.
//
// Handlers must return soon: nothing interrupts them, and each takes a place.
//
// Threads: handlers are called from several threads; Start and the destructor from one.
#pragma once

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

inline constexpr size_t kMaxHeadBytes = 16 << 10;
inline constexpr int kHeadMs = 5000;
inline constexpr int kAnswerMs = 10'000;

struct Request {
  std::string host;  // The header; empty if absent.
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
    size_t connections = 16;
  };
  // kInvalidArgument: `host` is not an IP address. kSystem: the port is in use, or the address does
  // not belong to this machine.
  static Result<std::unique_ptr<Server>> Start(const Options& options, Paths paths);
  // Cuts off the callers and waits for handlers that run.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }

 private:
  class Impl;
  Server(std::unique_ptr<Impl> impl, int port);
  const std::unique_ptr<Impl> impl_;
  const int port_;
};

// Whether a browser that sends this Host header meant this machine. A foreign web page whose name
// was made to resolve to 127.0.0.1 (DNS rebinding) sends its own name.
bool IsLocalHost(std::string_view host);

// Logs that the caller on `socket` was cut off, and why.
void LogCutOff(int socket, std::string_view why);

}  // namespace gpushm::http
