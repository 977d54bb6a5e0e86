// ResourceClaimTemplates at an API server, by the class alone and by the real process.
#include "sidecar/injector/templates.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "platform/kubernetes/testing/api_server.h"
#include "sidecar/injector/testing/pods.h"
#include "sidecar/injector/testing/process.h"

namespace gpushm::injector {
namespace {

using gpushm::testing::TempFolder;
using kubernetes::testing::ApiServer;
using ::testing::HasSubstr;
using testing::InjectorProcess;
using testing::PodWith;
using testing::ReviewOf;

constexpr int64_t kYearS = 365 * 24 * 3600;
constexpr char kJson[] = "application/json";

ClaimTemplate Wanted(const std::string& size = "8Gi") {
  Settings settings = testing::TestSettings();
  settings.makes_claims = true;
  const Verdict verdict = testing::TestAdmission(settings).Mutate(
      PodWith({"a"}, {{"gpushm.io/allocation", "dra"}, {"buffers.gpushm.io/weights", size}}));
  EXPECT_TRUE(verdict.needs) << verdict.message;
  return verdict.needs.value_or(ClaimTemplate());
}

class TemplatesTest : public ::testing::Test {
 protected:
  std::string Make(const ClaimTemplate& wanted, const std::string& name_space = "team-a") const {
    const auto made = Templates(server_.Address()).Make(name_space, wanted);
    return made ? "" : made.error().ToString();
  }

  ApiServer server_;
};

TEST_F(TemplatesTest, IsMadeOnceForEachNamespaceAndContent) {
  EXPECT_EQ(Make(Wanted()), "");
  EXPECT_EQ(server_.requests(), 2) << "it looks first";
  EXPECT_EQ(Make(Wanted()), "");
  EXPECT_EQ(server_.requests(), 3) << "an equal pod costs one request";
  EXPECT_EQ(Make(Wanted("9Gi")), "");
  EXPECT_EQ(Make(Wanted(), "team-b"), "");
  const auto there = server_.Templates();
  EXPECT_EQ(there.size(), 3U);
  EXPECT_TRUE(there.contains("team-b/" + Wanted().name));
}

TEST_F(TemplatesTest, EqualPodsAtTheSameTimeAllSucceed) {
  std::vector<std::string> errors(8);
  {
    std::vector<std::jthread> calls;
    for (std::string& error : errors) calls.emplace_back([&] { error = Make(Wanted()); });
  }
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_EQ(server_.Templates().size(), 1U);
}

// Somebody of the namespace wrote it: the name is not secret.
TEST_F(TemplatesTest, OneOfThatNameWithOtherContentIsRefused) {
  Json forged = Wanted().Object();
  forged["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] =
      "1Gi";
  server_.PutTemplate("team-a/" + Wanted().name, forged);
  EXPECT_THAT(Make(Wanted()), HasSubstr("kubectl -n team-a delete resourceclaimtemplate gpushm-"));
  for (const Json& damaged : {Json(nullptr), Json{{"spec", "none"}}, Json{{"spec", {1, 2}}}}) {
    server_.PutTemplate("team-a/" + Wanted().name, damaged);
    EXPECT_THAT(Make(Wanted()), HasSubstr("another content"));
  }
}

TEST_F(TemplatesTest, AMissingRightIsNamed) {
  server_.FailNext(403, 1);
  EXPECT_THAT(Make(Wanted()), HasSubstr("answered 403"));
  EXPECT_THAT(Make(Wanted()), "") << "and nothing is remembered";
}

TEST_F(TemplatesTest, AnOldApiServerIsNamed) {
  server_.FailNext(404, 2);
  EXPECT_THAT(Make(Wanted()), HasSubstr("Kubernetes 1.36"));
}

class ClaimsProcessTest : public ::testing::Test {
 protected:
  ClaimsProcessTest() { testing::WriteCertificate(tls_.path(), "first", kYearS); }
  std::vector<std::string> Flags() const {
    return {"--claims", Concat("--api-server=127.0.0.1:", server_.port()),
            Concat("--api-credentials=", server_.credentials())};
  }

  ApiServer server_;
  TempFolder tls_;
};

Json Answered(const InjectorProcess& injector, const std::string& path, const Json& review) {
  const auto answer = injector.Https()->Post(path, review.dump(), kJson);
  EXPECT_TRUE(answer && answer->status == 200) << path;
  return answer ? Json::parse(answer->body)["response"] : Json();
}

// Goal: the path that the API server chooses by the namespace's label decides for pods that do not
// say how they get their memory.
TEST_F(ClaimsProcessTest, TheNamespacesPathDecides) {
  const InjectorProcess injector(tls_.path(), Flags());
  ASSERT_TRUE(injector.ready()) << injector.Log();
  Json review = ReviewOf(PodWith({"a"}, {{"buffers.gpushm.io/weights", "8Gi"}}));
  review["request"]["namespace"] = "team-a";
  for (const char* const path : {"/mutate", "/mutate/device-plugin"}) {
    EXPECT_EQ(Answered(injector, path, review)["allowed"], true);
    EXPECT_TRUE(server_.Templates().empty()) << path;
  }
  EXPECT_EQ(Answered(injector, "/mutate/dra?timeout=5s", review)["allowed"], true);
  EXPECT_TRUE(server_.Templates().contains("team-a/" + Wanted().name));
  const auto unknown = injector.Https()->Post("/mutate/other", review.dump(), kJson);
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->status, 404);
}

TEST_F(ClaimsProcessTest, WithoutTheApiServerThePodIsDeniedInTime) {
  const InjectorProcess injector(tls_.path(),
                                 {"--claims", "--allocation=dra", "--api-server=127.0.0.1:1",
                                  Concat("--api-credentials=", server_.credentials())});
  ASSERT_TRUE(injector.ready()) << injector.Log();
  Json review = ReviewOf(PodWith({"a"}, {{"buffers.gpushm.io/weights", "8Gi"}}));
  review["request"]["namespace"] = "team-a";
  const Json answer = Answered(injector, "/mutate", review);
  EXPECT_EQ(answer["allowed"], false);
  EXPECT_THAT(answer["status"]["message"].get<std::string>(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(injector.Get("/metrics").second, HasSubstr("outcome=\"template\"} 1"));
}

}  // namespace
}  // namespace gpushm::injector
