#include "platform/kubernetes/api_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "platform/base/testing/must.h"
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

// Goal: a server that accepts and says nothing does not hold up the plugin.
TEST_F(ApiClientTest, ASilentServerIsLeftAtTheDeadline) {
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(silent, 4), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ApiAddress api = server_.Address();
  api.port = ntohs(address.sin_port);
  const auto text = ApiClient(api).Call("GET", kNode, "", Deadline::AfterMs(200));
  close(silent);
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().code(), ::testing::AnyOf(Code::kTimeout, Code::kUnavailable));
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
