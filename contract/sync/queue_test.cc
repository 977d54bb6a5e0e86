// Goal: a queue gives each item to one live worker, gives it again if that worker dies, and never
// overwrites.
// Method: writer and workers in one thread, which also plays the GPU and the broker.
#include "contract/sync/queue.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "contract/sync/testing.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"
#include "platform/base/testing/must.h"

namespace gpushm::sync {
namespace {

using ::gpushm::testing::Must;
using ::gpushm::testing::TestSeed;
using ::testing::HasSubstr;
using testing::MetadataOf;
using testing::SharedFrames;
using testing::Store;

constexpr uint64_t kWriter = 1000;
const Deadline kNow = Deadline::AfterMs(0);

using gpushm::testing::CodeOf;

struct Queue {
  explicit Queue(uint32_t frames, uint32_t workers = 3)
      : shared(Kind::kQueue,
               {.frames = frames, .frame_bytes = testing::kFrameWords * 8, .readers = workers}),
        writer(*QueueWriter::Open(shared.page, kWriter)) {}

  // The number of a new item; 0: no slot is free.
  uint64_t Write(bool complete = true) {
    const LookAgain look = writer.Look();
    const auto opened = writer.OpenFrame(kNow);
    EXPECT_EQ(opened.has_value(), look == LookAgain::kNow);
    if (!opened) return 0;
    shared.Fill(opened->slot, opened->seq);
    EXPECT_TRUE(writer.Announce(opened->seq, 8, MetadataOf(opened->seq)));
    if (complete) Store(writer.Ready(opened->seq));
    return opened->seq;
  }
  QueueWorker Join(uint64_t lease) { return *QueueWorker::Join(shared.page, lease); }
  FrameTable table() const { return *FrameTable::Of(shared.page, Kind::kQueue); }
  void End(uint64_t lease) { EndCellsOf(shared.page, lease, CellState::kDied); }

  SharedFrames shared;
  QueueWriter writer;
};

TEST(QueueTest, EachItemGoesToOneWorkerInOrder) {
  Queue queue(8);
  QueueWorker a = queue.Join(1);
  QueueWorker b = queue.Join(2);
  EXPECT_EQ(CodeOf(a.Next(kNow)), Code::kTimeout);
  uint64_t seen = 0;
  for (int i = 0; i < 100; ++i) {
    queue.Write();
    queue.Write();
    for (QueueWorker* worker : {&a, &b}) {
      const auto item = Must(worker->Next(kNow));
      ASSERT_EQ(item.seq, ++seen);
      ASSERT_EQ(item.delivery, 1U);
      ASSERT_EQ(item.metadata, MetadataOf(item.seq));
      ASSERT_TRUE(queue.shared.Has(item.slot, item.seq));
      ASSERT_TRUE(worker->DoneNow(item));
    }
    EXPECT_EQ(CodeOf(a.Next(kNow)), Code::kTimeout);
  }
}

TEST(QueueTest, TheWriterNeverOverwrites) {
  Queue queue(3);
  QueueWorker worker = queue.Join(1);
  for (int i = 0; i < 3; ++i) queue.Write();
  auto full = queue.writer.OpenFrame(Deadline::AfterMs(5));
  ASSERT_EQ(CodeOf(full), Code::kTimeout);
  EXPECT_THAT(full.error().ToString(), HasSubstr("No worker has taken the oldest item, 1"));
  const auto first = worker.Next(kNow);
  const auto second = worker.Next(kNow);
  full = queue.writer.OpenFrame(kNow);
  ASSERT_EQ(CodeOf(full), Code::kTimeout);
  EXPECT_THAT(full.error().ToString(), HasSubstr("A worker holds the oldest item, 1"));
  EXPECT_EQ(queue.writer.waited_for(), 1U) << "it must name that worker's lease";
  const auto point = Must(worker.Done(*second));
  EXPECT_EQ(queue.Write(), 0U) << "its stream has not stored yet";
  Store(point);
  EXPECT_EQ(queue.Write(), 4U) << "it must take any slot that is done";
  EXPECT_TRUE(queue.shared.Has(first->slot, 1));
  EXPECT_EQ(CodeOf(worker.Done(*second)), Code::kInvalidArgument)
      << "the slot has another item now";
}

// Goal: a worker that has seen an offer, and is slow to take it, gets that item or none. If it took
// another one out of turn, others would skip items that nobody has.
// Method: offers of one slot.
TEST(QueueTest, AnOfferIsOfOneItemAlone) {
  Queue queue(2);
  QueueWorker worker = queue.Join(1);
  std::map<uint32_t, std::set<uint64_t>> offers;
  for (uint64_t seq = 1; seq <= 100; ++seq) {
    ASSERT_EQ(queue.Write(), seq);
    const uint32_t slot = *queue.table().Find(seq);
    EXPECT_TRUE(offers[slot].insert(queue.table().entry(slot).claim.load()).second) << seq;
    ASSERT_TRUE(worker.DoneNow(*worker.Next(kNow)));
  }
}

// One long item does not stop the others: F - 1 slots are reused meanwhile.
TEST(QueueTest, ALongItemHoldsUpNobody) {
  Queue queue(3);
  QueueWorker slow = queue.Join(1);
  QueueWorker fast = queue.Join(2);
  queue.Write();
  ASSERT_TRUE(slow.Next(kNow));
  for (uint64_t seq = 2; seq < 1000; ++seq) {
    ASSERT_EQ(queue.Write(), seq);
    const auto next = Must(fast.Next(kNow));
    ASSERT_EQ(next.seq, seq);
    ASSERT_TRUE(fast.DoneNow(next));
  }
  QueueWorker late = queue.Join(3);
  EXPECT_EQ(CodeOf(late.Next(kNow)), Code::kTimeout);
  queue.End(1);
  const auto again = Must(late.Next(kNow));
  EXPECT_EQ(again.seq, 1U);
  EXPECT_EQ(again.delivery, 2U);
}

TEST(QueueTest, AnItemOfADeadWorkerIsDeliveredAgain) {
  Queue queue(4);
  QueueWorker a = queue.Join(1);
  QueueWorker b = queue.Join(2);
  for (int i = 0; i < 3; ++i) queue.Write();
  const auto done = a.Next(kNow);
  ASSERT_TRUE(a.DoneNow(*done));
  const auto lost = a.Next(kNow);
  ASSERT_EQ(lost->seq, 2U);
  EXPECT_EQ(b.Next(kNow)->seq, 3U);
  EXPECT_EQ(CodeOf(b.Next(kNow)), Code::kTimeout) << "its worker looks alive";
  queue.End(1);
  EXPECT_EQ(CodeOf(a.Check(2)), Code::kOrphaned);
  EXPECT_EQ(CodeOf(a.Next(kNow)), Code::kOrphaned);
  // Its cell has a new owner before anybody checked it.
  QueueWorker c = queue.Join(3);
  EXPECT_EQ(c.cell(), a.cell());
  const auto again = Must(b.Next(kNow));
  EXPECT_EQ(again.seq, 2U);
  EXPECT_EQ(again.delivery, 2U);
  queue.End(2);
  EXPECT_EQ(c.Next(kNow)->delivery, 3U);
  EXPECT_EQ(c.Next(kNow)->seq, 3U);
  EXPECT_EQ(CodeOf(c.Next(kNow)), Code::kTimeout) << "item 1 was done already";
}

TEST(QueueTest, WhatADeadWriterCompletedIsDone) {
  Queue queue(8);
  QueueWorker a = queue.Join(1);
  QueueWorker b = queue.Join(2);
  queue.Write();
  queue.Write();
  queue.Write(/*complete=*/false);
  queue.Write(/*complete=*/false);
  EXPECT_EQ(a.Next(kNow)->seq, 1U);
  queue.End(kWriter);
  const auto item = b.Next(kNow);
  ASSERT_EQ(item->seq, 2U);
  ASSERT_TRUE(b.Check(2));
  ASSERT_TRUE(b.DoneNow(*item));
  EXPECT_EQ(CodeOf(b.Check(3)), Code::kPeerDied);
  EXPECT_EQ(CodeOf(a.Next(kNow)), Code::kPeerDied) << "the remaining items are its own";
  EXPECT_EQ(CodeOf(b.Next(kNow)), Code::kTimeout) << "the other worker may die";
  queue.End(1);
  EXPECT_EQ(b.Next(kNow)->seq, 1U);
  EXPECT_EQ(CodeOf(b.Next(kNow)), Code::kPeerDied);
  EXPECT_EQ(CodeOf(queue.writer.OpenFrame(kNow)), Code::kOrphaned);
  EXPECT_EQ(CodeOf(QueueWriter::Open(queue.shared.page, 5)), Code::kStale);
}

TEST(QueueTest, AWriterThatClosesEndsItsWorkers) {
  Queue queue(8);
  QueueWorker worker = queue.Join(1);
  queue.Write(/*complete=*/false);
  ASSERT_TRUE(EndCell(queue.shared.page.cell(0), kWriter, CellState::kLeft));
  EXPECT_EQ(CodeOf(worker.Next(kNow)), Code::kEnded);
  EXPECT_EQ(CodeOf(worker.Check(1)), Code::kEnded);
}

TEST(QueueTest, AnItemThatIsGivenBackGoesToWhoeverAsksNext) {
  Queue queue(2);
  QueueWorker a = queue.Join(1);
  QueueWorker b = queue.Join(2);
  queue.Write();
  queue.Write();
  const auto first = a.Next(kNow);
  ASSERT_EQ(b.Next(kNow)->seq, 2U);
  EXPECT_EQ(CodeOf(b.Next(kNow)), Code::kTimeout);
  ASSERT_TRUE(a.GiveBack(*first));
  EXPECT_EQ(CodeOf(a.GiveBack(*first)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(a.Done(*first)), Code::kInvalidArgument) << "no worker has it";
  EXPECT_EQ(CodeOf(queue.writer.OpenFrame(kNow)), Code::kTimeout);
  auto again = b.Next(kNow);
  ASSERT_EQ(again->seq, 1U);
  EXPECT_EQ(again->delivery, 2U);
  EXPECT_TRUE(queue.shared.Has(again->slot, 1));
  ASSERT_TRUE(b.GiveBack(*again));
  again = b.Next(kNow);
  EXPECT_EQ(again->delivery, 3U) << "the same worker can get it again";
  queue.End(2);
  EXPECT_EQ(a.Next(kNow)->delivery, 4U);
  ASSERT_EQ(a.Next(kNow)->seq, 2U);
}

// Item 1 of delivery 1 must neither look like an offer of item 1 nor be lost for workers that come
// later.
TEST(QueueTest, AnItemThatTheLastWorkerGaveBackIsTheNextOnes) {
  Queue queue(2);
  {
    QueueWorker gone = queue.Join(1);
    queue.Write();
    ASSERT_TRUE(gone.GiveBack(*gone.Next(kNow)));
  }
  EndCell(queue.shared.page.cell(1), 1, CellState::kLeft);
  ASSERT_TRUE(EndCell(queue.shared.page.cell(0), kWriter, CellState::kLeft));
  QueueWorker next = queue.Join(2);
  const auto item = Must(next.Next(kNow));
  EXPECT_EQ(item.delivery, 2U);
  ASSERT_TRUE(next.DoneNow(item));
  EXPECT_EQ(CodeOf(next.Next(kNow)), Code::kEnded);
}

TEST(QueueTest, AnAbandonedItemWasNeverThere) {
  Queue queue(2);
  QueueWorker worker = queue.Join(1);
  for (uint64_t seq = 1; seq < 10; ++seq) {
    ASSERT_TRUE(queue.writer.OpenFrame(kNow));
    queue.writer.AbandonFrame();
    EXPECT_EQ(CodeOf(worker.Next(kNow)), Code::kTimeout);
    ASSERT_EQ(queue.Write(), seq);
    const auto item = worker.Next(kNow);
    ASSERT_EQ(item->seq, seq);
    ASSERT_TRUE(worker.DoneNow(*item));
  }
}

TEST(QueueTest, SoManyWorkersJoin) {
  Queue queue(2, 2);
  EXPECT_EQ(queue.Join(1).cell(), 1U);
  EXPECT_EQ(queue.Join(2).cell(), 2U);
  EXPECT_EQ(CodeOf(QueueWorker::Join(queue.shared.page, 3)), Code::kExhausted);
  queue.End(1);
  EXPECT_TRUE(QueueWorker::Join(queue.shared.page, 3));
}

// Random steps of a writer, of workers that die and come back, and of a late GPU, compared with a
// model that knows who has which item.
class QueueModel {
 public:
  explicit QueueModel(uint32_t seed) : random_(seed), queue_(2 + Below(6), 1 + Below(4)) {}

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) Step();
    Drain();
  }

 private:
  struct Worker {
    uint64_t lease;
    QueueWorker queue;
    std::vector<Frame> items;
    std::vector<Point> stores;  // Given to its stream, not done yet.
  };

  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }

  void Step() {
    switch (Below(8)) {
      case 0:
      case 1:
        return Write();
      case 2:
      case 3:
      case 4:
        return Take(PickWorker());
      case 5:
        return Finish(PickWorker());
      case 6:
        return StreamStep();
      default:
        if (Below(4) == 0) Kill(PickWorker());
    }
  }

  Worker* PickWorker() {
    if (workers_.size() < queue_.shared.settings.readers && Below(3) == 0) {
      workers_.push_back({++lease_, queue_.Join(lease_), {}, {}});
    }
    return workers_.empty() ? nullptr : &workers_[random_() % workers_.size()];
  }

  void Write() {
    const size_t in_queue = deliveries_.size();
    const uint64_t seq = queue_.Write();
    ASSERT_EQ(seq != 0, in_queue < queue_.shared.settings.frames);
    if (seq == 0) return;
    ASSERT_EQ(seq, ++written_);
    deliveries_[seq] = 0;
    waiting_.insert(seq);
  }

  void Take(Worker* worker) {
    if (worker == nullptr) return;
    const LookAgain look = worker->queue.Look();
    const auto item = worker->queue.Next(kNow);
    ASSERT_EQ(item.has_value(), !waiting_.empty());
    ASSERT_EQ(look, item ? LookAgain::kNow : LookAgain::kOnAlarm);
    if (!item) return;
    ASSERT_EQ(waiting_.erase(item->seq), 1U)
        << "item " << item->seq << " already belonged to a worker";
    ASSERT_EQ(item->delivery, ++deliveries_[item->seq]);
    ASSERT_TRUE(queue_.shared.Has(item->slot, item->seq));
    ASSERT_EQ(item->metadata, MetadataOf(item->seq));
    worker->items.push_back(*item);
  }

  void Finish(Worker* worker) {
    if (worker == nullptr || worker->items.empty()) return;
    const size_t i = random_() % worker->items.size();
    worker->stores.push_back(*worker->queue.Done(worker->items[i]));
    worker->items.erase(worker->items.begin() + static_cast<ptrdiff_t>(i));
  }

  void StreamStep() {
    for (Worker& worker : workers_) {
      if (worker.stores.empty() || Below(2) == 0) continue;
      Store(worker.stores.front());
      ASSERT_EQ(deliveries_.erase(worker.stores.front().value), 1U);
      worker.stores.erase(worker.stores.begin());
    }
  }

  void Kill(Worker* worker) {
    if (worker == nullptr) return;
    queue_.End(worker->lease);
    for (const Frame& item : worker->items) waiting_.insert(item.seq);
    for (const Point& point : worker->stores) waiting_.insert(point.value);
    workers_.erase(workers_.begin() + (worker - workers_.data()));
  }

  // The writer ends; one worker does the rest.
  void Drain() {
    queue_.End(kWriter);
    while (!workers_.empty()) Kill(&workers_.back());
    QueueWorker last = queue_.Join(++lease_);
    for (;;) {
      const LookAgain look = last.Look();
      const auto item = last.Next(kNow);
      ASSERT_EQ(look, item ? LookAgain::kNow : LookAgain::kEnded);
      if (!item) {
        ASSERT_EQ(item.error().code(), Code::kPeerDied);
        break;
      }
      ASSERT_EQ(waiting_.erase(item->seq), 1U);
      ASSERT_TRUE(last.DoneNow(*item));
    }
    ASSERT_TRUE(waiting_.empty()) << "item " << *waiting_.begin() << " is lost";
  }

  std::mt19937 random_;
  Queue queue_;
  uint64_t lease_ = 0;
  uint64_t written_ = 0;
  std::vector<Worker> workers_;
  std::map<uint64_t, uint32_t> deliveries_;  // For items that are not done.
  std::set<uint64_t> waiting_;               // For items without a worker.
};

TEST(QueueTest, RandomStepsAgreeWithAModel) {
  const uint32_t seed = TestSeed(1);
  for (uint32_t i = 0; i < 300; ++i) {
    SCOPED_TRACE(seed + i);
    QueueModel(seed + i).Run(1000);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace gpushm::sync
