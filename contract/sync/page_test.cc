// Goal: a wait on a cell ends by its value, by the end of its owner or by the deadline, and no
// content of a sync page makes a reader access memory outside it.
// Method: real processes that are killed, threads, and sync pages with random bytes.
#include "contract/sync/page.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "contract/limits.h"
#include "contract/sync/testing.h"
#include "platform/base/testing/must.h"

namespace gpushm::sync {
namespace {

using ::gpushm::testing::Must;
using ::testing::HasSubstr;
using testing::kLongMs;

class PageTest : public ::testing::Test {
 protected:
  testing::SharedMemory memory_{BytesFor(4, 1000)};
  Page page_ = Page::Make(memory_.address(), memory_.bytes(), Kind::kRing, 4, 1000, {7, 8});
};

TEST_F(PageTest, APageIsReadAsItWasMade) {
  const auto page = Must(Page::Look(memory_.address(), memory_.bytes()));
  EXPECT_EQ(page.kind(), Kind::kRing);
  EXPECT_EQ(page.cells(), 4U);
  EXPECT_EQ(page.body().size(), 1000U);
  EXPECT_EQ(page.settings()[1], 8U);
  const auto* const end = page.body().data() + page.body().size();
  EXPECT_LE(end, static_cast<std::byte*>(memory_.address()) + memory_.bytes());
}

TEST_F(PageTest, ACellHasOneOwner) {
  EXPECT_TRUE(Claim(page_.cell(0), 11, false));
  EXPECT_FALSE(Claim(page_.cell(0), 12, true));
  EXPECT_EQ(Read(page_.cell(0)).state, CellState::kLive);
  EXPECT_EQ(EndCellsOf(page_, 11, CellState::kDied), 1U);
  EXPECT_FALSE(Claim(page_.cell(0), 12, false)) << "a waiter must not see the value start again";
  EXPECT_TRUE(Claim(page_.cell(0), 12, true));
  EXPECT_EQ(Read(page_.cell(0)).value, 0U);
  EXPECT_EQ(page_.cell(0).owners.load(), 2U);
}

TEST_F(PageTest, ManyClaimOneOfThemGetsIt) {
  for (uint64_t round = 0; round < 200; ++round) {
    std::atomic<int> won = 0;
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] { won += Claim(page_.cell(1), 100 * round + i + 1, true); });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(won, 1);
    for (uint64_t i = 0; i < 4; ++i) EndCellsOf(page_, 100 * round + i + 1, CellState::kLeft);
  }
}

TEST_F(PageTest, AWaitEndsWithTheValue) {
  Claim(page_.cell(0), 1, false);
  std::thread writer([&] {
    for (uint64_t value = 1; value <= 1000; ++value) {
      page_.cell(0).value.store(value, std::memory_order_release);
    }
  });
  const auto reached = WaitUntil(page_.cell(0), 1000, Deadline::AfterMs(kLongMs));
  writer.join();
  ASSERT_TRUE(reached) << reached.error().ToString();
  EXPECT_EQ(reached->value, 1000U);
}

TEST_F(PageTest, AWaitEndsWithItsDeadline) {
  Claim(page_.cell(0), 1, false);
  page_.cell(0).value.store(4, std::memory_order_release);
  const auto reached = WaitUntil(page_.cell(0), 5, Deadline::AfterMs(30));
  ASSERT_FALSE(reached);
  EXPECT_EQ(reached.error().code(), Code::kTimeout);
  EXPECT_THAT(reached.error().ToString(), HasSubstr("is 4, not yet 5"));
}

TEST_F(PageTest, ACloseIsAnotherEndThanADeath) {
  for (const auto& [how, code] :
       {std::pair(CellState::kLeft, Code::kEnded), std::pair(CellState::kDied, Code::kPeerDied)}) {
    const auto cell = static_cast<uint32_t>(how);
    ASSERT_TRUE(Claim(page_.cell(cell), 9, false));
    ASSERT_TRUE(EndCell(page_.cell(cell), 9, how));
    const auto waited = WaitUntil(page_.cell(cell), 1, Deadline::AfterMs(0));
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code(), code);
    EXPECT_TRUE(IsEnd(code));
  }
}

// A stream of an owner that a broker has ended had yet to store a value. A process that checks for
// the end restores the poison, which ends the waits of streams.
TEST_F(PageTest, ThePoisonOfACellThatHasEndedIsStoredAgain) {
  Cell& cell = page_.cell(0);
  ASSERT_TRUE(Claim(cell, 9, false));
  cell.value.store(1);
  KeepPoison(cell);
  EXPECT_EQ(cell.value.load(), 1U) << "its owner lives";
  EndCellsOf(page_, 9, CellState::kDied);
  cell.value.store(2);
  EXPECT_EQ(Read(cell).value, 1U) << "hosts use the state";
  KeepPoison(cell);
  EXPECT_EQ(cell.value.load(), kPoison);
  EXPECT_EQ(Read(cell).value, 1U);
}

// What was done before the end counts; nothing that comes after it counts.
TEST_F(PageTest, AWaitEndsWithTheOwner) {
  const pid_t child = fork();
  if (child == 0) {
    Claim(page_.cell(2), 9, false);
    page_.cell(2).value.store(41, std::memory_order_release);
    pause();
    _exit(1);
  }
  ASSERT_TRUE(WaitUntil(page_.cell(2), 41, Deadline::AfterMs(kLongMs)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::thread broker([&] { EndCellsOf(page_, 9, CellState::kDied); });
  const auto later = WaitUntil(page_.cell(2), 42, Deadline::AfterMs(kLongMs));
  broker.join();
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code(), Code::kPeerDied);
  EXPECT_THAT(later.error().ToString(), HasSubstr("died at 41, before 42"));
  EXPECT_TRUE(WaitUntil(page_.cell(2), 41, Deadline::AfterMs(0)));
  // The comparison of a GPU: cyclic, as signed numbers.
  const auto poison = static_cast<int64_t>(page_.cell(2).value.load());
  EXPECT_GE(poison - static_cast<int64_t>(kMaxValue), 0);
  EXPECT_GE(poison - 1, 0);
}

TEST_F(PageTest, OnlyTheCellsOfALeaseEndWithIt) {
  Claim(page_.cell(0), 5, false);
  Claim(page_.cell(1), 6, false);
  Claim(page_.cell(3), 5, false);
  EXPECT_EQ(EndCellsOf(page_, 5, CellState::kLeft), 2U);
  EXPECT_TRUE(Read(page_.cell(0)).ended());
  EXPECT_FALSE(Read(page_.cell(1)).ended());
  EXPECT_EQ(Read(page_.cell(3)).state, CellState::kLeft);
  EXPECT_EQ(EndCellsOf(page_, 5, CellState::kDied), 0U);
}

// A broker that is killed while it ends a cell is followed by one that ends it again.
TEST_F(PageTest, ACellCanBeEndedTwice) {
  Claim(page_.cell(0), 5, false);
  page_.cell(0).value.store(41, std::memory_order_release);
  EndCellsOf(page_, 5, CellState::kDied);
  page_.cell(0).owner.store(5, std::memory_order_release);
  EXPECT_EQ(EndCellsOf(page_, 5, CellState::kDied), 1U);
  EXPECT_EQ(Read(page_.cell(0)).value, 41U);
}

TEST_F(PageTest, WhatIsNoPageIsRefused) {
  const auto refused = [&](auto change) {
    std::vector<std::byte> copy(memory_.bytes());
    std::memcpy(copy.data(), memory_.address(), copy.size());
    change(reinterpret_cast<Header*>(copy.data()));
    const auto page = Page::Look(copy.data(), copy.size());
    return !page && page.error().code() == Code::kCorrupt;
  };
  EXPECT_TRUE(refused([](Header* h) { h->magic = 0; }));
  EXPECT_TRUE(refused([](Header* h) { h->kind = 5; }));
  EXPECT_TRUE(refused([](Header* h) { h->cells = 0; }));
  EXPECT_TRUE(refused([](Header* h) { h->cells = limits::kCells + 1; }));
  EXPECT_TRUE(refused([](Header* h) { h->cells = 100; }));
  EXPECT_TRUE(refused([](Header* h) { h->body_bytes = 0xffffffff; }));
  EXPECT_FALSE(Page::Look(memory_.address(), 256));
  std::mt19937_64 random(4711);
  for (int i = 0; i < 20'000; ++i) {
    refused([&](Header* h) {
      if (i % 2 == 0) h->cells = static_cast<uint32_t>(random());
      h->body_bytes = static_cast<uint32_t>(random());
      const auto page = Page::Look(h, memory_.bytes());
      if (!page) return;
      const auto* const begin = reinterpret_cast<std::byte*>(h);
      ASSERT_LE(page->body().data() + page->body().size(), begin + memory_.bytes());
    });
  }
}

TEST_F(PageTest, ARefusalShowsTheValue) {
  static_cast<Header*>(memory_.address())->kind = 5;
  const auto page = Page::Look(memory_.address(), memory_.bytes());
  ASSERT_FALSE(page);
  EXPECT_THAT(page.error().ToString(), HasSubstr("its kind 5 is unknown"));
}

// Without the wake-up, the thread sleeps for an hour and the test fails at its time limit.
TEST_F(PageTest, SleepersInOtherProcessesAreWoken) {
  Cell& cell = page_.cell(0);
  constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
  for (int i = 0; i < 20; ++i) {
    const pid_t sleeper = fork();
    if (sleeper == 0) {
      const uint64_t wakes = cell.wakes.load();
      cell.words[0].store(1);  // From here on, a wake ends the sleep, or the sleep does not begin.
      SleepOn(cell, wakes, kHourNs);
      _exit(0);
    }
    while (cell.words[0].load() == 0) std::this_thread::yield();
    cell.words[0].store(0);
    if (i % 2 == 0) {
      while (cell.sleepers.load() == 0) std::this_thread::yield();
    }
    WakeSleepers(cell);
    int status = 0;
    ASSERT_EQ(waitpid(sleeper, &status, 0), sleeper);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(cell.sleepers.load(), 0U);
  }
}

TEST_F(PageTest, TheEndOfAnOwnerIsHeardAsleep) {
  Cell& cell = page_.cell(0);
  ASSERT_TRUE(Claim(cell, 7, /*again=*/false));
  const pid_t sleeper = fork();
  if (sleeper == 0) {
    for (Poll poll(Deadline::AfterMs(kLongMs), &cell); !Read(cell).ended();) {
      if (!poll.Again()) _exit(1);
    }
    _exit(0);
  }
  while (cell.sleepers.load() == 0) std::this_thread::yield();
  ASSERT_TRUE(EndCell(cell, 7, CellState::kDied));
  int status = 0;
  ASSERT_EQ(waitpid(sleeper, &status, 0), sleeper);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gpushm::sync
