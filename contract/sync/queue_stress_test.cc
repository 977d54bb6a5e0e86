// Goal: every item that a queue's writer completed is done at least once, by one worker at a time,
// whoever is killed, and all others end.
// Method: threads whose streams are late, also under a thread sanitizer; processes that share the
// sync page and are killed at random moments. Shared words outside the page count how often each
// item was done, and by how many workers at the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <vector>

#include "contract/sync/queue.h"
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

constexpr uint64_t kWriter = 1'000'000;
constexpr uint64_t kMostItems = 1 << 18;

struct Shared {
  Shared(uint32_t frames, uint32_t workers)
      : queue(Kind::kQueue,
              {.frames = frames, .frame_bytes = testing::kFrameWords * 8, .readers = workers}),
        memory(2 * kMostItems * sizeof(Word)) {}

  Word& done(uint64_t seq) const { return words()[seq]; }               // Completed deliveries.
  Word& with(uint64_t seq) const { return words()[kMostItems + seq]; }  // Lease of its worker.
  Word* words() const { return static_cast<Word*>(memory.address()); }

  SharedFrames queue;
  testing::SharedMemory memory;
};

// Returns 0 if everything was correct, as below. Its stream fills the slots.
int Write(const Shared& shared, uint64_t items, uint32_t seed) {
  std::mt19937 random(seed);
  auto writer = QueueWriter::Open(shared.queue.page, kWriter);
  if (!writer) return 10;
  testing::LateStream stream;
  for (uint64_t written = 0; written < items; ++written) {
    const auto opened = writer->OpenFrame(Deadline::AfterMs(kLongMs));
    if (!opened) return 11;
    stream.Do([&shared, frame = *opened, point = writer->Ready(opened->seq)] {
      shared.queue.Fill(frame.slot, frame.seq);
      Store(point);
    });
    if (!writer->Announce(opened->seq, 8, MetadataOf(opened->seq))) return 12;
    if (random() % 64 == 0) SpinFor(static_cast<int64_t>(random() % 50'000));
  }
  return 0;
}

// Works on a complete item. Returns 0, or the number of the failed check.
int WorkOn(const Shared& shared, const Frame& item, uint64_t lease) {
  const bool was_somebodys = shared.with(item.seq).exchange(lease) != 0;
  if (was_somebodys && item.delivery == 1) return 20;
  if (shared.done(item.seq).load() != 0) return 21;
  if (!shared.queue.Has(item.slot, item.seq) || item.metadata != MetadataOf(item.seq)) return 22;
  return 0;
}

int FinishOne(const Shared& shared, const Frame& item, uint64_t lease) {
  if (!shared.queue.Has(item.slot, item.seq)) return 23;
  if (shared.with(item.seq).load() != lease) return 24;
  return 0;
}

// Runs until the writer has ended and everything is done.
int Work(const Shared& shared, uint64_t lease, uint32_t seed) {
  std::mt19937 random(seed);
  auto worker = QueueWorker::Join(shared.queue.page, lease);
  if (!worker) return 25;
  testing::LateStream stream;
  std::vector<Frame> items;
  for (;;) {
    const int64_t wait_ms = items.empty() ? kLongMs : 0;
    const Result<Frame> item = items.size() < 3
                                   ? worker->Next(Deadline::AfterMs(wait_ms))
                                   : Fail(Code::kTimeout, "this worker has done its share");
    if (!item && item.error().code() != Code::kTimeout) {
      if (!IsEnd(item.error().code())) return 26;
      if (items.empty()) return 0;
    }
    if (item) {
      const auto complete =
          WaitUntil(shared.queue.page.cell(0), item->seq, Deadline::AfterMs(kLongMs));
      if (!complete && !IsEnd(complete.error().code())) return 27;
      if (complete) {
        if (const int wrong = WorkOn(shared, *item, lease)) return wrong;
        items.push_back(*item);
      }
      if (random() % 128 == 0) SpinFor(static_cast<int64_t>(random() % 200'000));
      if (random() % 2 == 0) continue;
    }
    if (items.empty() && !item) return 30;
    if (items.empty()) continue;
    if (random() % 16 == 0) {  // Somebody gets it again, perhaps this worker.
      const auto given = items.begin() + static_cast<ptrdiff_t>(random() % items.size());
      if (!worker->GiveBack(*given)) return 31;
      items.erase(given);
      continue;
    }
    const auto at = items.begin() + static_cast<ptrdiff_t>(random() % items.size());
    if (!worker->Check(at->seq)) return 28;
    const auto point = worker->Done(*at);
    if (!point) return 29;
    stream.Do([&shared, one = *at, point = *point, lease] {
      if (const int wrong = FinishOne(shared, one, lease)) _exit(wrong);
      Store(point);  // A kill between the two delivers it again: at least once.
      shared.done(one.seq).fetch_add(1);
    });
    items.erase(at);
  }
}

TEST(QueueStressTest, ThreadsDoEachItemOnce) {
  for (const uint32_t frames : {2U, 16U}) {
    constexpr uint64_t kItems = 5'000;
    const Shared shared(frames, 3);
    std::array<int, 3> results{-1, -1, -1};
    std::vector<std::thread> workers;
    for (uint32_t i = 0; i < results.size(); ++i) {
      workers.emplace_back([&, i] { results[i] = Work(shared, i + 1, i); });
    }
    EXPECT_EQ(Write(shared, kItems, 1), 0);
    EndCellsOf(shared.queue.page, kWriter, CellState::kLeft);
    for (std::thread& worker : workers) worker.join();
    for (const int result : results) EXPECT_EQ(result, 0);
    for (uint64_t seq = 1; seq <= kItems; ++seq) ASSERT_EQ(shared.done(seq).load(), 1U);
  }
}

// The life of a sync page: workers are killed and replaced, then the writer is killed.
void KillThemAll(uint32_t seed) {
  std::mt19937 random(seed);
  const Shared shared(2 + static_cast<uint32_t>(random() % 15), 3);
  const Page& page = shared.queue.page;
  {
    testing::Children children(page);
    children.Start(kWriter, [&] { return Write(shared, kMostItems - 1, seed); });
    ASSERT_TRUE(testing::AwaitWriter(page));
    uint64_t lease = 0;
    const auto workers = children.KillAndReplace(&random, [&] {
      const uint64_t worker = ++lease;
      children.Start(worker, [&shared, worker, seed] {
        return Work(shared, worker, seed + static_cast<uint32_t>(worker));
      });
      return worker;
    });
    children.Kill(kWriter);
    children.Kill(workers.back());  // The others do its items, although no new worker comes.
    children.Join();
  }
  // If a stream was killed between its two stores, the item is done but not counted.
  const auto table = *FrameTable::Of(page, Kind::kQueue);
  const uint64_t last = std::min(Read(page.cell(0)).value, table.Newest());
  uint64_t uncounted = 0;
  for (uint64_t seq = 1; seq <= last; ++seq) {
    if (shared.done(seq).load() == 0) ++uncounted;
    ASSERT_NE(shared.with(seq).load(), 0U) << "item " << seq << " of " << last << " is lost";
  }
  EXPECT_LE(uncounted, 7U) << "of " << last;
}

TEST(QueueStressTest, KilledAtRandomMomentsNothingIsLost) {
  const uint32_t seed = TestSeed(1);
  for (uint32_t i = 0; i < 40; ++i) {
    SCOPED_TRACE(seed + i);
    KillThemAll(seed + i);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace gpushm::sync
