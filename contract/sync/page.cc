#include "contract/sync/page.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "contract/limits.h"

namespace gpushm::sync {
namespace {

constexpr int64_t kSpinNs = 20'000;
constexpr int64_t kFirstSleepNs = 5'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kLongestSleepNs = 200'000;
constexpr int64_t kLongestSleepOnCellNs = 1'000'000;
constexpr uint32_t kLooksBetweenClocks = 32;
constexpr int kTenureShift = 32;

constexpr uint64_t StateWord(CellState state, uint64_t tenure) {
  return tenure << kTenureShift | static_cast<uint32_t>(state);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::unexpected<Status> NoPage(std::string_view why) {
  return Fail(Code::kCorrupt, Concat("not a gpushm sync page: ", why),
              "use the library and the sidecar of the same release");
}

}  // namespace

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kSignal:
      return "signal";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kRing:
      return "ring";
    case Kind::kQueue:
      return "queue";
  }
  return "unknown";
}

uint64_t BytesFor(uint32_t cells, uint64_t body_bytes) {
  const uint64_t bytes = sizeof(Header) + uint64_t{cells} * sizeof(Cell) + body_bytes;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Page::Page(void* address, uint64_t mapped_bytes, const Header& header)
    : address_(address),
      mapped_bytes_(mapped_bytes),
      kind_(static_cast<Kind>(header.kind)),
      cells_(header.cells),
      alarm_(reinterpret_cast<Word*>(static_cast<std::byte*>(address) + offsetof(Header, alarm))),
      cell_(reinterpret_cast<Cell*>(static_cast<std::byte*>(address) + sizeof(Header))),
      body_(reinterpret_cast<std::byte*>(cell_ + header.cells), header.body_bytes),
      settings_(header.settings) {}

Page Page::Make(void* address, uint64_t mapped_bytes, Kind kind, uint32_t cells,
                uint64_t body_bytes, const std::array<uint64_t, 8>& settings) {
  const Header header{.magic = kPageMagic,
                      .version = kPageVersion,
                      .kind = static_cast<uint32_t>(kind),
                      .cells = cells,
                      .body_bytes = static_cast<uint32_t>(body_bytes),
                      .settings = settings,
                      .alarm = 0,
                      .reserved = {}};
  std::memcpy(address, &header, sizeof header);
  return Page(address, mapped_bytes, header);
}

Result<Page> Page::Look(void* address, uint64_t mapped_bytes) {
  if (mapped_bytes < kPageBytes) {
    return NoPage(Concat("it has ", mapped_bytes, " bytes, at least ", kPageBytes, " are needed"));
  }
  Header header;
  std::memcpy(&header, address, sizeof header);
  if (header.magic != kPageMagic) {
    return NoPage(
        Concat("bad magic number 0x", std::hex, header.magic, ", must be 0x", kPageMagic));
  }
  if (header.version != kPageVersion) {
    return Fail(Code::kIncompatible,
                Concat("the sync page has layout ", header.version, ", but this library supports ",
                       kPageVersion),
                "use the library of the participants' release");
  }
  if (header.kind < 1 || header.kind > 4) {
    return NoPage(Concat("its kind ", header.kind, " is unknown, must be 1 to 4"));
  }
  if (header.cells < 1 || header.cells > limits::kCells) {
    return NoPage(Concat("it has ", header.cells, " cells, must be 1 to ", limits::kCells));
  }
  if (const uint64_t needed = BytesFor(header.cells, header.body_bytes); needed > mapped_bytes) {
    return NoPage(Concat("it has ", mapped_bytes, " bytes, but its header says ", needed));
  }
  return Page(address, mapped_bytes, header);
}

static bool MayClaim(const Cell& cell, bool again) {
  const CellState state = StateOf(cell);
  return state == CellState::kFree || (again && state != CellState::kLive);
}

bool Claim(Cell& cell, uint64_t lease, bool again) {
  uint64_t nobody = 0;
  if (!MayClaim(cell, again)) return false;
  if (!cell.owner.compare_exchange_strong(nobody, lease, std::memory_order_acq_rel)) return false;
  // Another process may have claimed it and ended in between.
  if (!MayClaim(cell, again)) {
    cell.owner.store(0, std::memory_order_release);
    return false;
  }
  // Release: a process that sees the new number also sees that the former owner has ended.
  const uint64_t tenure = cell.owners.fetch_add(1, std::memory_order_release) + 1;
  for (Word& word : cell.words) word.store(0, std::memory_order_relaxed);
  cell.last.store(0, std::memory_order_relaxed);
  cell.value.store(0, std::memory_order_relaxed);
  cell.state.store(StateWord(CellState::kLive, tenure), std::memory_order_release);
  return true;
}

// The owner's process and a broker can end the same cell. The one that changes `state` ends it.
// That word also has the tenure, so a process that was stopped before this step changes nothing of
// the next owner's. `finish`: also completes a cell that has ended but still has its owner, because
// its ender was killed.
static bool End(Cell& cell, uint64_t lease, CellState how, bool finish) {
  uint64_t state = cell.state.load(std::memory_order_acquire);  // Read before the owner.
  if (lease == 0 || cell.owner.load(std::memory_order_acquire) != lease) return false;
  const uint64_t value = cell.value.load(std::memory_order_acquire);
  // Above kMaxValue, a broker that was killed here has already stored `last` and the poison.
  if (value <= kMaxValue) cell.last.store(value, std::memory_order_relaxed);
  const auto was = static_cast<CellState>(static_cast<uint32_t>(state));
  const bool ended = was == CellState::kDied || was == CellState::kLeft;
  if (ended && !finish) return false;
  if (!ended && !cell.state.compare_exchange_strong(state, StateWord(how, state >> kTenureShift),
                                                    std::memory_order_acq_rel)) {
    return false;
  }
  cell.value.store(kPoison, std::memory_order_release);
  cell.owner.store(0, std::memory_order_release);
  WakeSleepers(cell);
  return true;
}

bool EndCell(Cell& cell, uint64_t lease, CellState how) {
  return End(cell, lease, how, /*finish=*/false);
}

size_t EndCellsOf(const Page& page, uint64_t lease, CellState how) {
  size_t ended = 0;
  for (uint32_t i = 0; i < page.cells(); ++i) {
    ended += End(page.cell(i), lease, how, /*finish=*/true) ? 1 : 0;
  }
  return ended;
}

void EndCellsOfOthers(const Page& page, const std::set<uint64_t>& leases) {
  for (uint32_t i = 0; i < page.cells(); ++i) {
    Cell& cell = page.cell(i);
    const uint64_t owner = cell.owner.load(std::memory_order_acquire);
    if (owner == 0 || leases.contains(owner)) continue;
    if (StateOf(cell) == CellState::kLeft) {
      cell.value.store(kPoison, std::memory_order_release);
      WakeSleepers(cell);
    } else {
      End(cell, owner, CellState::kDied, /*finish=*/true);
    }
  }
}

void KeepPoison(Cell& cell) {
  const CellState state = StateOf(cell);
  if (state != CellState::kDied && state != CellState::kLeft) return;
  if (cell.value.load(std::memory_order_acquire) > kMaxValue) return;
  cell.value.store(kPoison, std::memory_order_release);
}

Reading Read(const Cell& cell) {
  Reading reading;
  reading.value = cell.value.load(std::memory_order_acquire);
  reading.state = StateOf(cell);
  if (reading.value > kMaxValue || reading.ended()) {
    if (!reading.ended()) reading.state = CellState::kDied;
    reading.value = cell.last.load(std::memory_order_relaxed);
  }
  return reading;
}

// The half of the word that a futex uses. Not private: the sleepers are other processes.
uint32_t* FutexOf(Word& word) {
  static_assert(std::endian::native == std::endian::little);
  return reinterpret_cast<uint32_t*>(&word);
}

void WakeSleepers(Cell& cell) {
  // Both are in one order with SleepOn: either this sees the sleeper, or the sleeper sees the wake.
  cell.wakes.fetch_add(1, std::memory_order_seq_cst);
  if (cell.sleepers.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, FutexOf(cell.wakes), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void SleepOn(Cell& cell, uint64_t wakes, int64_t at_most_ns) {
  const timespec time{.tv_sec = at_most_ns / kNsPerSecond, .tv_nsec = at_most_ns % kNsPerSecond};
  cell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, FutexOf(cell.wakes), FUTEX_WAIT, static_cast<uint32_t>(wakes), &time, nullptr,
          0);
  cell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Poll::Sleep(int64_t ns) {
  if (cell_ != nullptr) {
    SleepOn(*cell_, wakes_, ns);
    wakes_ = cell_->wakes.load(std::memory_order_acquire);
  } else {
    const timespec time{.tv_sec = 0, .tv_nsec = ns};
    nanosleep(&time, nullptr);
  }
}

bool Poll::Again() {
  if (sleep_ns_ == 0) {
    Pause();
    if (++looks_ % kLooksBetweenClocks != 0) return true;
    const int64_t now_ns = MonotonicNs();
    if (spin_until_ns_ == 0) spin_until_ns_ = now_ns + kSpinNs;
    if (now_ns < spin_until_ns_) return !deadline_.Passed();
    sleep_ns_ = kFirstSleepNs;
  }
  const int64_t left_ns = deadline_.RemainingNs();
  if (left_ns == 0) return false;
  Sleep(std::min(sleep_ns_, left_ns));
  sleep_ns_ =
      std::min(sleep_ns_ * 3 / 2, cell_ != nullptr ? kLongestSleepOnCellNs : kLongestSleepNs);
  return true;
}

std::optional<Status> EndedBefore(const Reading& reading, uint64_t value) {
  if (!reading.ended() || reading.value >= value) return std::nullopt;
  return Status(reading.end(),
                Concat("its writer ", reading.end() == Code::kEnded ? "closed it" : "died", " at ",
                       reading.value, ", before ", value),
                "open it again: its next writer makes a new generation");
}

Result<Reading> WaitUntil(const Cell& cell, uint64_t value, const Deadline& deadline) {
  for (Poll poll(deadline);;) {
    const Reading reading = Read(cell);
    if (reading.value >= value) return reading;
    if (auto ended = EndedBefore(reading, value)) return std::unexpected(*ended);
    if (!poll.Again()) {
      return Fail(Code::kTimeout, Concat("its value is ", reading.value, ", not yet ", value),
                  "check that the writer is running, or use a larger timeout_ms");
    }
  }
}

}  // namespace gpushm::sync
