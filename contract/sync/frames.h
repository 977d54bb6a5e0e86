// The common part of rings and queues: their settings, the table of frames in the body of the sync
// page, and what both kinds of writers do. ring.h and queue.h say who gets a frame.
//
// The bytes of frames are in a buffer of `frames` slots; only their state is here. The host
// announces a frame, and it is complete when its writer's GPU says so:
//
//   host    OpenFrame -> slot, seq    Announce(seq) ---------> readers see it
//   stream      work on the slot ...      store seq to cell 0 -> the streams of readers go on
//
// Invariants
//   (1) Announced frames are numbered 1, 2, 3 ...; no number is used twice in the life of a sync
//       page.
//   (2) Cell 0 belongs to the writer; its value means "frames up to this number are complete".
//       Cells 1 to `readers` belong to the readers. A sync page has one writer in its life. A
//       writer that comes after it makes a new generation.
//   (3) Indices read from the sync page are compared with the settings, of which every participant
//       has a copy. A participant that writes garbage can lose frames, but cannot move a bound.
//
// Threads: one thread at a time uses an object. Participants share nothing but the sync page.
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

namespace gpushm::sync {

inline constexpr size_t kMetadataBytes = 64;
// Frames that one reader can have open, or released while its stream still reads them.
inline constexpr uint32_t kHolds = 8;

// The value of `claim` for an item that every worker may take (queue.h). Each of 2^48 items has its
// own. So a worker that was slow to take one does not get, out of turn, the next item of the same
// slot.
constexpr uint64_t Offer(uint64_t seq) { return seq << 16; }

using Metadata = std::array<std::byte, kMetadataBytes>;

// An instruction for a stream: store `value` at `word`, or wait until it is at least `value`.
struct Point {
  Word* word;
  uint64_t value;
};

enum class Policy : uint64_t { kOverwriteOldest = 0, kBackPressure = 1 };

// Settings of a ring or queue; stored in the header of its sync page.
struct FrameSettings {
  uint32_t frames = 0;                       // 2 to limits::kFrames slots.
  uint64_t frame_bytes = 0;                  // Maximum bytes of a frame.
  uint32_t readers = 0;                      // 1 to limits::kCells - 1 at a time.
  Policy policy = Policy::kOverwriteOldest;  // Of a ring.
  uint64_t generation = 0;                   // Of the buffer that has the frames' bytes.

  // kInvalidArgument; the text says what is wrong.
  Result<void> Check() const;
  std::array<uint64_t, 8> ToHeader() const;
  uint32_t cells() const { return readers + 1; }
  uint64_t body_bytes() const;
};

// State of a slot. All words are shared. `place` does not belong to the slot but to the table.
struct alignas(128) FrameEntry {
  Word seq;      // Number of the frame in this slot; 0: none, or it is being written.
  Word bytes;    // Bytes that the frame uses.
  Word time_ns;  // CLOCK_MONOTONIC when it was announced.
  Word place;    // Entry i: slot of the newest frame whose number is i modulo `frames`.
  std::array<Word, kMetadataBytes / sizeof(Word)> metadata;
  Word claim;  // queue.h
  Word done;   // queue.h
  std::array<uint64_t, 2> reserved;
};
static_assert(sizeof(FrameEntry) == 128);

// Indices of the words of cells.
inline constexpr size_t kNewestWord = 0;   // Cell 0: number of the newest announced frame.
inline constexpr size_t kDroppedWord = 1;  // Cell 0: frames dropped because no slot was free.
inline constexpr size_t kReturnsWord = 2;  // Cell 0: how often a worker gave an item back.
// Cell 0: 1 if the writer waits in an event loop, so that readers ring the page's alarm.
inline constexpr size_t kWriterWaitsWord = 3;
inline constexpr size_t kCursorWord = 0;  // Readers: number of the next frame; 0: still joining.
inline constexpr size_t kHoldWords = 8;   // Readers: kHolds of them, a cache line of their own.
static_assert((offsetof(Cell, words) + kHoldWords * sizeof(Word)) % 64 == 0);

// A frame as a reader or worker gets it: announced, perhaps not complete.
struct Frame {
  uint32_t slot = 0;
  uint64_t seq = 0;
  uint64_t bytes = 0;
  int64_t time_ns = 0;
  Metadata metadata{};
  uint64_t lost = 0;      // Ring: frames between the last one taken and this one.
  uint32_t hold = 0;      // Ring: the hold, for Release.
  uint32_t delivery = 1;  // Queue: how often the item was delivered, this time included; from 1.
};

// A view of the sync page of a ring or queue. Copies are cheap; the mapping must outlive them.
class FrameTable {
 public:
  // kInvalidArgument: another kind of sync page. kCorrupt: its settings contradict its size.
  static Result<FrameTable> Of(const Page& page, Kind kind);

  const FrameSettings& settings() const { return settings_; }
  FrameEntry& entry(uint32_t slot) const { return entries_[slot]; }  // slot < settings().frames
  Cell& writer() const { return page_.cell(0); }
  Cell& reader(uint32_t cell) const { return page_.cell(cell); }  // 1 <= cell < cells()
  uint32_t cells() const { return settings_.cells(); }

  // Number of the newest announced frame. Pairs with Publish: everything that it stored is visible.
  uint64_t Newest() const;
  // The same, without what came after the end of `writer`, which was read before this call.
  uint64_t NewestBefore(const Reading& writer) const;
  // Slot of the frame, if it is among the newest `frames` and its entry still has it. Its bytes may
  // be overwritten at any time, so a reader takes a hold first and then calls this.
  std::optional<uint32_t> Find(uint64_t seq) const;
  // A consistent copy of the entry's frame; nothing if the entry has another frame now.
  std::optional<Frame> Copy(uint32_t slot, uint64_t seq) const;
  void Publish(uint32_t slot, uint64_t seq, uint64_t bytes, const Metadata& metadata) const;

  // Whether frame `seq` is complete. kTimeout: not yet. kEnded, kPeerDied: it never will be.
  Result<void> Complete(uint64_t seq) const;
  // Gives a reader's cell to `lease`; kExhausted: all are taken.
  Result<uint32_t> ClaimReader(uint64_t lease) const;

 private:
  FrameTable(const Page& page, const FrameSettings& settings);

  Page page_;
  FrameSettings settings_;
  FrameEntry* entries_;
};

// kOrphaned: the broker has ended the lease while its owner still uses the cell.
Result<void> StillOwned(const Cell& cell, uint64_t lease);

// kEnded, kPeerDied: everything that the writer completed before its end, up to `last`, has been
// delivered.
Status NoMore(const Reading& writer, uint64_t last);

// The common part of RingWriter and QueueWriter, which open frames.
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

  // Whether Announce would succeed, for callers that must instruct a stream first.
  Result<void> MayAnnounce(uint64_t seq, uint64_t bytes, size_t metadata_bytes) const;
  // Makes the opened frame `seq` the newest one. Its bytes may still be in progress: the stream
  // stores Ready(seq) after them, and should have been instructed before this call.
  // kInvalidArgument: it is not open, or has more bytes or metadata than fit.
  Result<void> Announce(uint64_t seq, uint64_t bytes, std::span<const std::byte> metadata);
  // Gives up the opened frame; the next frame gets its number. Work on its slot that is in progress
  // must precede later work on it, as in the same stream.
  void AbandonFrame() { opened_.reset(); }
  // What the writer's stream stores once the bytes are complete, frame by frame.
  Point Ready(uint64_t seq) const { return {&table_.writer().value, seq}; }
  const FrameSettings& settings() const { return table_.settings(); }
  // Lease of the participant that caused the last kTimeout of an OpenFrame; 0: none did.
  uint64_t waited_for() const { return waited_for_; }

 protected:
  FrameWriter(const FrameTable& table, uint64_t lease);
  // kAlreadyExists: the sync page has its writer. kStale: it had one.
  static Result<FrameTable> ClaimWriter(const Page& page, Kind kind, uint64_t lease);

  Result<void> MayOpen() const;
  bool frame_is_open() const { return opened_.has_value(); }
  // The next frame must wait for the owner of this cell; 0: for none.
  void WaitFor(uint32_t cell) {
    waited_for_ = cell == 0 ? 0 : table_.reader(cell).owner.load(std::memory_order_relaxed);
  }
  // Discards the slot's frame; the next one goes there.
  Opened Open(std::list<uint32_t>::iterator slot);
  const FrameTable& table() const { return table_; }
  uint64_t next_seq() const { return next_seq_; }
  // Number of the frame in the slot; 0: none. Read from the writer's own memory, as everything
  // here.
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

}  // namespace gpushm::sync
