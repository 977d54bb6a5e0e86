#include "sidecar/injector/admit.h"

#include <gmock/gmock-matchers.h>

#include <functional>
#include <utility>

#include "platform/base/status.h"
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

const Json kWeightsOfOne = {{"buffers.gpushm.io/weights", "8Gi"}};

std::vector<std::string> Paths(const Verdict& verdict) {
  std::vector<std::string> paths;
  for (const Json& operation : verdict.patch) paths.push_back(operation["path"]);
  return paths;
}

Json MountOf(const Json& container, const std::string& path) {
  for (const Json& mount : container.value("volumeMounts", Json::array())) {
    if (mount["mountPath"] == path) return mount;
  }
  return nullptr;
}

TEST(Mutate, GivesAPodItsSidecarAndEachContainerTheGpuAndItsSocket) {
  const Json pod = Injected(TestAdmission(), PodWith({"model", "decoder"}, kWeightsOfOne));
  for (const std::string name : {"model", "decoder"}) {
    const Json container = ContainerOf(pod, name);
    EXPECT_EQ(container["resources"]["limits"], (Json{{"gpushm.io/attach", "1"}}));
    EXPECT_EQ(MountOf(container, "/run/gpushm"), (Json{{"name", "gpushm"},
                                                       {"mountPath", "/run/gpushm"},
                                                       {"subPath", name},
                                                       {"readOnly", true}}));
  }
  ASSERT_EQ(pod["spec"]["initContainers"].size(), 1u);
  const Json sidecar = pod["spec"]["initContainers"][0];
  EXPECT_EQ(sidecar["name"], "gpushm");
  EXPECT_EQ(sidecar["restartPolicy"], "Always");
  EXPECT_EQ(sidecar["terminationMessagePolicy"], "FallbackToLogsOnError");
  // 8 GiB, and 1 GiB of private memory for each container.
  EXPECT_EQ(sidecar["resources"]["limits"]["gpushm.io/memory"], "10");
  EXPECT_EQ(sidecar["resources"]["requests"]["gpushm.io/memory"], "10");
  EXPECT_EQ(sidecar["args"], Json::parse(R"(["--container", "model", "--container", "decoder",
                                             "--link", "/run/gpushm-link"])"));
  EXPECT_EQ(sidecar["env"], Json::parse(R"([
      {"name": "GPUSHM_BUFFERS", "value": "buffers.gpushm.io/weights: \"8Gi\"\n"},
      {"name": "GPUSHM_POD_NAMESPACE",
       "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
      {"name": "GPUSHM_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
      {"name": "GPUSHM_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}])"));
  EXPECT_EQ(sidecar["lifecycle"]["postStart"]["exec"]["command"][2], "/run/gpushm/model");
  EXPECT_EQ(pod["spec"]["volumes"],
            Json::parse(R"([{"name": "gpushm", "emptyDir": {"medium": "Memory",
                                                             "sizeLimit": "8Mi"}}])"));
  const Json status =
      Json::parse(pod["metadata"]["annotations"]["gpushm.io/status"].get<std::string>());
  EXPECT_EQ(status["containers"], (Json{"model", "decoder"}));
  EXPECT_EQ(status["memory"], "10Gi");
}

TEST(Mutate, TouchesNothingElse) {
  EXPECT_THAT(
      Paths(TestAdmission().Mutate(PodWith({"model"}, kWeightsOfOne))),
      ::testing::ElementsAre("/spec/containers/0/resources/limits",
                             "/spec/containers/0/volumeMounts", "/spec/volumes",
                             "/spec/initContainers", "/metadata/annotations/gpushm.io~1status"));
}

// Goal: what other webhooks remove is added again where possible, and reported where the API server
// does not call the injector again.
TEST(Mutate, WhatOthersTookAwayComesBack) {
  const Json whole = Injected(TestAdmission(), PodWith({"model"}, kWeightsOfOne));
  const std::vector<std::function<void(Json&)>> thefts = {
      [](Json& pod) { pod["spec"]["initContainers"][0].erase("restartPolicy"); },
      [](Json& pod) {
        pod["spec"]["initContainers"][0]["resources"]["limits"].erase("gpushm.io/memory");
      },
      [](Json& pod) { pod["spec"]["containers"][0]["resources"].erase("limits"); },
      [](Json& pod) { pod["spec"]["containers"][0].erase("volumeMounts"); },
      [](Json& pod) { pod["spec"].erase("volumes"); },
      [](Json& pod) { pod["spec"].erase("initContainers"); },
  };
  for (size_t i = 0; i < thefts.size(); ++i) {
    SCOPED_TRACE(i);
    Json pod = whole;
    thefts[i](pod);
    const Verdict verdict = TestAdmission().Validate(pod);
    EXPECT_FALSE(verdict.allowed);
    EXPECT_EQ(verdict.outcome, "changed-by-others");
    if (i == 1) {
      EXPECT_THAT(verdict.message, HasSubstr("gpushm.io/memory, but another webhook changed that "
                                             "to nothing"));
    }
    pod = Injected(TestAdmission(), pod);
    EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
    EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
  }
}

TEST(Mutate, ACopiedPodWithOtherAnnotationsIsMadeAnew) {
  Json pod = Injected(TestAdmission(), PodWith({"model"}, kWeightsOfOne));
  pod["metadata"]["annotations"]["buffers.gpushm.io/weights"] = "2Gi";
  EXPECT_FALSE(TestAdmission().Validate(pod).allowed);
  pod = Injected(TestAdmission(), pod);
  EXPECT_EQ(pod["spec"]["initContainers"].size(), 1u);
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["limits"]["gpushm.io/memory"], "3");
  EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
}

// Goal: which containers get the GPU does not depend on what other webhooks write into annotations
// in between.
TEST(Mutate, AContainerThatComesLaterGetsNoGpuAlsoForOtherAnnotations) {
  Json pod = Injected(TestAdmission(), PodWith({"model"}, kWeightsOfOne));
  pod["spec"]["containers"].push_back({{"name", "proxy"}});
  pod["metadata"]["annotations"]["sidecar.gpushm.io/cpu"] = "100m";
  pod = Injected(TestAdmission(), pod);
  EXPECT_EQ(ContainerOf(pod, "proxy"), (Json{{"name", "proxy"}}));
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["requests"]["cpu"], "100m");
  EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
  pod["metadata"]["annotations"]["private.gpushm.io/proxy"] = "1Gi";
  EXPECT_TRUE(ContainerOf(Injected(TestAdmission(), pod), "proxy").contains("resources"))
      << "it is named";
}

// Goal: a pod that was copied from a running one, and is created again after an upgrade, does not
// keep the old sidecar. While replicas of both versions answer, neither refuses what the other one
// did.
TEST(Mutate, ACopyOfAPodFromBeforeAnUpgradeGetsTheNewSidecar) {
  Settings settings = TestSettings();
  settings.sidecar_image = "docker.io/gpushm/sidecar:former";
  Json pod = Injected(TestAdmission(settings), PodWith({"model"}, kWeightsOfOne));
  pod["spec"]["containers"].push_back({{"name", "proxy"}});
  EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
  pod = Injected(TestAdmission(), pod);
  EXPECT_EQ(pod["spec"]["initContainers"].size(), 1u);
  EXPECT_EQ(ContainerOf(pod, "gpushm")["image"], "docker.io/gpushm/sidecar:test");
  EXPECT_FALSE(ContainerOf(pod, "proxy").contains("resources")) << "it came later";
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
  EXPECT_TRUE(TestAdmission(settings).Validate(pod).allowed);
}

// Goal: if another webhook changed the sidecar's image to the site's own registry, the image is
// kept.
TEST(Mutate, AnImageThatAnotherWebhookChangedStays) {
  Json pod = Injected(TestAdmission(), PodWith({"model"}, kWeightsOfOne));
  pod["spec"]["initContainers"][0]["image"] = "mirror.example/gpushm/sidecar:test";
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
}

TEST(Mutate, UnitsThatTheApiServerWritesShorterAreTheSame) {
  Json pod = Injected(TestAdmission(), PodWith({"model"}, {{"buffers.gpushm.io/w", "1999Gi"}}));
  for (const char* const list : {"limits", "requests"}) {
    Json& units = pod["spec"]["initContainers"][0]["resources"][list]["gpushm.io/memory"];
    ASSERT_EQ(units, "2000");
    units = "2k";
  }
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
  EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
}

TEST(Mutate, OnlyContainersThatAreNamedAttach) {
  const Json pod = Injected(
      TestAdmission(),
      PodWith({"model", "logger"}, {{"buffers.gpushm.io/w", "{size: 1Gi, containers: [model]}"}}));
  EXPECT_FALSE(ContainerOf(pod, "model")["resources"]["limits"].is_null());
  EXPECT_EQ(ContainerOf(pod, "logger"),
            (Json{{"name", "logger"}, {"image", "app"}, {"resources", Json::object()}}));
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["limits"]["gpushm.io/memory"], "2");
}

// Goal: a pod that shares only signals gets a sidecar and at least one unit, because a container
// that requests nothing is not bound to a GPU.
TEST(Mutate, ASignalAloneIsEnough) {
  const Json signal = {{"signals.gpushm.io/ready", "{writers: [model]}"},
                       {"private.gpushm.io/model", "0"}};
  const Json pod = Injected(TestAdmission(), PodWith({"model"}, signal));
  EXPECT_EQ(ContainerOf(pod, "model")["resources"]["limits"]["gpushm.io/attach"], "1");
  const Json sidecar = ContainerOf(pod, "gpushm");
  EXPECT_EQ(sidecar["resources"]["limits"]["gpushm.io/memory"], "1");
  EXPECT_THAT(sidecar["env"][0]["value"].get<std::string>(),
              HasSubstr("signals.gpushm.io/ready: \"{writers: [model]}\"\n"));
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
}

TEST(Mutate, ASignalAddsNothingToWhatABufferNeeds) {
  Json both = kWeightsOfOne;
  const Json without = TestAdmission().Mutate(PodWith({"model"}, both)).patch;
  both["signals.gpushm.io/ready"] = "";
  const Verdict with = TestAdmission().Mutate(PodWith({"model"}, both));
  EXPECT_THAT(Paths(with), ::testing::SizeIs(without.size()));
  EXPECT_EQ(ContainerOf(PodWith({"model"}, both).patch(with.patch), "gpushm")["resources"],
            ContainerOf(PodWith({"model"}, kWeightsOfOne).patch(without), "gpushm")["resources"]);
}

TEST(Mutate, ASidecarOfThePodsOwnAttachesWhereItIsNamed) {
  Json pod = PodWith({"model"}, kWeightsOfOne);
  pod["spec"]["initContainers"] = {{{"name", "decoder"}, {"restartPolicy", "Always"}}};
  EXPECT_FALSE(ContainerOf(Injected(TestAdmission(), pod), "decoder").contains("resources"));
  pod["metadata"]["annotations"]["private.gpushm.io/decoder"] = "1Gi";
  const Json named = Injected(TestAdmission(), pod);
  EXPECT_EQ(ContainerOf(named, "decoder")["resources"]["limits"]["gpushm.io/attach"], "1");
  EXPECT_EQ(named["spec"]["initContainers"][0]["name"], "gpushm") << "it starts first";
  EXPECT_EQ(TestAdmission().Mutate(named).outcome, "unchanged");
}

// ---- loaders

Json PodWithFile(const std::string& file = "models/llama/") {
  Json pod = PodWith({"model"}, {{"buffers.gpushm.io/weights",
                                  Concat("{size: 8Gi, access: read-only, file: ", file, "}")}});
  pod["spec"]["volumes"] = {{{"name", "models"}, {"emptyDir", Json::object()}}};
  return pod;
}

std::vector<std::string> InitNames(const Json& pod) {
  std::vector<std::string> names;
  for (const Json& container : pod["spec"]["initContainers"]) names.push_back(container["name"]);
  return names;
}

TEST(Loader, LoadsAFileInAContainerOfItsOwn) {
  const Json pod = Injected(TestAdmission(), PodWithFile());
  EXPECT_THAT(InitNames(pod), ElementsAre("gpushm", "gpushm-load-weights"));
  const Json sidecar = ContainerOf(pod, "gpushm");
  EXPECT_EQ(sidecar["volumeMounts"].size(), 1U) << "it mounts no volume of the pod";
  EXPECT_EQ(sidecar["resources"]["limits"]["memory"], "64Mi");
  // 8 GiB, and 1 GiB each for the container and the loader.
  EXPECT_EQ(sidecar["resources"]["limits"]["gpushm.io/memory"], "10");
  const Json loader = ContainerOf(pod, "gpushm-load-weights");
  EXPECT_EQ(loader["image"], sidecar["image"]);
  EXPECT_EQ(loader["restartPolicy"], "Always");
  EXPECT_EQ(loader["command"], Json::parse(R"(["/usr/bin/gpushmctl", "load", "--stay",
                                              "/run/gpushm-files/llama/", "weights"])"));
  EXPECT_EQ(loader["securityContext"], sidecar["securityContext"]);
  EXPECT_EQ(loader["resources"]["limits"],
            (Json{{"gpushm.io/attach", "1"}, {"cpu", "2000m"}, {"memory", "640Mi"}}));
  EXPECT_EQ(loader["resources"]["requests"]["memory"], "32Mi");
  EXPECT_EQ(MountOf(loader, "/run/gpushm"), (Json{{"name", "gpushm"},
                                                  {"mountPath", "/run/gpushm"},
                                                  {"subPath", "gpushm-load-weights"},
                                                  {"readOnly", true}}));
  EXPECT_EQ(MountOf(loader, "/run/gpushm-files"), (Json{{"name", "models"},
                                                        {"mountPath", "/run/gpushm-files"},
                                                        {"readOnly", true},
                                                        {"mountPropagation", "HostToContainer"}}));
  for (const char* const probe : {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"}) {
    EXPECT_FALSE(loader.contains(probe)) << "applications start meanwhile";
  }
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
  EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
}

// Goal: whatever may serve a volume is started before the loader, also if another webhook adds it
// later. What waits for the buffer, or prepares the file and ends, need not be.
TEST(Loader, StartsBehindWhatMayServeItsVolume) {
  const auto container = [](const char* name, bool stays) {
    Json made = {{"name", name}};
    if (stays) made["restartPolicy"] = "Always";
    return made;
  };
  Json pod = PodWithFile();
  pod["metadata"]["annotations"]["private.gpushm.io/reader"] = "1Gi";
  pod["spec"]["initContainers"] = {container("gke-gcsfuse-sidecar", true),
                                   container("reader", true), container("fetch", false)};
  pod = Injected(TestAdmission(), pod);
  EXPECT_THAT(InitNames(pod), ElementsAre("gpushm", "gke-gcsfuse-sidecar", "gpushm-load-weights",
                                          "reader", "fetch"));
  auto& list = pod["spec"]["initContainers"];
  list.push_back(container("juicefs", true));
  pod = Injected(TestAdmission(), pod);
  EXPECT_THAT(InitNames(pod), ElementsAre("gpushm", "gke-gcsfuse-sidecar", "reader", "fetch",
                                          "juicefs", "gpushm-load-weights"));
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
}

TEST(Loader, OfEachGpuHasAContainer) {
  Json pod =
      PodWith({"model"},
              {{"gpushm.io/gpus", "2"},
               {"buffers.gpushm.io/w", "{size: 1Gi, gpu: each, file: 'models/{gpu}-$(X).bin'}"}});
  pod["spec"]["volumes"] = {{{"name", "models"}, {"emptyDir", Json::object()}}};
  pod = Injected(TestAdmission(), pod);
  EXPECT_THAT(InitNames(pod), ElementsAre("gpushm", "gpushm-load-w-0", "gpushm-load-w-1"));
  const Json second = ContainerOf(pod, "gpushm-load-w-1");
  EXPECT_EQ(second["command"][3], "/run/gpushm-files/1-$$(X).bin") << "nothing is expanded";
  EXPECT_EQ(second["env"], Json::parse(R"([{"name": "CUDA_DEVICE_ORDER",
                                            "value": "PCI_BUS_ID"}])"));
  EXPECT_EQ(ContainerOf(pod, "gpushm")["resources"]["limits"]["gpushm.io/memory"], "6")
      << "1 GiB each for the buffer, the container and the loader, on each GPU";
}

TEST(Loader, IsMadeAgainWithTheSidecar) {
  Json pod = Injected(TestAdmission(), PodWithFile());
  pod["metadata"]["annotations"]["buffers.gpushm.io/weights"] = "{size: 8Gi, file: models/other}";
  pod["metadata"]["annotations"]["buffers.gpushm.io/more"] = "{size: 1Gi, file: models/more}";
  pod = Injected(TestAdmission(), pod);
  EXPECT_THAT(InitNames(pod), ElementsAre("gpushm", "gpushm-load-more", "gpushm-load-weights"));
  EXPECT_EQ(ContainerOf(pod, "gpushm-load-weights")["command"][3], "/run/gpushm-files/other");
  pod["metadata"]["annotations"]["buffers.gpushm.io/more"] = "1Gi";
  pod["metadata"]["annotations"]["buffers.gpushm.io/weights"] = "8Gi";
  pod = Injected(TestAdmission(), pod);
  EXPECT_THAT(InitNames(pod), ElementsAre("gpushm"));
}

TEST(Loader, OfAGuaranteedPodRequestsItsLimits) {
  Json pod = PodWithFile();
  pod["spec"]["containers"][0]["resources"] = {{"limits", {{"cpu", "1"}, {"memory", "1Gi"}}}};
  const Json resources =
      ContainerOf(Injected(TestAdmission(), pod), "gpushm-load-weights")["resources"];
  EXPECT_EQ(resources["requests"],
            (Json{{"gpushm.io/attach", "1"}, {"cpu", "2000m"}, {"memory", "640Mi"}}));
  pod["spec"]["resources"] = {{"limits", {{"cpu", "1"}, {"memory", "1Gi"}}}};
  EXPECT_EQ(
      ContainerOf(Injected(TestAdmission(), pod), "gpushm-load-weights")["resources"],
      (Json{{"limits", {{"gpushm.io/attach", "1"}}}, {"requests", {{"gpushm.io/attach", "1"}}}}));
}

// Goal: a pod with a file is admitted where a LimitRange allows less than the usual limit, or no
// request so far below it.
TEST(Loader, ThePodsWordOnItsResourcesCounts) {
  Json pod = PodWithFile();
  pod["metadata"]["annotations"]["loader.gpushm.io/cpu"] = "1";
  pod["metadata"]["annotations"]["loader.gpushm.io/memory"] = "600Mi";
  const Json made = Injected(TestAdmission(), pod);
  const Json resources = ContainerOf(made, "gpushm-load-weights")["resources"];
  EXPECT_EQ(resources["limits"],
            (Json{{"gpushm.io/attach", "1"}, {"cpu", "1000m"}, {"memory", "600Mi"}}));
  EXPECT_EQ(resources["requests"], resources["limits"]);
  EXPECT_EQ(ContainerOf(made, "gpushm")["resources"]["limits"]["memory"], "64Mi");
}

// Goal: a pod whose file nothing could load is denied, with the reason and what to write instead.
TEST(Loader, AVolumeThatItCannotReadIsDenied) {
  struct Volume {
    Json source;
    std::string why;
    std::string example;
  };
  const Json block_template = {{"volumeClaimTemplate", {{"spec", {{"volumeMode", "Block"}}}}}};
  for (const auto& [source, why, example] : std::vector<Volume>{
           {{{"hostPath", {{"path", "/dev/sda"}, {"type", "BlockDevice"}}}},
            "is a hostPath of the type BlockDevice",
            "type: Directory"},
           {{{"hostPath", {{"path", "/m/w.bin"}, {"type", "File"}}}},
            "files are in folders",
            "type: Directory"},
           {{{"ephemeral", block_template}}, "is a block device", "volumeMode: Filesystem"},
           {{{"secret", {{"secretName", "s"}, {"defaultMode", 256}}}},
            "has the defaultMode 0400, with which only root reads its files",
            "fsGroup"},
           {{{"projected", {{"defaultMode", 416}}}}, "has the defaultMode 0640", "0444"}}) {
    Json pod = PodWithFile();
    pod["spec"]["volumes"][0] = source;
    pod["spec"]["volumes"][0]["name"] = "models";
    const Verdict verdict = TestAdmission().Mutate(pod);
    EXPECT_FALSE(verdict.allowed) << source;
    EXPECT_THAT(verdict.message,
                AllOf(HasSubstr("the volume \"models\" "), HasSubstr(why), HasSubstr(example)));
    if (!source.contains("secret") && !source.contains("projected")) continue;
    pod["spec"]["securityContext"] = {{"fsGroup", 2000}};
    EXPECT_TRUE(TestAdmission().Mutate(pod).allowed) << "its group reads them";
  }
  Json devices = PodWithFile();
  devices["spec"]["volumes"][0] = {{"name", "models"},
                                   {"persistentVolumeClaim", {{"claimName", "c"}}}};
  EXPECT_TRUE(TestAdmission().Mutate(devices).allowed);
  devices["spec"]["containers"][0]["volumeDevices"] = {
      {{"name", "models"}, {"devicePath", "/dev/m"}}};
  EXPECT_THAT(TestAdmission().Mutate(devices).message,
              HasSubstr("is a block device (volumeDevices of container model)"));
}

TEST(Mutate, TheSidecarIsRestrictedAndHasItsOwnUser) {
  const Json context = ContainerOf(Injected(TestAdmission(), PodWith({"model"}, kWeightsOfOne)),
                                   "gpushm")["securityContext"];
  EXPECT_EQ(context["allowPrivilegeEscalation"], false);
  EXPECT_EQ(context["capabilities"], (Json{{"drop", {"ALL"}}}));
  EXPECT_EQ(context["seccompProfile"]["type"], "RuntimeDefault");
  EXPECT_EQ(context["readOnlyRootFilesystem"], true);
  EXPECT_GE(context["runAsUser"].get<int64_t>(), 1'000'000'000);
  EXPECT_LT(context["runAsUser"].get<int64_t>(), int64_t{1} << 31);

  Settings platform = TestSettings();
  platform.assign_uid = false;
  const Json theirs =
      ContainerOf(Injected(TestAdmission(platform), PodWith({"model"}, kWeightsOfOne)),
                  "gpushm")["securityContext"];
  EXPECT_FALSE(theirs.contains("runAsUser"));
}

// Goal: the sidecar can read for `file:` what the pod's volumes let its group read. The kubelet
// gives fsGroup and supplementalGroups to every container.
TEST(Mutate, TheSidecarIsInThePodsGroup) {
  Json pod = PodWith({"model"}, kWeightsOfOne);
  Json groups = {{"fsGroup", 2000}, {"supplementalGroups", {3000}}};
  pod["spec"]["securityContext"] = groups;
  Json injected = Injected(TestAdmission(), pod);
  Json context = ContainerOf(injected, "gpushm")["securityContext"];
  EXPECT_EQ(context["runAsGroup"], context["runAsUser"]) << "the pod has none";
  EXPECT_EQ(injected["spec"]["securityContext"], groups);

  groups["runAsGroup"] = 1000;
  pod["spec"]["securityContext"] = groups;
  injected = Injected(TestAdmission(), pod);
  context = ContainerOf(injected, "gpushm")["securityContext"];
  EXPECT_TRUE(context.contains("runAsUser"));
  EXPECT_FALSE(context.contains("runAsGroup")) << "it has the pod's";
  EXPECT_EQ(injected["spec"]["securityContext"], groups);

  pod["metadata"]["annotations"]["gpushm.io/host-ipc"] = "true";
  pod["spec"]["hostIPC"] = true;
  injected = Injected(TestAdmission(), pod);
  EXPECT_EQ(ContainerOf(injected, "gpushm")["securityContext"]["runAsGroup"], 65532);
  groups["supplementalGroups"] = {3000, 65532};
  EXPECT_EQ(injected["spec"]["securityContext"], groups);
}

TEST(Mutate, InAUserNamespaceTheUserIsOneThatThereIs) {
  Json pod = PodWith({"model"}, kWeightsOfOne);
  pod["spec"]["hostUsers"] = false;
  const Json context = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["securityContext"];
  EXPECT_LT(context["runAsUser"].get<int64_t>(), 65'536);
}

TEST(Mutate, AGuaranteedPodStaysSo) {
  Json pod = PodWith({"model"}, kWeightsOfOne);
  pod["spec"]["containers"][0]["resources"] = {{"limits", {{"cpu", "2"}, {"memory", "4Gi"}}}};
  Json resources = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["resources"];
  EXPECT_EQ(resources["requests"], resources["limits"]);
  EXPECT_EQ(resources["limits"]["cpu"], "500m");
  // The same, written differently.
  pod["spec"]["containers"][0]["resources"]["requests"] = {{"cpu", 2}, {"memory", "4294967296"}};
  resources = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["resources"];
  EXPECT_EQ(resources["requests"], resources["limits"]);
  pod["spec"]["containers"][0]["resources"]["requests"] = {{"cpu", "1"}};
  resources = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["resources"];
  EXPECT_EQ(resources["requests"]["cpu"], "50m");
}

// Goal: the pod's word counts, also where a LimitRange allows a container less than the usual
// limit.
TEST(Mutate, ThePodsWordOnTheSidecarsResourcesCounts) {
  for (const auto& [cpu, then] : {std::pair("2", "2000m"), std::pair("200m", "200m")}) {
    Json annotations = kWeightsOfOne;
    annotations["sidecar.gpushm.io/cpu"] = cpu;
    annotations["sidecar.gpushm.io/memory"] = "1Gi";
    const Json resources = ContainerOf(Injected(TestAdmission(), PodWith({"model"}, annotations)),
                                       "gpushm")["resources"];
    EXPECT_EQ(resources["requests"]["cpu"], then);
    EXPECT_EQ(resources["limits"]["cpu"], then);
    EXPECT_EQ(resources["limits"]["memory"], "1Gi");
  }
}

// Goal: a pod whose own requests leave no room for another container's is admitted.
TEST(Mutate, WhatThePodHasAsAWholeIsTheSidecarsToo) {
  Json pod = PodWith({"model"}, kWeightsOfOne);
  pod["spec"]["resources"] = {{"limits", {{"cpu", "1"}}}, {"requests", {{"cpu", "1"}}}};
  Json resources = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["resources"];
  EXPECT_EQ(resources["requests"], (Json{{"gpushm.io/memory", "9"}, {"memory", "64Mi"}}));
  EXPECT_EQ(resources["limits"], resources["requests"]);
  pod["spec"]["resources"] = {{"requests", {{"memory", "1Gi"}}}};
  resources = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["resources"];
  EXPECT_EQ(resources["requests"], (Json{{"gpushm.io/memory", "9"}, {"cpu", "50m"}}));
  pod["metadata"]["annotations"]["sidecar.gpushm.io/memory"] = "128Mi";
  resources = ContainerOf(Injected(TestAdmission(), pod), "gpushm")["resources"];
  EXPECT_EQ(resources["requests"]["memory"], "128Mi");
}

TEST(Mutate, HostIpcPodsGetTheGroupThatTheyShare) {
  Json annotations = kWeightsOfOne;
  annotations["gpushm.io/host-ipc"] = "true";
  Json pod = PodWith({"model"}, annotations);
  pod["spec"]["hostIPC"] = true;
  const Json sidecar = ContainerOf(Injected(TestAdmission(), pod), "gpushm");
  EXPECT_EQ(sidecar["securityContext"]["runAsGroup"], 65532);
  EXPECT_EQ(Injected(TestAdmission(), pod)["spec"]["securityContext"]["supplementalGroups"],
            (Json{65532}));
  EXPECT_THAT(sidecar["args"].dump(), HasSubstr("--pod-uid=$(GPUSHM_POD_UID)"));
}

TEST(Mutate, PullSecretsAreAddedOnce) {
  Settings settings = TestSettings();
  settings.pull_secrets = {"mine", "ours"};
  Json pod = PodWith({"model"}, kWeightsOfOne);
  pod["spec"]["imagePullSecrets"] = {{{"name", "mine"}}};
  EXPECT_EQ(Injected(TestAdmission(settings), pod)["spec"]["imagePullSecrets"],
            Json::parse(R"([{"name": "mine"}, {"name": "ours"}])"));
}

TEST(Mutate, PodsThatOptOutOrAskForNothingAreLeftAlone) {
  Json annotations = kWeightsOfOne;
  annotations["gpushm.io/inject"] = "false";
  const Verdict out = TestAdmission().Mutate(PodWith({"model"}, annotations));
  EXPECT_TRUE(out.allowed && out.patch.empty());
  EXPECT_EQ(out.outcome, "opted-out");
  annotations["buffers.gpushm.io/weights"] = "8GB";
  EXPECT_EQ(TestAdmission().Mutate(PodWith({"model"}, annotations)).outcome, "opted-out");
  const Verdict later = TestAdmission().Validate(PodWith({"model"}, annotations));
  EXPECT_TRUE(later.allowed);
  EXPECT_EQ(later.outcome, "opted-out");
  annotations["gpushm.io/inject"] = "no";
  EXPECT_FALSE(TestAdmission().Mutate(PodWith({"model"}, annotations)).allowed);
  for (const Json& asked : {Json{{"sidecar.gpushm.io/cpu", "1"}},
                            Json{{"sidecar.gpushm.io/cpu", "1"}, {"gpushm.io/inject", "true"}}}) {
    const Verdict nothing = TestAdmission().Mutate(PodWith({"model"}, asked));
    EXPECT_TRUE(nothing.allowed && nothing.patch.empty());
    EXPECT_EQ(nothing.outcome, "nothing-asked");
    EXPECT_EQ(nothing.warnings.size(), 1u);
    EXPECT_EQ(TestAdmission().Validate(PodWith({"model"}, asked)).outcome, "nothing-asked");
  }
  EXPECT_EQ(TestAdmission().Mutate(PodWith({"model"}, {{"a.example/b", "c"}})).outcome, "not-ours");
}

// Goal: texts inside annotations cost no more than their limits promise.
TEST(Mutate, AnnotationsThatAreTooLongAreNotParsed) {
  std::string list = "a";
  for (int i = 0; i < 125'000; ++i) list += ",a";
  const Verdict verdict = TestAdmission().Mutate(
      PodWith({"model"}, {{"buffers.gpushm.io/w", "{size: 1Gi, containers: [" + list + "]}"}}));
  EXPECT_FALSE(verdict.allowed);
  EXPECT_THAT(verdict.message, AllOf(HasSubstr("at most 122880"), HasSubstr("pool-extra")));
  EXPECT_THAT(verdict.message, ::testing::Not(HasSubstr("listed twice")));
}

TEST(Mutate, WhatTheKubeletWouldExpandReachesTheBrokerAsItIs) {
  Json pod = PodWith({"model"}, {{"buffers.gpushm.io/w", "{size: 1Gi, file: m/a$$b-$(X)}"}});
  pod["spec"]["volumes"] = {{{"name", "m"}}};
  EXPECT_EQ(ContainerOf(Injected(TestAdmission(), pod), "gpushm")["env"][0]["value"],
            "buffers.gpushm.io/w: \"{size: 1Gi, file: m/a$$$$b-$$(X)}\"\n");
}

TEST(Mutate, TaintsOfGpuNodesAreTolerated) {
  Settings settings = TestSettings();
  settings.tolerations = {"nvidia.com/gpu"};
  const Json pod = Injected(TestAdmission(settings), PodWith({"model"}, kWeightsOfOne));
  EXPECT_EQ(pod["spec"]["tolerations"], Json::parse(R"([{"key": "nvidia.com/gpu",
      "operator": "Exists", "effect": "NoSchedule"}])"));
  EXPECT_EQ(TestAdmission(settings).Mutate(pod).outcome, "unchanged");
}

TEST(Mutate, CoexistAllowsAnotherGpu) {
  Settings settings = TestSettings();
  settings.coexist = true;
  Json pod = PodWith({"model"}, kWeightsOfOne);
  pod["spec"]["containers"][0]["resources"] = {{"limits", {{"nvidia.com/gpu", "1"}}}};
  EXPECT_TRUE(TestAdmission(settings).Mutate(pod).allowed);
}

}  // namespace
}  // namespace gpushm::injector
