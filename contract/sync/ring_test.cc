// Goal: a ring keeps its promises one by one: who gets which frame, what is lost and counted, what
// waits, the text when the deadline passes, and what the end of a participant means.
// Method: writer and readers in one thread, which also plays the GPU and the broker.
#include "contract/sync/ring.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "contract/limits.h"
#include "contract/sync/testing.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"
#include "platform/base/testing/must.h"

namespace gpushm::sync {
namespace {

using ::gpushm::testing::Must;
using ::testing::HasSubstr;
using testing::kLongMs;
using testing::MetadataOf;
using testing::SharedFrames;
using testing::Store;
using Order = RingReader::Order;
using Start = RingReader::Start;

constexpr uint64_t kWriter = 1000;  // Leases.
constexpr uint64_t kReader = 2000;

const Deadline kNow = Deadline::AfterMs(0);

// What Look says of an attempt that was made right afterwards.
template <typename Attempt>
void ExpectForeseen(LookAgain look, const Attempt& attempt) {
  if (attempt) {
    EXPECT_EQ(look, LookAgain::kNow);
  } else if (IsEnd(attempt.error().code()) || attempt.error().code() == Code::kOrphaned) {
    EXPECT_EQ(look, LookAgain::kEnded);
  } else {
    EXPECT_TRUE(look == LookAgain::kOnAlarm || look == LookAgain::kByTimer ||
                attempt.error().code() == Code::kBusy)
        << attempt.error().ToString();
  }
}
Deadline Long() { return Deadline::AfterMs(kLongMs); }

struct Ring {
  explicit Ring(uint32_t frames, Policy policy = Policy::kOverwriteOldest, uint32_t readers = 3,
                const RingWriter::Readers& need = {})
      : shared(Kind::kRing, {.frames = frames,
                             .frame_bytes = testing::kFrameWords * 8,
                             .readers = readers,
                             .policy = policy}),
        writer(*RingWriter::Open(shared.page, kWriter, need)) {}

  // Takes a frame through all its steps; returns its number.
  uint64_t Write(bool complete = true) {
    const LookAgain look = writer.Look();
    const auto opened = writer.OpenFrame(kNow);
    ExpectForeseen(look, opened);
    if (!opened) return 0;
    shared.Fill(opened->slot, opened->seq);
    EXPECT_TRUE(writer.Announce(opened->seq, 8, MetadataOf(opened->seq)));
    if (complete) Store(writer.Ready(opened->seq));
    return opened->seq;
  }
  RingReader Join(uint64_t lease = kReader, Start start = Start::kNewest) {
    return *RingReader::Join(shared.page, lease, start);
  }
  void End(uint64_t lease) { EndCellsOf(shared.page, lease, CellState::kDied); }

  SharedFrames shared;
  RingWriter writer;
};

// Takes the next frame, checks it and releases it; returns its number.
uint64_t ReadOne(const Ring& ring, RingReader& reader, Order order = Order::kInOrder) {
  const LookAgain look = reader.Look();
  const auto frame = reader.Next(Deadline::AfterMs(0), order);
  ExpectForeseen(look, frame);
  if (!frame) return 0;
  EXPECT_TRUE(ring.shared.Has(frame->slot, frame->seq));
  EXPECT_EQ(frame->metadata, MetadataOf(frame->seq));
  EXPECT_TRUE(reader.Check(frame->seq));
  EXPECT_TRUE(reader.ReleaseNow(*frame));
  return frame->seq;
}

using gpushm::testing::CodeOf;

TEST(RingTest, AReaderGetsWhatWasAnnouncedSinceItJoined) {
  Ring ring(4);
  ring.Write();
  RingReader reader = ring.Join();
  EXPECT_EQ(CodeOf(reader.Next(kNow)), Code::kTimeout);
  for (uint64_t seq = 2; seq < 100; ++seq) {
    ASSERT_EQ(ring.Write(), seq);
    ASSERT_EQ(ReadOne(ring, reader), seq);
  }
  EXPECT_EQ(reader.lost(), 0U);
  EXPECT_EQ(ring.writer.dropped(), 0U);
}

TEST(RingTest, AFrameHasWhatItsWriterSaid) {
  Ring ring(4);
  RingReader reader = ring.Join();
  const auto opened = ring.writer.OpenFrame(kNow);
  const std::array<std::byte, 3> metadata{std::byte{7}, std::byte{8}, std::byte{9}};
  EXPECT_EQ(CodeOf(ring.writer.Announce(2, 8, metadata)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(ring.writer.Announce(1, 1000, metadata)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(ring.writer.Announce(1, 8, std::vector<std::byte>(65))), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(ring.writer.OpenFrame(kNow)), Code::kInvalidArgument) << "a frame is open";
  const int64_t before_ns = MonotonicNs();
  ASSERT_TRUE(ring.writer.Announce(1, 77, metadata));
  const auto frame = Must(reader.Next(Long()));
  EXPECT_EQ(frame.slot, opened->slot);
  EXPECT_EQ(frame.bytes, 77U);
  EXPECT_GE(frame.time_ns, before_ns);
  EXPECT_EQ(frame.metadata[2], std::byte{9});
  EXPECT_EQ(frame.metadata[3], std::byte{0});
}

TEST(RingTest, AnAbandonedFrameWasNeverThere) {
  Ring ring(2);
  RingReader reader = ring.Join();
  for (uint64_t seq = 1; seq < 10; ++seq) {
    const auto given_up = Must(ring.writer.OpenFrame(kNow));
    ring.writer.AbandonFrame();
    EXPECT_EQ(CodeOf(reader.Next(kNow)), Code::kTimeout);
    const auto opened = Must(ring.writer.OpenFrame(kNow));
    EXPECT_EQ(opened.slot, given_up.slot);
    ring.writer.AbandonFrame();
    ASSERT_EQ(ring.Write(), seq);
    ASSERT_EQ(ReadOne(ring, reader), seq);
  }
}

TEST(RingTest, ASlowReaderIsToldWhatItLost) {
  Ring ring(4);
  RingReader slow = ring.Join();
  RingReader slower = ring.Join(kReader + 1);
  for (int i = 0; i < 10; ++i) ring.Write();
  const auto next = Must(slow.Next(kNow));
  EXPECT_EQ(next.seq, 7U);
  EXPECT_EQ(next.lost, 6U);
  const auto newest = Must(slower.Next(kNow, Order::kNewest));
  EXPECT_EQ(newest.seq, 10U);
  EXPECT_EQ(newest.lost, 9U);
  EXPECT_EQ(slower.lost(), 9U);
}

TEST(RingTest, AHeldFrameIsNotOverwritten) {
  Ring ring(4);
  RingReader reader = ring.Join();
  ring.Write();
  const auto held = Must(reader.Next(kNow));
  for (int i = 0; i < 100; ++i) ASSERT_NE(ring.Write(), 0U);
  EXPECT_TRUE(ring.shared.Has(held.slot, 1));
  const auto point = Must(reader.Release(held));
  EXPECT_EQ(CodeOf(reader.Release(held)), Code::kInvalidArgument);
  ring.Write();
  EXPECT_TRUE(ring.shared.Has(held.slot, 1)) << "the reader's stream has not stored yet";
  Store(point);
  ring.Write();
  EXPECT_FALSE(ring.shared.Has(held.slot, 1));
}

TEST(RingTest, AFrameIsDroppedWhenAllSlotsAreHeld) {
  Ring ring(3);
  RingReader reader = ring.Join();
  std::vector<Frame> frames;
  for (int i = 0; i < 3; ++i) {
    ring.Write();
    frames.push_back(*reader.Next(kNow));
  }
  for (int i = 1; i < 5; ++i) {
    const auto opened = ring.writer.OpenFrame(kNow);
    ASSERT_EQ(CodeOf(opened), Code::kBusy);
    EXPECT_THAT(opened.error().ToString(), HasSubstr(Concat(i, " frames dropped")));
  }
  EXPECT_EQ(CodeOf(reader.Next(kNow)), Code::kTimeout);
  ASSERT_TRUE(reader.ReleaseNow(frames[1]));
  EXPECT_EQ(ring.Write(), 4U);
  EXPECT_EQ(ReadOne(ring, reader), 4U);
  EXPECT_EQ(reader.lost(), 0U);
  EXPECT_EQ(ring.writer.dropped(), 4U);
}

TEST(RingTest, AFrameThatIsNotCompleteIsNotOverwritten) {
  Ring ring(3);
  for (int i = 0; i < 3; ++i) ring.Write(/*complete=*/false);
  EXPECT_EQ(CodeOf(ring.writer.OpenFrame(kNow)), Code::kBusy);
  Store(ring.writer.Ready(1));
  EXPECT_EQ(ring.Write(false), 4U);
  EXPECT_EQ(CodeOf(ring.writer.OpenFrame(kNow)), Code::kBusy);
}

TEST(RingTest, AReaderHasSoManyHolds) {
  Ring ring(20);
  RingReader reader = ring.Join();
  for (uint32_t i = 0; i <= kHolds; ++i) ring.Write();
  std::vector<Frame> frames;
  for (uint32_t i = 0; i < kHolds; ++i) frames.push_back(*reader.Next(kNow));
  EXPECT_EQ(CodeOf(reader.Next(kNow)), Code::kExhausted);
  const auto point = reader.Release(frames[3]);
  EXPECT_EQ(CodeOf(reader.Next(kNow)), Code::kTimeout) << "its stream has not stored yet";
  Store(*point);
  const auto frame = Must(reader.Next(kNow));
  EXPECT_EQ(frame.hold, 3U);
  EXPECT_EQ(frame.lost, 0U);
  EXPECT_EQ(CodeOf(reader.Release(frames[3])), Code::kInvalidArgument)
      << "the hold has another frame now";
}

TEST(RingTest, SoManyReadersJoin) {
  Ring ring(4, Policy::kOverwriteOldest, 2);
  RingReader first = ring.Join(1);
  EXPECT_EQ(ring.Join(2).cell(), 2U);
  const auto third = RingReader::Join(ring.shared.page, 3);
  ASSERT_EQ(CodeOf(third), Code::kExhausted);
  EXPECT_THAT(third.error().ToString(), HasSubstr("all 2 readers"));
  ring.Write();
  const auto held = Must(first.Next(kNow));
  ring.End(1);
  EXPECT_EQ(CodeOf(first.Check(held.seq)), Code::kOrphaned);
  EXPECT_EQ(CodeOf(first.Next(kNow)), Code::kOrphaned);
  for (int i = 0; i < 4; ++i) ring.Write();
  EXPECT_FALSE(ring.shared.Has(held.slot, 1)) << "a dead reader must hold nothing";
  EXPECT_TRUE(RingReader::Join(ring.shared.page, 3));
}

// Method: which of both a participant must expect decides whether it sleeps or looks again soon.
TEST(RingTest, AStreamsWorkRingsNoAlarm) {
  Ring ring(2, Policy::kBackPressure);
  RingReader reader = ring.Join();
  EXPECT_EQ(reader.Look(), LookAgain::kOnAlarm);
  ASSERT_EQ(ring.Write(), 1U);
  ASSERT_EQ(ring.Write(), 2U);
  EXPECT_EQ(ring.writer.Look(), LookAgain::kOnAlarm) << "the reader has not begun to read";
  const auto frame = Must(reader.Next(kNow));
  EXPECT_EQ(ring.writer.Look(), LookAgain::kByTimer) << "the reader's stream gives it back";
  const auto end = Must(reader.Release(frame));
  EXPECT_EQ(ring.writer.Look(), LookAgain::kByTimer);
  Store(end);
  EXPECT_EQ(ring.writer.Look(), LookAgain::kNow);
  ring.End(kWriter);
  EXPECT_EQ(ring.writer.Look(), LookAgain::kEnded);
  ASSERT_EQ(ReadOne(ring, reader), 2U);
  EXPECT_EQ(reader.Look(), LookAgain::kEnded);
}

// The writer has taken the place of the only frame that the reader could get.
TEST(RingTest, AFrameWhosePlaceIsTakenIsNotThere) {
  Ring ring(2);
  RingReader holder = ring.Join(kReader);
  RingReader reader = ring.Join(kReader + 1);
  ASSERT_EQ(ring.Write(), 1U);
  const auto held = Must(holder.Next(kNow));
  ASSERT_EQ(ReadOne(ring, reader), 1U);
  ASSERT_EQ(ring.Write(), 2U);
  ASSERT_TRUE(ring.writer.OpenFrame(kNow));
  EXPECT_EQ(ring.writer.Look(), LookAgain::kOnAlarm) << "its own frame is open";
  EXPECT_EQ(reader.Look(), LookAgain::kOnAlarm);
  EXPECT_FALSE(reader.Next(kNow));
  ring.writer.AbandonFrame();
  EXPECT_EQ(ring.writer.Look(), LookAgain::kNow);
  EXPECT_TRUE(holder.ReleaseNow(held));
}

TEST(RingTest, AReaderWithoutAFreeHoldMustEndARead) {
  Ring ring(16);
  RingReader reader = ring.Join();
  for (uint32_t i = 0; i < kHolds; ++i) {
    ASSERT_NE(ring.Write(), 0U);
    ASSERT_TRUE(reader.Next(kNow));
  }
  ASSERT_NE(ring.Write(), 0U);
  EXPECT_EQ(reader.Look(), LookAgain::kOnAlarm);
}

TEST(RingTest, ALateJoinerMayBeginWithTheOldest) {
  Ring ring(4);
  for (int i = 0; i < 10; ++i) ring.Write();
  RingReader reader = ring.Join(kReader, Start::kOldest);
  for (uint64_t seq = 7; seq <= 10; ++seq) EXPECT_EQ(ReadOne(ring, reader), seq);
  EXPECT_EQ(reader.lost(), 0U);
}

TEST(RingTest, WithBackPressureTheWriterWaitsForTheSlowest) {
  Ring ring(4, Policy::kBackPressure);
  RingReader fast = ring.Join(1);
  RingReader slow = ring.Join(2);
  for (uint64_t seq = 1; seq <= 4; ++seq) {
    ASSERT_EQ(ring.Write(), seq);
    ASSERT_EQ(ReadOne(ring, fast), seq);
  }
  const auto opened = ring.writer.OpenFrame(Deadline::AfterMs(5));
  ASSERT_EQ(CodeOf(opened), Code::kTimeout);
  EXPECT_THAT(opened.error().ToString(), HasSubstr("the slowest reader is at frame 1, 4 behind"));
  EXPECT_EQ(ring.writer.waited_for(), 2U) << "it must name that reader's lease";
  const auto held = slow.Next(kNow);
  EXPECT_EQ(CodeOf(ring.writer.OpenFrame(kNow)), Code::kTimeout)
      << "the frame is taken, but not released";
  ASSERT_TRUE(slow.ReleaseNow(*held));
  EXPECT_EQ(ring.Write(), 5U);
  EXPECT_EQ(ring.Write(), 0U);
  ring.End(2);
  EXPECT_EQ(ring.Write(), 6U) << "a reader that has ended must block nobody";
  EXPECT_EQ(ReadOne(ring, fast), 5U);
}

TEST(RingTest, WithBackPressureTheWriterWaitsForItsOwnStream) {
  Ring ring(2, Policy::kBackPressure);
  ring.Write(false);
  ring.Write(false);
  const auto opened = ring.writer.OpenFrame(kNow);
  ASSERT_EQ(CodeOf(opened), Code::kTimeout);
  EXPECT_THAT(opened.error().ToString(), HasSubstr("frame 1 is not complete"));
  Store(ring.writer.Ready(1));
  EXPECT_EQ(ring.Write(), 3U);
}

TEST(RingTest, TheWriterMayNeedReaders) {
  Ring ring(2, Policy::kBackPressure, 3, {.always = 2});
  ring.Join(1);
  const auto opened = ring.writer.OpenFrame(kNow);
  ASSERT_EQ(CodeOf(opened), Code::kTimeout);
  EXPECT_THAT(opened.error().ToString(), HasSubstr("1 of 2 readers"));
  EXPECT_EQ(ring.writer.waited_for(), 0U);
  ring.Join(2);
  EXPECT_EQ(ring.Write(), 1U);
  ring.End(1);
  EXPECT_EQ(CodeOf(ring.writer.OpenFrame(kNow)), Code::kTimeout) << "it still needs two readers";
  Ring free(2, Policy::kBackPressure);
  for (uint64_t seq = 1; seq < 10; ++seq) EXPECT_EQ(free.Write(), seq);
}

TEST(RingTest, ReadersToStartWithAreNotNeededLater) {
  Ring ring(2, Policy::kBackPressure, 3, {.to_start = 3, .always = 1});
  for (const uint64_t lease : {uint64_t{1}, uint64_t{2}}) ring.Join(lease);
  ring.End(1);
  ring.Join(3);
  const auto opened = ring.writer.OpenFrame(kNow);
  ASSERT_EQ(CodeOf(opened), Code::kTimeout);
  EXPECT_THAT(opened.error().ToString(), HasSubstr("2 of 3 readers are present"));
  EXPECT_THAT(opened.error().remedy(), HasSubstr("start_readers"));
  ring.Join(4);
  EXPECT_EQ(ring.Write(), 1U);
  for (const uint64_t lease : {uint64_t{2}, uint64_t{3}}) ring.End(lease);
  EXPECT_EQ(ring.Write(), 2U) << "one reader is enough now";
  ring.End(4);
  const auto alone = ring.writer.OpenFrame(kNow);
  ASSERT_EQ(CodeOf(alone), Code::kTimeout);
  EXPECT_THAT(alone.error().remedy(), HasSubstr("need_readers"));
}

TEST(RingTest, WhatADeadWriterCompletedIsDelivered) {
  Ring ring(8);
  RingReader reader = ring.Join();
  for (int i = 0; i < 3; ++i) ring.Write();
  ring.Write(/*complete=*/false);
  ring.Write(/*complete=*/false);
  EXPECT_EQ(ReadOne(ring, reader), 1U);
  EXPECT_EQ(CodeOf(reader.Check(5)), Code::kTimeout);
  ring.End(kWriter);
  EXPECT_EQ(ReadOne(ring, reader), 2U);
  EXPECT_EQ(ReadOne(ring, reader), 3U);
  EXPECT_EQ(CodeOf(reader.Next(Long())), Code::kPeerDied);
  EXPECT_EQ(CodeOf(reader.Check(4)), Code::kPeerDied);
  EXPECT_TRUE(reader.Check(3));
  EXPECT_EQ(CodeOf(ring.writer.OpenFrame(kNow)), Code::kOrphaned);
  EXPECT_EQ(CodeOf(RingWriter::Open(ring.shared.page, 5)), Code::kStale);
}

TEST(RingTest, AWriterThatClosesEndsItsReaders) {
  Ring ring(8);
  RingReader reader = ring.Join();
  ring.Write();
  ring.Write(/*complete=*/false);
  ASSERT_TRUE(EndCell(ring.shared.page.cell(0), kWriter, CellState::kLeft));
  EXPECT_EQ(ReadOne(ring, reader), 1U);
  EXPECT_EQ(CodeOf(reader.Next(Long())), Code::kEnded);
  EXPECT_EQ(CodeOf(reader.Check(2)), Code::kEnded);
}

TEST(RingTest, WhatWasLostAtTheEndIsCounted) {
  Ring ring(2);
  RingReader reader = ring.Join();
  for (int i = 0; i < 5; ++i) ring.Write();
  ASSERT_TRUE(ring.writer.OpenFrame(kNow));  // Killed before it announced; frame 4 is lost.
  ring.End(kWriter);
  EXPECT_EQ(ReadOne(ring, reader), 5U);
  EXPECT_EQ(reader.lost(), 4U);
  EXPECT_EQ(CodeOf(reader.Next(Long())), Code::kPeerDied);
  EXPECT_EQ(reader.lost() + reader.taken(), 5U);
}

TEST(RingTest, ARingHasOneWriter) {
  Ring ring(2);
  EXPECT_EQ(CodeOf(RingWriter::Open(ring.shared.page, 5)), Code::kAlreadyExists);
}

TEST(RingTest, SlotsGoRoundManyTimes) {
  for (const Policy policy : {Policy::kOverwriteOldest, Policy::kBackPressure}) {
    Ring ring(7, policy);
    RingReader reader = ring.Join();
    for (uint64_t seq = 1; seq <= (1 << 20) + 100; ++seq) {
      ASSERT_EQ(ring.Write(), seq);
      ASSERT_EQ(ReadOne(ring, reader), seq);
    }
    EXPECT_EQ(reader.lost(), 0U);
  }
}

TEST(RingTest, SettingsAreChecked) {
  const FrameSettings good{.frames = 2, .frame_bytes = 1, .readers = 1};
  EXPECT_TRUE(good.Check());
  const auto refused = [&](auto change) {
    FrameSettings bad = good;
    change(bad);
    return !bad.Check();
  };
  EXPECT_TRUE(refused([](auto& s) { s.frames = 1; }));
  EXPECT_TRUE(refused([](auto& s) { s.frames = limits::kFrames + 1; }));
  EXPECT_TRUE(refused([](auto& s) { s.frame_bytes = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.frame_bytes = UINT64_MAX; }));
  EXPECT_TRUE(refused([](auto& s) { s.readers = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.readers = limits::kCells; }));
  EXPECT_TRUE(refused([](auto& s) { s.policy = static_cast<Policy>(2); }));
  const SharedFrames queue(Kind::kQueue, good);
  EXPECT_EQ(CodeOf(RingWriter::Open(queue.page, 1)), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpushm::sync
