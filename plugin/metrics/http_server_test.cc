// Goal: the server answers what it should, refuses what it should, and nobody can hold it up.
// Method: real sockets on loopback.
#include "plugin/metrics/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace gpushm::plugin {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpServer::Paths paths;
    paths["/page"] = [](const HttpRequest& request) {
      return HttpAnswer{.content_type = "text/html",
                        .body = std::string(request.accept) + "|" + std::string(request.host),
                        .headers = "X-More: yes\r\n"};
    };
    paths["/large"] = [](const HttpRequest&) {
      return HttpAnswer{.body = std::string(2 << 20, 'x'), .headers = {}};
    };
    auto started = HttpServer::Start("127.0.0.1:0", std::move(paths));
    ASSERT_TRUE(started) << started.error().ToString();
    server_ = std::move(*started);
    ASSERT_GT(server_->port(), 0);
  }

  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout{.tv_sec = 30, .tv_usec = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  // Until the server closes.
  std::string Ask(const std::string& request) const {
    const UniqueFd fd = Connect();
    EXPECT_EQ(write(fd.get(), request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    std::array<char, 65536> chunk{};
    for (ssize_t n = 0; (n = read(fd.get(), chunk.data(), chunk.size())) > 0;) {
      answer.append(chunk.data(), static_cast<size_t>(n));
    }
    return answer;
  }
  std::string Get(const std::string& path) const {
    return Ask("GET " + path + " HTTP/1.0\r\nHost: localhost:1\r\nAccept: a/b\r\n\r\n");
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithHeaders) {
  const std::string answer = Get("/page");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/html\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nX-More: yes\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\na/b|localhost:1"));
}

TEST_F(HttpServerTest, LargeAnswersAreWhole) {
  EXPECT_TRUE(Get("/large").ends_with("\r\n\r\n" + std::string(2 << 20, 'x')));
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

// Goal: callers that never ask, more of them than threads, do not keep others waiting for longer
// than the time-out.
TEST_F(HttpServerTest, SilentCallersDoNotKeepOthersOut) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 2 * HttpServer::kThreads; ++i) silent.push_back(Connect());
  EXPECT_THAT(Get("/page"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, AnAddressThatIsTakenOrNoneIsAnError) {
  const auto taken = HttpServer::Start("127.0.0.1:" + std::to_string(server_->port()), {});
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kSystem);
  for (const char* const address : {"", "9400", "localhost:9400", "127.0.0.1:", "127.0.0.1:70000",
                                    "1.2.3.4:1,2.3.4.5:2", "::1:9400", "127.0.0.1:80r"}) {
    const auto started = HttpServer::Start(address, {});
    ASSERT_FALSE(started) << address;
    EXPECT_EQ(started.error().code(), Code::kInvalidArgument) << address;
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
}  // namespace gpushm::plugin
