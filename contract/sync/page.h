// The sync page behind a signal, a barrier or a ring: host memory that its participants, their GPUs
// and the broker share. docs/guides/synchronisation.md has the picture.
//
//   header | cells: one for each participant, 256 bytes each | body (a ring's frame table)
//
// A cell is a signal: a 64-bit value with one writer, its owner. Streams and hosts wait for "value
// >= x". When an owner ends, all waits on its values end: the broker stores kPoison once the kernel
// says that the process has ended, or when its lease ends otherwise.
//
// Invariants
//   (1) A value only grows, below kPoison; only its owner or the owner's GPU stores it. The process
//       that ends the cell, or finds the poison missing (KeepPoison), stores the poison.
//   (2) `last` is the value before the poison: work up to it was done.
//   (3) Nothing read here moves a bound: offsets and counts come from Layout(), which checks the
//       header against the size of the mapping. A participant that lies can spoil what goes through
//       this sync page, but cannot make another one access memory elsewhere.
//   (4) No lock, no libc type, no address: participants are in different namespaces, and die.
//
// Threads and processes: any. Everything shared is atomic.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::sync {

// Releases every waiter. The GPU's comparison is cyclic, so UINT64_MAX would release nobody.
inline constexpr uint64_t kPoison = 0x7fffffffffffffff;
// The largest value: cyclic and plain comparison agree up to here.
inline constexpr uint64_t kMaxValue = uint64_t{1} << 62;

inline constexpr uint64_t kPageMagic = 0x4c4e4753'4d485347;  // "GSHMSGNL"
inline constexpr uint32_t kPageVersion = 2;
inline constexpr uint64_t kPageBytes = 4096;

enum class Kind : uint32_t { kSignal = 1, kBarrier = 2, kRing = 3, kQueue = 4 };
const char* KindName(Kind kind);  // "signal", "barrier", "ring", "queue"

enum class CellState : uint32_t {
  kFree = 0,  // No owner yet.
  kLive = 1,
  kDied = 2,  // Its owner's process ended.
  kLeft = 3,  // Its owner closed it.
};

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

// When a participant that does not sleep in a call should look again.
enum class LookAgain {
  kNow,      // The call would not wait.
  kEnded,    // The same, because it would fail: the writer or this participant has ended.
  kOnAlarm,  // When the page's alarm rings: a host has to do something, or to end.
  kByTimer,  // Often: a GPU has to do something, and no host announces it.
};

struct alignas(256) Cell {
  Word value;     // The value, on which GPUs wait.
  Word owner;     // Lease of the owner; 0: none.
  Word last;      // Invariant (2).
  Word state;     // Low half: CellState. High half: whose, counted as in `owners`; see EndCell.
  Word owners;    // Number of owners so far; changes with each new owner.
  Word wakes;     // Counts the calls of WakeSleepers.
  Word sleepers;  // How many sleep in SleepOn.
  Word reserved;  // So that `words` begin a cache line.
  std::array<Word, 24> words;  // For the owner's use, by the kind of the sync page.
};
static_assert(sizeof(Cell) == 256 && offsetof(Cell, words) == 64);

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t kind;  // Kind
  uint32_t cells;
  uint32_t body_bytes;
  std::array<uint64_t, 8> settings;  // By the kind; constant once published.
  // Number of the alarm to ring for those who wait in an event loop (docs/design/waiting.md). 0:
  // nobody has waited yet. Only the broker stores it.
  uint64_t alarm;
  std::array<uint64_t, 20> reserved;
};
static_assert(sizeof(Header) == 256);

// Signals: the word of the writer's cell with the highest value that a GPU may store without a
// further announcement by the host.
inline constexpr size_t kPendingWord = 0;

// The necessary size of a sync page, in multiples of 4 KiB.
uint64_t BytesFor(uint32_t cells, uint64_t body_bytes);

// A view of a mapped sync page. Copies are cheap; the mapping must outlive them.
class Page {
 public:
  // Writes the header of a zeroed sync page that nobody else sees yet.
  static Page Make(void* address, uint64_t mapped_bytes, Kind kind, uint32_t cells,
                   uint64_t body_bytes, const std::array<uint64_t, 8>& settings);
  // kCorrupt: it is not a gpushm sync page. kIncompatible: it has a later layout.
  static Result<Page> Look(void* address, uint64_t mapped_bytes);

  Kind kind() const { return kind_; }
  uint32_t cells() const { return cells_; }
  Cell& cell(uint32_t index) const { return cell_[index]; }  // index < cells()
  std::span<std::byte> body() const { return body_; }
  const std::array<uint64_t, 8>& settings() const { return settings_; }
  Word& alarm() const { return *alarm_; }
  void* address() const { return address_; }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  Page(void* address, uint64_t mapped_bytes, const Header& header);

  void* address_;
  uint64_t mapped_bytes_;
  Kind kind_;
  uint32_t cells_;
  Word* alarm_;
  Cell* cell_;
  std::span<std::byte> body_;
  std::array<uint64_t, 8> settings_;
};

// ---- owning a cell

// Makes `lease` the owner of a cell that has no owner, or (with `again`) whose owner has ended; its
// value starts at 0. False: the cell has an owner.
bool Claim(Cell& cell, uint64_t lease, bool again);

// Called by an owner that closes its cell. False: `lease` does not own it any more, or the broker
// is ending it.
bool EndCell(Cell& cell, uint64_t lease, CellState how);

// Called by the broker when a lease has ended because its process has ended or has closed its
// cells. Ends each of the lease's cells, also where another process was killed while ending it.
// Returns their number.
size_t EndCellsOf(const Page& page, uint64_t lease, CellState how);

// Called by a broker when it starts: ends the cells whose owner is none of `leases`. An owner that
// was just closing its cell may be alive and still write to it. So nobody else may get such a cell
// until the owner gives it back itself.
void EndCellsOfOthers(const Page& page, const std::set<uint64_t>& leases);

// Stores the poison again if the cell has ended but its value does not show it. A broker that does
// not know a living owner may have ended it while its stream had yet to store a value.
void KeepPoison(Cell& cell);

inline CellState StateOf(const Cell& cell) {
  return static_cast<CellState>(static_cast<uint32_t>(cell.state.load(std::memory_order_acquire)));
}

// ---- waiting on the host

// A value as read at one time.
struct Reading {
  uint64_t value = 0;  // If ended: the last one.
  CellState state = CellState::kFree;
  bool ended() const { return state == CellState::kDied || state == CellState::kLeft; }
  // For a cell that has ended: kEnded if its owner closed it, otherwise kPeerDied.
  Code end() const { return state == CellState::kLeft ? Code::kEnded : Code::kPeerDied; }
};
Reading Read(const Cell& cell);
// Whether a failure says that a peer has closed what it shared, or died.
constexpr bool IsEnd(Code code) { return code == Code::kEnded || code == Code::kPeerDied; }

// Wakes those who sleep on a cell of a sync page that they may write, when the owner's *host* has
// done something; it is a futex. It only shortens sleeps: a sleeper that misses it continues when
// its sleep ends. A process that dies asleep leaves the count too high, which costs its owner one
// system call each time.
void WakeSleepers(Cell& cell);
// Until the cell has other `wakes` than these, or for at most `at_most_ns`.
void SleepOn(Cell& cell, uint64_t wakes, int64_t at_most_ns);

// Polls: at once for some microseconds, then sleeping in growing steps. A step is at most 200 us,
// because a GPU's store wakes nobody; if it sleeps on a cell, it is at most 1 ms.
class Poll {
 public:
  explicit Poll(const Deadline& deadline, Cell* sleeps_on = nullptr)
      : deadline_(deadline),
        cell_(sleeps_on),
        wakes_(cell_ == nullptr ? 0 : cell_->wakes.load(std::memory_order_acquire)) {}
  // Call before the next poll. False: the deadline has passed.
  bool Again();

 private:
  void Sleep(int64_t ns);

  const Deadline deadline_;
  Cell* const cell_;
  uint64_t wakes_;  // Before the next poll.
  uint32_t looks_ = 0;
  int64_t spin_until_ns_ = 0;
  int64_t sleep_ns_ = 0;
};

// Waits until the value is at least `value`. kTimeout; kEnded, kPeerDied: its owner closed it, or
// died, before.
Result<Reading> WaitUntil(const Cell& cell, uint64_t value, const Deadline& deadline);
// The failure of a wait for `value`, according to `reading`; nothing: no failure.
std::optional<Status> EndedBefore(const Reading& reading, uint64_t value);

}  // namespace gpushm::sync
