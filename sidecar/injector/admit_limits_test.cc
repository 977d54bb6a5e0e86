// What a cluster's operator denies by flags, and what is logged about a denied pod.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sidecar/injector/review.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Injected;
using testing::PodWith;
using testing::ReviewOf;
using testing::TestAdmission;
using testing::TestSettings;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBytesOfGiB = uint64_t{1} << 30;
const Json kLimitedWeights = {{"buffers.gpushm.io/weights", "8Gi"}};

Settings WithMost(uint64_t bytes) {
  Settings settings = TestSettings();
  settings.max_pod_bytes = bytes;
  return settings;
}

TEST(MaxPodMemory, APodThatNoGpuCanHoldIsDenied) {
  const Json pod = PodWith({"model"}, {{"buffers.gpushm.io/frames", "{size: 3Gi, generations: 2}"},
                                       {"gpushm.io/pool-extra", "2Gi"}});
  // Six for buffers, two for pool-extra, and one for the container.
  EXPECT_TRUE(TestAdmission(WithMost(9 * kBytesOfGiB)).Mutate(pod).allowed);
  EXPECT_TRUE(TestAdmission(WithMost(0)).Mutate(pod).allowed);
  const Verdict verdict = TestAdmission(WithMost(9 * kBytesOfGiB - 2 * kMiB)).Mutate(pod);
  EXPECT_FALSE(verdict.allowed);
  EXPECT_TRUE(verdict.patch.empty());
  EXPECT_EQ(verdict.outcome, "pod");
  for (const char* const word : {"requests 9Gi of one GPU", "6Gi for buffers", "2Gi for pool-extra",
                                 "1Gi for its containers and loading", "has 8Gi",
                                 "9 gpushm.io/memory, but at most 8 are possible",
                                 "make buffers smaller", "private.gpushm.io/<container>"}) {
    EXPECT_THAT(verdict.message, HasSubstr(word));
  }
}

// Goal: a pod is denied exactly if the scheduler would find no node, because units are whole.
TEST(MaxPodMemory, CountsWholeUnits) {
  Settings settings = WithMost(10 * kBytesOfGiB - 2 * kMiB);
  const Json nine_and_a_bit =
      PodWith({"model"}, {{"buffers.gpushm.io/weights", "8Gi"}, {"gpushm.io/pool-extra", "2Mi"}});
  EXPECT_FALSE(TestAdmission(settings).Mutate(nine_and_a_bit).allowed);
  settings.unit_bytes = 2 * kMiB;
  EXPECT_TRUE(TestAdmission(settings).Mutate(nine_and_a_bit).allowed);
  // A pod that shares only signals takes a unit.
  settings = WithMost(kBytesOfGiB);
  EXPECT_TRUE(
      TestAdmission(settings).Mutate(PodWith({"a"}, {{"signals.gpushm.io/s", ""}})).allowed);
}

TEST(MaxPodMemory, SumsThatHaveNoEndAreToldAndDenied) {
  Json annotations;
  for (int i = 0; i < 100; ++i) {
    annotations["buffers.gpushm.io/b" + std::to_string(i)] = "{size: 64Ti, generations: 16}";
  }
  const Verdict verdict =
      TestAdmission(WithMost(139 * kBytesOfGiB)).Mutate(PodWith({"model"}, annotations));
  EXPECT_FALSE(verdict.allowed);
  EXPECT_THAT(verdict.message, HasSubstr("at most 139"));
}

// Goal: both endpoints decide the same, so no pod is patched and then denied.
TEST(MaxPodMemory, HoldsForBothEndpoints) {
  const Json injected = Injected(TestAdmission(), PodWith({"model"}, kLimitedWeights));
  EXPECT_TRUE(TestAdmission(WithMost(9 * kBytesOfGiB)).Validate(injected).allowed);
  EXPECT_FALSE(TestAdmission(WithMost(8 * kBytesOfGiB)).Validate(injected).allowed);
}

TEST(DeniedRuntimeClass, APodOfOursWithSuchAClassIsDenied) {
  Settings settings = TestSettings();
  settings.denied_runtime_classes = {"kata*", "gvisor", "run[sd]c"};
  for (const auto& [name, denied] :
       std::vector<std::pair<Json, bool>>{{"kata", true},
                                          {"kata-qemu-nvidia-gpu", true},
                                          {"gvisor", true},
                                          {"runsc", true},
                                          {"my-kata", false},
                                          {"gvisor2", false},
                                          {"runc", false},
                                          {"nvidia", false},
                                          {"", false},
                                          {nullptr, false}}) {
    Json pod = PodWith({"model"}, kLimitedWeights);
    pod["spec"]["runtimeClassName"] = name;
    EXPECT_TRUE(TestAdmission().Mutate(pod).allowed) << name;
    const Verdict verdict = TestAdmission(settings).Mutate(pod);
    EXPECT_EQ(verdict.allowed, !denied) << name << ": " << verdict.message;
    // Pods that do not use gpushm, or opt out, are not affected.
    pod["metadata"]["annotations"]["gpushm.io/inject"] = "false";
    EXPECT_TRUE(TestAdmission(settings).Mutate(pod).allowed) << name;
    pod["metadata"].erase("annotations");
    EXPECT_TRUE(TestAdmission(settings).Mutate(pod).allowed) << name;
    if (!denied) continue;
    EXPECT_EQ(verdict.outcome, "pod");
    EXPECT_THAT(verdict.message,
                AllOf(HasSubstr("spec.runtimeClassName: \"" + name.get<std::string>() + "\""),
                      HasSubstr("virtual machine"), HasSubstr("descriptor"),
                      HasSubstr("leave runtimeClassName out")));
  }
}

Answer AnswerTo(const Json& review) {
  const Result<Answer> answer = Review(TestAdmission(), {Endpoint::kMutate}, review.dump());
  EXPECT_TRUE(answer) << answer.error().ToString();
  return answer.value_or(Answer());
}

Json DeniedReview() {
  Json review = ReviewOf(PodWith({"model"}, {{"buffers.gpushm.io/weights", "8GB"}}));
  review["request"]["namespace"] = "team-a";
  return review;
}

TEST(Denial, TellsPodOwnerAndReason) {
  Json review = DeniedReview();
  Answer answer = AnswerTo(review);
  EXPECT_EQ(answer.pod, "team-a/pod");
  EXPECT_EQ(answer.owner, "");
  EXPECT_THAT(answer.reason, AllOf(HasSubstr("8GB"), HasSubstr("8Gi or 8G")));
  EXPECT_EQ(Json::parse(answer.body)["response"]["status"]["message"], answer.reason);

  // As controllers send it: without a name, and with other owners in addition to the one that
  // controls it.
  Json& metadata = review["request"]["object"]["metadata"];
  metadata.erase("name");
  metadata["generateName"] = "llm-7d9f8c-";
  metadata["ownerReferences"] = {
      {{"kind", "Group"}, {"name", "g"}},
      {{"kind", "ReplicaSet"}, {"name", "llm-7d9f8c"}, {"controller", true}}};
  answer = AnswerTo(review);
  EXPECT_EQ(answer.pod, "team-a/llm-7d9f8c-");
  EXPECT_EQ(answer.owner, "ReplicaSet/llm-7d9f8c");
  metadata["ownerReferences"][1]["controller"] = false;
  EXPECT_EQ(AnswerTo(review).owner, "");
  // Nothing is logged about an admitted pod.
  metadata["annotations"]["buffers.gpushm.io/weights"] = "8Gi";
  answer = AnswerTo(review);
  EXPECT_TRUE(answer.allowed);
  EXPECT_EQ(answer.pod + answer.owner + answer.reason, "");
}

// Goal: whatever a caller sends is logged in one line that is no longer than necessary. A value of
// another type than the API server's is treated as missing.
TEST(Denial, IsBoundedAndOnOneLine) {
  for (const Json& odd : std::vector<Json>{std::string(1 << 20, 'x'), "a\nb\x1b[31m\xE2\x80\xA8", 7,
                                           nullptr, Json::object(), Json::array({1})}) {
    Json review = DeniedReview();
    review["request"]["namespace"] = odd;
    Json& metadata = review["request"]["object"]["metadata"];
    metadata["namespace"] = odd;
    metadata["name"] = odd;
    metadata["generateName"] = odd;
    metadata["ownerReferences"] = {{{"kind", odd}, {"name", odd}, {"controller", true}}, odd};
    metadata["annotations"]["buffers.gpushm.io/weights"] = std::string(10'000, '\n') + "8GB";
    const Answer answer = AnswerTo(review);
    EXPECT_FALSE(answer.allowed);
    for (const std::string* const told : {&answer.pod, &answer.owner, &answer.reason}) {
      EXPECT_LE(told->size(), told == &answer.reason ? kMostTold + 3 : size_t{1024});
      EXPECT_EQ(std::ranges::count_if(*told, [](char c) { return c < ' ' || c > '~'; }), 0)
          << *told;
    }
    metadata["ownerReferences"] = odd;
    EXPECT_EQ(AnswerTo(review).owner, "");
  }
}

}  // namespace
}  // namespace gpushm::injector
