// Goal: what all links state together is bounded, and a link that states much cannot take the room
// of others. Method: a keeper with little memory, and brokers that state leases without end.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <list>
#include <string>

#include "plugin/keeper/testing/keeper_fixture.h"

namespace gpushm::plugin::keeper::testing {
namespace {

constexpr uint64_t kBudgetBytes = 2 * kMiB;
constexpr uint64_t kMostLeases = 60'000;  // Far above the budget, but fewer than a link may have.

class KeeperBudgetTest : public KeeperTest {
 protected:
  void SetUp() override { StartKeeper({}, kBudgetBytes); }

  FakeBroker Broker(const std::string& name) {
    Open(name);
    FakeBroker broker(folder_.Socket(name));
    EXPECT_TRUE(broker.Greet(false));
    return broker;
  }
  // A client, a buffer, and leases until the keeper refuses, at most `most`. Returns the number
  // stated.
  static uint64_t SayLeases(FakeBroker* broker, uint64_t most) {
    if (!broker->Say(ClientOf(1), PidfdOf(getpid()).get()) || !broker->Say(BufferOf("b", 1)) ||
        !broker->Say(GenerationOf("b", 1), Memfd().get())) {
      return 0;
    }
    uint64_t said = 0;
    while (said < most && broker->Say(LeaseOf(said + 1, 1, 1))) ++said;
    return said;
  }
  uint64_t Used() {
    uint64_t used = 0;
    for (const LinkView& view : keeper_->Look()) used += view.kept_heap_bytes;
    return used;
  }
};

TEST_F(KeeperBudgetTest, OneThatTakesTooMuchIsDroppedAndOthersAreNot) {
  FakeBroker small = Broker("small");
  ASSERT_TRUE(SayOneOfEach(&small));
  ASSERT_TRUE(Eventually([&] { return Look("small").kept == kOneOfEach; }));
  FakeBroker large = Broker("large");
  EXPECT_LT(SayLeases(&large, kMostLeases), kMostLeases);
  EXPECT_TRUE(large.WaitForEnd());
  ASSERT_TRUE(Eventually([&] { return Look("large").exhausted == 1; }));
  EXPECT_EQ(Look("large").kept, KeptCounts{}) << "all of it is dropped, as with other limits";
  EXPECT_EQ(Look("small").kept, kOneOfEach);
  EXPECT_EQ(Look("small").exhausted, 0U);
  EXPECT_TRUE(Look("small").connected);
  ASSERT_TRUE(keeper_->Open("large", {.gpus = {kGpu}, .pool_bytes = kGiB, .pod = "next/pod"}));
  EXPECT_EQ(Look("large").exhausted, 0U) << "that count belonged to another pod";
}

// Goal: the first link does not keep the room. Method: one link takes nearly all of it, then
// another takes less than half.
TEST_F(KeeperBudgetTest, ASmallerOneFindsRoomThatALargerOneHas) {
  constexpr uint64_t kNearlyAll = kBudgetBytes / 128 * 9 / 10;  // A lease takes 128 bytes.
  FakeBroker large = Broker("large");
  ASSERT_EQ(SayLeases(&large, kNearlyAll), kNearlyAll);
  ASSERT_TRUE(Eventually([&] { return Look("large").kept.leases == kNearlyAll; }));
  FakeBroker other = Broker("other");
  const uint64_t wanted = kNearlyAll / 3;
  EXPECT_EQ(SayLeases(&other, wanted), wanted);
  EXPECT_TRUE(large.WaitForEnd());
  EXPECT_TRUE(Eventually([&] { return Look("other").kept.leases == wanted; }));
  EXPECT_EQ(Look("other").exhausted, 0U);
  EXPECT_EQ(Look("large").exhausted, 1U);
  // It comes back and wants the same again: this one is dropped.
  FakeBroker again(folder_.Socket("large"));
  ASSERT_TRUE(again.Greet(false));
  EXPECT_LT(SayLeases(&again, kNearlyAll), kNearlyAll);
  EXPECT_TRUE(again.WaitForEnd());
  EXPECT_EQ(Look("other").kept.leases, wanted);
  EXPECT_EQ(Look("other").exhausted, 0U);
}

// Goal: however many links take what they can, the sum stays below the budget and small ones fit.
TEST_F(KeeperBudgetTest, ManyTogetherStayWithinTheBudget) {
  std::list<FakeBroker> large;
  for (int i = 0; i < 6; ++i) {
    large.push_back(Broker("large-" + std::to_string(i)));
    SayLeases(&large.back(), kMostLeases);
    EXPECT_LE(Used(), kBudgetBytes);
    FakeBroker small = Broker("small-" + std::to_string(i));
    ASSERT_TRUE(SayOneOfEach(&small));
    EXPECT_TRUE(Eventually([&] { return Look("small-" + std::to_string(i)).kept == kOneOfEach; }));
  }
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Look("small-" + std::to_string(i)).exhausted, 0U);
}

TEST_F(KeeperBudgetTest, WhatIsTakenBackIsRoomAgain) {
  FakeBroker broker = Broker("one");
  constexpr uint64_t kHalf = kBudgetBytes / 128 / 2;
  for (int round = 0; round < 4; ++round) {
    ASSERT_EQ(SayLeases(&broker, kHalf), kHalf);
    ASSERT_TRUE(Eventually([&] { return Look("one").kept.leases == kHalf; }));
    protocol::LinkDrop drop{};
    drop.what = static_cast<uint32_t>(protocol::LinkDropped::kBuffer);
    drop.name = protocol::ToNameField("b");
    ASSERT_TRUE(broker.Say(protocol::LinkKind::kDrop, drop));
    ASSERT_TRUE(Eventually([&] { return Look("one").kept.leases == 0; }));
  }
  EXPECT_EQ(Look("one").exhausted, 0U);
}

}  // namespace
}  // namespace gpushm::plugin::keeper::testing
