// Goal: participants pass a point together or not at all, whoever is late and whoever dies.
// Method: one thread that plays all participants; threads that watch each other; processes that are
// killed at random moments, with the parent in the broker's role.
#include "contract/sync/barrier.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "contract/sync/testing.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"
#include "platform/base/testing/must.h"

namespace gpushm::sync {
namespace {

using ::gpushm::testing::Must;
using ::gpushm::testing::TestSeed;
using ::testing::HasSubstr;
using testing::kLongMs;

const Deadline kNow = Deadline::AfterMs(0);

using gpushm::testing::CodeOf;

struct SharedBarrier {
  explicit SharedBarrier(uint32_t participants)
      : memory(BytesFor(participants, 0)),
        page(Page::Make(memory.address(), memory.bytes(), Kind::kBarrier, participants, 0, {})) {}
  testing::SharedMemory memory;
  Page page;
};

TEST(BarrierTest, APointIsPassedWhenAllAreThere) {
  const SharedBarrier shared(3);
  Barrier a = *Barrier::Join(shared.page, 1);
  Barrier b = *Barrier::Join(shared.page, 2);
  ASSERT_EQ(*a.Arrive(), 1U);
  ASSERT_EQ(*b.Arrive(), 1U);
  const auto early = a.Wait(1, kNow);
  ASSERT_EQ(CodeOf(early), Code::kTimeout) << "not all have joined yet";
  EXPECT_THAT(early.error().ToString(), HasSubstr("2 of 3 are at point 1, 1 have yet to join"));
  Barrier c = *Barrier::Join(shared.page, 3);
  EXPECT_EQ(CodeOf(Barrier::Join(shared.page, 4)), Code::kExhausted);
  ASSERT_TRUE(a.Arrive());
  EXPECT_THAT(a.Wait(2, kNow).error().ToString(), HasSubstr("1 of 3 are at point 2"));
  ASSERT_TRUE(c.Arrive());
  EXPECT_TRUE(a.Wait(1, kNow));
  EXPECT_TRUE(b.Wait(1, kNow));
}

TEST(BarrierTest, AStreamArrivesAndWaits) {
  const SharedBarrier shared(2);
  Barrier a = *Barrier::Join(shared.page, 1);
  Barrier b = *Barrier::Join(shared.page, 2);
  const auto point = Must(a.ArriveOnStream());
  ASSERT_TRUE(b.Arrive());
  EXPECT_EQ(CodeOf(b.Wait(1, kNow)), Code::kTimeout);
  testing::Store(point);
  EXPECT_TRUE(b.Wait(1, kNow));
  const auto waits = a.WaitOnStream(1);
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_EQ(waits[0].word, &shared.page.cell(1).value);
  EXPECT_EQ(waits[0].value, 1U);
}

TEST(BarrierTest, AnEndBreaksItForAll) {
  const SharedBarrier shared(3);
  Barrier a = *Barrier::Join(shared.page, 1);
  Barrier b = *Barrier::Join(shared.page, 2);
  ASSERT_TRUE(a.Arrive());
  ASSERT_TRUE(b.Arrive());
  EndCellsOf(shared.page, 2, CellState::kDied);
  EXPECT_EQ(CodeOf(a.Wait(1, kNow)), Code::kPeerDied) << "nobody can take the third cell any more";
  const auto broken = a.Wait(2, Deadline::AfterMs(kLongMs));
  ASSERT_EQ(CodeOf(broken), Code::kPeerDied);
  EXPECT_THAT(broken.error().ToString(),
              HasSubstr("a participant died after point 1 (place 2 of 3)"));
  EXPECT_EQ(CodeOf(Barrier::Join(shared.page, 3)), Code::kStale);
  EXPECT_EQ(CodeOf(b.Arrive()), Code::kOrphaned);
}

TEST(BarrierTest, AnArrivalThatTheStreamWasNotToldOfIsTakenBack) {
  const SharedBarrier shared(1);
  Barrier barrier = *Barrier::Join(shared.page, 1);
  ASSERT_EQ(barrier.ArriveOnStream()->value, 1U);
  barrier.TakeBack();
  EXPECT_EQ(barrier.arrived(), 0U);
  EXPECT_EQ(CodeOf(barrier.Wait(1, kNow)), Code::kTimeout);
  EXPECT_EQ(*barrier.Arrive(), 1U);
  EXPECT_TRUE(barrier.Wait(1, kNow));
}

TEST(BarrierTest, WhoeverLeavesEndsItUnlessSomebodyDied) {
  for (const bool dies : {false, true}) {
    const SharedBarrier shared(3);
    std::vector<Barrier> all;
    for (uint64_t lease = 1; lease <= 3; ++lease) {
      all.push_back(*Barrier::Join(shared.page, lease));
    }
    if (dies) EndCellsOf(shared.page, 3, CellState::kDied);
    // The participant learned of the death.
    ASSERT_TRUE(EndCell(shared.page.cell(0), 1, CellState::kLeft));
    EXPECT_EQ(CodeOf(all[1].Wait(1, kNow)), dies ? Code::kPeerDied : Code::kEnded);
  }
}

TEST(BarrierTest, ThePointWhereItArrivedIsPassed) {
  const SharedBarrier shared(3);
  Barrier a = *Barrier::Join(shared.page, 1);
  Barrier b = *Barrier::Join(shared.page, 2);
  Barrier c = *Barrier::Join(shared.page, 3);
  ASSERT_TRUE(a.Arrive());
  ASSERT_TRUE(b.Arrive());
  EndCellsOf(shared.page, 2, CellState::kDied);
  EXPECT_EQ(CodeOf(a.Wait(1, kNow)), Code::kTimeout);
  ASSERT_TRUE(c.Arrive());
  EXPECT_TRUE(a.Wait(1, kNow));
  EXPECT_TRUE(c.Wait(1, kNow));
  EXPECT_EQ(CodeOf(a.Wait(2, kNow)), Code::kPeerDied);
}

// Each thread does its part before the barrier, and sees every other part after it.
TEST(BarrierTest, ThreadsMeetManyTimes) {
  constexpr uint32_t kThreads = 4;
  constexpr uint64_t kPoints = 500;
  const SharedBarrier shared(kThreads);
  std::array<uint64_t, kThreads> parts{};  // Not atomic: the barrier orders them.
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Barrier barrier = *Barrier::Join(shared.page, i + 1);
      for (uint64_t point = 1; point <= 2 * kPoints; point += 2) {
        parts[i] = point;
        ASSERT_EQ(*barrier.Arrive(), point);
        ASSERT_TRUE(barrier.Wait(point, Deadline::AfterMs(kLongMs)));
        for (const uint64_t part : parts) ASSERT_EQ(part, point);
        ASSERT_TRUE(barrier.Arrive());
        ASSERT_TRUE(barrier.Wait(point + 1, Deadline::AfterMs(kLongMs)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A child meets the others until the barrier breaks. Returns 0 if the error was correct.
int MeetUntilBroken(const Page& page, uint64_t lease) {
  auto barrier = Barrier::Join(page, lease);
  if (!barrier) return CodeOf(barrier) == Code::kStale ? 0 : 1;
  for (;;) {
    const auto point = barrier->Arrive();
    if (!point) return 2;
    const auto passed = barrier->Wait(*point, Deadline::AfterMs(kLongMs));
    if (passed) continue;
    return CodeOf(passed) == Code::kPeerDied ? 0 : 3;  // Also once the third one has left it.
  }
}

TEST(BarrierTest, KilledAtRandomMomentsItBreaksForTheOthers) {
  std::mt19937 random(TestSeed(7));
  for (int round = 0; round < 60; ++round) {
    const SharedBarrier shared(3);
    std::array<pid_t, 3> children{};
    for (uint64_t i = 0; i < children.size(); ++i) {
      children[i] = fork();
      if (children[i] == 0) _exit(MeetUntilBroken(shared.page, i + 1));
    }
    testing::SpinFor(static_cast<int64_t>(random() % 3'000'000));
    const size_t victim = random() % children.size();
    kill(children[victim], SIGKILL);
    waitpid(children[victim], nullptr, 0);
    // The killed child may not have claimed its cell; then the others wait for one that never
    // comes.
    if (EndCellsOf(shared.page, victim + 1, CellState::kDied) == 0) {
      Claim(shared.page.cell(2), 99, false);
      EndCellsOf(shared.page, 99, CellState::kDied);
    }
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (i == victim) continue;
      ASSERT_EQ(waitpid(children[i], &status, 0), children[i]);
      ASSERT_EQ(status, 0) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace gpushm::sync
