#include "platform/daemon/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <thread>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/log.h"

namespace gpushm::http {
namespace {

// How long the kernel keeps connections on which the caller has sent nothing yet.
constexpr int kSilentS = 30;
constexpr int kBacklog = 1024;
// Pause after descriptors or memory have run out.
constexpr int kAcceptPauseMs = 100;
// How often a thread that waits for its caller looks whether others wait for the thread.
constexpr int kLookMs = 50;

// What is asked of a server at the moment.
struct Load {
  const size_t threads;
  std::atomic<size_t> callers = 0;
  std::atomic<bool> draining = false;
  std::atomic<bool> stopping = false;
  // Whether somebody waits for a thread.
  bool crowded() const { return callers > threads || stopping; }
};

// Ubuntu 22.04's httplib does not have this function, so it cannot be `override`.
class AnyStream : public httplib::Stream {
 public:
  // NOLINTNEXTLINE(modernize-use-override)
  virtual void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const {}
};

// A connection: httplib reads requests from it and writes answers to it.
class Caller : public AnyStream {
 public:
  Caller(UniqueFd socket, SSL_CTX* tls, const Load* load)
      : load_(load), socket_(std::move(socket)), tls_(tls != nullptr ? SSL_new(tls) : nullptr) {}

  // The handshake.
  bool Greet() {
    if (!tls_) return true;
    Begin(kReadMs, "is too slow");
    SSL_set_fd(tls_.get(), socket_.get());
    return Repeat(POLLIN, [this] { return SSL_accept(tls_.get()); }) == 1;
  }
  // Waits for a request; false: none comes.
  bool Next() {
    Begin(kReadMs, nullptr);
    if (begin_ == end_ && !Fill()) return false;
    Begin(kReadMs, "is too slow");
    left_ = kMaxHeadBytes;
    return true;
  }
  // The head has arrived, and `bytes` follow.
  void BeginBody(size_t bytes) { left_ = bytes; }
  bool ReadBody(std::string* body) {
    Begin(kReadMs, "is too slow");
    body->reserve(left_);
    std::array<char, 4096> chunk{};
    while (left_ > 0) {
      const ssize_t got = read(chunk.data(), std::min(chunk.size(), left_));
      if (got <= 0) return false;
      body->append(chunk.data(), static_cast<size_t>(got));
    }
    return true;
  }
  void BeginAnswer() { Begin(kAnswerMs, "does not read its answer"); }
  // Whether bytes of the request were not read, so that the next ones are not a request.
  bool unread() const { return left_ > 0; }
  bool last = false;  // The connection ends with this answer.
  void End() {
    if (tls_) SSL_shutdown(tls_.get());
  }

  bool is_readable() const override { return true; }  // The calls below wait themselves.
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    if (left_ == 0) {
      CutOff("sends too much");
      return -1;
    }
    if (begin_ == end_ && !Fill()) return -1;
    size = std::min({size, end_ - begin_, left_});
    std::memcpy(to, bytes_.data() + begin_, size);
    begin_ += size;
    left_ -= size;
    return static_cast<ssize_t>(size);
  }
  // httplib has set SIGPIPE to be ignored, which SSL_write needs.
  ssize_t write(const char* from, size_t size) override {
    return Repeat(POLLOUT, [&]() -> ssize_t {
      if (tls_) return SSL_write(tls_.get(), from, static_cast<int>(std::min(size, kMostBytes)));
      return send(socket_.get(), from, size, MSG_NOSIGNAL);
    });
  }
  void get_remote_ip_and_port(std::string& ip, int& /*port*/) const override { ip = Address(); }
  // httplib compares it with FD_SETSIZE, for its own waits. These here use poll.
  socket_t socket() const override { return 0; }

 private:
  static constexpr size_t kMostBytes = 1 << 30;
  struct Free {
    void operator()(SSL* tls) const { SSL_free(tls); }
  };

  // `complaint`: what the log says if it takes longer; null: nothing.
  void Begin(int64_t limit_ms, const char* complaint) {
    since_ns_ = moved_ns_ = MonotonicNs();
    limit_ms_ = limit_ms;
    complaint_ = complaint;
  }
  bool Fill() {
    const ssize_t got = Repeat(POLLIN, [this]() -> ssize_t {
      if (tls_) return SSL_read(tls_.get(), bytes_.data(), static_cast<int>(bytes_.size()));
      return recv(socket_.get(), bytes_.data(), bytes_.size(), 0);
    });
    begin_ = 0;
    end_ = static_cast<size_t>(std::max(got, ssize_t{0}));
    return got > 0;
  }
  // Calls until it moves bytes, and returns how many; -1: the connection ended, or took too long.
  template <typename Call>
  ssize_t Repeat(short events, const Call& call) {
    for (;;) {
      ERR_clear_error();  // SSL_get_error also looks at what former calls left.
      const ssize_t moved = call();
      if (moved > 0) {
        moved_ns_ = MonotonicNs();
        return moved;
      }
      if (tls_) {
        const int why = SSL_get_error(tls_.get(), static_cast<int>(moved));
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) return -1;
        events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
      } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
        return -1;
      }
      if (!Wait(events)) return -1;
    }
  }
  bool Wait(short events) const {
    const int64_t now_ns = MonotonicNs();
    if ((now_ns - since_ns_) / 1'000'000 >= limit_ms_) return CutOff(complaint_);
    const int64_t waited_ms = (now_ns - moved_ns_) / 1'000'000;
    if (load_->crowded() && waited_ms >= (tls_ ? kCrowdedTlsMs : kCrowdedMs)) {
      return CutOff(complaint_ != nullptr ? "others wait for its place" : nullptr);
    }
    pollfd wanted{.fd = socket_.get(), .events = events, .revents = 0};
    poll(&wanted, 1, kLookMs);
    return true;
  }
  bool CutOff(const char* why) const {
    if (why != nullptr) LogWarning("caller-cut-off", {{"from", Address()}, {"reason", why}});
    return false;
  }
  std::string Address() const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    std::array<char, NI_MAXHOST> host{};
    if (getpeername(socket_.get(), any, &size) == 0) {
      getnameinfo(any, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
    }
    return host.data();
  }

  const Load* const load_;
  const UniqueFd socket_;
  const std::unique_ptr<SSL, Free> tls_;  // Null: plain HTTP.
  int64_t since_ns_ = 0;                  // When the phase began.
  int64_t moved_ns_ = 0;                  // When bytes last moved.
  int64_t limit_ms_ = 0;
  const char* complaint_ = nullptr;
  size_t left_ = 0;                 // What may still be read of the head, or of the body.
  std::array<char, 4096> bytes_{};  // Bytes from begin_ to end_ have not been read yet.
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Whom this thread serves, because httplib does not pass it to its handlers.
thread_local Caller* current = nullptr;

bool IsAddress(const std::string& host) {
  in6_addr any{};
  return inet_pton(AF_INET6, host.c_str(), &any) == 1 ||
         inet_pton(AF_INET, host.c_str(), &any) == 1;
}

}  // namespace

class Server::Impl : private httplib::Server {
 public:
  Impl(const http::Server::Options& options, Paths paths)
      : options_(options),
        paths_(std::move(paths)),
        load_{.threads = options_.callers},
        places_(static_cast<ptrdiff_t>(2 * options_.callers)),
        pool_(options_.callers) {
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Route(request, response);
      return HandlerResponse::Handled;
    });
  }
  ~Impl() override {
    load_.stopping = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
    if (accepts_.joinable()) accepts_.join();
    pool_.shutdown();
  }

  // Returns the port.
  Result<int> Listen() {
    const std::string& host = options_.host;
    if (!host.empty() && !IsAddress(host)) {
      return Fail(Code::kInvalidArgument, Concat("\"", host, "\" is not an IP address"),
                  "give an address of this machine, or leave it empty for all addresses");
    }
    set_tcp_nodelay(true);  // Accepted sockets inherit it.
    set_socket_options([](int made) {
      const int yes = 1;
      setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      setsockopt(made, IPPROTO_TCP, TCP_DEFER_ACCEPT, &kSilentS, sizeof kSilentS);
      fcntl(made, F_SETFL, O_NONBLOCK);
    });
    int port = Bind(host.empty() ? "::" : host);
    if (port < 0 && host.empty()) port = Bind("0.0.0.0");  // A machine may lack IPv6.
    if (port < 0) {
      return FailSystem(errno,
                        Concat("cannot listen on port ", options_.port, " of ",
                               host.empty() ? "any address" : host),
                        "choose a free port and an address of this machine");
    }
    listener_.Reset(svr_sock_);  // httplib also reads from it whether it is stopping.
    ::listen(listener_.get(), kBacklog);
    accepts_ = std::thread([this] { AcceptCallers(); });
    return port;
  }
  void Drain() { load_.draining = true; }

 private:
  int Bind(const std::string& host) {
    if (options_.port == 0) return bind_to_any_port(host.c_str());
    return bind_to_port(host.c_str(), options_.port) ? options_.port : -1;
  }
  void AcceptCallers() {
    std::array<pollfd, 2> wanted{{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = stop_.get(), .events = POLLIN, .revents = 0}}};
    for (;;) {
      places_.acquire();
      UniqueFd caller;
      while (!caller) {
        poll(wanted.data(), wanted.size(), -1);
        if (load_.stopping) return;
        caller.Reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!caller && errno != EAGAIN && errno != EINTR) {
          poll(&wanted[1], 1, kAcceptPauseMs);  // Temporary: a descriptor will be closed some time.
        }
      }
      ++load_.callers;
      pool_.enqueue([this, socket = caller.Release()] {
        Serve(UniqueFd(socket));
        --load_.callers;
        places_.release();
      });
    }
  }

  void Serve(UniqueFd socket) {
    Caller caller(std::move(socket), options_.tls, &load_);
    if (load_.stopping || !caller.Greet()) return;
    current = &caller;
    while (!caller.last && caller.Next()) {
      caller.last = options_.max_body_bytes == 0 || load_.draining || load_.crowded();
      bool closed = false;
      const bool answered = process_request(caller, caller.last, closed, /*setup_request=*/nullptr);
      caller.last = caller.last || closed || !answered || caller.unread();
    }
    current = nullptr;
    caller.End();
  }

  static void Give(const Answer& answer, httplib::Response& response) {
    response.status = answer.status;
    response.set_header("Cache-Control", "no-store");
    response.set_header("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : answer.headers) response.set_header(name.c_str(), value);
    const std::string type(answer.content_type);
    if (answer.body.text()->empty()) return response.set_content("", type.c_str());
    response.set_content_provider(
        answer.body.text()->size(), type.c_str(),
        [text = answer.body.text()](size_t offset, size_t size, httplib::DataSink& to) {
          return to.write(text->data() + offset, size);
        });
  }

  static Answer Refuse(int status, const std::string& why) {
    return {.status = status, .body = why + "\n", .headers = {}};
  }
  Answer AnswerTo(const httplib::Request& request, size_t body_bytes) const {
    const bool posts = options_.max_body_bytes > 0;
    if (posts ? request.method != "POST" : request.method != "GET" && request.method != "HEAD") {
      Answer answer = Refuse(405, posts ? "only POST is allowed" : "only GET and HEAD are allowed");
      answer.headers = {{"Allow", posts ? "POST" : "GET, HEAD"}};
      return answer;
    }
    const bool chunked = request.has_header("Transfer-Encoding");
    if (posts && (chunked || !request.has_header("Content-Length"))) {
      return Refuse(411, "send the body's length in Content-Length");
    }
    if (posts && request.has_header("Content-Encoding")) {
      return Refuse(415, "send the body without Content-Encoding");
    }
    if (!posts && body_bytes > 0) return Refuse(413, "a request must not have a body");
    if (body_bytes > options_.max_body_bytes) {
      return Refuse(413, Concat("the body has ", body_bytes, " bytes; it may have at most ",
                                options_.max_body_bytes));
    }
    if (!request.ranges.empty()) return Refuse(416, "ranges are not supported");
    const auto found = paths_.find(request.path);
    if (found == paths_.end()) return Refuse(404, "not found");
    return found->second(
        {.host = request.get_header_value("Host"),
         .from = request.remote_addr,
         .body_bytes = body_bytes,
         .read_body = [caller = current](std::string* body) { return caller->ReadBody(body); }});
  }
  void Route(const httplib::Request& request, httplib::Response& response) const {
    Caller* const caller = current;
    size_t body_bytes =
        std::strtoull(request.get_header_value("Content-Length").c_str(), nullptr, 10);
    // Its length is not known, and nobody reads it.
    if (request.has_header("Transfer-Encoding")) body_bytes = 1;
    caller->BeginBody(body_bytes);
    Give(AnswerTo(request, body_bytes), response);
    // httplib writes the header if it was told before.
    if (caller->unread() && !caller->last) response.set_header("Connection", "close");
    caller->BeginAnswer();
  }

  const UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  UniqueFd listener_;
  const http::Server::Options options_;
  const Paths paths_;
  Load load_;
  std::counting_semaphore<> places_;  // With a thread or waiting for one.
  httplib::ThreadPool pool_;
  std::thread accepts_;
};

Result<std::unique_ptr<Server>> Server::Start(const Options& options, Paths paths) {
  auto impl = std::make_unique<Impl>(options, std::move(paths));
  const Result<int> port = impl->Listen();
  if (!port) return std::unexpected(port.error());
  return std::unique_ptr<Server>(new Server(std::move(impl), *port));
}

Server::Server(std::unique_ptr<Impl> impl, int port) : impl_(std::move(impl)), port_(port) {}

Server::~Server() = default;

void Server::Drain() { impl_->Drain(); }

bool IsLocalHost(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(0, host.find(']') + 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

}  // namespace gpushm::http
