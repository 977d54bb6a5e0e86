// Goal: a manifest becomes what the webhook would make of its pod, and nothing else in it changes.
#include "sidecar/injector/inject.h"

#include <gmock/gmock-matchers.h>

#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::ContainerOf;
using ::testing::HasSubstr;
using testing::Injected;
using testing::PodWith;
using testing::TestSettings;

const Json kInjectedWeights = {{"buffers.gpushm.io/weights", "8Gi"}};

Result<Json> Made(const Json& manifest) {
  std::vector<std::string> warnings;
  const auto text = Inject(TestSettings(), manifest.dump(), &warnings);
  if (!text) return std::unexpected(text.error());
  return Json::parse(*text);
}

// The webhook gives each sidecar a uid at random.
Json WithoutUids(Json pod) {
  for (Json& container : pod["spec"]["initContainers"]) {
    container["securityContext"].erase("runAsUser");
    container["securityContext"].erase("runAsGroup");
  }
  return pod;
}

std::string Refusal(std::string_view manifest) {
  std::vector<std::string> warnings;
  const auto text = Inject(TestSettings(), manifest, &warnings);
  return text ? "it was taken" : text.error().ToString();
}

TEST(Inject, APodIsTheWebhooks) {
  const Json pod = PodWith({"server"}, kInjectedWeights);
  EXPECT_EQ(WithoutUids(Made(pod).value()), WithoutUids(Injected(testing::TestAdmission(), pod)));
  EXPECT_EQ(Made(pod).value(), Made(pod).value()) << "applied twice, it changes nothing";
  EXPECT_EQ(Made(*Made(pod)).value(), *Made(pod)) << "nothing is added twice";
  const Json plain = PodWith({"server"}, Json::object());
  EXPECT_EQ(Made(plain).value(), plain);
}

TEST(Inject, TheTemplateOfAControllerGetsTheSidecar) {
  Json pod = PodWith({"server"}, kInjectedWeights);
  pod.erase("apiVersion");
  pod.erase("kind");
  const Json deployment = {{"kind", "Deployment"}, {"spec", {{"replicas", 2}, {"template", pod}}}};
  const Json made = Made(deployment).value();
  EXPECT_EQ(made["spec"]["replicas"], 2);
  EXPECT_EQ(WithoutUids(made["spec"]["template"]),
            WithoutUids(Injected(testing::TestAdmission(), pod)));
  const Json job = {{"spec", {{"jobTemplate", {{"spec", {{"template", pod}}}}}}}};
  EXPECT_FALSE(ContainerOf(Made(job).value()["spec"]["jobTemplate"]["spec"]["template"], "gpushm")
                   .is_null());
}

TEST(Inject, SaysWhatIsWrong) {
  EXPECT_THAT(Refusal("kind: Pod"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(Refusal("kind: Pod"), HasSubstr("kubectl patch --local -f pod.yaml -p '{}' -o json"));
  EXPECT_THAT(Refusal(R"({"kind":"Service"})"), HasSubstr("neither a Pod nor has a pod template"));
  EXPECT_THAT(Refusal(R"({"spec":{"template":[]}})"), HasSubstr("/spec/template is not an object"));
  EXPECT_THAT(Refusal(PodWith({"a"}, {{"buffers.gpushm.io/weights", "8 cats"}}).dump()),
              HasSubstr("buffers.gpushm.io/weights"));
}

}  // namespace
}  // namespace gpushm::injector
