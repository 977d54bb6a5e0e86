// Goal: whatever the timing, a frame whose guard closes with OK was whole, and a reader's numbers
// and its count of lost frames add up to the number of frames. Whoever is killed, all others end.
// Method: random steps of one thread compared with a model; threads whose streams are late, also
// under a thread sanitizer; processes that share the sync page and are killed at random moments.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "contract/sync/ring.h"
#include "contract/sync/testing.h"
#include "platform/base/testing.h"

namespace gpushm::sync {
namespace {

using ::gpushm::testing::TestSeed;
using testing::kLongMs;
using testing::MetadataOf;
using testing::SharedFrames;
using testing::SpinFor;
using testing::Store;
using Order = RingReader::Order;
using Start = RingReader::Start;

constexpr uint64_t kWriter = 1'000'000;
const Deadline kNow = Deadline::AfterMs(0);

FrameSettings Settings(uint32_t frames, uint32_t readers, Policy policy) {
  return {.frames = frames,
          .frame_bytes = testing::kFrameWords * 8,
          .readers = readers,
          .policy = policy};
}

// ---- against a model

class RingModel {
 public:
  RingModel(uint32_t seed, Policy policy)
      : random_(seed),
        shared_(Kind::kRing, Settings(2 + Below(6), 1 + Below(4), policy)),
        writer_(*RingWriter::Open(shared_.page, kWriter)) {}

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) Step();
  }

 private:
  struct Reader {
    uint64_t lease;
    RingReader ring;
    uint64_t cursor;
    std::vector<Frame> open;
    std::vector<std::pair<uint64_t, Point>> stores;  // For its stream, with the frame.

    bool Holds(uint64_t seq) const {
      return std::ranges::any_of(open, [&](const Frame& f) { return f.seq == seq; }) ||
             std::ranges::any_of(stores, [&](const auto& s) { return s.first == seq; });
    }
  };

  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  bool back_pressure() const { return shared_.settings.policy == Policy::kBackPressure; }
  uint64_t oldest_in_order() const {
    const uint64_t frames = shared_.settings.frames;
    return newest_ > frames ? newest_ - frames + 1 : 1;
  }

  void Step() {
    switch (Below(10)) {
      case 0:
      case 1:
      case 2:
        return Write();
      case 3:
      case 4:
      case 5:
        return Take(PickReader());
      case 6:
      case 7:
        return Release(PickReader());
      case 8:
        return StreamStep();
      default:
        if (Below(5) == 0) Kill(PickReader());
    }
  }

  Reader* PickReader() {
    if (readers_.size() < shared_.settings.readers && Below(3) == 0) {
      const Start start = Below(2) == 0 ? Start::kNewest : Start::kOldest;
      Reader reader{++lease_, *RingReader::Join(shared_.page, lease_, start), newest_ + 1, {}, {}};
      if (start == Start::kOldest) {
        const auto oldest = frames_.lower_bound(oldest_in_order());
        if (oldest != frames_.end()) reader.cursor = oldest->first;
      }
      EXPECT_EQ(reader.ring.cursor(), reader.cursor);
      readers_.push_back(std::move(reader));
    }
    return readers_.empty() ? nullptr : &readers_[Below(static_cast<uint32_t>(readers_.size()))];
  }

  bool MayGo(uint64_t seq) const {
    return seq <= complete_ && std::ranges::none_of(readers_, [&](const Reader& reader) {
             return reader.Holds(seq) || (back_pressure() && reader.cursor <= seq);
           });
  }

  void Write() {
    std::optional<uint64_t> goes;
    const bool fits = frames_.size() < shared_.settings.frames;
    for (const auto& [seq, slot] : frames_) {
      if (fits || !MayGo(seq)) {
        if (fits || back_pressure()) break;
        continue;
      }
      goes = seq;
      break;
    }
    const auto opened = writer_.OpenFrame(kNow);
    ASSERT_EQ(opened.has_value(), fits || goes.has_value());
    if (!opened) {
      ASSERT_EQ(opened.error().code(), back_pressure() ? Code::kTimeout : Code::kBusy);
      return;
    }
    ASSERT_EQ(opened->seq, newest_ + 1);
    if (goes) {
      ASSERT_EQ(opened->slot, frames_[*goes]);
      frames_.erase(*goes);
    }
    shared_.Fill(opened->slot, opened->seq);
    if (Below(10) == 0) return writer_.AbandonFrame();
    ASSERT_TRUE(writer_.Announce(opened->seq, 1, MetadataOf(opened->seq)));
    frames_[++newest_] = opened->slot;
  }

  void Take(Reader* reader) {
    if (reader == nullptr) return;
    const Order order = Below(3) == 0 ? Order::kNewest : Order::kInOrder;
    auto expected = frames_.end();
    const auto first = frames_.lower_bound(std::max(reader->cursor, oldest_in_order()));
    if (first != frames_.end()) {
      expected = order == Order::kInOrder ? first : std::prev(frames_.end());
    }
    const auto frame = reader->ring.Next(kNow, order);
    if (reader->open.size() + reader->stores.size() == kHolds) expected = frames_.end();
    ASSERT_EQ(frame.has_value(), expected != frames_.end());
    if (!frame) return;
    ASSERT_EQ(frame->seq, expected->first);
    ASSERT_EQ(frame->slot, expected->second);
    ASSERT_EQ(frame->lost, frame->seq - reader->cursor);
    ASSERT_EQ(frame->metadata, MetadataOf(frame->seq));
    reader->cursor = frame->seq + 1;
    reader->open.push_back(*frame);
  }

  void Release(Reader* reader) {
    if (reader == nullptr || reader->open.empty()) return;
    const size_t i = Below(static_cast<uint32_t>(reader->open.size()));
    const Frame frame = reader->open[i];
    ASSERT_TRUE(shared_.Has(frame.slot, frame.seq));
    ASSERT_EQ(reader->ring.Check(frame.seq).has_value(), frame.seq <= complete_);
    reader->open.erase(reader->open.begin() + static_cast<ptrdiff_t>(i));
    if (Below(2) == 0) {
      ASSERT_TRUE(reader->ring.ReleaseNow(frame));
    } else {
      reader->stores.emplace_back(frame.seq, *reader->ring.Release(frame));
    }
  }

  void StreamStep() {
    if (complete_ < newest_) {
      complete_ += 1 + Below(static_cast<uint32_t>(newest_ - complete_));
      Store(writer_.Ready(complete_));
    }
    for (Reader& reader : readers_) {
      if (reader.stores.empty()) continue;
      ASSERT_TRUE(shared_.Has(SlotOf(reader.stores.front().first), reader.stores.front().first));
      Store(reader.stores.front().second);
      reader.stores.erase(reader.stores.begin());
    }
  }

  uint32_t SlotOf(uint64_t seq) { return frames_.at(seq); }

  void Kill(Reader* reader) {
    if (reader == nullptr) return;
    EndCellsOf(shared_.page, reader->lease, CellState::kDied);
    readers_.erase(readers_.begin() + (reader - readers_.data()));
  }

  std::mt19937 random_;
  SharedFrames shared_;
  RingWriter writer_;
  uint64_t lease_ = 0;
  uint64_t newest_ = 0;
  uint64_t complete_ = 0;
  std::map<uint64_t, uint32_t> frames_;  // Which frame is in which slot.
  std::vector<Reader> readers_;
};

TEST(RingStressTest, RandomStepsAgreeWithAModel) {
  const uint32_t seed = TestSeed(1);
  for (uint32_t i = 0; i < 400; ++i) {
    SCOPED_TRACE(seed + i);
    RingModel(seed + i, i % 2 == 0 ? Policy::kOverwriteOldest : Policy::kBackPressure).Run(1000);
    if (HasFatalFailure()) return;
  }
}

// ---- participants, in threads and processes: they return 0, or the number of the failed check

// Writes the given number of frames. Its stream fills the slots.
int Write(const SharedFrames& shared, uint64_t frames, uint32_t seed) {
  std::mt19937 random(seed);
  auto writer = RingWriter::Open(shared.page, kWriter);
  if (!writer) return 10;
  testing::LateStream stream;
  Deadline deadline = Deadline::AfterMs(kLongMs);
  for (uint64_t written = 0; written < frames;) {
    const auto opened = writer->OpenFrame(deadline);
    if (!opened) {
      if (opened.error().code() != Code::kBusy || deadline.Passed()) return 11;
      std::this_thread::yield();
      continue;
    }
    deadline = Deadline::AfterMs(kLongMs);
    const auto point = writer->Ready(opened->seq);
    stream.Do([&shared, frame = *opened, point] {
      shared.Fill(frame.slot, frame.seq);
      Store(point);
    });
    if (!writer->Announce(opened->seq, 8, MetadataOf(opened->seq))) return 12;
    ++written;
    if (random() % 64 == 0) SpinFor(static_cast<int64_t>(random() % 50'000));
  }
  return 0;
}

struct Kept {
  Frame frame;
  bool good;  // Complete, and checked.
};

// Checks a frame once it is complete, under its hold. Returns 0, or the number of the failed check.
int Look(const SharedFrames& shared, const Frame& frame, bool& good) {
  if (frame.slot >= shared.settings.frames || frame.metadata != MetadataOf(frame.seq)) return 20;
  const auto reached = WaitUntil(shared.page.cell(0), frame.seq, Deadline::AfterMs(kLongMs));
  good = reached.has_value();
  if (!good) return IsEnd(reached.error().code()) ? 0 : 21;
  return shared.Has(frame.slot, frame.seq) ? 0 : 22;
}

// Reads until the writer has ended.
int Read(const SharedFrames& shared, uint64_t lease, Start start, uint32_t seed) {
  std::mt19937 random(seed);
  auto reader = RingReader::Join(shared.page, lease, start);
  if (!reader) return reader.error().code() == Code::kExhausted ? 0 : 23;
  const uint64_t first = reader->cursor();
  const bool back_pressure = shared.settings.policy == Policy::kBackPressure;
  // While all wait for a next frame, at least one slot is free.
  const uint32_t share = (shared.settings.frames - 1) / shared.settings.readers;
  const size_t keep = 1 + random() % (1 + std::min(share, kHolds - 2));
  testing::LateStream stream;
  std::vector<Kept> kept;
  uint64_t lost = 0;
  uint64_t taken = 0;
  for (;;) {
    const bool newest = !back_pressure && random() % 4 == 0;
    const auto frame =
        reader->Next(Deadline::AfterMs(kLongMs), newest ? Order::kNewest : Order::kInOrder);
    if (!frame) {
      if (!IsEnd(frame.error().code())) return 24;
      if (back_pressure && reader->lost() != 0) return 25;
      // Reads everything up to the last frame that was complete or delivered.
      return reader->lost() + reader->taken() == reader->cursor() - first ? 0 : 26;
    }
    lost += frame->lost;
    ++taken;
    if (lost + taken != frame->seq - first + 1) return 27;
    kept.push_back({*frame, false});
    if (const int wrong = Look(shared, *frame, kept.back().good)) return wrong;
    if (random() % 256 == 0) SpinFor(static_cast<int64_t>(random() % 200'000));
    while (kept.size() >= keep || (!kept.empty() && random() % 2 == 0)) {
      const Kept old = kept.front();
      kept.erase(kept.begin());
      if (old.good && !shared.Has(old.frame.slot, old.frame.seq)) return 28;
      if (old.good && !reader->Check(old.frame.seq)) return 29;
      if (random() % 2 == 0) {
        if (!reader->ReleaseNow(old.frame)) return 30;
        continue;
      }
      const auto point = reader->Release(old.frame);
      if (!point) return 31;
      stream.Do([&shared, old, point = *point] {
        if (old.good && !shared.Has(old.frame.slot, old.frame.seq)) _exit(32);
        Store(point);
      });
    }
  }
}

void RunThreads(uint32_t frames, Policy policy, uint64_t written) {
  const SharedFrames shared(Kind::kRing, Settings(frames, 3, policy));
  std::array<int, 3> results{-1, -1, -1};
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < results.size(); ++i) {
    const Start start = i == 0 ? Start::kOldest : Start::kNewest;
    readers.emplace_back([&, i, start] {
      results[i] = Read(shared, i + 1, start, i);
      EndCellsOf(shared.page, i + 1, CellState::kLeft);
    });
  }
  EXPECT_EQ(Write(shared, written, 1), 0);
  EndCellsOf(shared.page, kWriter, CellState::kLeft);
  for (std::thread& reader : readers) reader.join();
  for (const int result : results) EXPECT_EQ(result, 0);
}

TEST(RingStressTest, ThreadsOverwriteTheOldest) {
  RunThreads(2, Policy::kOverwriteOldest, 10'000);
  RunThreads(16, Policy::kOverwriteOldest, 20'000);
}

TEST(RingStressTest, ThreadsWithBackPressure) {
  RunThreads(2, Policy::kBackPressure, 1'000);
  RunThreads(32, Policy::kBackPressure, 5'000);
}

// ---- killed

// The life of a sync page: readers are killed and replaced, then the writer is killed.
void KillThemAll(Policy policy, uint32_t seed) {
  std::mt19937 random(seed);
  const uint32_t frames = 2 + static_cast<uint32_t>(random() % 15);
  const SharedFrames shared(Kind::kRing, Settings(frames, 4, policy));
  testing::Children children(shared.page);
  children.Start(kWriter, [&] { return Write(shared, UINT64_MAX, seed); });
  ASSERT_TRUE(testing::AwaitWriter(shared.page));
  uint64_t lease = 0;
  children.KillAndReplace(&random, [&] {
    const uint64_t reader = ++lease;
    const Start from = reader % 2 == 0 ? Start::kOldest : Start::kNewest;
    children.Start(reader, [&shared, from, reader, seed] {
      return Read(shared, reader, from, seed + static_cast<uint32_t>(reader));
    });
    return reader;
  });
  children.Kill(kWriter);
  children.Join();
}

TEST(RingStressTest, KilledAtRandomMomentsNobodyHangsAndNothingIsTorn) {
  const uint32_t seed = TestSeed(1);
  for (uint32_t i = 0; i < 40; ++i) {
    SCOPED_TRACE(seed + i);
    KillThemAll(i % 2 == 0 ? Policy::kOverwriteOldest : Policy::kBackPressure, seed + i);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace gpushm::sync
