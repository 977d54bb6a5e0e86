// Goal: whatever another participant writes to the sync page, its users access nothing outside it,
// do not hang and do not crash. A ring may lose frames.
// Method: every operation on sync pages with random bytes and with random plausible numbers. Each
// page ends with its allocation, so that an address sanitizer detects an access behind it. Some
// tests run while another thread writes.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "contract/sync/barrier.h"
#include "contract/sync/queue.h"
#include "contract/sync/ring.h"
#include "contract/sync/testing.h"
#include "platform/base/testing.h"

namespace gpushm::sync {
namespace {

using ::gpushm::testing::TestSeed;

const Deadline kNow = Deadline::AfterMs(0);

// Header, cells and table fill a sync page to its last byte: 256 + 3 * 256 + 24 * 128.
constexpr FrameSettings kSettings{.frames = 24, .frame_bytes = 1000, .readers = 2};
constexpr uint64_t kBytes = kPageBytes;

class HostilePage {
 public:
  HostilePage(Kind kind, uint32_t seed, Policy policy)
      : random_(seed), memory_(std::aligned_alloc(kPageBytes, kBytes), &std::free) {
    std::memset(memory_.get(), 0, kBytes);
    FrameSettings settings = kSettings;
    settings.policy = policy;
    page = Page::Make(memory_.get(), kBytes, kind, settings.cells(), settings.body_bytes(),
                      settings.ToHeader());
  }

  // Overwrites one word somewhere behind the header. Owners stay, otherwise all operations would
  // refuse at once.
  void Scribble() {
    auto* const words = static_cast<Word*>(memory_.get());
    const size_t first = sizeof(Header) / sizeof(Word);
    const size_t at = first + random_() % (kBytes / sizeof(Word) - first);
    for (uint32_t i = 0; i < page->cells(); ++i) {
      if (&words[at] == &page->cell(i).owner) return;
    }
    words[at].store(Number(), std::memory_order_relaxed);
  }
  void ScribbleAll() {
    for (size_t i = 0; i < kBytes / sizeof(Word); ++i) Scribble();
  }

  std::optional<Page> page;
  std::atomic<bool> joined = false;  // Only then may others write garbage, because a participant
                                     // that joins needs a free cell.

 private:
  uint64_t Number() {
    switch (random_() % 8) {
      case 0:
        return random_();
      case 1:
        return kPoison;
      case 2:
        return kMaxValue + random_() % 3;
      case 3:
        return UINT64_MAX - random_() % 3;
      case 4:
        return random_() << 32 | random_() % 200;
      default:
        return random_() % 64;
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<void, decltype(&std::free)> memory_;
};

void UseRing(HostilePage& hostile, uint32_t seed, bool scribble) {
  std::mt19937 random(seed);
  auto writer = RingWriter::Open(*hostile.page, 1);
  auto reader = RingReader::Join(*hostile.page, 2, RingReader::Start::kOldest);
  ASSERT_TRUE(writer && reader);
  hostile.joined.store(true, std::memory_order_release);
  for (int i = 0; i < 200; ++i) {
    if (scribble) hostile.ScribbleAll();
    if (const auto opened = writer->OpenFrame(kNow)) {
      ASSERT_LT(opened->slot, kSettings.frames);
      static_cast<void>(writer->Announce(opened->seq, 5, testing::MetadataOf(opened->seq)));
      if (random() % 2 == 0) testing::Store(writer->Ready(opened->seq));
    }
    writer->AbandonFrame();
    if (scribble) hostile.Scribble();
    const auto order = random() % 2 == 0 ? RingReader::Order::kInOrder : RingReader::Order::kNewest;
    if (const auto frame = reader->Next(kNow, order)) {
      ASSERT_LT(frame->slot, kSettings.frames);
      ASSERT_LE(frame->bytes, kSettings.frame_bytes);
      static_cast<void>(reader->Check(frame->seq));
      ASSERT_TRUE(reader->ReleaseNow(*frame));
    }
    static_cast<void>(RingReader::Join(*hostile.page, 3));
    EndCellsOf(*hostile.page, 3, CellState::kDied);
  }
}

void UseQueue(HostilePage& hostile, uint32_t seed, bool scribble) {
  std::mt19937 random(seed);
  auto writer = QueueWriter::Open(*hostile.page, 1);
  auto worker = QueueWorker::Join(*hostile.page, 2);
  ASSERT_TRUE(writer && worker);
  hostile.joined.store(true, std::memory_order_release);
  for (int i = 0; i < 200; ++i) {
    if (scribble) hostile.ScribbleAll();
    if (const auto opened = writer->OpenFrame(kNow)) {
      ASSERT_LT(opened->slot, kSettings.frames);
      static_cast<void>(writer->Announce(opened->seq, 5, testing::MetadataOf(opened->seq)));
    }
    writer->AbandonFrame();
    if (scribble) hostile.Scribble();
    if (const auto item = worker->Next(kNow)) {
      ASSERT_LT(item->slot, kSettings.frames);
      ASSERT_LE(item->bytes, kSettings.frame_bytes);
      static_cast<void>(worker->Check(item->seq));
      static_cast<void>(worker->DoneNow(*item));
    }
    if (auto other = QueueWorker::Join(*hostile.page, 3)) {
      static_cast<void>(other->Next(kNow));
      EndCellsOf(*hostile.page, 3, CellState::kDied);
    }
  }
}

void UseBarrier(HostilePage& hostile, bool scribble) {
  auto barrier = Barrier::Join(*hostile.page, 1);
  ASSERT_TRUE(barrier);
  hostile.joined.store(true, std::memory_order_release);
  for (int i = 0; i < 200; ++i) {
    if (scribble) hostile.ScribbleAll();
    if (const auto point = barrier->Arrive()) {
      static_cast<void>(barrier->Wait(*point, kNow));
    }
  }
}

void Use(Kind kind, uint32_t seed, bool others_scribble) {
  const Policy policy = seed % 2 == 0 ? Policy::kOverwriteOldest : Policy::kBackPressure;
  HostilePage hostile(kind, seed, policy);
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (others_scribble && !stop.load(std::memory_order_relaxed)) {
      if (hostile.joined.load(std::memory_order_acquire)) hostile.Scribble();
    }
  });
  const bool own = !others_scribble;
  if (kind == Kind::kRing) UseRing(hostile, seed, own);
  if (kind == Kind::kQueue) UseQueue(hostile, seed, own);
  if (kind == Kind::kBarrier) UseBarrier(hostile, own);
  stop.store(true, std::memory_order_relaxed);
  other.join();
}

TEST(HostileTest, NobodyLeavesThePage) {
  const uint32_t seed = TestSeed(1);
  for (const Kind kind : {Kind::kRing, Kind::kQueue, Kind::kBarrier}) {
    for (uint32_t i = 0; i < 20; ++i) {
      SCOPED_TRACE(Concat(KindName(kind), ", seed ", seed + i));
      Use(kind, seed + i, /*others_scribble=*/false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HostileTest, NobodyLeavesThePageWhileItChanges) {
  const uint32_t seed = TestSeed(1);
  for (const Kind kind : {Kind::kRing, Kind::kQueue, Kind::kBarrier}) {
    for (uint32_t i = 0; i < 10; ++i) {
      SCOPED_TRACE(Concat(KindName(kind), ", seed ", seed + i));
      Use(kind, seed + i, /*others_scribble=*/true);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace gpushm::sync
