// What is denied, with which words, and what is not.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sidecar/injector/admit.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Injected;
using testing::PodWith;
using testing::TestAdmission;

const Json kWeights = {{"buffers.gpushm.io/weights", "8Gi"}};

struct Denial {
  const char* what;
  Json annotations;
  std::function<void(Json&)> change;
  std::vector<std::string> words;
};

// Denied because of their annotations.
std::vector<Denial> AnnotationDenials() {
  const auto keep = [](Json&) {};
  return {
      {"typo in a key",
       {{"buffer.gpushm.io/weights", "8Gi"}},
       keep,
       {"buffer.gpushm.io/weights", "unknown key", "buffers.gpushm.io/weights"}},
      {"plain init container",
       {{"buffers.gpushm.io/w", "{size: 1Gi, containers: [fetch]}"}},
       [](Json& pod) { pod["spec"]["initContainers"] = {{{"name", "fetch"}}}; },
       {"\"fetch\"", "ends before the pod runs", "restartPolicy: Always"}},
  };
}

// Denied because of resources that containers request themselves.
std::vector<Denial> ResourceDenials() {
  return {
      {"another GPU",
       kWeights,
       [](Json& pod) {
         pod["spec"]["containers"][0]["resources"] = {{"limits", {{"nvidia.com/gpu", 1}}}};
       },
       {"spec.containers[0] (model)", "nvidia.com/gpu", "coexist"}},
      {"a share of a GPU",
       kWeights,
       [](Json& pod) {
         pod["spec"]["containers"][0]["resources"] = {{"requests", {{"nvidia.com/gpu.shared", 1}}}};
       },
       {"requests.nvidia.com/gpu.shared", "coexist"}},
      {"a MIG instance",
       kWeights,
       [](Json& pod) {
         pod["spec"]["containers"][0]["resources"] = {{"limits", {{"nvidia.com/mig-1g.10gb", 1}}}};
       },
       {"limits.nvidia.com/mig-1g.10gb", "coexist"}},
      {"more than one token",
       kWeights,
       [](Json& pod) {
         pod["spec"]["containers"][0]["resources"] = {{"limits", {{"gpushm.io/attach", 2}}}};
       },
       {"spec.containers[0] (model).resources.limits.gpushm.io/attach", "once", "remove it"}},
      {"attach by hand on a plain init container",
       kWeights,
       [](Json& pod) {
         pod["spec"]["initContainers"] = {
             {{"name", "early"}, {"resources", {{"limits", {{"gpushm.io/attach", "1"}}}}}}};
       },
       {"spec.initContainers[0] (early)", "gpushm.io/attach"}},
  };
}

// Denied because of other parts of the pod.
std::vector<Denial> PodDenials() {
  const auto keep = [](Json&) {};
  return {
      {"shared processes",
       {{"buffers.gpushm.io/w", "{size: 1Gi, writers: [model]}"}},
       [](Json& pod) { pod["spec"]["shareProcessNamespace"] = true; },
       {"spec.shareProcessNamespace", "writers"}},
      {"shared processes and a signal's list",
       {{"signals.gpushm.io/ready", "{writers: [model]}"}},
       [](Json& pod) { pod["spec"]["shareProcessNamespace"] = true; },
       {"spec.shareProcessNamespace", "writers"}},
      {"the host's processes",
       {{"buffers.gpushm.io/w", "{size: 1Gi, containers: [model]}"}},
       [](Json& pod) { pod["spec"]["hostPID"] = true; },
       {"spec.hostPID"}},
      {"a slip in the domain",
       {{"buffers-gpushm.io/w", "1Gi"}},
       keep,
       {"buffers-gpushm.io/w", "unknown key"}},
      {"hostIPC",
       {{"buffers.gpushm.io/w", "1Gi"}, {"gpushm.io/host-ipc", "true"}},
       keep,
       {"gpushm.io/host-ipc", "hostIPC: true"}},
      {"no such volume",
       {{"buffers.gpushm.io/w", "{size: 1Gi, file: modles/w.bin}"}},
       [](Json& pod) { pod["spec"]["volumes"] = {{{"name", "models"}}}; },
       {"buffers.gpushm.io/w", "file", "no volume \"modles\"", "models/w.bin"}},
      {"our name",
       kWeights,
       [](Json& pod) { pod["spec"]["containers"][0]["name"] = "gpushm"; },
       {"spec.containers[0] (gpushm)", "sidecar"}},
      {"a copy without gpushm.io/status",
       kWeights,
       [](Json& pod) {
         pod = Injected(TestAdmission(), pod);
         pod["metadata"]["annotations"].erase("gpushm.io/status");
       },
       {"spec.initContainers[0] (gpushm)", "copied", "remove the init container", "keep"}},
      {"our volume",
       kWeights,
       [](Json& pod) { pod["spec"]["volumes"] = {{{"name", "gpushm"}}}; },
       {"spec.volumes", "gpushm"}},
      {"our place",
       kWeights,
       [](Json& pod) {
         pod["spec"]["containers"][0]["volumeMounts"] = {
             {{"name", "mine"}, {"mountPath", "/run/gpushm"}}};
       },
       {"spec.containers[0] (model).volumeMounts", "/run/gpushm"}},
      {"Windows",
       kWeights,
       [](Json& pod) { pod["spec"]["os"] = {{"name", "windows"}}; },
       {"spec.os.name", "\"windows\"", "linux"}},
  };
}

// Goal: a reader of the message knows the field, the reason, and what would be right.
TEST(Mutate, DenialsNameFieldReasonAndExample) {
  std::vector<Denial> denials = AnnotationDenials();
  std::ranges::move(ResourceDenials(), std::back_inserter(denials));
  std::ranges::move(PodDenials(), std::back_inserter(denials));
  for (const Denial& denial : denials) {
    SCOPED_TRACE(denial.what);
    Json pod = PodWith({"model"}, denial.annotations);
    denial.change(pod);
    const Verdict verdict = TestAdmission().Mutate(pod);
    EXPECT_FALSE(verdict.allowed);
    EXPECT_TRUE(verdict.patch.empty());
    for (const std::string& word : denial.words) EXPECT_THAT(verdict.message, HasSubstr(word));
  }
}

// Goal: changes that others make to a pod after its patch are also detected. Method: each change is
// made to a pod that is correct without it.
TEST(Validate, DeniesWhatOthersMadeOfAPod) {
  const std::vector<std::pair<const char*, std::function<void(Json&)>>> changes = {
      {"nvidia.com/gpu",
       [](Json& pod) {
         pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1";
       }},
      {"gpushm.io/memory",
       [](Json& pod) {
         pod["spec"]["containers"][0]["resources"]["limits"]["gpushm.io/memory"] = "1";
       }},
      {"gpushm.io/attach",
       [](Json& pod) {
         pod["spec"]["containers"].push_back(
             {{"name", "late"}, {"resources", {{"limits", {{"gpushm.io/attach", "1"}}}}}});
       }},
      {"volumeMounts",
       [](Json& pod) {
         pod["spec"]["containers"].push_back(
             {{"name", "spy"}, {"volumeMounts", {{{"name", "gpushm"}, {"mountPath", "/all"}}}}});
       }},
      {"volumeMounts",
       [](Json& pod) {
         pod["spec"]["containers"][0]["volumeMounts"].push_back(
             {{"name", "v"}, {"mountPath", "/run//gpushm/"}});
       }},
      {"sidecar must mount",
       [](Json& pod) { pod["spec"]["initContainers"][0].erase("volumeMounts"); }},
      {"before the sidecar",
       [](Json& pod) {
         auto& list = pod["spec"]["initContainers"];
         std::swap(list[0], list[1]);
       }},
      {"initContainers[0] (decoder): was put before the sidecar",
       [](Json& pod) {
         auto& list = pod["spec"]["initContainers"];
         std::swap(list[0], list[2]);
       }},
      {"container gpushm-load-w must mount the volumes gpushm and models",
       [](Json& pod) { pod["spec"]["initContainers"][1]["volumeMounts"].erase(1); }},
      {"removed the container gpushm-load-w, which loads a file",
       [](Json& pod) { pod["spec"]["initContainers"].erase(1); }},
      {"container gpushm-load-w must request 1 gpushm.io/attach",
       [](Json& pod) { pod["spec"]["initContainers"][1]["resources"].erase("limits"); }},
      {"container gpushm-load-other loads the file of no buffer",
       [](Json& pod) {
         pod["spec"]["initContainers"].push_back(pod["spec"]["initContainers"][1]);
         pod["spec"]["initContainers"].back()["name"] = "gpushm-load-other";
       }},
  };
  Json before = PodWith({"model"}, {{"buffers.gpushm.io/w", "{size: 1Gi, file: models/w}"},
                                    {"private.gpushm.io/decoder", "1Gi"}});
  before["spec"]["initContainers"] = {{{"name", "decoder"}, {"restartPolicy", "Always"}}};
  before["spec"]["volumes"] = {{{"name", "models"}, {"emptyDir", Json::object()}}};
  const Json whole = Injected(TestAdmission(), before);
  ASSERT_TRUE(TestAdmission().Validate(whole).allowed);
  for (const auto& [word, change] : changes) {
    Json pod = whole;
    change(pod);
    const Verdict verdict = TestAdmission().Validate(pod);
    EXPECT_FALSE(verdict.allowed) << word;
    EXPECT_THAT(verdict.message, HasSubstr(word));
  }
}

TEST(Mutate, ResourcesThatAreNoGpuAreNobodysMatter) {
  Json pod = PodWith({"model"}, kWeights);
  pod["spec"]["containers"][0]["resources"] = {{"limits",
                                                {{"nvidia.com/hostdev", 1},
                                                 {"nvidia.com/rdma_shared_device_a", "1"},
                                                 {"nvidia.com/gpu", "0"},
                                                 {"gpushm.io/memory", 0}}}};
  const Verdict verdict = TestAdmission().Mutate(pod);
  EXPECT_TRUE(verdict.allowed) << verdict.message;
}

// Goal: lists of containers also hold against `kubectl debug`.
TEST(Ephemeral, ContainersThatWouldGetAroundListsAreDenied) {
  const Json listed = {{"buffers.gpushm.io/w", "{size: 1Gi, writers: [model]}"}};
  for (const auto& [annotations, container, allowed] : std::vector<std::tuple<Json, Json, bool>>{
           {listed, {{"name", "debug"}}, true},
           {listed, {{"name", "debug"}, {"targetContainerName", "model"}}, false},
           {listed, {{"name", "debug"}, {"volumeMounts", {{{"name", "gpushm"}}}}}, false},
           {kWeights, {{"name", "debug"}, {"targetContainerName", "model"}}, true}}) {
    Json pod = Injected(TestAdmission(), PodWith({"model"}, annotations));
    pod["spec"]["ephemeralContainers"] = Json::array({container});
    EXPECT_EQ(TestAdmission().ValidateEphemeral(pod).allowed, allowed) << container;
    // Whatever its annotations say now.
    pod["metadata"].erase("annotations");
    EXPECT_EQ(TestAdmission().ValidateEphemeral(pod).allowed, allowed) << container;
  }
}

// Goal: a container that only has the sidecar's name is not treated as one, and a sidecar that
// cannot be read is not treated as one without lists.
TEST(Ephemeral, WhatIsNoSidecarIsLeftAloneAndWhatCannotBeReadIsDenied) {
  Json theirs = PodWith({"model"}, {{"a.example/b", "c"}});
  theirs["spec"]["initContainers"] = {{{"name", "gpushm"}}};
  theirs["spec"]["ephemeralContainers"] = {{{"name", "debug"}, {"targetContainerName", "model"}}};
  EXPECT_EQ(TestAdmission().ValidateEphemeral(theirs).outcome, "not-ours");

  Json pod = Injected(TestAdmission(), PodWith({"model"}, kWeights));
  pod["spec"]["ephemeralContainers"] = theirs["spec"]["ephemeralContainers"];
  EXPECT_TRUE(TestAdmission().ValidateEphemeral(pod).allowed);
  Json& environment = pod["spec"]["initContainers"][0]["env"];
  environment[0]["value"] = "buffers.gpushm.io/w: 8GB";
  Verdict verdict = TestAdmission().ValidateEphemeral(pod);
  EXPECT_FALSE(verdict.allowed);
  EXPECT_THAT(verdict.message, AllOf(HasSubstr("cannot be read"), HasSubstr("8GB")));
  environment.erase(0);
  verdict = TestAdmission().ValidateEphemeral(pod);
  EXPECT_FALSE(verdict.allowed);
  EXPECT_THAT(verdict.message, HasSubstr("the sidecar has no environment variable GPUSHM_BUFFERS"));
}

}  // namespace
}  // namespace gpushm::injector
