// Goal: whenever a participant is killed, or another one runs in between, nobody waits indefinitely
// and no cell has two owners.
// Method: one participant runs instruction by instruction. After each instruction that changes the
// sync page, a copy of the page is what the participant's death at this moment would leave; or the
// other participant acts.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "contract/sync/queue.h"
#include "contract/sync/ring.h"
#include "contract/sync/testing.h"
#include "contract/sync/testing/stepped.h"
#include "platform/base/clock.h"

namespace gpushm::sync {
namespace {

using testing::MetadataOf;
using testing::SharedFrames;
using testing::SharedMemory;
using testing::Stepped;
using testing::Store;

constexpr uint64_t kWriter = 1'000'000;
constexpr uint64_t kReader = 1;
constexpr uint64_t kOther = 2;
const Deadline kNow = Deadline::AfterMs(0);

FrameSettings Settings() {
  return {.frames = 2, .frame_bytes = testing::kFrameWords * 8, .readers = 1};
}

// The contents that a process could leave if it were killed after any instruction of `part`, each
// once.
std::vector<std::vector<std::byte>> EachMoment(const SharedFrames& shared,
                                               const std::function<int()>& part) {
  const auto* const page = static_cast<const std::byte*>(shared.page_memory.address());
  const size_t bytes = shared.page_memory.bytes();
  std::vector<std::vector<std::byte>> moments{{page, page + bytes}};
  Stepped process(part);
  while (process.Step()) {
    if (std::memcmp(page, moments.back().data(), bytes) != 0)
      moments.emplace_back(page, page + bytes);
  }
  EXPECT_EQ(process.Finish(), 0);
  return moments;
}

void Become(const SharedFrames& shared, const std::vector<std::byte>& moment) {
  std::memcpy(shared.page_memory.address(), moment.data(), moment.size());
}

// Reads everything. Returns the error by which the ring ended the reading; `*frames` counts the
// frames.
Code ReadToTheEnd(const SharedFrames& shared, uint64_t* frames) {
  auto reader = RingReader::Join(shared.page, kReader, RingReader::Start::kOldest);
  if (!reader) return reader.error().code();
  for (;;) {
    const auto frame = reader->Next(kNow);
    if (!frame) return frame.error().code();
    ++*frames;
    EXPECT_EQ(frame->metadata, MetadataOf(frame->seq));
    EXPECT_TRUE(reader->ReleaseNow(*frame));
  }
}

// The client publishes a sync page only after its writer has claimed it, so no reader can see an
// earlier moment (client/rings.cc, Ring::Make).
TEST(StepTest, AWriterKilledAtAnyMomentAfterItsClaimEndsItsReadersWaits) {
  const SharedFrames shared(Kind::kRing, Settings());
  const auto moments = EachMoment(shared, [&] {
    auto writer = RingWriter::Open(shared.page, kWriter);
    if (!writer) return 1;
    for (int i = 0; i < 3; ++i) {
      const auto opened = writer->OpenFrame(kNow);
      if (!opened) return 2;
      if (!writer->Announce(opened->seq, 8, MetadataOf(opened->seq))) return 3;
      Store(writer->Ready(opened->seq));
    }
    return 0;
  });
  ASSERT_GT(moments.size(), 30U);
  size_t unclaimed = 0;
  uint64_t most_frames = 0;
  for (size_t i = 0; i < moments.size(); ++i) {
    SCOPED_TRACE(i);
    const SharedFrames left(Kind::kRing, Settings());
    Become(left, moments[i]);
    uint64_t frames = 0;
    if (EndCellsOf(left.page, kWriter, CellState::kDied) == 0) {
      EXPECT_EQ(ReadToTheEnd(left, &frames), Code::kTimeout) << "nobody has written to it yet";
      ++unclaimed;
    } else {
      EXPECT_EQ(ReadToTheEnd(left, &frames), Code::kPeerDied);
    }
    most_frames = std::max(most_frames, frames);
  }
  EXPECT_EQ(unclaimed, 1U) << "the claim must be its first store";
  EXPECT_EQ(most_frames, 2U);
}

// A broker that is killed while it ends a cell: its successor ends it again.
TEST(StepTest, ABrokerKilledAtAnyMomentLeavesWhatItsSuccessorCanEnd) {
  const SharedFrames shared(Kind::kRing, Settings());
  auto writer = *RingWriter::Open(shared.page, kWriter);
  for (uint64_t seq = 1; seq <= 2; ++seq) {
    ASSERT_TRUE(writer.OpenFrame(kNow));
    ASSERT_TRUE(writer.Announce(seq, 8, MetadataOf(seq)));
  }
  Store(writer.Ready(1));
  const auto moments = EachMoment(
      shared, [&] { return EndCellsOf(shared.page, kWriter, CellState::kDied) == 1 ? 0 : 1; });
  ASSERT_GE(moments.size(), 5U);
  for (size_t i = 0; i < moments.size(); ++i) {
    SCOPED_TRACE(i);
    const SharedFrames left(Kind::kRing, Settings());
    Become(left, moments[i]);
    EndCellsOf(left.page, kWriter, CellState::kDied);
    EXPECT_EQ(left.page.cell(0).owner.load(), 0U);
    EXPECT_EQ(left.page.cell(0).value.load(), kPoison);
    uint64_t frames = 0;
    EXPECT_EQ(ReadToTheEnd(left, &frames), Code::kPeerDied);
    EXPECT_EQ(frames, 1U) << "the second frame was never complete";
  }
}

// Runs `part` in a child that is stopped after 0, 1, 2 ... instructions, each time on a new sync
// page. At that moment `other` acts, and then the child continues. `check` gets the child's result.
template <typename Prepare, typename Part, typename Other, typename Check>
void ComeBetween(Prepare prepare, Part part, Other other, Check check) {
  for (size_t after = 0;; ++after) {
    SCOPED_TRACE(after);
    SharedMemory memory(BytesFor(1, 0) + 1);
    const Page page = Page::Make(memory.address(), BytesFor(1, 0), Kind::kSignal, 1, 0, {});
    Cell& cell = page.cell(0);
    prepare(cell);
    // In addition to the page's own bytes.
    auto* const returned = static_cast<std::byte*>(memory.address()) + BytesFor(1, 0);
    Stepped process([&] {
      const int result = part(page);
      *returned = std::byte{1};
      return result;
    });
    for (size_t i = 0; i < after && *returned == std::byte{0}; ++i) ASSERT_TRUE(process.Step());
    const bool ended = *returned != std::byte{0};
    other(page);
    const int result = process.Finish();
    ASSERT_NE(result, Stepped::kNotTraced);
    check(cell, result);
    if (ended || ::testing::Test::HasFailure()) return;
  }
}

TEST(StepTest, ACellHasOneWriterInItsLife) {
  bool other_claimed = false;
  ComeBetween([](Cell&) {},
              [](const Page& page) { return Claim(page.cell(0), kWriter, false) ? 1 : 0; },
              [&](const Page& page) {
                other_claimed = Claim(page.cell(0), kOther, false);
                if (other_claimed) EndCell(page.cell(0), kOther, CellState::kLeft);
              },
              [&](const Cell& cell, int claimed) {
                EXPECT_NE(claimed == 1, other_claimed);
                EXPECT_EQ(cell.owner.load(), claimed == 1 ? kWriter : 0U);
                EXPECT_EQ(Read(cell).state, claimed == 1 ? CellState::kLive : CellState::kLeft);
              });
}

// A process closes its cell while a new broker, which does not know it, ends that cell, and the
// next owner wants it.
TEST(StepTest, WhoeverClosesACellEndsItsOwnTenureAlone) {
  size_t taken = 0;
  bool other_claimed = false;
  ComeBetween(
      [](Cell& cell) { ASSERT_TRUE(Claim(cell, kReader, true)); },
      [](const Page& page) { return EndCell(page.cell(0), kReader, CellState::kLeft) ? 1 : 0; },
      [&](const Page& page) {
        EndCellsOfOthers(page, {});
        other_claimed = Claim(page.cell(0), kOther, true);
        taken += other_claimed ? 1 : 0;
      },
      [&](const Cell& cell, int) {
        EXPECT_EQ(cell.owner.load(), other_claimed ? kOther : 0U);
        EXPECT_EQ(cell.value.load(), other_claimed ? 0U : kPoison);
        EXPECT_EQ(Read(cell).state == CellState::kLive, other_claimed);
      });
  EXPECT_GT(taken, 1U) << "it must be taken before the first step and after the last one";
}

// A broker ends a cell (also one whose former ender was killed) while the next owner wants it: the
// broker's stores come before the cell is free.
TEST(StepTest, ABrokerThatEndsACellStoresNothingInTheNextTenure) {
  const std::set<uint64_t> known = {kOther};
  for (const bool by_lease : {true, false}) {
    for (const CellState before : {CellState::kLive, CellState::kDied}) {
      SCOPED_TRACE(by_lease);
      SCOPED_TRACE(static_cast<int>(before));
      size_t taken = 0;
      bool other_claimed = false;
      ComeBetween(
          [&](Cell& cell) {
            ASSERT_TRUE(Claim(cell, kReader, true));
            if (before != CellState::kLive) {
              cell.state.store(uint64_t{1} << 32 | static_cast<uint32_t>(before));
            }
          },
          [&](const Page& page) {
            if (by_lease) return static_cast<int>(EndCellsOf(page, kReader, CellState::kDied));
            EndCellsOfOthers(page, known);
            return 1;
          },
          [&](const Page& page) {
            other_claimed = Claim(page.cell(0), kOther, true);
            taken += other_claimed ? 1 : 0;
          },
          [&](const Cell& cell, int ended) {
            EXPECT_EQ(ended, 1);
            EXPECT_EQ(cell.owner.load(), other_claimed ? kOther : 0U);
            EXPECT_EQ(cell.value.load(), other_claimed ? 0U : kPoison);
            EXPECT_EQ(Read(cell).state, other_claimed ? CellState::kLive : CellState::kDied);
          });
      EXPECT_GT(taken, 0U);
    }
  }
}

}  // namespace
}  // namespace gpushm::sync
