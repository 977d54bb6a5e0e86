// What a ring and a queue have in common: their settings, the table of frames in the body of the
// page, and what their writers do alike. ring.h and queue.h say who gets a frame.
//
// The bytes of a frame are elsewhere, in a buffer of `frames` slots; only their state is here. A
// frame is announced by the host and complete when its writer's GPU says so:
//
//   host    OpenFrame -> slot, seq    Announce(seq) ---------> readers see it
//   stream      work on the slot ...      store seq to cell 0 -> the streams of readers go on
//
// Invariants
//   (1) Announced frames are numbered 1, 2, 3 ...; no number comes twice in the life of a page.
//   (2) Cell 0 is the writer's; its counter says "frames up to this number are complete". Cells 1
//   to
//       `readers` are the readers'. A page has one writer in its life: who writes after it makes a
//       new generation.
//   (3) Indices read from the page are compared with the settings, of which everybody has a copy.
//       What a participant scribbles can lose frames; it cannot move a bound.
//
// Threads: an object is used by one thread at a time. Participants share nothing but the page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "contract/limits.h"
#include "contract/sync/page.h"
#include "platform/base/status.h"

namespace gpushm::signal {

inline constexpr size_t kMetadataBytes = 64;
// Frames that one reader can have open, or released but not yet left by its stream.
inline constexpr uint32_t kHolds = 8;

// An item's `claim` that every worker may take: queue.h. Each of 2^48 items has its own, so that a
// worker that was slow to take one does not get, out of turn, the next item of the same slot.
constexpr uint64_t Offer(uint64_t seq) { return seq << 16; }

using Metadata = std::array<std::byte, kMetadataBytes>;

// What a stream is told: to store `value` at `word`, or to wait until it is at least `value`.
struct Point {
  Word* word;
  uint64_t value;
};

enum class Policy : uint64_t { kOverwriteOldest = 0, kBackPressure = 1 };

// Of a ring or queue; in the header of its page.
struct FrameSettings {
  uint32_t frames = 0;                       // 2 to limits::kFrames slots.
  uint64_t frame_bytes = 0;                  // The most that a frame has.
  uint32_t readers = 0;                      // 1 to limits::kCells - 1 at a time.
  Policy policy = Policy::kOverwriteOldest;  // Of a ring.
  uint64_t generation = 0;                   // Of the buffer with the frames' bytes.

  // kInvalidArgument with what is wrong.
  Result<void> Check() const;
  std::array<uint64_t, 8> ToHeader() const;
  uint32_t cells() const { return readers + 1; }
  uint64_t body_bytes() const;
};

// Of a slot. All words are shared; `place` is none of the slot's but of the table.
struct alignas(128) FrameEntry {
  Word seq;      // Of the frame that is here; 0: none, or it is being written.
  Word bytes;    // Used by it.
  Word time_ns;  // CLOCK_MONOTONIC when it was announced.
  Word place;    // Entry i: slot of the newest frame whose number is i modulo `frames`.
  std::array<Word, kMetadataBytes / sizeof(Word)> metadata;
  Word claim;  // queue.h
  Word done;   // queue.h
  std::array<uint64_t, 2> reserved;
};
static_assert(sizeof(FrameEntry) == 128);

// The words of cells.
inline constexpr size_t kNewestWord = 0;   // Cell 0: number of the newest announced frame.
inline constexpr size_t kDroppedWord = 1;  // Cell 0: frames dropped for want of a slot.
inline constexpr size_t kReturnsWord = 2;  // Cell 0: how often a worker gave an item back.
inline constexpr size_t kCursorWord = 0;   // Readers: number of the next frame; 0: still joining.
inline constexpr size_t kTakenWord = 1;    // Readers: frames taken.
inline constexpr size_t kLostWord = 2;     // Readers: frames lost.
inline constexpr size_t kHoldWords = 8;    // Readers: kHolds of them, a cache line of their own.

// A frame as a reader or worker gets it: announced, perhaps not complete.
struct Frame {
  uint32_t slot = 0;
  uint64_t seq = 0;
  uint64_t bytes = 0;
  int64_t time_ns = 0;
  Metadata metadata{};
  uint64_t lost = 0;      // Ring: frames between the last one taken and this one.
  uint32_t hold = 0;      // Ring: for Release.
  uint32_t delivery = 1;  // Queue: 1, or how often the item was given to somebody, this time too.
};

// A look at the page of a ring or queue. Copies are cheap; the mapping must outlive them.
class FrameTable {
 public:
  // kInvalidArgument: another kind of page. kCorrupt: its settings contradict its size.
  static Result<FrameTable> Of(const Page& page, Kind kind);

  const FrameSettings& settings() const { return settings_; }
  FrameEntry& entry(uint32_t slot) const { return entries_[slot]; }  // slot < settings().frames
  Cell& writer() const { return page_.cell(0); }
  Cell& reader(uint32_t cell) const { return page_.cell(cell); }  // 1 <= cell < cells()
  uint32_t cells() const { return settings_.cells(); }

  // Number of the newest announced frame; pairs with Publish: what it stored is seen.
  uint64_t Newest() const;
  // Slot of the frame, if it is among the newest `frames` and its entry has it still. Its bytes may
  // be overwritten at any time: a reader holds it first, then asks.
  std::optional<uint32_t> Find(uint64_t seq) const;
  // The entry's frame, whole; nothing if it is another one by now.
  std::optional<Frame> Copy(uint32_t slot, uint64_t seq) const;
  void Publish(uint32_t slot, uint64_t seq, uint64_t bytes, const Metadata& metadata) const;

  // Whether frame `seq` is complete. kTimeout: not yet. kEnded, kPeerDied: it never will be.
  Result<void> Complete(uint64_t seq) const;
  // A cell of a reader for `lease`; kExhausted: all are taken.
  Result<uint32_t> ClaimReader(uint64_t lease) const;

 private:
  FrameTable(const Page& page, const FrameSettings& settings);

  Page page_;
  FrameSettings settings_;
  FrameEntry* entries_;
};

// kOrphaned: the broker has ended the lease while its owner still uses the cell.
Result<void> StillOwned(const Cell& cell, uint64_t lease);

// kEnded, kPeerDied: all that the writer completed before its end, up to `last`, has been given
// out.
Status NoMore(const Reading& writer, uint64_t last);

// A writer's side that rings and queues share; RingWriter and QueueWriter open frames.
class FrameWriter {
 public:
  struct Opened {
    uint32_t slot;
    uint64_t seq;
  };

  FrameWriter(FrameWriter&&) = default;
  FrameWriter& operator=(FrameWriter&&) = default;
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;
  ~FrameWriter() = default;

  // Whether Announce would do it, for who has to tell a stream of it first.
  Result<void> MayAnnounce(uint64_t seq, uint64_t bytes, size_t metadata_bytes) const;
  // The opened frame `seq` is the newest from now on. Its bytes may still be under way: the stream
  // stores Ready(seq) behind them, and should have been told so before.
  // kInvalidArgument: it is not open, or more bytes or metadata than fit.
  Result<void> Announce(uint64_t seq, uint64_t bytes, std::span<const std::byte> metadata);
  // Gives the opened frame up: its number is the next one's. Work on its slot that is under way
  // must come before later work on it, as in the same stream.
  void AbandonFrame() { opened_.reset(); }
  // What the writer's stream stores once the bytes are there, frame by frame.
  Point Ready(uint64_t seq) const { return {&table_.writer().value, seq}; }
  const FrameSettings& settings() const { return table_.settings(); }
  // Lease of the participant that the last kTimeout of an OpenFrame was because of; 0: of none.
  uint64_t waited_for() const { return waited_for_; }

 protected:
  FrameWriter(const FrameTable& table, uint64_t lease);
  // kAlreadyExists: the page has its writer. kStale: had one.
  static Result<FrameTable> ClaimWriter(const Page& page, Kind kind, uint64_t lease);

  Result<void> MayOpen() const;
  // The next frame has to wait for the owner of this cell; 0: for none.
  void WaitFor(uint32_t cell) {
    waited_for_ = cell == 0 ? 0 : table_.reader(cell).owner.load(std::memory_order_relaxed);
  }
  // The slot's frame is gone; the next one goes there.
  Opened Open(std::list<uint32_t>::iterator slot);
  const FrameTable& table() const { return table_; }
  uint64_t next_seq() const { return next_seq_; }
  // What is in the slot; 0: nothing. Of the writer's own memory, as all here.
  uint64_t seq_of(uint32_t slot) const { return seqs_[slot]; }
  std::list<uint32_t>& slots() { return slots_; }  // All, oldest frame first.

 private:
  FrameTable table_;
  uint64_t lease_;
  uint64_t next_seq_ = 1;
  std::list<uint32_t> slots_;
  std::vector<uint64_t> seqs_;
  std::optional<Opened> opened_;
  uint64_t waited_for_ = 0;
};

}  // namespace gpushm::signal
