// Specs of ResourceClaims in the runtime's folder.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "platform/base/testing/stopping_files.h"
#include "plugin/cdi/spec_store.h"

namespace gpushm::plugin::cdi {
namespace {

using gpushm::testing::TempFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kUid[] = "11111111-2222-3333-4444-555555555555";
constexpr char kFile[] = "gpushm.io-claim-11111111-2222-3333-4444-555555555555.json";

binding::Binding Claim() {
  return {.resource = binding::Resource::kMemory,
          .ids = {kUid},
          .gpus = {"GPU-aaaaaaaa-0000-0000-0000-000000000001"},
          .owner = {.pod = {.name_space = "team-a", .name = "llm-0"}, .container = {}},
          .claim_bytes = 12'345'678};
}

Edits EditsWith(const std::string& variable) {
  Edits edits;
  edits.env[variable] = "1";
  return edits;
}

ClaimEdits Roles() { return {.broker = EditsWith("LINK"), .app = EditsWith("APP"), .mps = {}}; }

TEST(ClaimSpec, WhatIsWrittenIsRead) {
  const TempFolder folder;
  SpecStore store = *SpecStore::Open(folder / "cdi");
  const auto written = store.WriteClaim(Claim(), Roles());
  ASSERT_TRUE(written) << written.error().ToString();
  EXPECT_TRUE(*written);
  EXPECT_FALSE(*store.WriteClaim(Claim(), Roles()));
  const auto contents = store.ReadAll();
  ASSERT_TRUE(contents);
  EXPECT_THAT(contents->damaged, IsEmpty());
  EXPECT_THAT(contents->bindings, ElementsAre(Claim()));
  ASSERT_TRUE(store.RemoveClaim(kUid));
  EXPECT_THAT(*ListFolder(folder / "cdi"), IsEmpty());
  EXPECT_TRUE(store.RemoveClaim(kUid)) << "nothing to remove is no error";
  EXPECT_FALSE(store.RemoveClaim("../x"));
}

TEST(ClaimSpec, WhatOtherPodsMayDoIsKept) {
  for (const claims::Others each :
       {claims::Others::kNone, claims::Others::kRead, claims::Others::kWrite}) {
    binding::Binding binding = Claim();
    binding.others = each;
    const auto text = ClaimSpecText(binding, Roles());
    ASSERT_TRUE(text);
    const auto parsed = ParseSpec(kFile, *text);
    ASSERT_TRUE(parsed) << parsed.error().ToString();
    EXPECT_EQ(parsed->others, each);
  }
  auto odd = nlohmann::json::parse(*ClaimSpecText(Claim(), Roles()));
  odd["annotations"]["gpushm.io/others"] = "all";
  EXPECT_FALSE(ParseSpec(kFile, odd.dump()));
}

// Goal: the pod with the MPS daemon has a device of its own, and a plugin that knows nothing of it
// does not take the binding for another one.
TEST(ClaimSpec, AClaimWithMpsHasAThirdDevice) {
  binding::Binding binding = Claim();
  binding.others = claims::Others::kRead;
  binding.mps = true;
  ClaimEdits roles = Roles();
  EXPECT_FALSE(ClaimSpecText(binding, roles)) << "without the edits of that pod";
  roles.mps = EditsWith("MPS");
  EXPECT_FALSE(ClaimSpecText(Claim(), roles));
  const auto text = ClaimSpecText(binding, roles);
  ASSERT_TRUE(text) << text.error().ToString();
  auto spec = nlohmann::json::parse(*text);
  ASSERT_EQ(spec["devices"].size(), 3U);
  EXPECT_EQ(Concat("gpushm.io/claim=", spec["devices"][2]["name"].get<std::string>()),
            ClaimCdiName(kUid, claims::Part::kMps));
  EXPECT_EQ(spec["annotations"]["gpushm.io/binding-version"], "3");
  const auto parsed = ParseSpec(kFile, *text);
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(*parsed, binding);
  spec["annotations"]["gpushm.io/binding-version"] = "1";
  EXPECT_FALSE(ParseSpec(kFile, spec.dump()));
  spec = nlohmann::json::parse(*text);
  spec["devices"].erase(2);
  EXPECT_FALSE(ParseSpec(kFile, spec.dump())) << "its version says that it has three";
}

// What the broker alone gets must not reach an application.
TEST(ClaimSpec, EachRoleHasItsOwnDevice) {
  const auto text = ClaimSpecText(Claim(), Roles());
  ASSERT_TRUE(text);
  const auto spec = nlohmann::json::parse(*text);
  ASSERT_EQ(spec["devices"].size(), 2U);
  EXPECT_EQ(
      Concat(spec["kind"].get<std::string>(), "=", spec["devices"][0]["name"].get<std::string>()),
      ClaimCdiName(kUid, claims::Part::kBroker));
  EXPECT_EQ(spec["devices"][0]["containerEdits"]["env"][0], "LINK=1");
  EXPECT_EQ(spec["devices"][1]["name"], Concat(kUid, "-app"));
  EXPECT_EQ(spec["devices"][1]["containerEdits"]["env"][0], "APP=1");
}

TEST(ClaimSpec, AnInvalidClaimIsNotWritten) {
  binding::Binding binding = Claim();
  binding.ids = {"m0001"};
  EXPECT_FALSE(ClaimSpecText(binding, Roles()));
  binding = Claim();
  binding.claim_bytes = 0;
  EXPECT_FALSE(ClaimSpecText(binding, Roles())) << "without bytes it is no claim";
  binding = Claim();
  binding.gpus = {"../x"};
  EXPECT_FALSE(ClaimSpecText(binding, Roles()));
}

// Goal: no changed spec is taken for another claim. Method: each value of a valid spec is replaced.
TEST(ClaimSpec, ADamagedSpecIsNotRead) {
  const auto valid = nlohmann::json::parse(*ClaimSpecText(Claim(), Roles()));
  ASSERT_TRUE(ParseSpec(kFile, valid.dump()));
  EXPECT_FALSE(ParseSpec("gpushm.io-claim-x.json", valid.dump()));
  EXPECT_FALSE(ParseSpec("gpushm.io-memory-m0000.json", valid.dump()));
  for (const char* const at :
       {"/kind", "/devices", "/devices/0/name", "/devices/1/name", "/annotations/gpushm.io~1bytes",
        "/annotations/gpushm.io~1gpu", "/annotations/gpushm.io~1pod",
        "/annotations/gpushm.io~1namespace", "/annotations/gpushm.io~1binding-version"}) {
    for (const nlohmann::json& odd : {nlohmann::json("-1"), nlohmann::json(7), nlohmann::json(),
                                      nlohmann::json("../x"), nlohmann::json("")}) {
      auto changed = valid;
      changed[nlohmann::json::json_pointer(at)] = odd;
      EXPECT_FALSE(ParseSpec(kFile, changed.dump())) << at << " " << odd;
    }
  }
}

}  // namespace
}  // namespace gpushm::plugin::cdi
