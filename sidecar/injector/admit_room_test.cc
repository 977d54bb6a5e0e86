// What pods say about the nodes' labels gpushm.io/largest-free.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "platform/base/testing.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::Injected;
using testing::PodWith;
using testing::TestAdmission;
using testing::TestSettings;

const Pointer kTerms(
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
const Pointer kPreferred(
    "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution");

Settings With(LargestFree largest_free) {
  Settings settings = TestSettings();
  settings.largest_free = largest_free;
  return settings;
}
Admission Prefers() { return TestAdmission(With(LargestFree::kPrefer)); }
Admission Requires() { return TestAdmission(With(LargestFree::kRequire)); }

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
  EXPECT_FALSE(made.contains(kTerms)) << "the kubelet would check it again";
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
  EXPECT_EQ(Injected(Requires(), pod).at(kTerms), Json::parse(R"([
      {"matchExpressions": [
          {"key": "gpushm.io/largest-free-3", "operator": "Gt", "values": ["7"]}]},
      {"matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "DoesNotExist"}]}])"))
      << "a node with two GPUs has the second label, but not the first";
}

TEST(LargestFree, EachTermIsSplit) {
  Json pod = OneGpu();
  pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
      Json::parse(R"({"nodeSelectorTerms": [
          {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
          {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
          {},
          {"matchExpressions": [
              {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["40"]}]}]})");
  const Json made = Injected(Requires(), pod);
  EXPECT_EQ(made.at(kTerms), Json::parse(R"([
      {"matchExpressions": [
          {"key": "zone", "operator": "In", "values": ["a"]},
          {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["7"]}]},
      {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}],
       "matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["7"]}]},
      {},
      {"matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["40"]}]},
      {"matchExpressions": [
          {"key": "zone", "operator": "In", "values": ["a"]},
          {"key": "gpushm.io/largest-free", "operator": "DoesNotExist"}]},
      {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}],
       "matchExpressions": [
          {"key": "gpushm.io/largest-free", "operator": "DoesNotExist"}]}])"))
      << "an empty term matches no node, and what the user says about the label counts";
  EXPECT_EQ(Requires().Mutate(made).outcome, "unchanged");
}

TEST(LargestFree, APodThatNamesItsNodeIsNotHeldBack) {
  Json pod = OneGpu();
  pod["spec"]["nodeName"] = "node-1";
  EXPECT_FALSE(Injected(Requires(), pod)["spec"].contains("affinity"));
}

// Goal: a copy of an injected pod, with another size, does not keep the old need.
TEST(LargestFree, ACopyWithOtherAnnotationsGetsTheNewNeed) {
  for (const auto& [admission, path] :
       {std::pair{Prefers(), kPreferred / 0 / "preference" / "matchExpressions"},
        std::pair{Requires(), kTerms / 0 / "matchExpressions"}}) {
    Json copy = Injected(admission, OneGpu());
    const size_t entries = copy.at(path.parent_pointer().parent_pointer()).size();
    copy["metadata"]["annotations"]["buffers.gpushm.io/weights"] = "2Gi";
    const Json made = Injected(admission, copy);
    EXPECT_EQ(made.at(path), Json::parse(R"([
        {"key": "gpushm.io/largest-free", "operator": "Gt", "values": ["1"]}])"));
    EXPECT_EQ(made.at(path.parent_pointer().parent_pointer()).size(), entries);
    EXPECT_EQ(admission.Mutate(made).outcome, "unchanged");
  }
}

// The scheduler's and the kubelet's rule, for a node's labels.
bool Holds(const Json& expression, const std::map<std::string, int>& labels) {
  const auto label = labels.find(expression["key"]);
  const std::string is = expression["operator"];
  if (is == "Exists") return label != labels.end();
  if (is == "DoesNotExist") return label == labels.end();
  const int value = std::stoi(expression["values"][0].get<std::string>());
  if (label == labels.end()) return false;
  return is == "Gt" ? label->second > value : label->second < value;
}

bool Matches(const Json& pod, const std::map<std::string, int>& labels) {
  if (!pod.contains(kTerms)) return true;
  return std::ranges::any_of(pod.at(kTerms), [&](const Json& term) {
    const Json& all = Items(term, Pointer("/matchExpressions"));
    return !all.empty() &&
           std::ranges::all_of(all, [&](const Json& one) { return Holds(one, labels); });
  });
}

// Goal: with the requirement a pod matches a node exactly if it matched before, and the node has
// room or does not say. Method: random terms and nodes, under the scheduler's rule.
TEST(LargestFreeProperty, ARequirementOnlyTakesAwayNodesWithoutRoom) {
  std::mt19937 random(gpushm::testing::TestSeed(24));
  const auto chance = [&](unsigned of) { return random() % of == 0; };
  int matched = 0;
  int taken = 0;
  for (int i = 0; i < 2'000; ++i) {
    Json pod = OneGpu();
    if (!chance(4)) {
      Json& terms = pod["spec"]["affinity"]["nodeAffinity"]
                       ["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
      terms = Json::array();
      for (size_t left = 1 + random() % 4; left > 0; --left) {
        Json term = {{"matchExpressions", Json::array()}};
        for (size_t more = random() % 3; more > 0; --more) {
          const char* const operators[] = {"Exists", "DoesNotExist", "Gt", "Lt"};
          term["matchExpressions"].push_back({{"key", chance(2) ? "a" : "b"},
                                              {"operator", operators[random() % 4]},
                                              {"values", {std::to_string(random() % 4)}}});
        }
        terms.push_back(term);
      }
    }
    const Json made = Injected(Requires(), pod);
    for (int node = 0; node < 20; ++node) {
      std::map<std::string, int> labels;
      for (const char* const key : {"a", "b"}) {
        if (chance(2)) labels[key] = static_cast<int>(random() % 4);
      }
      const bool says = chance(2);
      const int room = static_cast<int>(random() % 16);
      if (says) labels["gpushm.io/largest-free"] = room;
      const bool before = Matches(pod, labels);
      ASSERT_EQ(Matches(made, labels), before && (!says || room >= 8)) << made;
      matched += before ? 1 : 0;
      taken += before && says && room < 8 ? 1 : 0;
    }
  }
  EXPECT_GT(matched, 5'000);
  EXPECT_GT(taken, 1'000);
}

}  // namespace
}  // namespace gpushm::injector
