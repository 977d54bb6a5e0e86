// Goal: a pod that asks for MPS gets a daemon that serves its containers, and one that it could not
// serve is denied with the remedy. Method: pods as JSON, through Mutate and Validate.
#include <gmock/gmock-matchers.h>

#include "sidecar/injector/admit.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using ::testing::AllOf;
using testing::ContainerOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Injected;
using testing::PodWith;
using testing::TestAdmission;
using testing::TestSettings;
using testing::VariableOf;

Json MpsPodOf(Json annotations, std::optional<int64_t> uid = 1000) {
  annotations["buffers.gpushm.io/weights"] = "8Gi";
  Json pod = PodWith({"model", "decoder"}, std::move(annotations));
  if (uid) pod["spec"]["securityContext"]["runAsUser"] = *uid;
  return pod;
}

std::vector<std::string> InitContainers(const Json& pod) {
  std::vector<std::string> names;
  for (const Json& container : pod["spec"]["initContainers"]) names.push_back(container["name"]);
  return names;
}

TEST(Mps, ADaemonAfterTheSidecarAndItsFolderInEachContainer) {
  const Admission admission = TestAdmission();
  const Json pod = Injected(admission, MpsPodOf({{"gpushm.io/mps", "true"}}));
  EXPECT_THAT(InitContainers(pod), ElementsAre("gpushm", "gpushm-mps"));
  const Json mps = ContainerOf(pod, "gpushm-mps");
  EXPECT_EQ(mps["restartPolicy"], "Always");
  EXPECT_EQ(mps["command"], Json::parse(R"(["/usr/bin/gpushm-mps", "--pipe-folder",
                                            "/run/gpushm-mps", "--server-uid", "1000"])"));
  EXPECT_EQ(mps["resources"]["limits"]["gpushm.io/attach"], "1");
  EXPECT_EQ(mps["securityContext"]["runAsUser"], 1000);
  EXPECT_EQ(mps["securityContext"]["runAsNonRoot"], true);
  EXPECT_EQ(mps["securityContext"]["capabilities"], (Json{{"drop", {"ALL"}}}));
  EXPECT_EQ(mps["volumeMounts"], Json::parse(R"([{"name": "gpushm", "mountPath": "/run/gpushm-mps",
                                                  "subPath": ".mps"}])"));
  EXPECT_THAT(ContainerOf(pod, "gpushm")["args"].dump(),
              HasSubstr(R"("--mps-folder","/run/gpushm/.mps")"));
  // 8 GiB, 1 GiB for each container, and the server's memory.
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["limits"]["gpushm.io/memory"], "11");
  for (const std::string name : {"model", "decoder"}) {
    const Json container = ContainerOf(pod, name);
    EXPECT_EQ(VariableOf(container, "CUDA_MPS_PIPE_DIRECTORY"), "/run/gpushm-mps");
    EXPECT_EQ(VariableOf(container, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "none");
    EXPECT_THAT(container["volumeMounts"].dump(), HasSubstr("/run/gpushm-mps"));
    EXPECT_EQ(container["volumeMounts"][1]["readOnly"], true);
  }
  EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
  EXPECT_EQ(admission.Mutate(pod).outcome, "unchanged") << admission.Mutate(pod).patch.dump();
}

TEST(Mps, NothingOfItInAPodThatDoesNotAsk) {
  for (const Json& annotations : {Json::object(), Json{{"gpushm.io/mps", "false"}}}) {
    const Json pod = Injected(TestAdmission(), MpsPodOf(annotations));
    EXPECT_THAT(InitContainers(pod), ElementsAre("gpushm"));
    EXPECT_EQ(pod.dump().find("CUDA_MPS"), std::string::npos);
  }
}

TEST(Mps, LimitsAreThePrivateMemoryAndWhatAContainerMayAttach) {
  const Json pod = Injected(
      TestAdmission(),
      MpsPodOf({{"gpushm.io/mps", "true"},
                {"gpushm.io/enforce-private", "true"},
                {"private.gpushm.io/model", "2Gi"},
                {"buffers.gpushm.io/frames", "{size: 1Mi, generations: 3, containers: [decoder]}"},
                {"compute.gpushm.io/decoder", "25"}}));
  const Json model = ContainerOf(pod, "model");
  const Json decoder = ContainerOf(pod, "decoder");
  // 2 GiB and 8 GiB; 1 GiB, 8 GiB and three times 2 MiB.
  EXPECT_EQ(VariableOf(model, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "0=10240M");
  EXPECT_EQ(VariableOf(decoder, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "0=9222M");
  EXPECT_EQ(VariableOf(model, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "none");
  EXPECT_EQ(VariableOf(decoder, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "25");
}

TEST(Mps, TheUidIsThatOfTheContainers) {
  const Json mps = {{"gpushm.io/mps", "true"}};
  const auto uid = [](const Json& pod) {
    return ContainerOf(pod, "gpushm-mps")["securityContext"]["runAsUser"].get<int64_t>();
  };
  Json own = MpsPodOf(mps, std::nullopt);
  for (Json& container : own["spec"]["containers"]) container["securityContext"]["runAsUser"] = 77;
  EXPECT_EQ(uid(Injected(TestAdmission(), own)), 77);
  Json told = mps;
  told["gpushm.io/mps-uid"] = "4711";
  EXPECT_EQ(uid(Injected(TestAdmission(), MpsPodOf(told, std::nullopt))), 4711);

  // Root: no claim that it is not.
  const Json root = Injected(TestAdmission(), MpsPodOf(mps, 0));
  EXPECT_EQ(ContainerOf(root, "gpushm-mps")["securityContext"]["runAsNonRoot"], false);

  told["gpushm.io/mps-uid"] = "any";
  own["metadata"]["annotations"].update(told);
  own["spec"]["containers"][0]["securityContext"]["runAsUser"] = 78;
  const Json any = ContainerOf(Injected(TestAdmission(), own), "gpushm-mps");
  EXPECT_EQ(any["securityContext"]["runAsUser"], 0);
  EXPECT_EQ(any["securityContext"]["capabilities"],
            Json::parse(R"({"drop": ["ALL"], "add": ["SETUID", "SETGID"]})"));
  EXPECT_EQ(any["command"].dump().find("--server-uid"), std::string::npos);
}

TEST(Mps, WhatItCannotServeIsDeniedWithTheRemedy) {
  const Json mps = {{"gpushm.io/mps", "true"}};
  const auto denied = [](const Json& pod) {
    const Verdict verdict = TestAdmission().Mutate(pod);
    EXPECT_FALSE(verdict.allowed);
    return verdict.message;
  };
  EXPECT_THAT(denied(MpsPodOf(mps, std::nullopt)),
              AllOf(HasSubstr("runAsUser: is not set"), HasSubstr("gpushm.io/mps-uid: \"1000\"")));
  Json two = MpsPodOf(mps);
  two["spec"]["containers"][1]["securityContext"]["runAsUser"] = 1001;
  EXPECT_THAT(denied(two), AllOf(HasSubstr("is 1001"), HasSubstr("says 1000"),
                                 HasSubstr("gpushm.io/mps-uid: any")));
  // Whichever of them comes first.
  for (const size_t known : {size_t{0}, size_t{1}}) {
    Json one = MpsPodOf(mps, std::nullopt);
    one["spec"]["containers"][known]["securityContext"]["runAsUser"] = 1000;
    EXPECT_THAT(denied(one), HasSubstr("runAsUser: is not set")) << known;
  }
  Json other = mps;
  other["gpushm.io/mps-uid"] = "5";
  EXPECT_THAT(denied(MpsPodOf(other)), HasSubstr("says 5"));
  other["gpushm.io/mps-uid"] = "everybody";
  EXPECT_THAT(denied(MpsPodOf(other)), HasSubstr("gpushm.io/mps-uid"));
  EXPECT_THAT(denied(MpsPodOf({{"gpushm.io/enforce-private", "true"}})),
              AllOf(HasSubstr("needs MPS"), HasSubstr("gpushm.io/mps: \"true\"")));
  EXPECT_THAT(denied(MpsPodOf({{"compute.gpushm.io/model", "50"}})), HasSubstr("needs MPS"));
  EXPECT_THAT(denied(MpsPodOf({{"gpushm.io/mps", "true"}, {"compute.gpushm.io/model", "0"}})),
              HasSubstr("compute.gpushm.io/model"));
  EXPECT_THAT(denied(MpsPodOf({{"gpushm.io/mps", "true"}, {"compute.gpushm.io/modle", "50"}})),
              HasSubstr("the nearest is \"model\""));
  Json set = MpsPodOf(mps);
  set["spec"]["containers"][0]["env"] =
      Json::parse(R"([{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/mine"}])");
  EXPECT_THAT(denied(set), HasSubstr("CUDA_MPS_PIPE_DIRECTORY: gpushm sets this variable"));
  Json named = MpsPodOf(mps);
  named["spec"]["containers"][0]["name"] = "gpushm-mps";
  EXPECT_THAT(denied(named), HasSubstr("reserved for the MPS daemon"));
  Json host_ipc = MpsPodOf({{"gpushm.io/mps", "true"},
                            {"gpushm.io/enforce-private", "true"},
                            {"gpushm.io/host-ipc", "true"}});
  host_ipc["spec"]["hostIPC"] = true;
  EXPECT_THAT(denied(host_ipc), HasSubstr("memory of other pods counts"));
}

TEST(Mps, TheOperatorsDefaultDeniesNobody) {
  Settings settings = TestSettings();
  settings.mps = true;
  const Admission admission = TestAdmission(settings);
  EXPECT_THAT(InitContainers(Injected(admission, MpsPodOf({}))),
              ElementsAre("gpushm", "gpushm-mps"));
  EXPECT_THAT(InitContainers(Injected(admission, MpsPodOf({{"gpushm.io/mps", "false"}}))),
              ElementsAre("gpushm"));
  const Json unknown = MpsPodOf({}, std::nullopt);
  EXPECT_THAT(InitContainers(Injected(admission, unknown)), ElementsAre("gpushm"));
  EXPECT_THAT(admission.Mutate(unknown).warnings, ElementsAre(HasSubstr("runs without MPS")));
}

TEST(Mps, WhatAnotherWebhookRemovedComesBackOrIsDenied) {
  const Admission admission = TestAdmission();
  const Json pod = Injected(admission, MpsPodOf({{"gpushm.io/mps", "true"}}));
  Json without = pod;
  without["spec"]["initContainers"].erase(1);
  EXPECT_FALSE(admission.Validate(without).allowed);
  EXPECT_EQ(Injected(admission, without), pod);
  Json off = pod;
  off["metadata"]["annotations"]["gpushm.io/mps"] = "false";
  EXPECT_THAT(admission.Mutate(off).message, HasSubstr("does not ask for MPS any more"));
}

TEST(Exclusive, TheSidecarRequestsTheGpuAlone) {
  const Admission admission = TestAdmission();
  Json pod = Injected(admission, MpsPodOf({{"gpushm.io/exclusive", "true"}}, std::nullopt));
  for (const std::string list : {"limits", "requests"}) {
    EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"][list]["gpushm.io/exclusive"], "1");
    EXPECT_FALSE(ContainerOf(pod, "model")["resources"]
                     .value(list, Json::object())
                     .contains("gpushm.io/exclusive"));
  }
  EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
  for (const char* const value : {"false", ""}) {
    const Json shares = value[0] == 0 ? MpsPodOf({}, std::nullopt)
                                      : MpsPodOf({{"gpushm.io/exclusive", value}}, std::nullopt);
    EXPECT_EQ(
        ContainerOf(Injected(admission, shares), "gpushm").dump().find("gpushm.io/exclusive\":"),
        std::string::npos);
  }
  // Another webhook removed the request.
  Json changed = pod;
  for (Json& container : changed["spec"]["initContainers"]) {
    if (container["name"] == "gpushm")
      container["resources"]["limits"].erase("gpushm.io/exclusive");
  }
  EXPECT_THAT(admission.Validate(changed).message,
              HasSubstr("its sidecar must request 1 gpushm.io/exclusive"));
  EXPECT_EQ(ContainerOf(Injected(admission, changed), "gpushm")["resources"],
            ContainerOf(pod, "gpushm")["resources"]);
  Json own = MpsPodOf({}, std::nullopt);
  own["spec"]["containers"][0]["resources"]["limits"]["gpushm.io/exclusive"] = "1";
  EXPECT_THAT(admission.Mutate(own).message, HasSubstr("only gpushm may request this resource"));
}

TEST(CudaIpc, ALibraryThatTheLinkerLoadsInEachContainerThatAttaches) {
  const Admission admission = TestAdmission();
  const Json pod = Injected(admission, MpsPodOf({{"gpushm.io/cuda-ipc", "true"}}, std::nullopt));
  for (const std::string name : {"model", "decoder"}) {
    EXPECT_EQ(ContainerOf(pod, name)["volumeMounts"][1], Json::parse(R"({
        "name": "gpushm", "mountPath": "/run/gpushm-cuda-ipc", "subPath": ".cuda-ipc",
        "readOnly": true})"));
    EXPECT_EQ(ContainerOf(pod, name)["volumeMounts"][2], Json::parse(R"({
        "name": "gpushm", "mountPath": "/etc/ld.so.preload",
        "subPath": ".cuda-ipc/ld.so.preload", "readOnly": true})"));
  }
  EXPECT_THAT(ContainerOf(pod, "gpushm")["args"].dump(),
              HasSubstr(R"("--cuda-ipc","/run/gpushm/.cuda-ipc")"));
  EXPECT_TRUE(admission.Validate(pod).allowed) << admission.Validate(pod).message;
  EXPECT_EQ(admission.Mutate(pod).outcome, "unchanged");
  EXPECT_EQ(Injected(admission, MpsPodOf({})).dump().find("ld.so.preload"), std::string::npos);

  Json taken = MpsPodOf({{"gpushm.io/cuda-ipc", "true"}});
  taken["spec"]["volumes"] = Json::parse(R"([{"name": "own", "emptyDir": {}}])");
  taken["spec"]["containers"][0]["volumeMounts"] =
      Json::parse(R"([{"name": "own", "mountPath": "/etc/ld.so.preload", "subPath": "x"}])");
  EXPECT_THAT(admission.Mutate(taken).message, HasSubstr("LD_PRELOAD"));
}

}  // namespace
}  // namespace gpushm::injector
