// Goal: the server gives the correct answers and refusals, and nobody can block it.
// Method: real sockets on loopback.
#include "platform/daemon/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing/must.h"
#include "platform/base/unique_fd.h"

namespace gpushm::http {
namespace {

using ::gpushm::testing::Must;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kPlaces = 4;
constexpr std::chrono::milliseconds kPace{5};
constexpr size_t kLargeBytes = 32 << 20;  // More than the kernel buffers for a caller.

UniqueFd ConnectTo(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{.tv_sec = 30, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.Reset();
  }
  return fd;
}

// Reads until the server closes the connection.
std::string ReadAll(const UniqueFd& fd) {
  std::string answer;
  std::vector<char> chunk(65536);
  for (ssize_t n = 0; (n = read(fd.get(), chunk.data(), chunk.size())) > 0;) {
    answer.append(chunk.data(), static_cast<size_t>(n));
  }
  return answer;
}

bool Tell(const UniqueFd& fd, std::string_view text) {
  return send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override { SetUpOn(0); }
  void SetUpOn(int port) {
    Server::Paths paths;
    paths["/page"] = [](const Request& request) {
      return Answer{
          .content_type = "text/html", .body = request.host, .headers = {{"X-More", "yes"}}};
    };
    paths["/large"] = [large = large_](const Request&) {
      return Answer{.body = large, .headers = {}};
    };
    auto started =
        Server::Start({.host = "127.0.0.1", .port = port, .callers = kPlaces}, std::move(paths));
    ASSERT_TRUE(started) << started.error().ToString();
    server_ = std::move(*started);
    ASSERT_GT(server_->port(), 0);
  }

  UniqueFd Connect() const {
    UniqueFd fd = ConnectTo(server_->port());
    EXPECT_TRUE(fd);
    return fd;
  }
  std::string Ask(const std::string& request) const {
    const UniqueFd fd = Connect();
    EXPECT_TRUE(Tell(fd, request));
    return ReadAll(fd);
  }
  std::string Get(const std::string& path) const {
    return Ask("GET " + path + " HTTP/1.0\r\nHost: localhost:1\r\nAccept: a/b\r\n\r\n");
  }

  const std::shared_ptr<const std::string> large_ =
      std::make_shared<const std::string>(kLargeBytes, 'x');
  std::unique_ptr<Server> server_;
};

TEST_F(HttpServerTest, AnswersWithHeaders) {
  const std::string answer = Get("/page");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/html\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nX-More: yes\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\nlocalhost:1"));
}

TEST_F(HttpServerTest, LargeAnswersAreWhole) {
  const std::string answer = Get("/large");
  EXPECT_TRUE(answer.ends_with("\r\n\r\n" + *large_)) << answer.size();
}

TEST_F(HttpServerTest, OtherPathsAndMethodsAreRefused) {
  for (const char* const path : {"/", "/pag", "/page/", "/../etc/passwd", "/%2e%2e/etc/passwd"}) {
    EXPECT_THAT(Get(path), HasSubstr(" 404 ")) << path;
  }
  EXPECT_THAT(Ask("POST /page HTTP/1.0\r\nContent-Length: 0\r\n\r\n"), HasSubstr(" 405 "));
  EXPECT_THAT(Ask("PUT /page HTTP/1.0\r\nContent-Length: 0\r\n\r\n"), HasSubstr(" 405 "));
  EXPECT_TRUE(Ask("HEAD /page HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), HasSubstr(" 400 "));
}

TEST_F(HttpServerTest, BodiesAreRefusedUnread) {
  for (const char* const header : {"Content-Length: 10", "Transfer-Encoding: chunked"}) {
    const std::string head = std::string(" /page HTTP/1.1\r\nHost: a\r\n") + header + "\r\n\r\n";
    EXPECT_THAT(Ask("GET" + head), StartsWith("HTTP/1.1 413 ")) << header;
    EXPECT_THAT(Ask("POST" + head), StartsWith("HTTP/1.1 405 ")) << header;
  }
}

TEST_F(HttpServerTest, OneRequestForEachConnection) {
  const std::string answer =
      Ask("GET /page HTTP/1.1\r\nHost: a\r\n\r\nGET /page HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos);
}

TEST_F(HttpServerTest, AHeadWithoutAnEndIsCutOff) {
  const UniqueFd caller = Connect();
  EXPECT_TRUE(Tell(caller, "GET /page HTTP/1.1\r\nA: " + std::string(kMaxHeadBytes, 'a')));
  EXPECT_EQ(ReadAll(caller).find("200"), std::string::npos);
}

// Goal: the server does not wait for a caller that sends a byte now and then.
// Method: the caller continues until it is cut off.
TEST_F(HttpServerTest, ASlowHeadIsCutOff) {
  const UniqueFd caller = Connect();
  const Deadline deadline = Deadline::AfterMs(60'000);
  while (Tell(caller, "G") && !deadline.Passed()) {
    pollfd ended{.fd = caller.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, 100) == 1) break;
  }
  EXPECT_FALSE(deadline.Passed());
}

// Callers that send a byte every few milliseconds while the object lives.
class Dribblers {
 public:
  Dribblers(int port, size_t number, const std::string& head) {
    for (size_t i = 0; i < number; ++i) {
      callers_.push_back(ConnectTo(port));
      Tell(callers_.back(), head);
    }
    thread_ = std::thread([this] {
      while (!ended_) {
        for (const UniqueFd& caller : callers_) Tell(caller, "x");
        std::this_thread::sleep_for(kPace);  // sleep: somebody who sends a byte now and then.
      }
    });
  }
  ~Dribblers() {
    ended_ = true;
    thread_.join();
  }

 private:
  std::vector<UniqueFd> callers_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// Goal: callers that never finish, and that are more than the places, keep nobody else out.
TEST_F(HttpServerTest, CallersThatDribbleKeepNobodyOut) {
  for (const char* const head :
       {"G", "GET /page HTTP/1.1\r\nHost: a\r\nA: ",
        "GET /page HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
        "POST /page HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"}) {
    const Dribblers dribblers(server_->port(), 4 * kPlaces, head);
    for (int i = 0; i < 5; ++i) EXPECT_THAT(Get("/page"), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
}

TEST_F(HttpServerTest, CallersThatTakeNoAnswerKeepNobodyOut) {
  std::vector<UniqueFd> callers;
  for (size_t i = 0; i < 4 * kPlaces; ++i) {
    callers.push_back(Connect());
    EXPECT_TRUE(Tell(callers.back(), "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"));
  }
  EXPECT_THAT(Get("/page"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(Get("/large").ends_with(*large_));
}

// Goal: answers share their body.
// Method: it is freed after the last answer, not before.
TEST_F(HttpServerTest, ABodyIsFreedWithItsLastAnswer) {
  auto page = std::make_shared<const std::string>(kLargeBytes, 'x');
  const std::weak_ptr<const std::string> kept = page;
  Server::Paths paths;
  paths["/"] = [&page](const Request&) { return Answer{.body = page, .headers = {}}; };
  auto server = Must(Server::Start({.host = "127.0.0.1"}, std::move(paths)));
  std::vector<UniqueFd> callers;
  for (int i = 0; i < 3; ++i) {
    callers.push_back(ConnectTo(server->port()));
    EXPECT_TRUE(Tell(callers.back(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    std::array<char, 1> first{};
    EXPECT_EQ(read(callers.back().get(), first.data(), 1), 1);
  }
  page.reset();
  EXPECT_FALSE(kept.expired());
  for (const UniqueFd& caller : callers) EXPECT_TRUE(ReadAll(caller).ends_with("xxx"));
  server.reset();
  EXPECT_TRUE(kept.expired());
}

// Goal: with as many callers as places, all are served, however slow they are, because nobody waits
// for their places.
TEST_F(HttpServerTest, ExactlyAsManyCallersAsPlacesAreAllServed) {
  std::vector<UniqueFd> callers;
  std::vector<pollfd> ended;
  for (size_t i = 0; i < kPlaces; ++i) {
    callers.push_back(Connect());
    EXPECT_TRUE(Tell(callers.back(), "GET /page HTTP/1.1\r\n"));
    ended.push_back({.fd = callers.back().get(), .events = POLLIN, .revents = 0});
  }
  EXPECT_EQ(poll(ended.data(), ended.size(), 200), 0) << "a caller was cut off";
  for (const UniqueFd& caller : callers) EXPECT_TRUE(Tell(caller, "Host: a\r\n\r\n"));
  for (const UniqueFd& caller : callers) {
    EXPECT_THAT(ReadAll(caller), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
}

TEST_F(HttpServerTest, SilentCallersKeepNobodyOut) {
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 4 * kPlaces; ++i) silent.push_back(Connect());
  EXPECT_THAT(Get("/page"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// Goal: a handler answers every caller that connects, even in the first moment.
// Method: callers try to connect while the server starts.
TEST_F(HttpServerTest, NobodyIsAnsweredBeforeTheHandlersAreThere) {
  const int port = server_->port();
  server_.reset();
  for (int i = 0; i < 50; ++i) {
    std::string answer;
    std::thread caller([&] {
      UniqueFd fd;
      const Deadline deadline = Deadline::AfterMs(30'000);
      while (!(fd = ConnectTo(port)) && !deadline.Passed()) std::this_thread::yield();
      Tell(fd, "GET /page HTTP/1.0\r\n\r\n");
      answer = ReadAll(fd);
    });
    SetUpOn(port);
    caller.join();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    server_.reset();
  }
}

// Goal: the server serves again after a time without descriptors. Method: the number that the next
// one would have is the limit.
TEST_F(HttpServerTest, CallersWaitWhileDescriptorsHaveRunOut) {
  const UniqueFd caller = Connect();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto next = static_cast<rlim_t>(UniqueFd(dup(caller.get())).get());
  const rlimit none{.rlim_cur = next, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(Tell(caller, "GET /page HTTP/1.1\r\nHost: a\r\n\r\n"));
  pollfd answered{.fd = caller.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&answered, 1, 200), 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(ReadAll(caller), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, AnAddressThatIsTakenOrNoneIsAnError) {
  const auto taken = Server::Start({.host = "127.0.0.1", .port = server_->port()}, {});
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kSystem);
  for (const char* const host : {"localhost", "1.2.3", "127.0.0.1:80", "[::1]"}) {
    const auto started = Server::Start({.host = host}, {});
    ASSERT_FALSE(started) << host;
    EXPECT_EQ(started.error().code(), Code::kInvalidArgument) << host;
  }
}

TEST(IsLocalHost, KnowsThisMachineSNamesAlone) {
  for (const char* const host : {"localhost", "localhost:9401", "127.0.0.1:1", "[::1]:9401"}) {
    EXPECT_TRUE(IsLocalHost(host)) << host;
  }
  for (const char* const host : {"", "evil.example", "localhost.evil.example:9401", "10.0.0.1"}) {
    EXPECT_FALSE(IsLocalHost(host)) << host;
  }
}

}  // namespace
}  // namespace gpushm::http
