// What pods say about the nodes' labels gpushm.io/largest-free.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::Injected;
using testing::PodWith;
using testing::TestAdmission;
using testing::TestSettings;

const Pointer kRoomTerms(
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
const Pointer kPreferred(
    "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution");

Settings With(LargestFree largest_free) {
  Settings settings = TestSettings();
  settings.largest_free = largest_free;
  return settings;
}
Admission Prefers() { return TestAdmission(With(LargestFree::kPrefer)); }

// Needs 8 units.
Json OneGpu() {
  return PodWith({"model"},
                 {{"buffers.gpushm.io/weights", "8Gi"}, {"private.gpushm.io/model", "0"}});
}

TEST(LargestFree, WithoutASettingNothingIsSaid) {
  EXPECT_FALSE(Injected(TestAdmission(), OneGpu())["spec"].contains("affinity"));
}

TEST(LargestFree, NodesWithRoomArePreferred) {
  Json pod = OneGpu();
  const Json ours = Json::parse(R"([
      {"weight": 100, "preference": {"matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["7"]}]}},
      {"weight": 50, "preference": {"matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "DoesNotExist"}]}}])");
  const Json made = Injected(Prefers(), pod);
  EXPECT_EQ(made.at(kPreferred), ours);
  EXPECT_FALSE(made.contains(kRoomTerms)) << "the kubelet would check it again";
  EXPECT_EQ(Prefers().Mutate(made).outcome, "unchanged");
  EXPECT_TRUE(Prefers().Validate(made).allowed);

  const Json own = Json::parse(R"({"weight": 1, "preference": {"matchExpressions": [
      {"key": "zone", "operator": "In", "values": ["a"]}]}})");
  pod["spec"]["affinity"]["nodeAffinity"][kPreferred.back()] = Json::array({own});
  EXPECT_EQ(Injected(Prefers(), pod).at(kPreferred), Json::array({own, ours[0], ours[1]}));
}

TEST(LargestFree, SeveralGpusNeedThatMuchOnEach) {
  const Json pod = PodWith({"model"}, {{"gpushm.io/gpus", "3"},
                                       {"private.gpushm.io/model", "0"},
                                       {"buffers.gpushm.io/weights", "{size: 8Gi, gpu: each}"}});
  EXPECT_EQ(Injected(Prefers(), pod).at(kPreferred), Json::parse(R"([
      {"weight": 100, "preference": {"matchExpressions": [
          {"key": "gpushm.io/largest-free-3", "operator": "Gt", "values": ["7"]}]}},
      {"weight": 50, "preference": {"matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "DoesNotExist"}]}}])"))
      << "a node with two GPUs has the second label, but not the first";
}

// Goal: a copy of an injected pod, with another size, does not keep the old need.
TEST(LargestFree, ACopyWithOtherAnnotationsGetsTheNewNeed) {
  Json copy = Injected(Prefers(), OneGpu());
  copy["metadata"]["annotations"]["buffers.gpushm.io/weights"] = "2Gi";
  const Json made = Injected(Prefers(), copy);
  EXPECT_EQ(made.at(kPreferred / 0 / "preference" / "matchExpressions"), Json::parse(R"([
      {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["1"]}])"));
  EXPECT_EQ(made.at(kPreferred).size(), 2u);
  EXPECT_EQ(Prefers().Mutate(made).outcome, "unchanged");
}

}  // namespace
}  // namespace gpushm::injector
