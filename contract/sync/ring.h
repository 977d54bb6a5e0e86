// A ring: one writer, and every reader gets every frame, unless it is too slow.
//
// Overwrite-oldest: the writer never waits. It takes the place of the oldest frame that is complete
// and that no reader holds. If there is none, the new frame is dropped and counted. Slow readers
// learn how many frames they lost. Back-pressure: the writer waits until every reader has taken and
// released the oldest frame. Nobody loses a frame, and the slowest reader sets the pace.
//
// Invariants, in addition to those of frames.h
//   (1) A slot is not overwritten while a live reader holds its frame (ring.cc has the proof), nor
//       while the writer's own GPU still works on it.
//   (2) A reader that has ended holds nothing: the broker ends its cell when its process and its
//       GPU's work are gone. Until then it looks alive; waits for it have deadlines.
//   (3) A reader gets rising numbers. `lost` counts the frames between two that it got.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "contract/sync/frames.h"

namespace gpushm::sync {

// Threads: one at a time.
class RingWriter : public FrameWriter {
 public:
  // With back-pressure, frames wait for readers.
  struct Readers {
    uint32_t to_start = 0;  // The first frame waits until this many are present at the same time.
    uint32_t always = 0;    // Every frame waits while fewer are present.
  };
  static Result<RingWriter> Open(const Page& page, uint64_t lease, const Readers& need = {0, 0});

  // A slot for the next frame. Readers cannot see what is written there before Announce.
  // Overwrite-oldest does not wait. kBusy: the frame is dropped, the text says how many were, and
  // the writer continues. Back-pressure: kTimeout names the slowest reader and its position.
  // kOrphaned: the broker has ended this writer. kInvalidArgument: a frame is open.
  Result<Opened> OpenFrame(const Deadline& deadline);
  // Whether OpenFrame would wait.
  LookAgain Look();

  uint64_t dropped() const { return dropped_; }

 private:
  RingWriter(const FrameTable& table, uint64_t lease, const Readers& need);

  Result<Opened> OpenOverwriting();
  bool TakePlace(uint32_t slot) const;
  bool HeldByAnyone(uint64_t seq) const;
  bool WaitsFor(const Cell& cell, uint64_t seq) const;
  bool CompleteHere(uint64_t seq) const;
  std::optional<Status> WhyNotYet(uint32_t slot);

  const Readers need_;
  bool started_ = false;
  uint64_t dropped_ = 0;
  std::vector<uint64_t> held_;  // A member only to reuse its memory.
};

// Threads: one at a time, but any thread may store the Points that Release gives.
class RingReader {
 public:
  enum class Start { kNewest, kOldest };   // The next frame, or the oldest that still exists.
  enum class Order { kInOrder, kNewest };  // The next one; or the newest, and the others are lost.

  RingReader(RingReader&&) = default;
  RingReader& operator=(RingReader&&) = default;
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;
  ~RingReader() = default;

  // kExhausted: all cells of readers are taken.
  static Result<RingReader> Join(const Page& page, uint64_t lease, Start start = Start::kNewest);

  // The next frame, under a hold that keeps the writer off its slot until it is released. It may
  // not be complete yet, so the reader's stream waits for Ready(seq) before it reads the bytes.
  // kTimeout. kEnded, kPeerDied: the writer has closed the ring or died, and everything that it
  // completed was delivered or lost. kExhausted: kHolds frames are open. kOrphaned: the broker has
  // ended this reader.
  Result<Frame> Next(const Deadline& deadline, Order order = Order::kInOrder);
  // Whether Next would wait.
  LookAgain Look();

  // The stream that reads the bytes waits for this first.
  Point Ready(uint64_t seq) const { return {&table_.writer().value, seq}; }
  // Whether what was read of frame `seq` is valid; call this after reading and before the release.
  // kTimeout: it is not complete yet. kEnded, kPeerDied: its writer ended before it was. kOrphaned:
  // this reader has lost its hold.
  Result<void> Check(uint64_t seq) const;

  // What the reader's stream stores after its last access to the bytes. kInvalidArgument: that
  // frame is not open.
  Result<Point> EndOf(const Frame& frame) const;
  // Ends a frame: the hold is free again once its EndOf is stored. kInvalidArgument as for EndOf.
  Result<Point> Release(const Frame& frame);
  // The same, if nothing reads the bytes any more.
  Result<void> ReleaseNow(const Frame& frame);

  // Number of the frame that a hold protects; 0: none.
  Word& hold_word(uint32_t hold) const { return own().words[kHoldWords + hold]; }

  uint32_t cell() const { return cell_; }
  uint64_t cursor() const { return cursor_; }  // Number of the next frame.
  uint64_t taken() const { return taken_; }
  uint64_t lost() const { return lost_; }  // In total.
  const FrameSettings& settings() const { return table_.settings(); }

 private:
  enum class HoldState : uint8_t { kFree, kOpen, kReleased };
  struct Hold {
    HoldState state = HoldState::kFree;
    uint64_t seq = 0;  // Number of the frame that it has or had.
  };

  RingReader(const FrameTable& table, uint64_t lease, uint32_t cell);

  Cell& own() const { return table_.reader(cell_); }
  void Begin(Start start);
  uint64_t OldestOf(uint64_t newest) const;
  std::optional<uint32_t> FreeHold();
  Result<void> SomeHoldMayEnd() const;
  std::optional<Frame> TryTake(Order order, uint64_t newest, uint32_t hold);
  std::optional<Frame> Take(uint64_t seq, uint32_t hold);
  void MoveTo(uint64_t cursor, uint64_t lost);

  FrameTable table_;
  uint64_t lease_;
  uint32_t cell_;
  uint64_t cursor_ = 0;
  uint64_t taken_ = 0;
  uint64_t lost_ = 0;
  std::array<Hold, kHolds> holds_{};
};

}  // namespace gpushm::sync
