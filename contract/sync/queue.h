// A queue: one writer, and each item (a frame) goes to one live worker; to another one, if that
// worker dies before it is done: at least once, and `delivery` says the how many-th time.
//
//   entry's claim   0: not offered | Offer(seq) | who has it: incarnation, delivery, cell
//   entry's done    the item's number, once the stream of who has it stored it: the slot is free
//
// Invariants, beside those of frames.h
//   (1) The writer never overwrites: it opens slots that are done, waits for one, and alone takes
//   an
//       offer back, of a slot that is done. So who has changed `claim` to itself has the item that
//       is there, whatever it saw before.
//   (2) A claim passes on only when its worker gives it back, or when its cell has another owner or
//       none: the broker ends a cell when its process and its GPU's work are gone. Nobody stores
//       `done` for a worker that has ended or has given the item back.
//   (3) An announced and completed item is offered, claimed by a live worker, or done; or claimed
//   by
//       one that has ended, which every other worker notices at its next look.
//   (4) Items are taken in order, but not done in order; one that is delivered again comes late.
#pragma once

#include <cstdint>
#include <optional>

#include "contract/sync/frames.h"

namespace gpushm::signal {

// Threads: one at a time.
class QueueWriter : public FrameWriter {
 public:
  static Result<QueueWriter> Open(const Page& page, uint64_t lease);

  // A free slot for the next item. kTimeout says which item is the oldest and where it is.
  // kOrphaned: the broker has ended this writer. kInvalidArgument: an item is open.
  Result<Opened> OpenFrame(const Deadline& deadline);

 private:
  using FrameWriter::FrameWriter;

  bool Free(uint32_t slot) const;
  Status WhyNotYet(uint32_t slot);
};

// Threads: one at a time, but the Points that Done gives may be stored by anyone.
class QueueWorker {
 public:
  QueueWorker(QueueWorker&&) = default;
  QueueWorker& operator=(QueueWorker&&) = default;
  QueueWorker(const QueueWorker&) = delete;
  QueueWorker& operator=(const QueueWorker&) = delete;
  ~QueueWorker() = default;

  // kExhausted: all cells of workers are taken.
  static Result<QueueWorker> Join(const Page& page, uint64_t lease);

  // An item for this worker. It may not be complete yet: the worker's stream waits for Ready(seq).
  // A worker may have any number of them.
  // kTimeout. kEnded, kPeerDied: the writer has closed it or died, and all that it completed is
  // done, or is this worker's. kOrphaned: the broker has ended this worker.
  Result<Frame> Next(const Deadline& deadline);

  Point Ready(uint64_t seq) const { return {&table_.writer().value, seq}; }
  // Whether the work on item `seq` counts: ask before it is done.
  // kTimeout: the item is not complete yet. kEnded, kPeerDied: its writer ended before it
  // was.
  // kOrphaned: this worker has ended for the others, and one of them gets the item.
  Result<void> Check(uint64_t seq) const;

  // Gives an item back that this worker has not done: any worker gets it next, this one too, with a
  // higher `delivery`. At once: what this worker's stream still reads there may change.
  // kInvalidArgument: it is not this worker's.
  Result<void> GiveBack(const Frame& item) const;

  // Ends an item: the worker's stream stores the point behind its last look at the slot.
  // kInvalidArgument: it is not this worker's.
  Result<Point> Done(const Frame& item) const;
  // The same, when all work on it is over already.
  Result<void> DoneNow(const Frame& item) const;

  uint32_t cell() const { return cell_; }
  uint64_t taken() const { return taken_; }
  const FrameSettings& settings() const { return table_.settings(); }

 private:
  QueueWorker(const FrameTable& table, uint64_t lease, uint32_t cell);

  Cell& own() const { return table_.reader(cell_); }
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
  uint64_t cursor_ = 1;  // All items below have been claimed by somebody.
  uint64_t endings_;     // As many, when TakeAny found nothing; see Endings.
  uint64_t taken_ = 0;
};

}  // namespace gpushm::signal
