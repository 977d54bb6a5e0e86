// The real gpushm-injector over TLS, as an API server, a kubelet and Prometheus see it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <thread>

#include "platform/base/unique_fd.h"
#include "sidecar/injector/server.h"
#include "sidecar/injector/testing/pods.h"
#include "sidecar/injector/testing/process.h"

namespace gpushm::injector {
namespace {

using gpushm::testing::TempFolder;
using ::testing::HasSubstr;
using testing::InjectorProcess;
using testing::PodWith;
using testing::ReviewOf;
using testing::WaitUntil;
using testing::WriteCertificate;

constexpr int64_t kYearS = 365 * 24 * 3600;
constexpr char kJson[] = "application/json";
constexpr size_t kEndlessBytes = 64 << 20;
// The start of a TLS record.
constexpr std::array<uint8_t, 6> kHandshakeOf16KiB = {0x16, 3, 1, 0x40, 0, 1};

std::string Body() {
  return ReviewOf(PodWith({"model"}, {{"buffers.gpushm.io/weights", "8Gi"}})).dump();
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() { WriteCertificate(tls_.path(), "first", kYearS); }

  TempFolder tls_;
};

TEST_F(ServerTest, AnswersReviewsAndTellsOfThem) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  const auto client = injector.Https();
  for (const char* const path : {"/mutate", "/validate"}) {
    const auto answer = client->Post((std::string(path) + "?timeout=5s").c_str(), Body(), kJson);
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->status, 200);
    EXPECT_EQ(answer->get_header_value("Content-Type"), kJson);
    const Json response = Json::parse(answer->body)["response"];
    EXPECT_EQ(response["uid"], "11111111-2222-3333-4444-555555555555");
    EXPECT_EQ(response["allowed"], std::string(path) == "/mutate");
  }
  EXPECT_EQ(injector.Get("/healthz").first, 200);
  EXPECT_EQ(injector.Get("/readyz").first, 200);
  const auto [status, metrics] = injector.Get("/metrics");
  EXPECT_EQ(status, 200);
  EXPECT_THAT(metrics,
              HasSubstr("gpushm_webhook_requests_total{allowed=\"true\",endpoint=\"mutate\","
                        "outcome=\"injected\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("gpushm_webhook_request_duration_seconds_count{"
                                 "endpoint=\"mutate\"} 1"));
}

// Goal: a reader of only the log knows whose pod was denied, and why.
TEST_F(ServerTest, ADenialIsLoggedWithItsPodItsOwnerAndTheReason) {
  const InjectorProcess injector(
      tls_.path(),
      {"--max-pod-memory=8.5Gi", "--denied-runtime-class=kata*", "--denied-runtime-class=gvisor"});
  ASSERT_TRUE(injector.ready()) << injector.Log();
  Json review = Json::parse(Body());
  review["request"]["namespace"] = "team-a";
  Json& pod = review["request"]["object"];
  pod["metadata"].erase("name");
  pod["metadata"]["generateName"] = "llm-";
  pod["metadata"]["ownerReferences"] = {{{"kind", "Job"}, {"name", "llm"}, {"controller", true}}};
  for (const char* const name : {"kata-qemu", "gvisor", "runc"}) {
    pod["spec"]["runtimeClassName"] = name;
    const auto answer = injector.Https()->Post("/mutate", review.dump(), kJson);
    ASSERT_TRUE(answer);
    EXPECT_EQ(Json::parse(answer->body)["response"]["allowed"], false);
  }
  ASSERT_TRUE(WaitUntil([&] { return injector.Log().contains("requests 9Gi of one GPU"); }))
      << injector.Log();
  EXPECT_THAT(injector.Log(),
              HasSubstr("pod-denied path=/mutate pod=team-a/llm- owner=Job/llm outcome=pod "
                        "reason=\"spec.runtimeClassName: \\\"kata-qemu\\\""));
  EXPECT_THAT(injector.Log(), HasSubstr("gvisor"));
}

TEST_F(ServerTest, WhatCannotStartSaysWhy) {
  const InjectorProcess first(tls_.path());
  ASSERT_TRUE(first.ready()) << first.Log();
  const TempFolder empty;
  struct Case {
    std::string tls;
    std::vector<std::string> flags;
    int status;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {tls_.path(), {"--max-pod-memory=512Mi"}, 2, "512Mi is less than --unit 1Gi"},
           {tls_.path(), {Concat("--http-port=", first.http_port())}, 1, "cannot listen on port"},
           {tls_.path(),
            {"--claims", "--api-server=nowhere:0"},
            2,
            "invalid address of the API server"},
           {empty.path(), {}, 1, "tls.crt"}}) {
    InjectorProcess injector(c.tls, c.flags);
    EXPECT_FALSE(injector.ready()) << c.says;
    EXPECT_EQ(WEXITSTATUS(injector.WaitEnd()), c.status) << c.says;
    EXPECT_THAT(injector.Log(), HasSubstr(c.says));
  }
}

TEST_F(ServerTest, RefusesWhatIsNoReview) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  const auto client = injector.Https();
  EXPECT_EQ(client->Post("/mutate", "{", kJson)->status, 400);
  EXPECT_EQ(client->Post("/mutate", "{}", kJson)->status, 400);
  EXPECT_EQ(client->Post("/other", Body(), kJson)->status, 404);
  EXPECT_EQ(client->Get("/mutate")->status, 405);
  const auto large = injector.Https()->Post("/mutate", std::string(kMaxBodyBytes + 1, ' '), kJson);
  EXPECT_TRUE(!large || large->status == 413);
  if (large) {
    EXPECT_THAT(large->body, HasSubstr(Concat("has ", kMaxBodyBytes + 1, " bytes")));
  }
  const auto deep =
      client->Post("/mutate", std::string(100'000, '[') + std::string(100'000, ']'), kJson);
  EXPECT_EQ(deep->status, 400);
  std::string wide = "[{}";
  for (int i = 0; i < 1'000'000; ++i) wide += ",{}";
  EXPECT_EQ(client->Post("/mutate", wide + "]", kJson)->status, 400);
  // Documents inside texts.
  Json inner = PodWith({"gpushm"}, {{"buffers.gpushm.io/weights", "8Gi"}});
  inner["metadata"]["annotations"]["gpushm.io/status"] = std::string(3 << 20, '[');
  EXPECT_EQ(client->Post("/mutate", ReviewOf(inner).dump(), kJson)->status, 200);
  EXPECT_EQ(injector.Https()->Post("/mutate", Body(), kJson)->status, 200);
#ifndef GPUSHM_SANITIZED  // The sanitizer's memory would count too.
  EXPECT_LT(injector.PeakRssBytes(), uint64_t{64} << 20);
#endif
}

TEST_F(ServerTest, ABadBodyIsNotRepeatedInAnswerOrLog) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  const std::string body = "\"" + std::string(kMaxBodyBytes - 1, 'a');
  const auto answer = injector.Https()->Post("/mutate", body, kJson);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_THAT(answer->body, HasSubstr("missing closing quote"));
  EXPECT_LT(answer->body.size(), size_t{1024});
  ASSERT_TRUE(WaitUntil([&] { return injector.Log().contains("bad-request"); }));
  EXPECT_THAT(injector.Log(), HasSubstr("missing closing quote"));
  EXPECT_LT(injector.Log().size(), size_t{64 << 10});
}

// Sends chunks as long as they are accepted, up to 64 MiB.
httplib::ContentProviderWithoutLength EndlessBody(size_t* taken_bytes) {
  return [taken_bytes](size_t, httplib::DataSink& sink) {
    const std::string bytes(1 << 16, ' ');
    if (*taken_bytes >= kEndlessBytes) {
      sink.done();
      return true;
    }
    if (!sink.write(bytes.data(), bytes.size())) return false;
    *taken_bytes += bytes.size();
    return true;
  };
}

// Goal: no request takes more memory than kMaxBodyBytes promises. Method: bodies that do not give
// their length, or become longer than they say.
TEST_F(ServerTest, RefusesBodiesThatHideTheirLength) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  for (const char* const path : {"/mutate", "/other"}) {
    size_t taken_bytes = 0;
    const auto chunked = injector.Https()->Post(path, EndlessBody(&taken_bytes), kJson);
    EXPECT_TRUE(!chunked || chunked->status == 411 || chunked->status == 404);
    EXPECT_LT(taken_bytes, kEndlessBytes) << path;
  }
  size_t taken_bytes = 0;
  httplib::Client plain("127.0.0.1", injector.http_port());
  const auto posted = plain.Post("/healthz", EndlessBody(&taken_bytes), kJson);
  EXPECT_TRUE(!posted || posted->status == 405);
  EXPECT_LT(taken_bytes, kEndlessBytes);

  const auto bomb = injector.Https();
  bomb->set_compress(true);
  const auto expanded = bomb->Post("/mutate", std::string(kEndlessBytes, ' '), kJson);
  // There is no answer if the connection ended while the body was still being sent.
  EXPECT_TRUE(!expanded || expanded->status == 415);

  EXPECT_EQ(injector.Https()->Post("/mutate", Body(), kJson)->status, 200);
#ifndef GPUSHM_SANITIZED  // The sanitizer's memory would count too.
  EXPECT_LT(injector.PeakRssBytes(), uint64_t{32} << 20);
#endif
}

// Goal: no head takes more memory than http::kMaxHeadBytes. Method: a header with a very long line,
// after a request that was answered on the same connection.
TEST_F(ServerTest, RefusesHeadsWithoutAnEnd) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  const auto client = injector.Https();
  for (int i = 0; i < 5; ++i) {  // Together they are longer than one may be.
    const httplib::Headers many = {{"A", std::string(8000, 'a')}, {"B", std::string(8000, 'b')}};
    const auto answer = client->Post("/mutate", many, Body(), kJson);
    ASSERT_TRUE(answer) << httplib::to_string(answer.error());
    EXPECT_EQ(answer->status, 200);
  }
  const httplib::Headers endless = {{"A", std::string(8 << 20, 'a')}};
  EXPECT_FALSE(client->Post("/mutate", endless, Body(), kJson));
  EXPECT_THAT(injector.Log(), HasSubstr("sends too much"));
  EXPECT_EQ(injector.Https()->Post("/mutate", Body(), kJson)->status, 200);

  httplib::Client plain("127.0.0.1", injector.http_port());
  EXPECT_EQ(plain.Get("/healthz", {{"A", std::string(8000, 'a')}})->status, 200);
  EXPECT_FALSE(plain.Get("/healthz", endless));
  EXPECT_TRUE(WaitUntil([&] {
    const std::string log = injector.Log();
    return log.find("sends too much") != log.rfind("sends too much");
  })) << injector.Log();
}

// Goal: callers together cannot take more memory than the container has. Method: many of the
// largest bodies that a single caller may send.
TEST_F(ServerTest, ManyLargeBodiesAtOnce) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  std::atomic<int> refused = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 64; ++i) {
    callers.emplace_back([&] {
      const auto answer = injector.Https()->Post("/mutate", std::string(kMaxBodyBytes, ' '), kJson);
      if (answer && (answer->status == 400 || answer->status == 503)) ++refused;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(refused, 0);
  // Each has given its place back.
  for (size_t i = 0; i < 2 * kLargeBodies; ++i) {
    const auto answer = injector.Https()->Post("/mutate", std::string(kMaxBodyBytes, ' '), kJson);
    ASSERT_TRUE(answer) << httplib::to_string(answer.error());
    EXPECT_EQ(answer->status, 400);
  }
  EXPECT_EQ(injector.Https()->Post("/mutate", Body(), kJson)->status, 200);
#ifndef GPUSHM_SANITIZED  // The sanitizer's memory would count too.
  EXPECT_LT(injector.PeakRssBytes(), uint64_t{128} << 20);
#endif
}

// Goal: a renewed Secret is served without a restart, and a call in progress is not cut off.
TEST_F(ServerTest, TakesARenewedCertificateAndKeepsItForABadOne) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  EXPECT_EQ(injector.ServedName(), "first");
  const auto client = injector.Https();
  ASSERT_EQ(client->Post("/mutate", Body(), kJson)->status, 200);
  WriteCertificate(tls_.path(), "second", 2 * kYearS);
  bool unbroken = true;  // On the old connection, which is never idle for long.
  EXPECT_TRUE(WaitUntil([&] {
    const auto answer = client->Post("/mutate", Body(), kJson);
    unbroken = unbroken && answer && answer->status == 200;
    return injector.ServedName() == "second";
  })) << injector.Log();
  EXPECT_TRUE(unbroken);

  std::ofstream(tls_ / "tls.key") << "not a key";
  EXPECT_TRUE(
      WaitUntil([&] { return injector.Log().find("certificate-refused") != std::string::npos; }));
  EXPECT_THAT(injector.Log(), HasSubstr("tls.key holds no private key"));
  EXPECT_EQ(injector.ServedName(), "second");
  EXPECT_THAT(injector.Get("/metrics").second,
              ::testing::ContainsRegex("gpushm_webhook_certificate_errors_total [1-9]"));
}

TEST_F(ServerTest, AnExpiredCertificateIsNotReady) {
  WriteCertificate(tls_.path(), "old", -60);
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  const auto [status, why] = injector.Get("/readyz");
  EXPECT_EQ(status, 503);
  EXPECT_THAT(why, HasSubstr("expired"));
}

// Goal: a rolling update loses no call. Method: the server first becomes not ready, then answers
// for a while, then ends.
TEST_F(ServerTest, DrainsBeforeItEnds) {
  InjectorProcess injector(tls_.path(), {"--drain-ms", "1500"});
  ASSERT_TRUE(injector.ready()) << injector.Log();
  // An API server keeps its connections.
  const auto idle = injector.Https();
  ASSERT_EQ(idle->Post("/mutate", Body(), kJson)->status, 200);
  injector.Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil([&] { return injector.Get("/readyz").first == 503; }));
  EXPECT_EQ(injector.Get("/healthz").first, 200);
  const auto answer = injector.Https()->Post("/mutate", Body(), kJson);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->get_header_value("Connection"), "close");
  EXPECT_EQ(injector.WaitEnd(), 0);
}

// A socket, or -1 if nobody listens.
int ConnectTo(int port) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    return socket_fd;
  }
  close(socket_fd);
  return -1;
}

// Goal: callers that send nothing, or stop in the middle, do not take a review's time. Method: four
// times as many as there are threads, and as many; each of them would wait for http::kReadMs.
TEST_F(ServerTest, ReviewsAreAnsweredBesideCallersThatWait) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  for (const bool begins : {false, true}) {
    std::vector<UniqueFd> callers;
    for (size_t i = 0; i < (begins ? 1 : 4) * kConnections; ++i) {
      callers.emplace_back(ConnectTo(injector.port()));
      ASSERT_TRUE(callers.back());
      if (begins) {
        send(callers.back().get(), kHandshakeOf16KiB.data(), kHandshakeOf16KiB.size(),
             MSG_NOSIGNAL);
      }
    }
    const auto caller = injector.Https();
    caller->set_connection_timeout(http::kReadMs / 1000 - 1);
    caller->set_read_timeout(http::kReadMs / 1000 - 1);
    const auto answer = caller->Post("/mutate", Body(), kJson);
    ASSERT_TRUE(answer) << begins << httplib::to_string(answer.error());
    EXPECT_EQ(answer->status, 200);
  }
  EXPECT_THAT(injector.Log(), HasSubstr("others wait for its place"));
}

// Goal: a caller that sends a byte now and then does not keep a thread. Method: such a start of a
// TLS record, and of a request, with each wait shorter than http::kReadMs.
TEST_F(ServerTest, SlowCallersAreCutOff) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  const int caller = ConnectTo(injector.port());
  const int plain = ConnectTo(injector.http_port());
  ASSERT_TRUE(caller >= 0 && plain >= 0);
  EXPECT_EQ(send(caller, kHandshakeOf16KiB.data(), kHandshakeOf16KiB.size(), MSG_NOSIGNAL),
            kHandshakeOf16KiB.size());
  EXPECT_TRUE(WaitUntil([caller, plain] {
    const bool one = send(caller, "", 1, MSG_NOSIGNAL) == 1;
    const bool other = send(plain, "G", 1, MSG_NOSIGNAL) == 1;
    return !one && !other;
  }));
  close(caller);
  close(plain);
  EXPECT_THAT(injector.Log(), HasSubstr("is too slow"));
}

// Goal: a burst, as when a Deployment is scaled, loses nothing.
TEST_F(ServerTest, AnswersABurstOfConnections) {
  const InjectorProcess injector(tls_.path());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  std::atomic<int> answered = 0;
  std::vector<std::thread> callers;
  for (size_t i = 0; i < 200; ++i) {
    callers.emplace_back([&] {
      const auto answer = injector.Https()->Post("/mutate", Body(), kJson);
      if (answer && answer->status == 200) ++answered;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 200) << injector.Log();
}

}  // namespace
}  // namespace gpushm::injector
