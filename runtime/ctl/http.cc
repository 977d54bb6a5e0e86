#include "runtime/ctl/http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <memory>

#include "platform/base/unique_fd.h"
#include "runtime/ctl/format.h"

namespace gpushm::ctl {
namespace {

// The longest part of a foreign text that a message repeats: a host name has at most 253.
constexpr size_t kExcerptBytes = 255;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Text of a server or a user, as part of a message.
std::string Excerpt(std::string_view text) { return Printable(text.substr(0, kExcerptBytes)); }

// Waits until `fd` is ready for `events`. A signal does not end the wait.
Result<void> Await(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, deadline.RemainingMs());
    if (ready > 0) return {};
    if (ready == 0)
      return Fail(Code::kTimeout, "the server did not answer in time", "use a longer --timeout");
    if (errno != EINTR) return FailSystem(errno, "poll");
  }
}

Result<UniqueFd> Connect(const addrinfo& address, const Deadline& deadline) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return FailSystem(errno, "socket");
  int error = 0;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    if (auto ready = Await(fd.get(), POLLOUT, deadline); !ready) {
      return std::unexpected(ready.error());
    }
    socklen_t size = sizeof error;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  if (error != 0) return FailSystem(error, "connect");
  return fd;
}

Result<void> SendAll(int fd, std::string_view text, const Deadline& deadline) {
  while (!text.empty()) {
    if (auto ready = Await(fd, POLLOUT, deadline); !ready) return ready;
    const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return FailSystem(errno, "send");
    if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
  }
  return {};
}

Result<std::string> ReceiveAll(int fd, const Deadline& deadline) {
  std::string answer;
  std::array<char, 1 << 16> part;
  for (;;) {
    if (auto ready = Await(fd, POLLIN, deadline); !ready) return std::unexpected(ready.error());
    const ssize_t received = recv(fd, part.data(), part.size(), 0);
    if (received < 0 && errno != EAGAIN && errno != EINTR) return FailSystem(errno, "recv");
    if (received == 0) return answer;
    if (received > 0) answer.append(part.data(), static_cast<size_t>(received));
    if (answer.size() > kMaxAnswerBytes) {
      return Fail(Code::kCorrupt,
                  Concat("the server's answer is too long: ", answer.size(),
                         " bytes so far; the limit is ", kMaxAnswerBytes),
                  "check that this is the plugin's port");
    }
  }
}

Result<std::string> Exchange(const addrinfo& address, std::string_view request,
                             const Deadline& deadline) {
  const Result<UniqueFd> fd = Connect(address, deadline);
  if (!fd) return std::unexpected(fd.error());
  if (auto sent = SendAll(fd->get(), request, deadline); !sent) {
    return std::unexpected(sent.error());
  }
  return ReceiveAll(fd->get(), deadline);
}

// The value of a header line; "" if there is no such line.
std::string_view Header(std::string_view head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != head.npos; at = head.find("\r\n", at)) {
    at += 2;
    const std::string_view line = head.substr(at, head.find("\r\n", at) - at);
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
    const auto same = [&](char a, char b) { return lower(a) == lower(b); };
    if (!std::ranges::equal(line.substr(0, name.size()), name, same)) continue;
    std::string_view value = line.substr(name.size() + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    return value;
  }
  return {};
}

}  // namespace

Result<Address> ParseAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, std::min(colon, text.size()));
  const std::string_view port = colon == text.npos ? "" : text.substr(colon + 1);
  if (host == "localhost") host = "127.0.0.1";
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  Address address{.host = std::string(host), .port = std::string(port)};
  if (host.empty() || port.empty() ||
      getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0) {
    return Fail(Code::kInvalidArgument, Concat("\"", text, "\" is not an address"),
                "use a form such as 127.0.0.1:9401, [::1]:9401 or localhost:9401");
  }
  freeaddrinfo(found);
  return address;
}

Result<std::string> BodyOf(std::string_view answer) {
  const size_t end = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.") || end == answer.npos) {
    return Fail(Code::kCorrupt, "the answer is not HTTP", "check that this is the plugin's port");
  }
  const std::string_view head = answer.substr(0, end);
  const std::string_view body = answer.substr(end + 4);
  const std::string_view line = head.substr(0, head.find("\r\n"));
  if (line.substr(std::min(line.find(' '), line.size())).substr(0, 5) != " 200 ") {
    return Fail(Code::kUnavailable, Concat("the server answered: ", Excerpt(line)),
                "check that this is the plugin's port, and that the plugin is ready");
  }
  const std::string_view length = Header(head, "Content-Length");
  size_t expected = body.size();
  std::from_chars(length.data(), length.data() + length.size(), expected);
  if (expected != body.size()) {
    return Fail(Code::kCorrupt,
                Concat("the answer was cut off: it has ", body.size(), " of ", expected, " bytes"),
                "try again");
  }
  return std::string(body);
}

Result<std::string> HttpGet(const Address& address, std::string_view path,
                            const Deadline& deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0) {
    return Fail(Code::kInvalidArgument,
                Concat("\"", Excerpt(address.host), "\" port \"", Excerpt(address.port),
                       "\" is not a numeric address"),
                "use a form such as 127.0.0.1:9401 or [::1]:9401");
  }
  const Addresses addresses(found, &freeaddrinfo);
  // In the form that URLs use. The plugin accepts only loopback's name as Host.
  const bool v6 = address.host.find(':') != std::string::npos;
  const std::string where = Concat(v6 ? "[" : "", address.host, v6 ? "]" : "", ":", address.port);
  const std::string request =
      Concat("GET ", path, " HTTP/1.0\r\nHost: ", where, "\r\nAccept: application/json\r\n\r\n");
  const Result<std::string> answer = Exchange(*addresses, request, deadline);
  if (answer) {
    auto body = BodyOf(*answer);
    if (!body) return std::unexpected(body.error().WithContext(where));
    return body;
  }
  if (answer.error().sys_errno() == ECONNREFUSED) {
    return Fail(Code::kUnavailable, Concat("no server listens at ", where),
                "run gpushmctl in the plugin's pod, "
                "or port-forward the plugin's port and use --node HOST:PORT");
  }
  return std::unexpected(answer.error().WithContext(where));
}

}  // namespace gpushm::ctl
