// Pods of several GPUs: what the sidecar requests, where they may go, and how their GPUs are
// numbered. Pods of one GPU get none of that.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::ContainerOf;
using ::testing::HasSubstr;
using testing::Injected;
using testing::PodWith;
using testing::TestAdmission;
using testing::TestSettings;

constexpr uint64_t kGiB = uint64_t{1} << 30;
const Json kOrder = {{"name", "CUDA_DEVICE_ORDER"}, {"value", "PCI_BUS_ID"}};
const Pointer kTerms(
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");

Json TwoGpus(Json more = Json::object()) {
  Json annotations = {{"gpushm.io/gpus", "2"},
                      {"buffers.gpushm.io/weights", "{size: 7.5Gi, gpu: each}"},
                      {"buffers.gpushm.io/kv", "{size: 4Gi, gpu: 1}"}};
  annotations.update(more);
  return PodWith({"model", "decoder"}, annotations);
}

Settings WithLabel() {
  Settings settings = TestSettings();
  settings.gpu_count_label = "nvidia.com/gpu.count";
  return settings;
}

TEST(SeveralGpus, TheSidecarRequestsTheSameOfEachGpu) {
  const Json pod = Injected(TestAdmission(), TwoGpus());
  const Json sidecar = ContainerOf(pod, "gpushm");
  for (const char* const list : {"limits", "requests"}) {
    const Json& resources = sidecar["resources"][list];
    // GPU 1 needs 11.5 GiB for its buffers and 2 for the containers: 14 units, of each GPU.
    EXPECT_EQ(resources["gpushm.io/memory"], "28");
    EXPECT_EQ(resources["gpushm.io/gpus"], "2");
    EXPECT_FALSE(resources.contains("gpushm.io/exclusive"));
    EXPECT_FALSE(resources.contains("gpushm.io/nvlink"));
  }
  EXPECT_EQ(ContainerOf(pod, "model")["resources"]["limits"], (Json{{"gpushm.io/attach", "1"}}));
  const Json status =
      Json::parse(pod["metadata"]["annotations"]["gpushm.io/status"].get<std::string>());
  EXPECT_EQ(status["gpus"], 2);
  EXPECT_EQ(status["units"], 28);
  EXPECT_EQ(status["memory"], "27Gi");
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
  EXPECT_TRUE(TestAdmission().Validate(pod).allowed);
}

TEST(SeveralGpus, AloneAndWithNvlink) {
  const Json pod =
      Injected(TestAdmission(),
               TwoGpus({{"gpushm.io/exclusive", "true"}, {"gpushm.io/topology", "nvlink"}}));
  for (const char* const list : {"limits", "requests"}) {
    const Json resources = ContainerOf(pod, "gpushm")["resources"][list];
    EXPECT_EQ(resources["gpushm.io/gpus"], "2");
    EXPECT_EQ(resources["gpushm.io/exclusive"], "2");
    EXPECT_EQ(resources["gpushm.io/nvlink"], "1");
  }
  Json changed = pod;
  changed["spec"]["initContainers"][0]["resources"]["limits"].erase("gpushm.io/gpus");
  EXPECT_THAT(TestAdmission().Validate(changed).message,
              HasSubstr("its sidecar must request 2 gpushm.io/gpus"));
  EXPECT_EQ(Injected(TestAdmission(), changed), pod);
  Json own = PodWith({"model"}, {{"buffers.gpushm.io/weights", "8Gi"}});
  own["spec"]["containers"][0]["resources"]["limits"]["gpushm.io/nvlink"] = "1";
  EXPECT_THAT(TestAdmission().Mutate(own).message, HasSubstr("only gpushm may request"));
}

TEST(SeveralGpus, CudaNumbersThemAsGpushmDoes) {
  Json pod = TwoGpus();
  pod["spec"]["containers"][1]["env"] =
      Json::parse(R"([{"name": "CUDA_DEVICE_ORDER", "value": "FASTEST_FIRST"}])");
  pod["spec"]["initContainers"] = Json::parse(R"([{"name": "early", "image": "app"}])");
  const Verdict verdict = TestAdmission().Mutate(pod);
  ASSERT_EQ(verdict.warnings.size(), 1u);
  EXPECT_THAT(verdict.warnings[0],
              HasSubstr("spec.containers[1] (decoder).env.CUDA_DEVICE_ORDER is not PCI_BUS_ID"));
  const Json made = pod.patch(verdict.patch);
  EXPECT_EQ(ContainerOf(made, "model")["env"], Json::array({kOrder}));
  EXPECT_EQ(ContainerOf(made, "decoder")["env"], pod["spec"]["containers"][1]["env"]);
  EXPECT_EQ(ContainerOf(made, "gpushm")["env"].back(), kOrder);
  EXPECT_FALSE(ContainerOf(made, "early").contains("env")) << "it does not attach";
  EXPECT_EQ(TestAdmission().Mutate(made).outcome, "unchanged");
  pod["spec"]["containers"][1]["env"][0]["value"] = "PCI_BUS_ID";
  EXPECT_TRUE(TestAdmission().Mutate(pod).warnings.empty());
}

TEST(SeveralGpus, MpsLimitsAContainerOnEachGpu) {
  Json pod = TwoGpus({{"gpushm.io/mps", "true"},
                      {"gpushm.io/mps-uid", "1000"},
                      {"gpushm.io/enforce-private", "true"},
                      {"buffers.gpushm.io/own", "{size: 1Gi, containers: [model]}"}});
  pod = Injected(TestAdmission(), pod);
  const auto limit_of = [&](const char* container) {
    const Json whole = ContainerOf(pod, container);
    for (const Json& variable : whole["env"]) {
      if (variable["name"] == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") return variable["value"];
    }
    return Json();
  };
  EXPECT_EQ(limit_of("model"), "0=9728M,1=12800M");
  EXPECT_EQ(limit_of("decoder"), "0=8704M,1=12800M");
  EXPECT_EQ(ContainerOf(pod, "gpushm-mps")["env"], Json::array({kOrder}));
  EXPECT_EQ(ContainerOf(pod, "gpushm-mps")["resources"]["limits"]["gpushm.io/attach"], "1");
  EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "unchanged");
}

TEST(SeveralGpus, APodThatNoGpuCanHoldIsDeniedWithBothSums) {
  Settings settings = TestSettings();
  settings.max_pod_bytes = 14 * kGiB;
  EXPECT_TRUE(TestAdmission(settings).Mutate(TwoGpus()).allowed);
  settings.max_pod_bytes = 13 * kGiB;
  const std::string message = TestAdmission(settings).Mutate(TwoGpus()).message;
  for (const char* const words :
       {"requests 13824Mi of each of its 2 GPUs, as GPU 1 needs (11776Mi for buffers",
        "27Gi in all (23Gi for buffers", "the largest GPU of the cluster has 13Gi",
        "That is 28 gpushm.io/memory, but at most 26 are possible"}) {
    EXPECT_THAT(message, HasSubstr(words));
  }
}

TEST(SeveralGpus, AMissingVolumeIsReportedOnceUnderItsAnnotation) {
  Json pod = TwoGpus(
      {{"buffers.gpushm.io/weights", "{size: 1Gi, gpu: each, file: 'modles/shard-{gpu}.bin'}"}});
  pod["spec"]["volumes"] = Json::parse(R"([{"name": "models", "emptyDir": {}}])");
  const std::string message = TestAdmission().Mutate(pod).message;
  EXPECT_THAT(message, HasSubstr("buffers.gpushm.io/weights"));
  EXPECT_EQ(message.find("weights-"), std::string::npos) << message;
  EXPECT_EQ(message.find("modles"), message.rfind("modles")) << message;
}

TEST(GpuCountLabel, APodWithoutTermsGetsOne) {
  const Admission admission = TestAdmission(WithLabel());
  const Json enough =
      Json::parse(R"({"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["1"]})");
  const Json only = Json::array({{{"matchExpressions", Json::array({enough})}}});
  Json pod = TwoGpus();
  const Json made = Injected(admission, pod);
  EXPECT_EQ(made.at(kTerms), only);
  EXPECT_EQ(admission.Mutate(made).outcome, "unchanged");
  pod["spec"]["affinity"] = Json::parse(R"({"podAffinity": {}, "nodeAffinity": null})");
  EXPECT_EQ(Injected(admission, pod).at(kTerms), only);
  EXPECT_FALSE(Injected(TestAdmission(), pod).contains(kTerms)) << "without the label";
}

// Goal: terms are alternatives, and a node needs enough GPUs whichever it satisfies.
TEST(GpuCountLabel, EachTermGetsTheExpression) {
  const Admission admission = TestAdmission(WithLabel());
  Json pod = TwoGpus({{"gpushm.io/gpus", "16"}});
  pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
      Json::parse(R"({"nodeSelectorTerms": [
          {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
          {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
          {},
          {"matchExpressions": []}]})");
  const Json made = Injected(admission, pod);
  EXPECT_EQ(made.at(kTerms), Json::parse(R"([
      {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]},
                            {"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["15"]}]},
      {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}],
       "matchExpressions": [{"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["15"]}]},
      {},
      {"matchExpressions": []}])"))
      << "an empty term matches no node, and must not begin to match some";
  EXPECT_EQ(admission.Mutate(made).outcome, "unchanged");
}

// Goal: for a pod of one GPU nothing depends on what is new.
TEST(SeveralGpus, APodOfOneGpuGetsNoneOfThat) {
  const Json plain = PodWith({"model"}, {{"buffers.gpushm.io/weights", "8Gi"}});
  const Verdict verdict = TestAdmission().Mutate(plain);
  EXPECT_EQ(TestAdmission(WithLabel()).Mutate(plain).patch, verdict.patch);
  const std::string text = verdict.patch.dump();
  for (const char* const word : {"CUDA_DEVICE_ORDER", "affinity", "nvlink", "\\\"gpus\\\""}) {
    EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
  EXPECT_FALSE(ContainerOf(plain.patch(verdict.patch), "gpushm")["resources"]["limits"].contains(
      "gpushm.io/gpus"));
}

}  // namespace
}  // namespace gpushm::injector
