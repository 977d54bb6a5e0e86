// A queue: one writer, and each item (a frame) goes to one live worker. If that worker dies before
// it is done, it goes to another one. So delivery is at least once, and `delivery` counts the
// deliveries.
//
//   entry's claim   0: not offered | Offer(seq) | who has it: incarnation, delivery, cell
//   entry's done    the item's number, once the stream of who has it stored it: the slot is free
//
// Invariants, in addition to those of frames.h
//   (1) The writer never overwrites: it opens slots that are done, or waits for one. It alone takes
//       an offer back, of a slot that is done. So a worker that has changed `claim` to itself has
//       the item in that slot, whatever it saw before.
//   (2) A claim passes on only when its worker gives it back, or when its cell has another owner or
//       none. The broker ends a cell when its process and its GPU's work are gone. Nobody stores
//       `done` for a worker that has ended or has given the item back.
//   (3) An announced and completed item is offered, claimed by a live worker, done, or claimed by a
//       worker that has ended, which every other worker notices at its next poll.
//   (4) Items are taken in order, but not done in order; one that is delivered again comes late.
#pragma once

#include <cstdint>
#include <optional>

#include "contract/sync/frames.h"

namespace gpushm::sync {

// Threads: one at a time.
class QueueWriter : public FrameWriter {
 public:
  static Result<QueueWriter> Open(const Page& page, uint64_t lease);

  // A free slot for the next item. kTimeout: the text says which item is the oldest and where it
  // is. kOrphaned: the broker has ended this writer. kInvalidArgument: an item is open.
  Result<Opened> OpenFrame(const Deadline& deadline);
  // Whether OpenFrame would wait.
  LookAgain Look() const;

 private:
  using FrameWriter::FrameWriter;

  bool Free(uint32_t slot) const;
  Status WhyNotYet(uint32_t slot);
};

// Threads: one at a time, but any thread may store the Points that Done gives.
class QueueWorker {
 public:
  QueueWorker(QueueWorker&&) = default;
  QueueWorker& operator=(QueueWorker&&) = default;
  QueueWorker(const QueueWorker&) = delete;
  QueueWorker& operator=(const QueueWorker&) = delete;
  ~QueueWorker() = default;

  // kExhausted: all cells of workers are taken.
  static Result<QueueWorker> Join(const Page& page, uint64_t lease);

  // An item for this worker. It may not be complete yet, so the worker's stream waits for
  // Ready(seq). A worker may have any number of items. kTimeout. kEnded, kPeerDied: the writer has
  // closed the queue or died, and everything that it completed is done, or belongs to this worker.
  // kOrphaned: the broker has ended this worker.
  Result<Frame> Next(const Deadline& deadline);
  // Whether Next would wait. kNow can be wrong if another worker is faster.
  LookAgain Look() const;

  Point Ready(uint64_t seq) const { return {&table_.writer().value, seq}; }
  // Whether the work on item `seq` counts; call this before Done. kTimeout: the item is not
  // complete yet. kEnded, kPeerDied: its writer ended before it was. kOrphaned: this worker has
  // ended for the others, and one of them gets the item.
  Result<void> Check(uint64_t seq) const;

  // Gives back an item that this worker has not done. Any worker may get it next, this one
  // included, with a higher `delivery`. That may happen at once, so bytes that this worker's stream
  // still reads may change. kInvalidArgument: this worker does not have it.
  Result<void> GiveBack(const Frame& item) const;

  // Ends an item: the worker's stream stores the point after its last access to the slot.
  // kInvalidArgument: this worker does not have it.
  Result<Point> Done(const Frame& item) const;
  // The same, if all work on it is done already.
  Result<void> DoneNow(const Frame& item) const;

  uint32_t cell() const { return cell_; }
  uint64_t taken() const { return taken_; }
  const FrameSettings& settings() const { return table_.settings(); }

 private:
  QueueWorker(const FrameTable& table, uint64_t lease, uint32_t cell);

  Cell& own() const { return table_.reader(cell_); }
  // An item that nobody has: its slot, and the claim that Take must find there.
  struct Candidate {
    uint32_t slot = 0;
    uint64_t claim = 0;
  };
  std::optional<Candidate> FindNew(uint64_t newest, uint64_t* cursor) const;
  std::optional<Candidate> FindLost(uint64_t newest) const;
  std::optional<Frame> TakeNew(uint64_t newest);
  std::optional<Frame> TakeAny(uint64_t newest, uint64_t endings);
  std::optional<Frame> Take(uint32_t slot, uint64_t claim);
  bool HasEnded(uint64_t claim) const;
  uint64_t Endings() const;
  bool OthersAreDone(uint64_t newest) const;

  FrameTable table_;
  uint64_t lease_;
  uint32_t cell_;
  uint64_t incarnation_;
  uint64_t cursor_ = 1;  // All items below have been claimed.
  uint64_t endings_;     // Number of endings when TakeAny found nothing; see Endings.
  uint64_t taken_ = 0;
};

}  // namespace gpushm::sync
