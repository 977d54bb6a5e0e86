#include "sidecar/injector/server.h"

#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <utility>

#include "platform/base/clock.h"
#include "platform/daemon/log.h"
#include "sidecar/injector/read_limit.h"

namespace gpushm::injector {
namespace {

// Room for a burst of calls. httplib itself requests a backlog of 5.
constexpr int kBacklog = 1024;
constexpr char kText[] = "text/plain; charset=utf-8";

using Handled = httplib::Server::HandlerResponse;

// Answers and closes the connection. Nobody reads the caller's body, so what it sends next would be
// taken for a request. httplib closes a connection only if the caller requested it or the content
// cannot be given.
void Refuse(int status, const std::string& why, httplib::Response& response) {
  response.status = status;
  response.set_header("Connection", "close");
  const std::string text = why + "\n";
  response.set_content_provider(text.size(), kText,
                                [text](size_t /*offset*/, size_t /*size*/, httplib::DataSink& to) {
                                  to.write(text.data(), text.size());
                                  return false;
                                });
}

// The calls by their paths.
const std::map<std::string, Call>& Calls() {
  using config::Allocation;
  static const std::map<std::string, Call> kCalls = [] {
    std::map<std::string, Call> calls;
    for (const auto& [path, endpoint] :
         {std::pair{"/mutate", Endpoint::kMutate}, std::pair{"/validate", Endpoint::kValidate}}) {
      calls[path] = {endpoint};
      for (const Allocation each : {Allocation::kDevicePlugin, Allocation::kDra}) {
        calls[Concat(path, "/", config::AllocationName(each))] = {endpoint, each};
      }
    }
    return calls;
  }();
  return kCalls;
}

size_t LengthOf(const httplib::Request& request) {
  return std::strtoull(request.get_header_value("Content-Length").c_str(), nullptr, 10);
}

// httplib applies its limit only to bodies that give their length, and only to their size before
// decompression.
Handled CheckReview(const httplib::Request& request, httplib::Response& response) {
  if (request.method != "POST" || !Calls().contains(request.path)) {
    Refuse(404, "POST an AdmissionReview to /mutate or /validate", response);
  } else if (request.has_header("Transfer-Encoding") || !request.has_header("Content-Length")) {
    Refuse(411, "send the body's length in Content-Length", response);
  } else if (request.has_header("Content-Encoding")) {
    Refuse(415, "send the body without Content-Encoding", response);
  } else if (LengthOf(request) > kMaxBodyBytes) {
    Refuse(
        413,
        Concat("the body has ", LengthOf(request), " bytes; it may have at most ", kMaxBodyBytes),
        response);
  } else {
    // TLS adds its own bytes to a body: as much again if the records are small.
    AllowReads(request.ssl, kMaxHeadBytes + 2 * LengthOf(request));
    return Handled::Unhandled;
  }
  return Handled::Handled;
}

// Reads at most kMaxBodyBytes, within kReadTimeoutS. Returns false if the body is longer or does
// not arrive in time.
bool ReadBody(const httplib::Request& request, const httplib::ContentReader& read,
              std::string* body) {
  body->reserve(LengthOf(request));  // CheckReview has checked this length.
  const Deadline deadline = Deadline::AfterMs(kReadTimeoutS * 1000);
  return read([&](const char* bytes, size_t size) {
    if (body->size() + size > kMaxBodyBytes || deadline.Passed()) return false;
    body->append(bytes, size);
    return true;
  });
}

// httplib's accept loop ends on errors that are only temporary, such as ENFILE.
bool IsListening(int socket_fd) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return getsockopt(socket_fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

bool SetUpTls(SSL_CTX* context, Certificates* certificates) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  LimitReads(context);
  certificates->ServeOn(context);
  return true;
}

}  // namespace

struct Server::Listener {
  std::unique_ptr<httplib::Server> server;
  int socket = -1;  // Owned by the server.
  std::thread thread;

  Listener(std::unique_ptr<httplib::Server> made, size_t threads) : server(std::move(made)) {
    server->new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
    server->set_read_timeout(kReadTimeoutS);
    server->set_write_timeout(kReadTimeoutS);
    server->set_keep_alive_timeout(kReadTimeoutS);
    server->set_keep_alive_max_count(1'000'000);
    server->set_payload_max_length(kMaxBodyBytes);
    server->set_tcp_nodelay(true);
    server->set_socket_options([this](int made_socket) {
      const int yes = 1;
      setsockopt(made_socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      // The kernel keeps connections on which the caller has not sent anything yet; they take no
      // thread.
      setsockopt(made_socket, IPPROTO_TCP, TCP_DEFER_ACCEPT, &kSilentS, sizeof kSilentS);
      socket = made_socket;
    });
  }
  ~Listener() {
    server->stop();
    if (thread.joinable()) thread.join();
  }

  // Returns the port, or -1 if it is not available.
  int Bind(const std::string& address, int port) {
    if (port == 0) return server->bind_to_any_port(address);
    return server->bind_to_port(address, port) ? port : -1;
  }

  Result<int> Listen(const std::string& address, int port) {
    int bound = Bind(address.empty() ? "::" : address, port);
    // The machine may not have IPv6.
    if (bound < 0 && address.empty()) bound = Bind("0.0.0.0", port);
    if (bound < 0) {
      return Fail(
          Code::kSystem,
          Concat("cannot listen on port ", port, " of ", address.empty() ? "any address" : address),
          "choose a port that is free");
    }
    listen(socket, kBacklog);
    return bound;
  }

  // Returns only when the thread serves, because an earlier stop() would be lost. Fails with
  // kSystem if httplib's loop ended at once.
  Result<void> Serve() {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    thread = std::thread([this, ended] {
      server->listen_after_bind();
      *ended = true;
    });
    while (!server->is_running() && !*ended) std::this_thread::yield();
    if (!*ended) return {};
    return Fail(Code::kSystem, "the HTTPS server stopped as soon as it began to serve",
                "check that the process has descriptors and memory left");
  }
};

void Places::GiveBack::operator()(Places* places) const {
  {
    const std::lock_guard lock(places->mutex_);
    ++places->free_;
  }
  places->freed_.notify_one();
}

Places::Place Places::Take(int timeout_s) {
  std::unique_lock lock(mutex_);
  const bool any =
      freed_.wait_for(lock, std::chrono::seconds(timeout_s), [this] { return free_ > 0; });
  if (!any) return nullptr;
  --free_;
  return Place(this);
}

Server::Server(Options options, const Admission* admission, MakeTemplate make,
               Certificates* certificates, Metrics* metrics)
    : options_(std::move(options)),
      admission_(admission),
      make_(std::move(make)),
      certificates_(certificates),
      metrics_(metrics) {}

Server::~Server() { Stop(); }

Result<void> Server::Start() {
  auto tls = std::make_unique<httplib::SSLServer>(
      [this](SSL_CTX& context) { return SetUpTls(&context, certificates_); });
  for (const auto& [path, call] : Calls()) {
    tls->Post(path, [this, call](const httplib::Request& request, httplib::Response& response,
                                 const httplib::ContentReader& read) {
      ReadAndHandle(call, request, read, response);
    });
  }
  tls->set_pre_routing_handler(CheckReview);
  https_ = std::make_unique<Listener>(std::move(tls), kConnections);
  const Result<int> port = https_->Listen(options_.address, options_.port);
  if (!port) return std::unexpected(port.error());
  port_ = *port;
  https_socket_ = https_->socket;
  if (auto serves = https_->Serve(); !serves) return serves;
  auto plain =
      http::Server::Start({.host = options_.address, .port = options_.http_port}, Probes());
  if (!plain) return std::unexpected(plain.error());
  http_ = std::move(*plain);
  http_port_ = http_->port();
  return {};
}

void Server::Drain() { draining_ = true; }

void Server::Stop() {
  http_.reset();  // First, because its answers use the HTTPS listener.
  https_.reset();
}

void Server::Failed(Endpoint endpoint, const httplib::Request& request, const std::string& why) {
  metrics_->Failed(endpoint);
  LogWarning("bad-request",
             {{"from", request.remote_addr}, {"path", request.path}, {"reason", why}});
}

void Server::ReadAndHandle(const Call& call, const httplib::Request& request,
                           const httplib::ContentReader& read, httplib::Response& response) {
  const auto refuse = [&](int status, const std::string& why) {
    Failed(call.endpoint, request, why);
    Refuse(status, why, response);
  };
  Places::Place place;
  if (LengthOf(request) > kLargeBodyBytes) {
    place = large_bodies_.Take(kReadTimeoutS);
    if (!place) {
      return refuse(503, Concat(kLargeBodies, " requests of more than ", kLargeBodyBytes,
                                " bytes are being read, the most at the same time; try again"));
    }
  }
  std::string body;
  if (!ReadBody(request, read, &body))
    return refuse(400, "the body is incomplete, too long, or too slow");
  Handle(call, request, body, response);
  AllowReads(request.ssl, kMaxHeadBytes);
}

void Server::Handle(const Call& call, const httplib::Request& request, std::string_view body,
                    httplib::Response& response) {
  const int64_t start_ns = MonotonicNs();
  if (draining_) response.set_header("Connection", "close");
  const bool large = body.size() > kLargeBodyBytes;
  std::unique_lock one_at_a_time(large_, std::defer_lock);
  if (large) one_at_a_time.lock();
  const Result<Answer> answer = Review(*admission_, call, body, make_);
  if (large) malloc_trim(0);
  if (!answer) {
    Failed(call.endpoint, request, answer.error().ToString());
    response.status = 400;
    response.set_content(answer.error().ToString() + "\n", kText);
    return;
  }
  response.set_content(answer->body, "application/json");
  metrics_->Answered(call.endpoint, *answer, static_cast<double>(MonotonicNs() - start_ns) * 1e-9);
  if (!answer->allowed) {
    LogInfo("pod-denied", {{"path", request.path},
                           {"pod", answer->pod},
                           {"owner", answer->owner},
                           {"outcome", answer->outcome},
                           {"reason", answer->reason}});
  }
}

http::Server::Paths Server::Probes() {
  const auto answer = [](const std::string& why_not) {
    return http::Answer{.status = why_not.empty() ? 200 : 503,
                        .body = (why_not.empty() ? "ok" : why_not) + "\n",
                        .headers = {}};
  };
  // The HTTPS listener has ended although nobody stopped it.
  const auto deaf = [this] {
    return draining_ || IsListening(https_socket_) ? "" : "the HTTPS listener has stopped";
  };
  http::Server::Paths paths;
  paths["/healthz"] = [=](const http::Request&) { return answer(deaf()); };
  paths["/readyz"] = [=, this](const http::Request&) {
    std::string why = deaf();
    if (draining_) why = "draining";
    if (certificates_->expires_s() < std::time(nullptr)) why = "the certificate has expired";
    return answer(why);
  };
  paths["/metrics"] = [this](const http::Request&) {
    return http::Answer{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                        .body = metrics_->Text(),
                        .headers = {}};
  };
  return paths;
}

}  // namespace gpushm::injector
