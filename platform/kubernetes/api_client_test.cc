#include "platform/kubernetes/api_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "platform/base/clock.h"
#include "platform/base/testing/must.h"
#include "platform/base/unique_fd.h"
#include "platform/kubernetes/testing/api_server.h"

namespace gpushm::kubernetes {
namespace {

using ::gpushm::testing::Must;
using ::testing::HasSubstr;

constexpr char kNode[] = "/api/v1/nodes/node0";

class ApiClientTest : public ::testing::Test {
 protected:
  Result<std::string> Get(const std::string& path = kNode) const {
    return ApiClient(server_.Address()).Call("GET", path, "", Deadline::AfterMs(10'000));
  }
  testing::ApiServer server_;
};

TEST_F(ApiClientTest, AnAnswerIsReturned) {
  const auto text = Must(Get());
  EXPECT_THAT(text, HasSubstr("node-uid"));
}

// The kubelet replaces a token while the pod runs.
TEST_F(ApiClientTest, TheTokenIsReadAnew) {
  server_.AcceptOnlyToken("second");
  const auto denied = Get();
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code(), Code::kDenied);
  server_.WriteToken("second");
  EXPECT_TRUE(Get());
}

TEST_F(ApiClientTest, AnotherServersCertificateIsRefused) {
  const testing::ApiServer other;
  ApiAddress address = server_.Address();
  address.credentials_folder = other.credentials();
  const auto text = ApiClient(address).Call("GET", kNode, "", Deadline::AfterMs(10'000));
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().ToString(), HasSubstr("certificate"));
  EXPECT_EQ(server_.requests(), 0) << "the token must not reach it";
}

TEST_F(ApiClientTest, WithoutATokenTheErrorNamesTheFile) {
  std::filesystem::remove(server_.credentials() + "/token");
  const auto text = Get();
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().ToString(), HasSubstr("/token"));
}

TEST_F(ApiClientTest, StatusesAreKindsOfErrors) {
  const std::pair<int, Code> kinds[] = {{401, Code::kDenied},         {403, Code::kDenied},
                                        {404, Code::kNotFound},       {409, Code::kContended},
                                        {429, Code::kUnavailable},    {500, Code::kUnavailable},
                                        {422, Code::kInvalidArgument}};
  for (const auto& [status, code] : kinds) {
    server_.FailNext(status, 1);
    const auto text = Get();
    ASSERT_FALSE(text) << status;
    EXPECT_EQ(text.error().code(), code) << status;
    EXPECT_THAT(text.error().ToString(), HasSubstr("a failure for a test")) << status;
  }
}

// A server whose connections a test answers itself, byte by byte.
class RawServer {
 public:
  using Serve = std::function<void(int connection)>;
  explicit RawServer(Serve serve) {
    listener_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), raw, size), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
    EXPECT_EQ(getsockname(listener_.get(), raw, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection) serve(connection.get());
    });
  }
  ~RawServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  UniqueFd listener_;
  int port_ = 0;
  std::thread thread_;
};

// Goal: no server holds up the plugin beyond the deadline. Method: one says nothing, and one sends
// a byte every 50 ms, first of its greeting in TLS, then of an answer's head.
TEST_F(ApiClientTest, ASilentOrSlowServerIsLeftAtTheDeadline) {
  const auto late = [&](int port) {
    ApiAddress api = server_.Address();
    api.port = port;
    const int64_t start_ns = MonotonicNs();
    const auto text = ApiClient(api).Call("GET", kNode, "", Deadline::AfterMs(500));
    EXPECT_LT(MonotonicNs() - start_ns, 5'000'000'000) << "ten times the deadline";
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code(), Code::kTimeout) << text.error().ToString();
  };
  // 10 s of bytes, unless the caller leaves.
  const auto drip = [](const std::function<bool(char)>& send_byte) {
    constexpr std::string_view kHead = "HTTP/1.1 200 OK\r\n";
    for (size_t i = 0; i < 200; ++i) {
      if (!send_byte(i < kHead.size() ? kHead[i] : 'x')) return;
      poll(nullptr, 0, 50);  // sleep: it is the slow server
    }
  };
  {
    const RawServer silent([](int connection) {
      char byte = 0;
      while (recv(connection, &byte, 1, 0) > 0) {
      }
    });
    late(silent.port());
  }
  {
    // The head of a TLS record of 16,000 bytes, of which one comes at a time.
    const RawServer slow_greeting([&](int connection) {
      send(connection, "\x16\x03\x03\x3e\x80", 5, MSG_NOSIGNAL);
      drip([&](char byte) { return send(connection, &byte, 1, MSG_NOSIGNAL) == 1; });
    });
    late(slow_greeting.port());
  }
  {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> tls(SSL_CTX_new(TLS_server_method()),
                                                                SSL_CTX_free);
    ASSERT_EQ(SSL_CTX_use_certificate_file(tls.get(), server_.certificate().c_str(), 1), 1);
    ASSERT_EQ(SSL_CTX_use_PrivateKey_file(tls.get(), server_.key().c_str(), 1), 1);
    const RawServer slow_head([&](int connection) {
      const std::unique_ptr<SSL, decltype(&SSL_free)> session(SSL_new(tls.get()), SSL_free);
      SSL_set_fd(session.get(), connection);
      if (SSL_accept(session.get()) != 1) return;
      drip([&](char byte) { return SSL_write(session.get(), &byte, 1) == 1; });
    });
    late(slow_head.port());
  }
}

// Goal: an answer that is made to exhaust the stack of who reads it is refused.
TEST_F(ApiClientTest, AnAnswerThatNestsTooDeeplyIsRefused) {
  nlohmann::json claim = {{"metadata", {{"name", "deep"}, {"text", "[[[\\\"{"}}}};
  std::string nested(200, '[');
  claim["spec"] = nlohmann::json::parse(nested + std::string(200, ']'));
  server_.PutClaim("deep", claim);
  const std::string path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/deep";
  EXPECT_TRUE(Get(path));
  nested.assign(300, '[');
  claim["spec"] = nlohmann::json::parse(nested + std::string(300, ']'));
  server_.PutClaim("deep", claim);
  const auto refused = Get(path);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("more than 256 objects or lists"));
}

TEST_F(ApiClientTest, AWrongTokenOrCertificateFileIsNamed) {
  server_.WriteToken("one\r\nX-Other: two");
  const auto token = Get();
  ASSERT_FALSE(token);
  EXPECT_THAT(token.error().ToString(), HasSubstr("/token has a space or a control character"));
  EXPECT_EQ(server_.requests(), 0);
  server_.WriteToken("token\n");
  std::filesystem::remove(server_.credentials() + "/ca.crt");
  ASSERT_EQ(mkfifo((server_.credentials() + "/ca.crt").c_str(), 0600), 0);
  const auto certificate = Get();
  ASSERT_FALSE(certificate);
  EXPECT_THAT(certificate.error().ToString(), HasSubstr("/ca.crt is not a regular file"));
}

TEST(FindApiTest, TheAddressIsGivenOrInTheEnvironment) {
  setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1", 1);
  setenv("KUBERNETES_SERVICE_PORT", "6443", 1);
  const auto found = Must(FindApi("", "/folder"));
  EXPECT_EQ(found.host, "10.96.0.1");
  EXPECT_EQ(found.port, 6443);
  const auto given = Must(FindApi("[fd00::1]:443", "/folder"));
  EXPECT_EQ(given.host, "fd00::1");
  unsetenv("KUBERNETES_SERVICE_HOST");
  unsetenv("KUBERNETES_SERVICE_PORT");
  const auto none = FindApi("", "/folder");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().ToString(), HasSubstr("dra.api-server: 10.96.0.1:443"));
  EXPECT_FALSE(FindApi("host:99999", "/folder"));
}

}  // namespace
}  // namespace gpushm::kubernetes
