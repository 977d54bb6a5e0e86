// A small HTTP server for pages that are made when they are asked for: metrics, probes, status.
//
// civetweb, the server that prometheus-cpp's Exposer brings along, without the Exposer, whose own
// metrics and missing content types are not wanted (docs/observability.md). It needs libc alone,
// where the injector's cpp-httplib brings OpenSSL and brotli into a process that speaks no TLS.
//
// Bounded: kThreads answers at the same time, kTimeoutMs for a caller's bytes and for ours.
// GET and HEAD alone.
//
// Threads: handlers are called from several; Start and the end from one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

struct mg_context;
struct mg_connection;

namespace gpushm::plugin {

struct HttpRequest {
  std::string_view accept;  // Headers; empty: not there.
  std::string_view host;
};

struct HttpAnswer {
  int status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string headers;  // More of them, each "Name: value\r\n".
};

class HttpServer {
 public:
  using Handler = std::function<HttpAnswer(const HttpRequest&)>;
  using Paths = std::map<std::string, Handler>;  // By path; anything else is 404.

  static constexpr int kThreads = 4;
  static constexpr int kTimeoutMs = 2000;

  // `address`: ":9400", of IPv4 and IPv6, "127.0.0.1:9401" or "[::1]:9401"; port 0: any free one.
  // kInvalidArgument: it is none. kSystem: it is taken.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& address, Paths paths);
  // What is under way is finished; a caller that says nothing can take kTimeoutMs.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  explicit HttpServer(Paths paths) : paths_(std::move(paths)) {}
  int Answer(mg_connection* connection) const;

  const Paths paths_;
  std::string host_;  // Where it can be reached from here.
  int port_ = 0;
  mg_context* context_ = nullptr;
};

// Whether a browser that sends this Host meant this machine by it. A page of elsewhere whose name
// was made to point to 127.0.0.1 (DNS rebinding) sends its own name.
bool IsLocalHost(std::string_view host);

}  // namespace gpushm::plugin
