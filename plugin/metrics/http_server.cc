#include "plugin/metrics/http_server.h"

#include <civetweb.h>

#include <array>
#include <chrono>
#include <future>
#include <utility>

#include "plugin/config/listen_address.h"

namespace gpushm::plugin {
namespace {

constexpr int kWakeMs = 20;

std::string_view HeaderOf(const mg_connection* connection, const char* name) {
  const char* const value = mg_get_header(connection, name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

void Send(mg_connection* connection, const HttpAnswer& answer, bool head) {
  const std::string header = Concat(
      "HTTP/1.1 ", answer.status, " ", Reason(answer.status),
      "\r\nContent-Type: ", answer.content_type, "\r\nContent-Length: ", answer.body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n", answer.headers, "\r\n");
  mg_write(connection, header.data(), header.size());
  if (!head) mg_write(connection, answer.body.data(), answer.body.size());
}

}  // namespace

bool IsLocalHost(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(0, host.find(']') + 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, Paths paths) {
  const auto parts = ParseListenAddress(address);
  if (!parts) {
    return Fail(Code::kInvalidArgument, Concat("\"", address, "\" is no address to listen on"),
                "give a port and, if not all addresses are meant, one of this machine: "
                "127.0.0.1:9401");
  }
  static const unsigned initialised = mg_init_library(MG_FEATURES_DEFAULT);
  static_cast<void>(initialised);
  // "+": IPv4 and IPv6.
  const std::string ports = parts->host.empty() ? Concat("+", parts->port) : address;
  const std::string threads = std::to_string(kThreads);
  const std::string timeout_ms = std::to_string(kTimeoutMs);
  const std::array options = {"listening_ports",
                              ports.c_str(),
                              "num_threads",
                              threads.c_str(),
                              "request_timeout_ms",
                              timeout_ms.c_str(),
                              "enable_keep_alive",
                              "yes",
                              "keep_alive_timeout_ms",
                              "1000",
                              "tcp_nodelay",
                              "1",
                              static_cast<const char*>(nullptr)};
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(paths)));
  server->host_ = parts->host.empty() ? "127.0.0.1" : std::string(parts->host);
  const mg_callbacks callbacks{};
  // Their array of options is not changed; its type is older than const.
  server->context_ = mg_start(&callbacks, server.get(), const_cast<const char**>(options.data()));
  if (server->context_ == nullptr) {
    return Fail(Code::kSystem, Concat("cannot listen on ", address), "is the port taken?");
  }
  mg_set_request_handler(
      server->context_, "**",
      [](mg_connection* connection, void* self) {
        return static_cast<const HttpServer*>(self)->Answer(connection);
      },
      server.get());
  std::array<mg_server_port, 2> bound{};
  if (mg_get_server_ports(server->context_, bound.size(), bound.data()) > 0) {
    server->port_ = bound[0].port;
  }
  return server;
}

// civetweb looks whether it should end every 2 s, and whenever somebody connects: so somebody does.
HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  std::future<void> stopped = std::async(std::launch::async, [this] { mg_stop(context_); });
  while (stopped.wait_for(std::chrono::milliseconds(kWakeMs)) != std::future_status::ready) {
    std::array<char, 128> error{};
    mg_connection* const wake =
        mg_connect_client(host_.c_str(), port_, /*use_ssl=*/0, error.data(), error.size());
    if (wake != nullptr) mg_close_connection(wake);
  }
}

// On one of civetweb's threads; the status that it would log.
int HttpServer::Answer(mg_connection* connection) const {
  const mg_request_info* const info = mg_get_request_info(connection);
  const std::string_view method = info->request_method;
  HttpAnswer answer{.status = 404, .body = "not found\n", .headers = {}};
  const auto found = paths_.find(info->local_uri != nullptr ? info->local_uri : "");
  if (method != "GET" && method != "HEAD") {
    answer = {.status = 405, .body = "GET and HEAD\n", .headers = "Allow: GET, HEAD\r\n"};
  } else if (found != paths_.end()) {
    answer = found->second({HeaderOf(connection, "Accept"), HeaderOf(connection, "Host")});
  }
  Send(connection, answer, method == "HEAD");
  return answer.status;
}

}  // namespace gpushm::plugin
