// Pods that get their GPU memory by a ResourceClaim.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "contract/claims.h"
#include "sidecar/injector/inject.h"
#include "sidecar/injector/review.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::ContainerOf;
using ::testing::HasSubstr;
using testing::Injected;
using ::testing::Not;
using testing::PodWith;
using testing::ReviewOf;
using testing::TestAdmission;
using testing::TestSettings;
using testing::VariableOf;

const Json kWantsDra = {{"gpushm.io/allocation", "dra"}, {"buffers.gpushm.io/weights", "8Gi"}};

Settings WithClaims() {
  Settings settings = TestSettings();
  settings.makes_claims = true;
  return settings;
}

Json PodOf(Json more = Json::object()) {
  Json annotations = kWantsDra;
  annotations.update(more);
  return PodWith({"decoder", "model"}, annotations);
}

// The template that the pod needs.
ClaimTemplate TemplateOf(const Json& pod, const Settings& settings = WithClaims()) {
  const Verdict verdict = TestAdmission(settings).Mutate(pod);
  EXPECT_TRUE(verdict.needs) << verdict.message;
  return verdict.needs.value_or(ClaimTemplate());
}

Json Entry(const std::string& request) { return {{"name", "gpushm"}, {"request", request}}; }

TEST(PodWithClaim, HasItsClaimAndNoExtendedResource) {
  const Admission admission = TestAdmission(WithClaims());
  const Json pod = Injected(admission, PodOf());
  const ClaimTemplate wanted = TemplateOf(PodOf());
  EXPECT_EQ(pod["spec"]["resourceClaims"],
            Json::array({{{"name", "gpushm"}, {"resourceClaimTemplateName", wanted.name}}}));
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["claims"], Json::array({Entry("broker")}));
  for (const char* const name : {"decoder", "model"}) {
    EXPECT_EQ(ContainerOf(pod, name)["resources"], (Json{{"claims", {Entry("app")}}}));
  }
  EXPECT_THAT(pod["spec"].dump(), Not(HasSubstr("gpushm.io/memory")));
  EXPECT_THAT(pod["spec"].dump(), Not(HasSubstr("gpushm.io/attach")));
  const Json status =
      Json::parse(pod["metadata"]["annotations"]["gpushm.io/status"].get<std::string>());
  EXPECT_EQ(status["allocation"], "dra");
  EXPECT_FALSE(status.contains("units"));
  EXPECT_EQ(admission.Mutate(pod).outcome, "unchanged");
  EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
}

// The plugin takes the pool's size from the claim, so it is what the pod needs, in bytes.
TEST(PodWithClaim, TheTemplateAsksForTheBytesOfThePod) {
  const ClaimTemplate wanted = TemplateOf(PodOf({{"private.gpushm.io/model", "1.5Gi"}}));
  EXPECT_THAT(wanted.name, ::testing::MatchesRegex("gpushm-10752mi-[0-9a-f]{16}"));
  const Json expected = Json::parse(R"({"spec": {"devices": {
    "requests": [
      {"name": "broker", "exactly": {"deviceClassName": "memory.gpushm.io",
       "capacity": {"requests": {"memory": "10752Mi"}}}},
      {"name": "app", "exactly": {"deviceClassName": "memory.gpushm.io",
       "capacity": {"requests": {"attach": "2"}}}}],
    "constraints": [{"requests": ["broker", "app"], "matchAttribute": "gpushm.io/uuid"}]}}})");
  EXPECT_EQ(wanted.spec, expected);
  const Json object = wanted.Object();
  EXPECT_EQ(object["kind"], "ResourceClaimTemplate");
  EXPECT_EQ(object["metadata"]["name"], wanted.name);
  EXPECT_EQ(object["metadata"]["labels"], (Json{{"gpushm.io/made-by", "injector"}}));
}

TEST(PodWithClaim, EqualPodsShareATemplateAndOthersDoNot) {
  const std::string name = TemplateOf(PodOf()).name;
  EXPECT_EQ(TemplateOf(PodOf({{"sidecar.gpushm.io/cpu", "1"}})).name, name);
  for (const Json& more : {Json{{"buffers.gpushm.io/more", "2Mi"}}, Json{{"gpushm.io/gpus", "2"}},
                           Json{{"gpushm.io/exclusive", "true"}},
                           Json{{"gpushm.io/mps", "true"}, {"gpushm.io/mps-uid", "1000"}}}) {
    EXPECT_NE(TemplateOf(PodOf(more)).name, name) << more;
  }
}

TEST(PodWithClaim, OneWithoutBuffersStillHasItsGpu) {
  const ClaimTemplate wanted = TemplateOf(PodWith({"a"}, {{"gpushm.io/allocation", "dra"},
                                                          {"signals.gpushm.io/s", ""},
                                                          {"private.gpushm.io/a", "0"}}));
  EXPECT_EQ(wanted.spec["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"],
            (Json{{"memory", "2Mi"}}));
}

TEST(PodWithClaim, SeveralGpusAreDifferentOnesAndMayNeedNvlink) {
  const Json pod = PodOf({{"gpushm.io/gpus", "2"}, {"gpushm.io/topology", "nvlink"}});
  const Json devices = TemplateOf(pod).spec["spec"]["devices"];
  ASSERT_EQ(devices["requests"].size(), 4U);
  EXPECT_EQ(devices["requests"][3]["name"], "app-1");
  EXPECT_EQ(devices["requests"][2]["exactly"]["capacity"]["requests"]["memory"], "10Gi");
  EXPECT_EQ(devices["constraints"], Json::parse(R"([
    {"requests": ["broker-0", "app-0"], "matchAttribute": "gpushm.io/uuid"},
    {"requests": ["broker-1", "app-1"], "matchAttribute": "gpushm.io/uuid"},
    {"requests": ["broker-0", "broker-1"], "distinctAttribute": "gpushm.io/uuid"},
    {"requests": ["broker-0", "broker-1"], "matchAttribute": "gpushm.io/nvlinkDomain"}])"));
  const Json injected = Injected(TestAdmission(WithClaims()), pod);
  EXPECT_EQ(ContainerOf(injected, "gpushm")["resources"]["claims"],
            Json::array({Entry("broker-0"), Entry("broker-1")}));
  EXPECT_EQ(ContainerOf(injected, "model")["resources"]["claims"],
            Json::array({Entry("app-0"), Entry("app-1")}));
}

TEST(PodWithClaim, AnExclusivePodTakesAllSharesOfItsGpu) {
  const Json requests =
      TemplateOf(PodOf({{"gpushm.io/exclusive", "true"}})).spec["spec"]["devices"]["requests"];
  const Json& broker = requests[0]["exactly"]["capacity"]["requests"];
  EXPECT_EQ(broker["share"], std::to_string(claims::kShares - 1)) << "app takes the last one";
}

TEST(PodWithClaim, TheMpsDaemonAttachesToo) {
  const Json pod = PodOf({{"gpushm.io/mps", "true"}, {"gpushm.io/mps-uid", "1000"}});
  const Json injected = Injected(TestAdmission(WithClaims()), pod);
  EXPECT_EQ(ContainerOf(injected, "gpushm-mps")["resources"]["claims"],
            Json::array({Entry("app")}));
  const Json requests = TemplateOf(pod).spec["spec"]["devices"]["requests"];
  EXPECT_EQ(requests[1]["exactly"]["capacity"]["requests"], (Json{{"attach", "3"}}));
}

// The scheduler knows what is free on each GPU, so labels of nodes say nothing more.
TEST(PodWithClaim, HasNoNodeAffinity) {
  Settings settings = WithClaims();
  settings.largest_free = LargestFree::kPrefer;
  settings.gpu_count_label = "nvidia.com/gpu.count";
  const Json pod = Injected(TestAdmission(settings), PodOf({{"gpushm.io/gpus", "2"}}));
  EXPECT_FALSE(pod["spec"].contains("affinity"));
}

TEST(WhichFrontEnd, ThePodDecidesThenTheNamespaceThenTheOperator) {
  using annotations::Allocation;
  const auto uses_claim = [](const Settings& settings, const Json& pod,
                             std::optional<Allocation> of_namespace) {
    const Verdict verdict = TestAdmission(settings).Mutate(pod, of_namespace);
    EXPECT_TRUE(verdict.allowed) << verdict.message;
    return verdict.needs.has_value();
  };
  const Json says_nothing = PodWith({"a"}, {{"buffers.gpushm.io/weights", "8Gi"}});
  Json says_plugin = says_nothing;
  says_plugin["metadata"]["annotations"]["gpushm.io/allocation"] = "device-plugin";
  Settings settings = WithClaims();
  EXPECT_FALSE(uses_claim(settings, says_nothing, std::nullopt));
  EXPECT_TRUE(uses_claim(settings, says_nothing, Allocation::kDra));
  EXPECT_TRUE(uses_claim(settings, PodOf(), Allocation::kDevicePlugin));
  settings.allocation = Allocation::kDra;
  EXPECT_TRUE(uses_claim(settings, says_nothing, std::nullopt));
  EXPECT_FALSE(uses_claim(settings, says_nothing, Allocation::kDevicePlugin));
  EXPECT_FALSE(uses_claim(settings, says_plugin, Allocation::kDra));
}

TEST(WhichFrontEnd, AnInstallationWithoutClaimsRefusesThem) {
  const Verdict verdict = TestAdmission().Mutate(PodOf());
  EXPECT_FALSE(verdict.allowed);
  EXPECT_THAT(verdict.message, HasSubstr("gpushm.io/allocation"));
  EXPECT_THAT(verdict.message, HasSubstr("injector.claims: true"));
}

// Goal: a copy of an injected pod gets what its new place needs, and what cannot be taken away is
// refused with the reason.
TEST(WhichFrontEnd, ACopiedPodThatChangesItIsRefusedUntilItIsClean) {
  const Admission admission = TestAdmission(WithClaims());
  Json of_plugin = Injected(admission, PodWith({"a"}, {{"buffers.gpushm.io/weights", "8Gi"}}));
  of_plugin["metadata"]["annotations"]["gpushm.io/allocation"] = "dra";
  const Verdict to_dra = admission.Mutate(of_plugin);
  EXPECT_FALSE(to_dra.allowed);
  EXPECT_THAT(to_dra.message, HasSubstr("resources.limits.gpushm.io/attach"));
  of_plugin["spec"]["containers"][0]["resources"] = Json::object();
  const Json moved = Injected(admission, of_plugin);
  EXPECT_EQ(ContainerOf(moved, "gpushm")["resources"]["claims"], Json::array({Entry("broker")}));
  EXPECT_THAT(moved.dump(), Not(HasSubstr("gpushm.io/memory\"")));
  EXPECT_TRUE(admission.Validate(moved).allowed) << admission.Validate(moved).message;

  Json of_dra = moved;
  of_dra["metadata"]["annotations"]["gpushm.io/allocation"] = "device-plugin";
  const Verdict to_plugin = admission.Mutate(of_dra);
  EXPECT_FALSE(to_plugin.allowed);
  EXPECT_THAT(to_plugin.message, HasSubstr("spec.resourceClaims[0]"));
}

TEST(WhichFrontEnd, ACopyWithOtherBuffersGetsAnotherTemplate) {
  const Admission admission = TestAdmission(WithClaims());
  Json copy = Injected(admission, PodOf());
  copy["metadata"]["annotations"]["buffers.gpushm.io/weights"] = "9Gi";
  const Json again = Injected(admission, copy);
  ASSERT_EQ(again["spec"]["resourceClaims"].size(), 1U);
  EXPECT_EQ(again["spec"]["resourceClaims"][0]["resourceClaimTemplateName"], TemplateOf(copy).name);
  EXPECT_TRUE(admission.Validate(again).allowed) << admission.Validate(again).message;
}

// With the name of the claim alone a container would get the broker's part as well.
TEST(ForeignClaims, OnlyGpushmGivesTheClaimToContainers) {
  const Admission admission = TestAdmission(WithClaims());
  Json pod = PodOf();
  pod["spec"]["resourceClaims"] =
      Json::array({{{"name", "gpushm"}, {"resourceClaimName", "mine"}}});
  EXPECT_THAT(admission.Mutate(pod).message, HasSubstr("reserved for the claim"));
  for (const Json& entry : {Json{{"name", "gpushm"}}, Entry("broker"), Entry("app")}) {
    Json other = PodOf();
    other["spec"]["containers"][0]["resources"]["claims"] = Json::array({entry});
    EXPECT_THAT(admission.Mutate(other).message, HasSubstr("resources.claims"));
  }
  Json later = Injected(admission, PodOf());
  later["spec"]["containers"][0]["resources"]["claims"].push_back(Entry("broker"));
  EXPECT_FALSE(admission.Validate(later).allowed);
  Json own = PodOf();
  own["spec"]["resourceClaims"] = Json::array({{{"name", "nic"}, {"resourceClaimName", "mine"}}});
  own["spec"]["containers"][0]["resources"]["claims"] = Json::array({{{"name", "nic"}}});
  const Json injected = Injected(admission, own);
  EXPECT_EQ(injected["spec"]["resourceClaims"].size(), 2U);
  EXPECT_EQ(ContainerOf(injected, "decoder")["resources"]["claims"],
            Json::array({{{"name", "nic"}}, Entry("app")}));
}

TEST(ForeignClaims, WhatOthersRemoveComesBackOrIsRefused) {
  const Admission admission = TestAdmission(WithClaims());
  const Json good = Injected(admission, PodOf());
  Json without_claim = good;
  without_claim["spec"].erase("resourceClaims");
  EXPECT_THAT(admission.Validate(without_claim).message, HasSubstr("resourceClaims"));
  EXPECT_EQ(Injected(admission, without_claim), good);
  for (const size_t place : {size_t{0}, size_t{1}}) {
    const char* const list = place == 0 ? "initContainers" : "containers";
    Json without_entry = good;
    without_entry["spec"][list][0]["resources"].erase("claims");
    EXPECT_THAT(admission.Validate(without_entry).message, HasSubstr("resources.claims"));
    EXPECT_EQ(Injected(admission, without_entry), good);
  }
}

// A pod that names a claim which several pods share.
Json Sharing(Json more = Json::object()) {
  Json annotations = {{"gpushm.io/claim", "weights"}};
  annotations.update(more);
  return PodWith({"server", "metrics"}, annotations);
}

TEST(SharedClaim, AUserHasTheClaimTheSocketsPlaceAndNoSidecar) {
  for (const Settings& settings : {TestSettings(), WithClaims()}) {
    const Admission admission = TestAdmission(settings);
    const Verdict verdict = admission.Mutate(Sharing());
    ASSERT_TRUE(verdict.allowed) << verdict.message;
    EXPECT_FALSE(verdict.needs) << "the user wrote the claim";
    const Json pod = Sharing().patch(verdict.patch);
    EXPECT_EQ(pod["spec"]["resourceClaims"],
              Json::array({{{"name", "gpushm"}, {"resourceClaimName", "weights"}}}));
    EXPECT_FALSE(pod["spec"].contains("initContainers"));
    EXPECT_FALSE(pod["spec"].contains("volumes"));
    for (const char* const name : {"server", "metrics"}) {
      const Json container = ContainerOf(pod, name);
      EXPECT_EQ(container["resources"], (Json{{"claims", {Entry("app")}}}));
      const Json of_pod = {{"fieldRef", {{"fieldPath", "metadata.name"}}}};
      EXPECT_EQ(container["env"],
                Json::array({{{"name", "GPUSHM_DIR"}, {"value", "/run/gpushm-claim"}},
                             {{"name", "GPUSHM_POD"}, {"valueFrom", of_pod}},
                             {{"name", "GPUSHM_CONTAINER"}, {"value", name}}}));
    }
    EXPECT_EQ(admission.Mutate(pod).outcome, "unchanged");
    EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
    Json changed = pod;
    changed["spec"]["containers"][1]["resources"].erase("claims");
    EXPECT_FALSE(admission.Validate(changed).allowed);
    changed = pod;
    changed["metadata"]["annotations"]["gpushm.io/claim"] = "other";
    EXPECT_FALSE(admission.Validate(changed).allowed);
  }
}

TEST(SharedClaim, AnOwnerIsAPodWithBuffersInThatClaim) {
  const Admission admission = TestAdmission();
  const Json pod = Injected(
      admission, Sharing({{"gpushm.io/role", "owner"}, {"buffers.gpushm.io/model", "8Gi"}}));
  EXPECT_EQ(pod["spec"]["resourceClaims"][0]["resourceClaimName"], "weights");
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["claims"], Json::array({Entry("broker")}));
  EXPECT_EQ(ContainerOf(pod, "server")["resources"]["claims"], Json::array({Entry("app")}));
  EXPECT_FALSE(ContainerOf(pod, "server").contains("env")) << "it has its own socket";
  EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
}

// Goal: no copy of an owner becomes a second broker, and no user brings a broker of its own.
TEST(SharedClaim, AUserHasNoBroker) {
  const Admission admission = TestAdmission();
  Json copy =
      Injected(admission, Sharing({{"gpushm.io/role", "owner"}, {"gpushm.io/pool-extra", "1Gi"}}));
  for (const char* const key : {"gpushm.io/role", "gpushm.io/pool-extra"}) {
    copy["metadata"]["annotations"].erase(key);
  }
  EXPECT_THAT(admission.Mutate(copy).message, HasSubstr("only the owner of a claim"));
  Json forged = Injected(admission, Sharing());
  forged["spec"]["initContainers"] = {
      {{"name", "gpushm"}, {"resources", {{"claims", {Entry("broker")}}}}}};
  EXPECT_FALSE(admission.Mutate(forged).allowed);
  EXPECT_FALSE(admission.Validate(forged).allowed);
  Json twice = Sharing();
  twice["spec"]["resourceClaims"] = {{{"name", "mine"}, {"resourceClaimName", "weights"}}};
  EXPECT_THAT(admission.Mutate(twice).message, HasSubstr("spec.resourceClaims[0]"));
}

TEST(SharedClaim, AUserThatBecomesTheOwnerMustNotLookElsewhere) {
  const Admission admission = TestAdmission();
  Json copy = Injected(admission, Sharing());
  copy["metadata"]["annotations"]["gpushm.io/role"] = "owner";
  EXPECT_THAT(admission.Mutate(copy).message, HasSubstr("env.GPUSHM_DIR"));
}

TEST(SharedClaim, TheNameOfTheOthersIsReserved) {
  const Json pod = PodWith({"other-pods"}, {{"gpushm.io/claim", "weights"}});
  EXPECT_THAT(TestAdmission().Mutate(pod).message, HasSubstr("name: server"));
  EXPECT_TRUE(
      TestAdmission().Mutate(PodWith({"other-pods"}, {{"buffers.gpushm.io/b", "1Gi"}})).allowed);
}

TEST(SharedClaim, UsersOfSeveralGpusGetAllOfThem) {
  const Json pod = Injected(TestAdmission(), Sharing({{"gpushm.io/gpus", "2"}}));
  EXPECT_EQ(ContainerOf(pod, "server")["resources"]["claims"],
            Json::array({Entry("app-0"), Entry("app-1")}));
  EXPECT_THAT(ContainerOf(pod, "server")["env"].dump(), HasSubstr("PCI_BUS_ID"));
}

TEST(SharedClaim, AContainerThatLooksElsewhereStaysSo) {
  Json pod = Sharing();
  const Json own = {{"name", "GPUSHM_DIR"}, {"value", "/elsewhere"}};
  pod["spec"]["containers"][0]["env"] = Json::array({own});
  EXPECT_EQ(ContainerOf(Injected(TestAdmission(), pod), "server")["env"], Json::array({own}));
}

Json AsUser(Json pod, int uid) {
  pod["spec"]["securityContext"]["runAsUser"] = uid;
  return pod;
}

// Goal: pods of one claim run under one MPS daemon, which is in a pod of its own. Method: what each
// role gets, and that nobody starts before the daemon serves.
TEST(ClaimWithMps, UsersAndOwnersWaitForTheDaemonOfTheClaim) {
  const Admission admission = TestAdmission();
  for (const Json& more :
       {Json{{"gpushm.io/mps", "true"}}, Json{{"gpushm.io/mps", "true"},
                                              {"gpushm.io/role", "owner"},
                                              {"buffers.gpushm.io/weights", "1Gi"}}}) {
    const Json pod = Injected(admission, AsUser(Sharing(more), 1000));
    const Json& wait = pod["spec"]["initContainers"].back();
    EXPECT_EQ(wait["name"], "gpushm-mps");
    EXPECT_FALSE(wait.contains("restartPolicy"));
    EXPECT_FALSE(wait.contains("volumeMounts"));
    EXPECT_EQ(wait["command"][1], "wait");
    EXPECT_EQ(wait["resources"]["claims"], Json::array({Entry("app")}));
    EXPECT_EQ(wait["securityContext"]["runAsUser"], 1000);
    const Json server = ContainerOf(pod, "server");
    EXPECT_EQ(VariableOf(server, "CUDA_MPS_PIPE_DIRECTORY"), "/run/gpushm-mps");
    EXPECT_THAT(server.dump(), Not(HasSubstr("mountPath\":\"/run/gpushm-mps")));
    if (more.contains("gpushm.io/role")) {
      EXPECT_THAT(ContainerOf(pod, "gpushm")["args"].dump(),
                  HasSubstr("\"--mps-folder\",\"/run/gpushm-mps\""))
          << "it reads the daemon's state";
    }
    EXPECT_EQ(admission.Mutate(pod).outcome, "unchanged");
    EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
    Json without = pod;
    without["spec"]["initContainers"].erase(pod["spec"]["initContainers"].size() - 1);
    EXPECT_THAT(admission.Validate(without).message, HasSubstr("gpushm-mps"));
    Json forged = pod;
    forged["spec"]["initContainers"].back()["resources"]["claims"][0] = Entry("mps");
    EXPECT_THAT(admission.Mutate(forged).message, HasSubstr("only gpushm may give the claim"));
  }
}

TEST(ClaimWithMps, OnePodRunsTheDaemon) {
  const Admission admission = TestAdmission();
  const Json pod = Injected(admission, AsUser(Sharing({{"gpushm.io/role", "mps"}}), 1000));
  ASSERT_EQ(pod["spec"]["initContainers"].size(), 1U);
  const Json& daemon = pod["spec"]["initContainers"][0];
  EXPECT_EQ(daemon["name"], "gpushm-mps");
  EXPECT_EQ(daemon["restartPolicy"], "Always");
  EXPECT_EQ(daemon["resources"]["claims"], Json::array({Entry("mps")}));
  EXPECT_EQ(daemon["securityContext"]["runAsUser"], 1000);
  EXPECT_FALSE(daemon.contains("volumeMounts")) << "the plugin mounts its folder";
  EXPECT_EQ(ContainerOf(pod, "server")["resources"]["claims"], Json::array({Entry("app")}));
  EXPECT_EQ(admission.Mutate(pod).outcome, "unchanged");
  EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
}

TEST(ClaimWithMps, SaysWhatIsMissing) {
  const Admission admission = TestAdmission();
  EXPECT_THAT(admission.Mutate(Sharing({{"gpushm.io/role", "mps"}})).message,
              HasSubstr("runAsUser: 1000"));
  EXPECT_THAT(
      admission
          .Mutate(AsUser(Sharing({{"gpushm.io/role", "mps"}, {"gpushm.io/mps", "false"}}), 1000))
          .message,
      HasSubstr("runs the MPS daemon of its claim"));
  EXPECT_THAT(admission.Mutate(PodWith({"app"}, {{"gpushm.io/role", "mps"}})).message,
              HasSubstr("gpushm.io/claim: weights"));
  EXPECT_THAT(
      admission
          .Mutate(AsUser(
              Sharing({{"gpushm.io/mps", "true"}, {"gpushm.io/enforce-private", "true"}}), 1000))
          .message,
      HasSubstr("only the owner"));
  Settings settings = TestSettings();
  settings.mps = true;
  const Json pod = Injected(TestAdmission(settings), AsUser(Sharing(), 1000));
  EXPECT_FALSE(pod["spec"].contains("initContainers"))
      << "the chart's default is not for claims, of which it does not know whether they have MPS";
}

TEST(Templates, AreMadeBeforeTheAnswerAndNotInADryRun) {
  const Admission admission = TestAdmission(WithClaims());
  Json review = ReviewOf(PodOf());
  review["request"]["namespace"] = "team-a";
  std::vector<std::string> made;
  const auto make = [&](const std::string& name_space, const ClaimTemplate& wanted) {
    made.push_back(name_space + "/" + wanted.name);
    return Result<void>();
  };
  const std::string expected = "team-a/" + TemplateOf(PodOf()).name;
  const Result<Answer> answer = Review(admission, {Endpoint::kMutate}, review.dump(), make);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->allowed);
  EXPECT_THAT(made, ::testing::ElementsAre(expected));
  ASSERT_TRUE(Review(admission, {Endpoint::kValidate}, review.dump(), make));
  review["request"]["dryRun"] = true;
  const Result<Answer> dry = Review(admission, {Endpoint::kMutate}, review.dump(), make);
  ASSERT_TRUE(dry);
  EXPECT_TRUE(dry->allowed);
  EXPECT_EQ(dry->body, answer->body);
  EXPECT_EQ(made.size(), 1U);
}

TEST(Templates, APodWhoseTemplateCannotBeMadeIsDenied) {
  const Admission admission = TestAdmission(WithClaims());
  Json review = ReviewOf(PodOf());
  const auto fails = [](const std::string&, const ClaimTemplate&) -> Result<void> {
    return Fail(Code::kDenied, "403: forbidden", "give the right");
  };
  for (const char* const name_space : {"team-a", "", "../b"}) {
    review["request"]["namespace"] = name_space;
    const Result<Answer> answer = Review(admission, {Endpoint::kMutate}, review.dump(), fails);
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->allowed);
    EXPECT_EQ(answer->outcome, "template");
    EXPECT_THAT(answer->reason, HasSubstr(*name_space == 't' ? "403: forbidden" : "no namespace"));
  }
}

TEST(Templates, AManifestIsPrintedWithItsTemplate) {
  std::vector<std::string> warnings;
  Json deployment = {{"apiVersion", "apps/v1"},
                     {"kind", "Deployment"},
                     {"metadata", {{"name", "servers"}, {"namespace", "team-a"}}},
                     {"spec", {{"template", PodOf()}}}};
  const auto printed = Inject(WithClaims(), deployment.dump(), &warnings);
  ASSERT_TRUE(printed) << printed.error().ToString();
  const Json list = Json::parse(*printed);
  ASSERT_EQ(list["items"].size(), 2U);
  EXPECT_EQ(list["items"][0]["kind"], "ResourceClaimTemplate");
  EXPECT_EQ(list["items"][0]["metadata"]["namespace"], "team-a");
  EXPECT_EQ(list["items"][1]["spec"]["template"]["spec"]["resourceClaims"][0]
                ["resourceClaimTemplateName"],
            list["items"][0]["metadata"]["name"]);
}

}  // namespace
}  // namespace gpushm::injector
