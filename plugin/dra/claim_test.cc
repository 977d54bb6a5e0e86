#include "plugin/dra/claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace gpushm::plugin::dra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kUid[] = "11111111-2222-3333-4444-555555555555";
const ClaimRef kRef{"default", "claim", kUid};

Json ResultOf(const std::string& request, const std::string& device, const std::string& memory) {
  return {{"request", request}, {"driver", kDriverName},
          {"pool", "node"},     {"device", device},
          {"shareID", "share"}, {"consumedCapacity", {{"memory", memory}, {"attach", "1"}}}};
}

Json Claim(std::vector<Json> results) {
  return {{"metadata", {{"uid", kUid}}},
          {"status",
           {{"reservedFor", Json::array({{{"resource", "pods"}, {"name", "pod"}}})},
            {"allocation", {{"devices", {{"results", results}}}}}}}};
}

Result<AllocatedClaim> Parse(const Json& json) { return ParseClaim(json.dump(), kRef, "node"); }

std::string ErrorOf(const Json& json) {
  const auto claim = Parse(json);
  return claim ? "no error" : claim.error().ToString();
}

// A claim that Kubernetes made for a pod is that pod's alone.
TEST(ClaimTest, WhoElseMayUseIt) {
  Json json = Claim({ResultOf("broker", "gpu-a", "10Gi"), ResultOf("app", "gpu-a", "0")});
  EXPECT_EQ(Parse(json)->others, claims::Others::kRead);
  json["metadata"]["annotations"] = {{"gpushm.io/others", "write"}};
  EXPECT_EQ(Parse(json)->others, claims::Others::kWrite);
  for (const Json& odd : {Json("all"), Json(true), Json("")}) {
    json["metadata"]["annotations"]["gpushm.io/others"] = odd;
    EXPECT_THAT(ErrorOf(json), HasSubstr("neither read nor write"));
  }
  json["metadata"]["ownerReferences"] = {{{"kind", "Pod"}, {"name", "pod"}}};
  EXPECT_EQ(Parse(json)->others, claims::Others::kNone);
}

TEST(ClaimTest, OnePodMayRunAnMpsDaemon) {
  Json json = Claim({ResultOf("broker", "gpu-a", "10Gi"), ResultOf("app", "gpu-a", "0")});
  EXPECT_FALSE(Parse(json)->mps);
  json = Claim({ResultOf("broker", "gpu-a", "10Gi"), ResultOf("app", "gpu-a", "0"),
                ResultOf("mps", "gpu-a", "0")});
  const auto claim = Parse(json);
  ASSERT_TRUE(claim) << claim.error().ToString();
  EXPECT_TRUE(claim->mps);
  EXPECT_EQ(claim->devices[2].part, claims::Part::kMps);
  json = Claim({ResultOf("broker", "gpu-a", "10Gi"), ResultOf("mps", "gpu-b", "0")});
  EXPECT_THAT(ErrorOf(json), HasSubstr("which no broker of the claim has"));
  json = Claim({ResultOf("broker", "gpu-a", "10Gi"), ResultOf("mps", "gpu-a", "1Gi")});
  EXPECT_THAT(ErrorOf(json), HasSubstr("only a broker can hand out"));
  json = Claim({ResultOf("broker", "gpu-a", "10Gi"), ResultOf("mps-0", "gpu-a", "0")});
  EXPECT_THAT(ErrorOf(json), HasSubstr("unknown name"));
}

TEST(ClaimTest, SeveralGpusAreOrderedByTheirNumbers) {
  const auto claim =
      Parse(Claim({ResultOf("broker-1", "gpu-b", "2Gi"), ResultOf("app-1", "gpu-b", "0"),
                   ResultOf("broker-0", "gpu-a", "2Gi"), ResultOf("app-0", "gpu-a", "0")}));
  ASSERT_TRUE(claim) << claim.error().ToString();
  EXPECT_THAT(claim->gpus, ElementsAre("gpu-a", "gpu-b"));
}

TEST(ClaimTest, AlternativesAreNamedByTheirRequest) {
  const auto claim = Parse(Claim({ResultOf("broker/large", "gpu-a", "2Gi")}));
  ASSERT_TRUE(claim) << claim.error().ToString();
  EXPECT_EQ(claim->devices[0].request, "broker");
}

TEST(ClaimTest, DevicesOfOtherDriversAreNotOurs) {
  Json other = ResultOf("gpu", "gpu-0", "0");
  other["driver"] = "gpu.nvidia.com";
  const auto claim = Parse(Claim({other, ResultOf("broker", "gpu-a", "2Gi")}));
  ASSERT_TRUE(claim) << claim.error().ToString();
  EXPECT_EQ(claim->devices.size(), 1U);
}

TEST(ClaimTest, ErrorsNameTheFieldAndACorrectExample) {
  EXPECT_THAT(ErrorOf(Claim({ResultOf("gpu", "gpu-a", "1Gi")})),
              testing::AllOf(HasSubstr("\"gpu\""), HasSubstr("broker and app")));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("brokers", "gpu-a", "1Gi")})), HasSubstr("unknown name"));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("broker-99", "gpu-a", "1Gi")})), HasSubstr("unknown name"));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("app", "gpu-a", "0")})),
              HasSubstr("no request named broker"));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("broker", "gpu-a", "0")})),
              testing::AllOf(HasSubstr("no memory"), HasSubstr("DRAConsumableCapacity")));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("broker", "gpu-a", "8GB")})), HasSubstr("memory: 8Gi"));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("broker", "gpu-a", "1Gi"), ResultOf("app", "gpu-b", "0")})),
              HasSubstr("matchAttribute: gpushm.io/uuid"));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("broker", "gpu-a", "1Gi"), ResultOf("app", "gpu-a", "1Gi")})),
              HasSubstr("only a broker can hand out"));
  EXPECT_THAT(
      ErrorOf(Claim({ResultOf("broker", "gpu-a", "1Gi"), ResultOf("broker", "gpu-b", "1Gi")})),
      HasSubstr("has two devices"));
  EXPECT_THAT(
      ErrorOf(Claim({ResultOf("broker-0", "gpu-a", "1Gi"), ResultOf("broker-1", "gpu-b", "2Gi")})),
      HasSubstr("same memory of each GPU"));
  EXPECT_THAT(ErrorOf(Claim({ResultOf("broker-1", "gpu-a", "1Gi")})), HasSubstr("no broker-0"));
}

TEST(ClaimTest, AReplacedClaimIsAnotherOne) {
  Json json = Claim({ResultOf("broker", "gpu-a", "1Gi")});
  json["metadata"]["uid"] = "99999999-2222-3333-4444-555555555555";
  const auto claim = Parse(json);
  ASSERT_FALSE(claim);
  EXPECT_EQ(claim.error().code(), Code::kNotFound);
}

TEST(ClaimTest, AnotherNodesClaimIsRefused) {
  Json result = ResultOf("broker", "gpu-a", "1Gi");
  result["pool"] = "other";
  const auto claim = Parse(Claim({result}));
  ASSERT_FALSE(claim);
  EXPECT_EQ(claim.error().code(), Code::kUnavailable);
}

// Goal: no text, however wrong, is taken for a claim or does harm. Method: every value of a valid
// claim is replaced by values of every type, and its text is cut and changed at random.
TEST(ClaimTest, AnyTextIsAnswered) {
  const Json valid = Claim({ResultOf("broker", "gpu-a", "1Gi"), ResultOf("app", "gpu-a", "0")});
  const Json odd[] = {nullptr,
                      7,
                      -1,
                      1.5,
                      true,
                      "",
                      "x",
                      "\x7f",
                      Json::array(),
                      Json::object(),
                      Json::array({nullptr})};
  const Json flat = valid.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (Json::json_pointer at(pointer); !at.empty(); at = at.parent_pointer()) {
      for (const Json& replacement : odd) {
        Json json = valid;
        json[at] = replacement;
        const auto claim = Parse(json);
        if (claim) {
          EXPECT_EQ(claim->bytes, uint64_t{1} << 30) << json.dump();
        }
      }
    }
  }
  std::mt19937 random(1);
  const std::string text = valid.dump();
  for (int i = 0; i < 5000; ++i) {
    std::string changed = text.substr(0, random() % (text.size() + 1));
    for (int j = 0; j < 3 && !changed.empty(); ++j) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    (void)ParseClaim(changed, kRef, "node");
  }
}

}  // namespace
}  // namespace gpushm::plugin::dra
