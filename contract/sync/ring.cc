#include "contract/sync/ring.h"

#include <algorithm>
#include <utility>

#include "platform/base/clock.h"

// Why no reader uses a slot that is being overwritten (invariant 1)
//
//   reader of frame s                     writer that wants the slot of s
//   R1  hold = s           (seq_cst)      W1  seq of the slot = 0     (seq_cst)
//   R2  seq of the slot == s? (seq_cst)   W2  does a hold say s?      (seq_cst)
//       yes: uses the bytes                   no: overwrites the bytes
//       no:  hold = 0, has lost it            yes: seq = s again, takes another slot
//
// Let R2 read s and W2 find no hold. Numbers never come back, so that after the W1 of a writer that
// went on nothing stores s there: what R2 read was stored before W1 (by Publish, or by an earlier
// try that was undone), and R2 comes before W1 in the one order of sequentially consistent
// operations. Then R1 < R2 < W1 < W2, and W2 sees R1's hold, or one that came later: the reader has
// released s, with what pairs with W2 (a release, of the host or of its GPU). Both cannot be. It
// takes one such order for all holds of all readers, nothing else, so holds can be many.
//
// W2 looks at the hold first and then at the state of its cell: who sees R1 also sees that the
// reader was alive by then, because it became so before R1. If the state says "ended", the broker
// has seen the process and its GPU's work go, and nobody uses the bytes.
//
// Back-pressure is the same with the cursor for the hold: a reader that joins stores its cursor c,
// then looks if the slot of c has c still (Begin); the writer stores 0 there, then looks at all
// cursors. A reader that moves on stores hold = s before cursor = s + 1; the writer reads the
// cursor before the holds.

namespace gpushm::sync {
namespace {

// Attempts of a joining reader to be faster than the writer; after that it starts with lost frames.
constexpr int kJoinAttempts = 1000;

bool Alive(const Cell& cell) {
  // Pairs with Claim, and with the broker's store when the owner has ended.
  return StateOf(cell) == CellState::kLive;
}

bool Holds(const Cell& cell, uint64_t seq) {
  for (uint32_t i = 0; i < kHolds; ++i) {
    if (cell.words[kHoldWords + i].load(std::memory_order_seq_cst) == seq) return true;  // W2
  }
  return false;
}

// 0: it is joining. Pairs with MoveTo: the hold of the frame before is visible.
uint64_t CursorOf(const Cell& cell) {
  return cell.words[kCursorWord].load(std::memory_order_seq_cst);
}

}  // namespace

RingWriter::RingWriter(const FrameTable& table, uint64_t lease, const Readers& need)
    : FrameWriter(table, lease), need_(need) {
  held_.reserve(size_t{kHolds} * table.cells());
}

Result<RingWriter> RingWriter::Open(const Page& page, uint64_t lease, const Readers& need) {
  const auto table = ClaimWriter(page, Kind::kRing, lease);
  if (!table) return std::unexpected(table.error());
  return RingWriter(*table, lease, need);
}

Result<RingWriter::Opened> RingWriter::OpenFrame(const Deadline& deadline) {
  for (Poll poll(deadline);;) {
    if (const auto may = MayOpen(); !may) return std::unexpected(may.error());
    if (settings().policy == Policy::kOverwriteOldest) return OpenOverwriting();
    const auto oldest = slots().begin();
    const auto obstacle = WhyNotYet(*oldest);
    started_ = started_ || !obstacle;
    if (!obstacle && TakePlace(*oldest)) return FrameWriter::Open(oldest);
    if (!poll.Again()) {
      if (obstacle) return std::unexpected(*obstacle);
      return Fail(Code::kTimeout,
                  Concat("a joining reader holds the oldest frame, number ", seq_of(*oldest)),
                  "try again");
    }
  }
}

Result<RingWriter::Opened> RingWriter::OpenOverwriting() {
  // Skips held frames from the start: their readers would see them disappear for a moment.
  held_.clear();
  for (uint32_t cell = 1; cell < table().cells(); ++cell) {
    for (uint32_t i = 0; i < kHolds; ++i) {
      const Word& hold = table().reader(cell).words[kHoldWords + i];
      const uint64_t seq = hold.load(std::memory_order_relaxed);  // A hint; TakePlace checks again.
      if (seq != 0 && Alive(table().reader(cell))) held_.push_back(seq);
    }
  }
  std::ranges::sort(held_);
  for (auto slot = slots().begin(); slot != slots().end(); ++slot) {
    const uint64_t seq = seq_of(*slot);
    if (!CompleteHere(seq) || std::ranges::binary_search(held_, seq)) continue;
    if (TakePlace(*slot)) return FrameWriter::Open(slot);
  }
  table().writer().words[kDroppedWord].store(++dropped_, std::memory_order_relaxed);
  return Fail(Code::kBusy,
              Concat("readers hold all frames, or the frames are not complete: ", dropped_,
                     " frames dropped so far"),
              "release frames sooner, or make the ring with a larger frames setting");
}

bool RingWriter::CompleteHere(uint64_t seq) const {
  // Pairs with the store of the writer's stream: its work on the slot is done.
  return table().writer().value.load(std::memory_order_acquire) >= seq;
}

bool RingWriter::HeldByAnyone(uint64_t seq) const {
  for (uint32_t cell = 1; cell < table().cells(); ++cell) {
    const Cell& reader = table().reader(cell);
    if (settings().policy == Policy::kBackPressure && WaitsFor(reader, seq)) return true;
    if (Holds(reader, seq) && Alive(reader)) return true;
  }
  return false;
}

bool RingWriter::WaitsFor(const Cell& cell, uint64_t seq) const {
  const uint64_t cursor = CursorOf(cell);
  return cursor != 0 && cursor <= seq && Alive(cell);
}

bool RingWriter::TakePlace(uint32_t slot) const {
  const uint64_t seq = seq_of(slot);
  if (seq == 0) return true;
  Word& word = table().entry(slot).seq;
  word.store(0, std::memory_order_seq_cst);  // W1
  if (!HeldByAnyone(seq)) return true;
  word.store(seq, std::memory_order_release);  // Pairs with Find, as Publish does.
  return false;
}

std::optional<Status> RingWriter::WhyNotYet(uint32_t slot) {
  const uint64_t seq = seq_of(slot);
  const uint64_t newest = next_seq() - 1;
  WaitFor(0);
  if (!CompleteHere(seq)) {
    return Status(Code::kTimeout, Concat("frame ", seq, " is not complete yet"),
                  "check that this writer's stream is running");
  }
  uint32_t there = 0;
  uint32_t slowest = 0;
  uint64_t least = newest + 1;
  for (uint32_t cell = 1; cell < table().cells(); ++cell) {
    const Cell& reader = table().reader(cell);
    const uint64_t cursor = CursorOf(reader);  // Read before the holds.
    if (cursor == 0 || !Alive(reader)) continue;
    ++there;
    if (seq == 0) continue;
    const uint64_t at = Holds(reader, seq) ? std::min(cursor, seq) : cursor;
    if (at > seq || at > least) continue;
    slowest = cell;
    least = at;
  }
  if (slowest != 0) {
    WaitFor(slowest);
    return Status(
        Code::kTimeout,
        Concat("the slowest reader is at frame ", least, ", ", newest + 1 - least, " behind"),
        "use a larger timeout_ms, end that reader, or make the ring with a larger frames setting");
  }
  const bool starts = !started_ && need_.to_start > need_.always;
  const uint32_t needed = starts ? need_.to_start : need_.always;
  if (there >= needed) return std::nullopt;
  return Status(
      Code::kTimeout, Concat(there, " of ", needed, " readers are present"),
      Concat("start readers, or use a smaller ", starts ? "start_readers" : "need_readers"));
}

LookAgain RingWriter::Look() {
  if (frame_is_open()) return LookAgain::kOnAlarm;
  if (!MayOpen()) return LookAgain::kEnded;
  if (settings().policy == Policy::kOverwriteOldest) return LookAgain::kNow;
  const uint32_t oldest = slots().front();
  if (!WhyNotYet(oldest)) return LookAgain::kNow;
  const uint64_t seq = seq_of(oldest);
  if (!CompleteHere(seq)) return LookAgain::kByTimer;
  // A reader that has moved on gives the frame back from a stream.
  for (uint32_t cell = 1; seq != 0 && cell < table().cells(); ++cell) {
    const Cell& reader = table().reader(cell);
    if (CursorOf(reader) > seq && Holds(reader, seq) && Alive(reader)) return LookAgain::kByTimer;
  }
  return LookAgain::kOnAlarm;
}

// ---- readers

RingReader::RingReader(const FrameTable& table, uint64_t lease, uint32_t cell)
    : table_(table), lease_(lease), cell_(cell) {}

Result<RingReader> RingReader::Join(const Page& page, uint64_t lease, Start start) {
  const auto table = FrameTable::Of(page, Kind::kRing);
  if (!table) return std::unexpected(table.error());
  const auto cell = table->ClaimReader(lease);
  if (!cell) return std::unexpected(cell.error());
  RingReader reader(*table, lease, *cell);
  reader.Begin(start);
  return reader;
}

uint64_t RingReader::OldestOf(uint64_t newest) const {
  const uint64_t frames = settings().frames;
  return newest > frames ? newest - frames + 1 : 1;
}

void RingReader::Begin(Start start) {
  uint64_t newest = table_.Newest();
  uint64_t cursor = start == Start::kOldest ? OldestOf(newest) : newest + 1;
  for (int i = 0; i < kJoinAttempts; ++i) {
    cursor_ = cursor;
    // All are sequentially consistent: either the writer sees this cursor, or this thread sees the
    // writer's change.
    own().words[kCursorWord].store(cursor, std::memory_order_seq_cst);
    newest = table_.Newest();
    if (cursor > newest || table_.Find(cursor)) return;
    cursor = start == Start::kOldest ? std::max(cursor + 1, OldestOf(newest)) : newest + 1;
  }
}

void RingReader::MoveTo(uint64_t cursor, uint64_t lost) {
  cursor_ = cursor;
  lost_ += lost;
  own().words[kCursorWord].store(cursor, std::memory_order_release);  // Pairs with CursorOf.
}

std::optional<uint32_t> RingReader::FreeHold() {
  for (uint32_t i = 0; i < kHolds; ++i) {
    if (holds_[i].state == HoldState::kOpen) continue;
    // Acquire pairs with the stream's store; the next hold comes after it.
    if (holds_[i].state == HoldState::kReleased &&
        hold_word(i).load(std::memory_order_acquire) != 0) {
      continue;
    }
    holds_[i].state = HoldState::kFree;
    return i;
  }
  return std::nullopt;
}

Result<void> RingReader::SomeHoldMayEnd() const {
  if (std::ranges::any_of(holds_, [](const Hold& h) { return h.state != HoldState::kOpen; }))
    return {};
  return Fail(Code::kExhausted, Concat(kHolds, " frames are open, the limit for one reader"),
              "release one of them");
}

std::optional<Frame> RingReader::Take(uint64_t seq, uint32_t hold) {
  hold_word(hold).store(seq, std::memory_order_seq_cst);  // R1
  const auto slot = table_.Find(seq);                     // R2
  std::optional<Frame> frame = slot ? table_.Copy(*slot, seq) : std::nullopt;
  if (!frame) {
    hold_word(hold).store(0, std::memory_order_release);  // What this hold had before is released.
    return std::nullopt;
  }
  frame->hold = hold;
  frame->lost = seq - cursor_;
  holds_[hold] = {.state = HoldState::kOpen, .seq = seq};
  ++taken_;
  MoveTo(seq + 1, frame->lost);
  return frame;
}

std::optional<Frame> RingReader::TryTake(Order order, uint64_t newest, uint32_t hold) {
  if (newest < cursor_) return std::nullopt;
  const uint64_t oldest = std::max(cursor_, OldestOf(newest));
  for (uint64_t i = 0; i <= newest - oldest; ++i) {  // At most `frames` times.
    if (auto frame = Take(order == Order::kInOrder ? oldest + i : newest - i, hold)) return frame;
  }
  return std::nullopt;
}

LookAgain RingReader::Look() {
  if (!StillOwned(own(), lease_)) return LookAgain::kEnded;
  const Reading writer = Read(table_.writer());
  const uint64_t newest = table_.NewestBefore(writer);
  // Of the frames since the last one, the writer may have taken the place of some or all.
  bool found = false;
  for (uint64_t seq = std::max(cursor_, OldestOf(newest)); seq <= newest && !found; ++seq) {
    found = table_.Find(seq).has_value();
  }
  if (!found) return writer.ended() ? LookAgain::kEnded : LookAgain::kOnAlarm;
  if (FreeHold()) return LookAgain::kNow;
  return SomeHoldMayEnd() ? LookAgain::kByTimer : LookAgain::kOnAlarm;
}

Result<Frame> RingReader::Next(const Deadline& deadline, Order order) {
  for (Poll poll(deadline, &table_.writer());;) {
    if (const auto owned = StillOwned(own(), lease_); !owned) {
      return std::unexpected(owned.error());
    }
    if (const auto may = SomeHoldMayEnd(); !may) return std::unexpected(may.error());
    const Reading writer = Read(table_.writer());
    const uint64_t newest = table_.NewestBefore(writer);
    const auto hold = FreeHold();
    auto frame = hold ? TryTake(order, newest, *hold) : std::nullopt;
    if (frame) return *std::move(frame);
    if (writer.ended() && (newest < cursor_ || hold)) {
      if (newest >= cursor_) MoveTo(newest + 1, newest + 1 - cursor_);
      return std::unexpected(NoMore(writer, newest));
    }
    if (!poll.Again()) {
      return Fail(Code::kTimeout,
                  newest < cursor_ ? Concat("frame ", cursor_, " is not announced yet")
                                   : Concat("frame ", cursor_, " cannot be held yet"),
                  "use a larger timeout_ms");
    }
  }
}

Result<void> RingReader::Check(uint64_t seq) const {
  if (const auto complete = table_.Complete(seq); !complete) return complete;
  return StillOwned(own(), lease_);
}

Result<Point> RingReader::EndOf(const Frame& frame) const {
  // The hold may have another frame now.
  if (frame.hold >= kHolds || holds_[frame.hold].state != HoldState::kOpen ||
      holds_[frame.hold].seq != frame.seq) {
    return Fail(Code::kInvalidArgument, Concat("frame ", frame.seq, " is not open"),
                "begin to read it first, and end or abandon it once");
  }
  return Point{&hold_word(frame.hold), 0};
}

Result<Point> RingReader::Release(const Frame& frame) {
  const auto point = EndOf(frame);
  if (point) holds_[frame.hold].state = HoldState::kReleased;
  return point;
}

Result<void> RingReader::ReleaseNow(const Frame& frame) {
  const auto point = Release(frame);
  if (!point) return std::unexpected(point.error());
  point->word->store(0, std::memory_order_release);  // Pairs with W2.
  return {};
}

}  // namespace gpushm::sync
