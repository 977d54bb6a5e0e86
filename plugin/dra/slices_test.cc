#include "plugin/dra/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/kubernetes/testing/api_server.h"
#include "plugin/dra/devices.h"

namespace gpushm::plugin::dra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

Json Devices(size_t count, bool healthy = true) {
  Offer offer;
  for (size_t i = 0; i < count; ++i) {
    const std::string uuid = Concat("GPU-", i);
    offer.devices.push_back({.uuid = uuid, .name = "Simulated GPU", .index = 0});
    offer.gpus.push_back({.uuid = uuid, .tokens = 8, .healthy = healthy, .bytes = 1 << 30});
  }
  return DevicesOf(offer);
}

class SlicesTest : public ::testing::Test {
 protected:
  Result<bool> Sync(const Json& devices) {
    return slices_.Sync(devices, Deadline::AfterMs(10'000));
  }

  kubernetes::testing::ApiServer server_;
  const kubernetes::ApiClient client_{server_.Address()};
  Slices slices_{"node0", [this](const auto&... call) { return client_.Call(call...); }};
};

TEST_F(SlicesTest, TheFirstSyncMakesThemAndTheNextChangesNothing) {
  const auto first = Sync(Devices(2));
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_TRUE(*first);
  const auto slices = server_.Slices();
  ASSERT_EQ(slices.size(), 1U);
  EXPECT_EQ(slices[0]["spec"]["pool"],
            Json::parse(R"({"name":"node0","generation":1,"resourceSliceCount":1})"));
  EXPECT_EQ(slices[0]["metadata"]["ownerReferences"][0]["uid"], "node-uid");
  EXPECT_EQ(slices[0]["spec"]["devices"], Devices(2));
  const auto second = Sync(Devices(2));
  ASSERT_TRUE(second);
  EXPECT_FALSE(*second);
  EXPECT_EQ(server_.writes(), 1);
}

// The server adds timeAdded to taints; that is no change.
TEST_F(SlicesTest, WhatTheServerAddsIsNoChange) {
  ASSERT_TRUE(Sync(Devices(1, /*healthy=*/false)));
  ASSERT_TRUE(Sync(Devices(1, /*healthy=*/false)));
  EXPECT_EQ(server_.writes(), 1);
}

TEST_F(SlicesTest, AChangeIsANewGeneration) {
  ASSERT_TRUE(Sync(Devices(2)));
  ASSERT_TRUE(Sync(Devices(1)));
  const auto slices = server_.Slices();
  ASSERT_EQ(slices.size(), 1U);
  EXPECT_EQ(slices[0]["spec"]["pool"]["generation"], 2);
  EXPECT_EQ(slices[0]["spec"]["devices"].size(), 1U);
}

// Another run of the plugin does not know what the server made of its predecessor's.
TEST_F(SlicesTest, ASuccessorTakesOverWhatIsThere) {
  ASSERT_TRUE(Sync(Devices(2)));
  Slices next("node0", [this](const auto&... call) { return client_.Call(call...); });
  ASSERT_TRUE(next.Sync(Devices(2), Deadline::AfterMs(10'000)));
  const auto slices = server_.Slices();
  ASSERT_EQ(slices.size(), 1U);
  EXPECT_EQ(slices[0]["spec"]["pool"]["generation"], 2);
}

TEST_F(SlicesTest, ManyDevicesTakeSeveralSlicesAndSurplusOnesGo) {
  ASSERT_TRUE(Sync(Devices(kSliceDevices + 1)));
  EXPECT_EQ(server_.Slices().size(), 2U);
  for (const Json& slice : server_.Slices()) {
    EXPECT_EQ(slice["spec"]["pool"]["resourceSliceCount"], 2);
  }
  ASSERT_TRUE(Sync(Devices(1)));
  EXPECT_EQ(server_.Slices().size(), 1U);
}

// Without its gate a claim would get a whole GPU; no slice is better than a wrong one.
TEST_F(SlicesTest, AGateThatIsOffIsSaidAndNothingIsOffered) {
  server_.DropConsumableCapacity(true);
  const auto synced = Sync(Devices(2));
  ASSERT_FALSE(synced);
  EXPECT_EQ(synced.error().code(), Code::kUnsupported);
  EXPECT_THAT(synced.error().ToString(),
              ::testing::AllOf(HasSubstr("DRAConsumableCapacity"), HasSubstr("Kubernetes 1.36")));
  EXPECT_THAT(server_.Slices(), IsEmpty());
  server_.DropConsumableCapacity(false);
  ASSERT_TRUE(Sync(Devices(2)));
  EXPECT_EQ(server_.Slices().size(), 1U);
}

TEST_F(SlicesTest, AFailureIsRepairedByTheNextSync) {
  for (int failing = 0; failing < 3; ++failing) {
    server_.FailNext(503, 1);
    ASSERT_FALSE(Sync(Devices(2)));
  }
  ASSERT_TRUE(Sync(Devices(2)));
  EXPECT_EQ(server_.Slices().size(), 1U);
}

TEST(DroppedTest, NamesWhatIsMissing) {
  const Json wanted = {{"devices", Json::array({{{"name", "a"}, {"taints", Json::array({1})}}})}};
  EXPECT_THAT(Dropped(wanted, {{"devices", Json::array({{{"name", "b"}}})}}),
              ElementsAre("devices[0].taints"));
  EXPECT_THAT(Dropped(wanted, wanted), IsEmpty());
  EXPECT_THAT(Dropped(wanted, Json()), ElementsAre("devices"));
}

}  // namespace
}  // namespace gpushm::plugin::dra
