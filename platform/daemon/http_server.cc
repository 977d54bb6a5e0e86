#include "platform/daemon/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/http_connections.h"
#include "platform/daemon/log.h"

namespace gpushm::http {
namespace {

// How long the kernel keeps connections on which the caller has sent nothing yet.
constexpr int kSilentS = 30;
constexpr int kBacklog = 1024;
// Pause after descriptors or memory have run out.
constexpr int kAcceptPauseMs = 100;
constexpr char kText[] = "text/plain; charset=utf-8";

// httplib reads a request from it and writes the answer to it.
class Stream : public httplib::Stream {
 public:
  Stream(Connections* connections, Connections::Place place)
      : connections_(connections), place_(place) {}

  void BeginAnswer() { deadline_ = Deadline::AfterMs(kAnswerMs); }

  bool is_readable() const override { return begin_ < end_ || Wait(POLLIN); }
  bool is_writable() const override { return Wait(POLLOUT); }

  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_ && !Fill()) return -1;
    size = std::min(size, end_ - begin_);
    std::memcpy(to, bytes_.data() + begin_, size);
    begin_ += size;
    return static_cast<ssize_t>(size);
  }
  ssize_t write(const char* from, size_t size) override {
    if (!Wait(POLLOUT)) return -1;
    const ssize_t sent = send(socket(), from, size, MSG_NOSIGNAL);
    if (sent > 0) connections_->Moved(place_);
    return sent;
  }

  socket_t socket() const override { return place_->socket.get(); }
  // Nobody calls these.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}

 private:
  bool Wait(short events) const {
    pollfd wanted{.fd = socket(), .events = events, .revents = 0};
    if (poll(&wanted, 1, deadline_.RemainingMs()) == 1) return true;
    LogCutOff(socket(), events == POLLIN ? "is too slow" : "does not read its answer");
    return false;
  }
  bool Fill() {
    if (left_ == 0) {
      LogCutOff(socket(), "sends too much");
      return false;
    }
    if (!Wait(POLLIN)) return false;
    const ssize_t got = recv(socket(), bytes_.data(), std::min(bytes_.size(), left_), 0);
    if (got <= 0) return false;
    connections_->Moved(place_);
    begin_ = 0;
    end_ = static_cast<size_t>(got);
    left_ -= end_;
    return true;
  }

  Connections* const connections_;
  const Connections::Place place_;
  Deadline deadline_ = Deadline::AfterMs(kHeadMs);
  size_t left_ = kMaxHeadBytes;
  std::array<char, 4096> bytes_{};  // Bytes from begin_ to end_ have not been read yet.
  size_t begin_ = 0;
  size_t end_ = 0;
};

// ---- listening

Result<UniqueFd> ListenOn(const sockaddr* address, socklen_t size) {
  UniqueFd fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return FailSystem(errno, "socket");
  const int yes = 1;
  const int no = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // Accepted sockets inherit it.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &kSilentS, sizeof kSilentS);
  if (address->sa_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  }
  if (bind(fd.get(), address, size) != 0) return FailSystem(errno, "bind");
  if (listen(fd.get(), kBacklog) != 0) return FailSystem(errno, "listen");
  return fd;
}

Result<UniqueFd> Listen(const std::string& host, int port) {
  const auto port_number = htons(static_cast<uint16_t>(port));
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = port_number;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = port_number;
  const auto listen_six = [&] { return ListenOn(reinterpret_cast<sockaddr*>(&six), sizeof six); };
  const auto listen_four = [&] {
    return ListenOn(reinterpret_cast<sockaddr*>(&four), sizeof four);
  };
  Result<UniqueFd> listener;
  if (host.empty()) {
    listener = listen_six();
    if (!listener) listener = listen_four();  // A machine may lack IPv6.
  } else if (inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) {
    listener = listen_six();
  } else if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    listener = listen_four();
  } else {
    return Fail(Code::kInvalidArgument, Concat("\"", host, "\" is not an IP address"),
                "give an address of this machine, or leave it empty for all addresses");
  }
  if (listener) return listener;
  return Fail(Code::kSystem,
              Concat("cannot listen on port ", port, " of ", host.empty() ? "any address" : host,
                     ": ", listener.error().what()),
              "choose a free port and an address of this machine");
}

int PortOf(int listener) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  // Both families have the port at the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

class Server::Impl : private httplib::Server {
 public:
  Impl(UniqueFd listener, size_t connections, Paths paths)
      : listener_(std::move(listener)), paths_(std::move(paths)), connections_(connections) {
    svr_sock_ = listener_.get();  // Without a socket httplib assumes that it is stopping.
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Route(request, response);
      return HandlerResponse::Handled;
    });
    for (size_t i = 0; i < connections; ++i) threads_.emplace_back([this] { ServeCallers(); });
    threads_.emplace_back([this] { AcceptCallers(); });
  }
  ~Impl() override {
    connections_.Stop();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void AcceptCallers() {
    std::array<pollfd, 2> wanted{{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = stop_.get(), .events = POLLIN, .revents = 0}}};
    for (;;) {
      poll(wanted.data(), wanted.size(), -1);
      // Called only now, so that no connection loses its place while nobody waits for it.
      if (wanted[1].revents != 0 || !connections_.MakeRoom()) return;
      UniqueFd caller(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (caller) {
        connections_.Add(std::move(caller));
      } else if (errno != EAGAIN && errno != EINTR) {
        poll(&wanted[1], 1,
             kAcceptPauseMs);  // Temporary: a descriptor will be closed at some time.
      }
    }
  }

  void ServeCallers() {
    while (const std::optional<Connections::Place> place = connections_.Take()) {
      {
        Stream stream(&connections_, *place);
        current_ = {&stream, *place};
        bool closed = false;
        process_request(stream, /*close_connection=*/true, closed, /*setup_request=*/nullptr);
      }
      shutdown((*place)->socket.get(), SHUT_RDWR);
      connections_.Remove(*place);
    }
  }

  static void Give(const Answer& answer, httplib::Response& response) {
    response.status = answer.status;
    response.set_header("Cache-Control", "no-store");
    response.set_header("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : answer.headers) response.set_header(name, value);
    const std::string type(answer.content_type);
    if (answer.body.text()->empty()) return response.set_content("", type);
    response.set_content_provider(
        answer.body.text()->size(), type,
        [text = answer.body.text()](size_t offset, size_t size, httplib::DataSink& to) {
          return to.write(text->data() + offset, size);
        });
  }

  // The body of a request is never read, so its connection ends with the answer.
  Answer AnswerTo(const httplib::Request& request) const {
    if (request.method != "GET" && request.method != "HEAD") {
      return {.status = 405,
              .content_type = kText,
              .body = "only GET and HEAD are allowed\n",
              .headers = {{"Allow", "GET, HEAD"}}};
    }
    const std::string length = request.get_header_value("Content-Length");
    if ((!length.empty() && length != "0") || request.has_header("Transfer-Encoding")) {
      return {.status = 413, .body = "a request must not have a body\n", .headers = {}};
    }
    if (!request.ranges.empty()) {
      return {.status = 416, .body = "ranges are not supported\n", .headers = {}};
    }
    const auto found = paths_.find(request.path);
    if (found == paths_.end()) return {.status = 404, .body = "not found\n", .headers = {}};
    return found->second({.host = request.get_header_value("Host")});
  }

  void Route(const httplib::Request& request, httplib::Response& response) {
    connections_.SetInHandler(current_.place, true);
    Give(AnswerTo(request), response);
    current_.stream->BeginAnswer();
    connections_.SetInHandler(current_.place, false);
  }

  // What this thread serves, because httplib passes neither to its handlers.
  struct Current {
    Stream* stream = nullptr;
    Connections::Place place;
  };
  static thread_local Current current_;

  const UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  const UniqueFd listener_;
  const Paths paths_;
  Connections connections_;
  std::vector<std::thread> threads_;
};

thread_local Server::Impl::Current Server::Impl::current_;

Result<std::unique_ptr<Server>> Server::Start(const Options& options, Paths paths) {
  Result<UniqueFd> listener = Listen(options.host, options.port);
  if (!listener) return std::unexpected(listener.error());
  const int port = PortOf(listener->get());
  return std::unique_ptr<Server>(new Server(
      std::make_unique<Impl>(std::move(*listener), options.connections, std::move(paths)), port));
}

Server::Server(std::unique_ptr<Impl> impl, int port) : impl_(std::move(impl)), port_(port) {}

Server::~Server() = default;

bool IsLocalHost(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(0, host.find(']') + 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

void LogCutOff(int socket, std::string_view why) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  std::array<char, NI_MAXHOST> host{};
  if (getpeername(socket, any, &size) == 0) {
    getnameinfo(any, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  }
  LogWarning("caller-cut-off", {{"from", host.data()}, {"reason", why}});
}

}  // namespace gpushm::http
