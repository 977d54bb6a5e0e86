// Goal: a buffer's content moves as docs/design/states.md draws it. Method: every function, from
// every state.
#include "sidecar/broker/content.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <string>

namespace gpushm::broker {
namespace {

using enum registry::BufferState;

constexpr std::array kStates = {kLoading, kReady, kWriterDied, kFailed};
const Reason kWhy{.code = Code::kInvalidArgument, .text = "w.bin is empty"};
const Reason kWaits{.code = Code::kNotFound, .text = "no file w.bin", .passes = true};

// The states that follow kStates, in this order.
std::array<BufferState, 4> After(const std::function<void(Content*)>& move) {
  std::array<BufferState, 4> after{};
  for (size_t i = 0; i < kStates.size(); ++i) {
    Content content(kStates.at(i), 5);
    move(&content);
    after.at(i) = content.state();
  }
  return after;
}

TEST(Content, MovesAsDrawn) {
  using States = std::array<BufferState, 4>;
  EXPECT_EQ(After([](Content* c) { c->Load(1, 7); }),
            (States{kLoading, kLoading, kLoading, kLoading}));
  EXPECT_EQ(After([](Content* c) { c->Complete(7); }), (States{kReady, kReady, kReady, kReady}));
  EXPECT_EQ(After([](Content* c) { c->Renew(); }), (States{kReady, kReady, kReady, kReady}));
  EXPECT_EQ(After([](Content* c) { EXPECT_EQ(c->LoseWriter(), c->is_there()); }),
            (States{kLoading, kWriterDied, kWriterDied, kFailed}));
  EXPECT_EQ(After([](Content* c) { EXPECT_EQ(c->State(1, kWhy), !c->is_there()); }),
            (States{kFailed, kReady, kWriterDied, kFailed}));
  EXPECT_EQ(After([](Content* c) { EXPECT_EQ(c->State(1, kWaits), !c->is_there()); }),
            (States{kLoading, kReady, kWriterDied, kFailed}));
  EXPECT_EQ(After([](Content* c) { EXPECT_FALSE(c->GiveUp(1, kWhy, false)); }), kStates)
      << "nobody loads it";
  EXPECT_EQ(After([](Content* c) {
              c->Load(1, 7);
              EXPECT_FALSE(c->GiveUp(2, kWhy, false));
              EXPECT_FALSE(c->State(2, kWhy));
              EXPECT_TRUE(c->GiveUp(1, kWhy, false));
            }),
            (States{kFailed, kFailed, kFailed, kFailed}));
}

// Goal: what its own loader tries again is no failure to whoever waits.
TEST(Content, WhatPassesIsAwaitedAgain) {
  for (const bool passes : {true, false}) {
    for (const bool tries_again : {true, false}) {
      Content content(kLoading, 5);
      content.Load(1, 7);
      EXPECT_TRUE(content.State(1, passes ? kWaits : kWhy));
      EXPECT_TRUE(content.GiveUp(1, kWhy, tries_again));
      EXPECT_EQ(content.state(), passes && tries_again ? kLoading : kFailed);
      EXPECT_EQ(content.reason(), passes ? kWaits : kWhy);
      EXPECT_EQ(content.loaded_bytes(), passes && tries_again ? 0u : 7u);
    }
  }
}

TEST(Content, ASuccessorGoesOnWithALoadOrEndsIt) {
  const auto restored = [](const std::set<uint64_t>& writers, bool awaited, bool from_file) {
    return After([&](Content* c) { c->Restore(writers, awaited, from_file); });
  };
  using States = std::array<BufferState, 4>;
  EXPECT_EQ(restored({}, false, false), (States{kFailed, kReady, kWriterDied, kFailed}));
  EXPECT_EQ(restored({}, true, true), (States{kLoading, kReady, kWriterDied, kLoading}));
  EXPECT_EQ(restored({3}, false, false), kStates);
  Content one(kLoading, 5);
  one.Restore({3}, false, false);
  EXPECT_TRUE(one.IsLoadedBy(3));
  Content two(kLoading, 5);
  two.Restore({3, 4}, false, false);
  EXPECT_TRUE(two.is_being_loaded() && !two.IsLoadedByOther(5)) << "one of the two loads it";
  EXPECT_TRUE(two.GiveUp(4, kWhy, false));
}

}  // namespace
}  // namespace gpushm::broker
