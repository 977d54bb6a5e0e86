#include "sidecar/injector/plain_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "runtime/base/clock.h"
#include "sidecar/injector/read_limit.h"

namespace gpushm::injector {
namespace {

class Connection : public httplib::Stream {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  bool is_readable() const override { return begin_ < end_ || Wait(POLLIN); }
  bool is_writable() const override { return Wait(POLLOUT); }

  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_) {
      const bool too_much = left_ == 0;
      if (too_much || !Wait(POLLIN)) {
        LogCutOff(socket_, too_much);
        return -1;
      }
      const ssize_t got = recv(socket_, bytes_.data(), std::min(bytes_.size(), left_), 0);
      if (got <= 0) return got;
      begin_ = 0;
      end_ = static_cast<size_t>(got);
      left_ -= end_;
    }
    size = std::min(size, end_ - begin_);
    std::memcpy(to, bytes_.data() + begin_, size);
    begin_ += size;
    return static_cast<ssize_t>(size);
  }

  ssize_t write(const char* from, size_t size) override {
    return Wait(POLLOUT) ? send(socket_, from, size, MSG_NOSIGNAL) : -1;
  }

  socket_t socket() const override { return socket_; }
  // Nobody asks.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}

 private:
  bool Wait(short events) const {
    pollfd wanted{.fd = socket_, .events = events, .revents = 0};
    return poll(&wanted, 1, deadline_.RemainingMs()) == 1;
  }

  const int socket_;
  const Deadline deadline_ = Deadline::AfterMs(kMaxReadS * 1000);
  size_t left_ = kMaxPlainBytes;
  std::array<char, 4096> bytes_{};  // From begin_ to end_: those that nobody has read yet.
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace

bool PlainServer::process_and_close_socket(socket_t socket) {
  Connection connection(socket);
  bool closed = false;
  const bool answered =
      process_request(connection, /*close_connection=*/true, closed, /*setup_request=*/nullptr);
  shutdown(socket, SHUT_RDWR);
  close(socket);
  return answered;
}

}  // namespace gpushm::injector
