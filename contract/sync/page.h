// The page behind a signal, a barrier or a ring: host memory that its participants, their GPUs and
// the broker share. docs/guides/synchronisation.md has the picture.
//
//   header | cells: one a participant, 256 bytes each | body (a ring's frame table)
//
// A cell is a signal: a 64-bit counter with one writer, its owner. Streams and hosts wait for
// "counter >= value". Who ends, ends all waits on its counters: the broker stores kPoison once the
// kernel says that the process is gone, or when its lease ends otherwise.
//
// Invariants
//   (1) A counter only grows, below kPoison; its owner alone stores it, or its GPU does. The poison
//       is stored by whoever ends the cell, or finds that it is not there (KeepPoison).
//   (2) `last` is what the counter was before the poison: work up to it was done.
//   (3) Nothing read here moves a bound: offsets and counts come from Layout(), which checks the
//       header against the size of the mapping. A participant that lies can spoil what goes through
//       this page; it cannot make another one touch memory elsewhere.
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
#include <string_view>

#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::signal {

// Releases every waiter: the GPU's comparison is cyclic, so that UINT64_MAX would release nobody.
inline constexpr uint64_t kPoison = 0x7fffffffffffffff;
// The largest value of a counter: cyclic and plain comparison agree up to here.
inline constexpr uint64_t kMaxValue = uint64_t{1} << 62;

inline constexpr uint64_t kPageMagic = 0x4c4e4753'4d485347;  // "GSHMSGNL"
inline constexpr uint32_t kPageVersion = 1;
inline constexpr uint64_t kPageBytes = 4096;

enum class Kind : uint32_t { kSignal = 1, kBarrier = 2, kRing = 3, kQueue = 4 };
const char* KindName(Kind kind);  // "signal", "barrier", "ring", "queue"

enum class CellState : uint32_t {
  kFree = 0,  // Nobody's yet.
  kLive = 1,
  kDied = 2,  // Its owner's process ended.
  kLeft = 3,  // Its owner closed it.
};

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

struct alignas(256) Cell {
  Word value;     // The counter, where GPUs wait.
  Word owner;     // Lease of the owner; 0: none.
  Word last;      // Invariant (2).
  Word state;     // Low half: CellState. High half: whose, as `owners` counts; see EndCell.
  Word owners;    // How many owners it has had, this one included.
  Word bell;      // Rung when the owner has done what others sleep for (Bell).
  Word sleepers;  // On it.
  uint64_t reserved;
  std::array<Word, 24> words;  // The owner's, by the kind of the page.
};
static_assert(sizeof(Cell) == 256);

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t kind;  // Kind
  uint32_t cells;
  uint32_t body_bytes;
  std::array<uint64_t, 8> settings;  // By the kind; constant once published.
  std::array<uint64_t, 21> reserved;
};
static_assert(sizeof(Header) == 256);

// A signal's counter may stand in device memory as well, where streams wait for it then: the first
// word of the buffer "<name>-signal", of the generation that settings[0] says. 0: it does not.
inline constexpr size_t kWordGeneration = 0;
inline constexpr std::string_view kWordSuffix = "-signal";

// How large a page must be; whole pages of 4 KiB.
uint64_t BytesFor(uint32_t cells, uint64_t body_bytes);

// A look at a mapped page. Copies are cheap; the mapping must outlive them.
class Page {
 public:
  // Writes the header of a zeroed page that nobody else sees yet.
  static Page Make(void* address, uint64_t mapped_bytes, Kind kind, uint32_t cells,
                   uint64_t body_bytes, const std::array<uint64_t, 8>& settings);
  // kCorrupt: it is no page of ours. kIncompatible: of a later layout.
  static Result<Page> Look(void* address, uint64_t mapped_bytes);

  Kind kind() const { return kind_; }
  uint32_t cells() const { return cells_; }
  Cell& cell(uint32_t index) const { return cell_[index]; }  // index < cells()
  std::span<std::byte> body() const { return body_; }
  const std::array<uint64_t, 8>& settings() const { return settings_; }
  // Of a signal in device memory; else 0.
  uint64_t word_generation() const {
    return kind_ == Kind::kSignal ? settings_[kWordGeneration] : 0;
  }
  void* address() const { return address_; }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  Page(void* address, uint64_t mapped_bytes, const Header& header);

  void* address_;
  uint64_t mapped_bytes_;
  Kind kind_;
  uint32_t cells_;
  Cell* cell_;
  std::span<std::byte> body_;
  std::array<uint64_t, 8> settings_;
};

// ---- owning a cell

// Makes `lease` the owner of a cell that nobody has, or (with `again`) whose owner has ended; its
// counter starts at 0. False: it is somebody's.
bool Claim(Cell& cell, uint64_t lease, bool again);

// What an owner does that closes its cell. False: `lease` does not own it any more, or the broker
// is ending it.
bool EndCell(Cell& cell, uint64_t lease, CellState how);

// What the broker does when a lease ends, and its process with it or after having closed its cells:
// each of the cells ends, also where another one was killed that was ending it. How many they were.
size_t EndCellsOf(const Page& page, uint64_t lease, CellState how);

// What a broker does when it starts: cells whose owner is none of `leases` end. An owner that was
// just closing its cell may be alive and still write to it, so that nobody else may have such a
// cell until the owner gives it back itself.
void EndCellsOfOthers(const Page& page, const std::set<uint64_t>& leases);

// Stores the poison again if the cell has ended and its counter does not say so: an owner that
// lives may have been ended by a broker that does not know it, while its stream was still to store
// a value.
void KeepPoison(Cell& cell);

inline CellState StateOf(const Cell& cell) {
  return static_cast<CellState>(static_cast<uint32_t>(cell.state.load(std::memory_order_acquire)));
}

// ---- waiting on the host

// Where a counter stands.
struct Reading {
  uint64_t value = 0;  // If ended: the last one.
  CellState state = CellState::kFree;
  bool ended() const { return state == CellState::kDied || state == CellState::kLeft; }
  // Of one that has ended: kEnded if its owner closed it, else kPeerDied.
  Code end() const { return state == CellState::kLeft ? Code::kEnded : Code::kPeerDied; }
};
Reading Read(const Cell& cell);
// Whether a failure says that a peer has closed what it shared, or died.
constexpr bool IsEnd(Code code) { return code == Code::kEnded || code == Code::kPeerDied; }

// Wakes those who sleep on a cell of a page that they may write, for what its owner's *host* does:
// a futex of the kernel. It only shortens sleeps: what is missed is seen at the end of one. A
// process that dies asleep leaves the count too high, which costs its owner a system call a ring.
class Bell {
 public:
  explicit Bell(Cell& cell) : cell_(&cell) {}
  void Ring() const;
  uint64_t Rung() const { return cell_->bell.load(std::memory_order_acquire); }
  // Until it is rung once more than `rung` times, or for so long.
  void Sleep(uint64_t rung, int64_t at_most_ns) const;

 private:
  Cell* cell_;
};

// Looks again and again: at once for some microseconds, then sleeping in growing steps of at most
// 200 us, because a GPU's store wakes nobody; where a bell rings, of at most 1 ms.
class Poll {
 public:
  explicit Poll(const Deadline& deadline, std::optional<Bell> bell = std::nullopt)
      : deadline_(deadline), bell_(bell), rung_(bell ? bell->Rung() : 0) {}
  // Before the next look. False: the deadline has passed.
  bool Again();

 private:
  void Sleep(int64_t ns);

  const Deadline deadline_;
  const std::optional<Bell> bell_;
  uint64_t rung_;  // Before the look that comes next.
  uint32_t looks_ = 0;
  int64_t spin_until_ns_ = 0;
  int64_t sleep_ns_ = 0;
};

// Until the counter is at least `value`. kTimeout; kEnded, kPeerDied: its owner closed it, or died,
// before.
Result<Reading> WaitUntil(const Cell& cell, uint64_t value, const Deadline& deadline);
// The failure of a wait for `value` that `reading` tells of; nothing: there is none.
std::optional<Status> EndedBefore(const Reading& reading, uint64_t value);

}  // namespace gpushm::signal
