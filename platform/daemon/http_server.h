// A small HTTP server for what a daemon shows over plain HTTP: metrics, probes, a status page.
// cpp-httplib reads requests and writes answers; the sockets, threads and bounds are here, because
// httplib bounds each single wait, but neither a whole request nor what all callers take together.
//
// Invariants
//   (1) GET and HEAD alone, without a body. One request for each connection.
//   (2) A request's head has kMaxHeadBytes and comes within kHeadMs of being accepted; the caller
//       takes the whole answer within kAnswerMs. Callers that do not are cut off, with a log line.
//   (3) Options::connections callers are served at the same time. When one more connects, the one
//       that has stood still for longest while the server waited for its bytes is cut off: callers
//       that do nothing, however many, hold nobody up. Callers that have said nothing yet are kept
//       by the kernel and take no place.
//   (4) What is sent is the body that the handler gave, without a copy: callers may share one.
//
// Handlers must return soon: nothing cuts them off, and they take a place.
//
// Threads: handlers are called from several; Start and the end from one.
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
  std::string accept;  // Headers; empty: not there.
  std::string host;
};

// A text that answers may share; it lives until the last one of them is sent.
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
  std::vector<std::pair<std::string, std::string>> headers;  // More of them.
};

class Server {
 public:
  using Handler = std::function<Answer(const Request&)>;
  using Paths = std::map<std::string, Handler>;  // By path; anything else is 404.

  struct Options {
    std::string host;  // An address of this machine; empty: all, of IPv6 and IPv4.
    int port = 0;      // 0: any free one.
    size_t connections = 16;
  };
  // kInvalidArgument: `host` is no address. kSystem: the port is taken, or the address is not ours.
  static Result<std::unique_ptr<Server>> Start(const Options& options, Paths paths);
  // Callers are cut off; handlers that run are waited for.
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

// Whether a browser that sends this Host meant this machine by it. A page of elsewhere whose name
// was made to point to 127.0.0.1 (DNS rebinding) sends its own name.
bool IsLocalHost(std::string_view host);

// Tells in the log of a caller on `socket` that was cut off, and why.
void LogCutOff(int socket, std::string_view why);

}  // namespace gpushm::http
