#include "contract/sync/queue.h"

#include <algorithm>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::sync {
namespace {

// The holder of an item, in one word, because it changes in one step.
struct Holder {
  uint64_t incarnation = 0;  // 32 bits: Cell::owners when it joined.
  uint32_t delivery = 0;     // 16 bits; stays at the maximum.
  uint32_t cell = 0;         // 16 bits; from 1, so that no claim is 0 or an offer.
};
constexpr uint32_t kMostDeliveries = 0xffff;
// Instead of a cell: the item was given back. No sync page has that many cells, so libraries that
// do not know about giving back see a holder that has ended.
constexpr uint32_t kNobody = 0xffff;

std::unexpected<Status> NotMine(const Frame& item) {
  return Fail(Code::kInvalidArgument, Concat("item ", item.seq, " does not belong to this worker"),
              "end or give back each item once; another worker may have it now");
}

uint64_t Pack(const Holder& holder) {
  return (holder.incarnation & 0xffffffff) << 32 |
         uint64_t{std::min(holder.delivery, kMostDeliveries)} << 16 | holder.cell;
}

Holder Unpack(uint64_t claim) {
  return {.incarnation = claim >> 32,
          .delivery = static_cast<uint32_t>(claim >> 16 & 0xffff),
          .cell = static_cast<uint32_t>(claim & 0xffff)};
}

bool IsHeld(uint64_t claim, uint64_t seq) { return claim != 0 && claim != Offer(seq); }

}  // namespace

Result<QueueWriter> QueueWriter::Open(const Page& page, uint64_t lease) {
  const auto table = ClaimWriter(page, Kind::kQueue, lease);
  if (!table) return std::unexpected(table.error());
  return QueueWriter(*table, lease);
}

bool QueueWriter::Free(uint32_t slot) const {
  // Pairs with the store of the worker's stream: its work on the slot is done.
  const uint64_t seq = seq_of(slot);
  return seq == 0 || table().entry(slot).done.load(std::memory_order_acquire) == seq;
}

Result<QueueWriter::Opened> QueueWriter::OpenFrame(const Deadline& deadline) {
  for (Poll poll(deadline);;) {
    if (const auto may = MayOpen(); !may) return std::unexpected(may.error());
    const auto slot = std::ranges::find_if(slots(), [this](uint32_t s) { return Free(s); });
    if (slot != slots().end()) {
      FrameEntry& entry = table().entry(*slot);
      // Before the item in `seq` changes: a later claim fails, or gets the new item.
      entry.claim.store(0, std::memory_order_release);
      entry.seq.store(0, std::memory_order_release);  // Pairs with Copy.
      return FrameWriter::Open(slot);
    }
    if (!poll.Again()) return std::unexpected(WhyNotYet(slots().front()));
  }
}

LookAgain QueueWriter::Look() const {
  if (frame_is_open()) return LookAgain::kOnAlarm;
  if (!MayOpen()) return LookAgain::kEnded;
  bool taken = false;
  for (uint32_t slot = 0; slot < settings().frames; ++slot) {
    if (Free(slot)) return LookAgain::kNow;
    taken |= IsHeld(table().entry(slot).claim.load(std::memory_order_relaxed), seq_of(slot));
  }
  return taken ? LookAgain::kByTimer : LookAgain::kOnAlarm;
}

Status QueueWriter::WhyNotYet(uint32_t slot) {
  const uint64_t claim = table().entry(slot).claim.load(std::memory_order_relaxed);
  const Holder holder = Unpack(claim);
  const bool held = IsHeld(claim, seq_of(slot)) && holder.cell > 0 && holder.cell < table().cells();
  WaitFor(held ? holder.cell : 0);
  return Status(
      Code::kTimeout,
      Concat("all ", settings().frames, " slots have items. ",
             held ? "A worker holds the oldest item, " : "No worker has taken the oldest item, ",
             seq_of(slot)),
      "use a larger timeout_ms, start workers, or make the queue with a larger frames setting");
}

// ---- workers

QueueWorker::QueueWorker(const FrameTable& table, uint64_t lease, uint32_t cell)
    : table_(table),
      lease_(lease),
      cell_(cell),
      incarnation_(own().owners.load(std::memory_order_relaxed) & 0xffffffff),
      endings_(UINT64_MAX) {}  // Not a number of endings, so the first poll checks all items.

Result<QueueWorker> QueueWorker::Join(const Page& page, uint64_t lease) {
  const auto table = FrameTable::Of(page, Kind::kQueue);
  if (!table) return std::unexpected(table.error());
  const auto cell = table->ClaimReader(lease);
  if (!cell) return std::unexpected(cell.error());
  return QueueWorker(*table, lease, *cell);
}

bool QueueWorker::HasEnded(uint64_t claim) const {
  const Holder holder = Unpack(claim);
  // Not a valid cell: a participant wrote garbage. Then any worker may take the item.
  if (holder.cell == 0 || holder.cell >= table_.cells()) return true;
  const Cell& cell = table_.reader(holder.cell);
  // Both are acquire loads and pair with the broker's stores, or with the Claim of the next owner,
  // which saw them. What the holder's stream stored to `done` is visible after this.
  const CellState state = StateOf(cell);
  const uint64_t owners = cell.owners.load(std::memory_order_acquire);
  return state == CellState::kDied || state == CellState::kLeft ||
         (owners & 0xffffffff) != holder.incarnation;
}

// Number of workers that have ended plus the number of items that were given back. When it grows,
// there may be items that lost their worker. While a worker joins it may be one too low, never one
// too high: a later poll sees an ending that comes after this one.
uint64_t QueueWorker::Endings() const {
  // Pairs with GiveBack.
  uint64_t endings = table_.writer().words[kReturnsWord].load(std::memory_order_acquire);
  for (uint32_t cell = 1; cell < table_.cells(); ++cell) {
    const Cell& worker = table_.reader(cell);
    // The order matters: a worker counted in `owners` has ended if nobody owns the cell afterwards.
    // Acquire pairs with the broker's last store, so that HasEnded sees it, too.
    const uint64_t owners = worker.owners.load(std::memory_order_acquire);
    const bool owned = worker.owner.load(std::memory_order_acquire) != 0;
    endings += owners - (owned && owners != 0 ? 1 : 0);
  }
  return endings;
}

std::optional<Frame> QueueWorker::Take(uint32_t slot, uint64_t claim) {
  FrameEntry& entry = table_.entry(slot);
  const Holder before = Unpack(claim);
  const uint32_t delivery = before.cell == 0 ? 1 : before.delivery + 1;
  const Holder self{.incarnation = incarnation_, .delivery = delivery, .cell = cell_};
  // Acquire pairs with Announce, which offers what it published. From here on the entry does not
  // change until this worker says that it is done (invariant 1).
  if (!entry.claim.compare_exchange_strong(claim, Pack(self), std::memory_order_acq_rel)) {
    return std::nullopt;
  }
  const uint64_t seq = entry.seq.load(std::memory_order_acquire);
  auto item = table_.Copy(slot, seq);
  if (!item || seq == 0) {
    entry.done.store(seq,
                     std::memory_order_release);  // A participant wrote garbage: frees the slot.
    return std::nullopt;
  }
  item->delivery = delivery;
  ++taken_;
  return item;
}

// The first item from *cursor on that nobody has had yet; *cursor moves there.
std::optional<QueueWorker::Candidate> QueueWorker::FindNew(uint64_t newest,
                                                           uint64_t* cursor) const {
  if (newest < *cursor) return std::nullopt;
  // The table has no place for older ones any more. They are taken: workers take in order, and an
  // item that nobody has taken leaves room for at most frames - 1 newer ones.
  if (newest - *cursor >= settings().frames) *cursor = newest - settings().frames + 1;
  for (; *cursor <= newest; ++*cursor) {
    const auto slot = table_.Find(*cursor);
    if (!slot) continue;
    const uint64_t offer = Offer(*cursor);
    if (table_.entry(*slot).claim.load(std::memory_order_relaxed) != offer) continue;
    return Candidate{*slot, offer};  // Take checks it again.
  }
  return std::nullopt;
}

std::optional<Frame> QueueWorker::TakeNew(uint64_t newest) {
  for (; const auto found = FindNew(newest, &cursor_); ++cursor_) {
    if (auto item = Take(found->slot, found->claim)) return item;
  }
  return std::nullopt;
}

// The oldest item that was given back, or whose worker has ended.
std::optional<QueueWorker::Candidate> QueueWorker::FindLost(uint64_t newest) const {
  std::optional<Candidate> oldest;
  uint64_t least = UINT64_MAX;
  for (uint32_t slot = 0; slot < settings().frames; ++slot) {
    const FrameEntry& entry = table_.entry(slot);
    const uint64_t claim = entry.claim.load(std::memory_order_acquire);  // Read before the others.
    const uint64_t seq = entry.seq.load(std::memory_order_acquire);
    if (!IsHeld(claim, seq) || seq == 0 || seq >= least || seq > newest || !HasEnded(claim))
      continue;
    // Final, because the holder has ended. If the slot has moved on since, the claim has changed,
    // too.
    if (entry.done.load(std::memory_order_acquire) == seq) continue;
    oldest = Candidate{slot, claim};
    least = seq;
  }
  return oldest;
}

// `endings` was read before `newest`. So a worker counted in it has claimed no newer item, and the
// next poll handles a worker that ends meanwhile.
std::optional<Frame> QueueWorker::TakeAny(uint64_t newest, uint64_t endings) {
  if (endings == endings_) return std::nullopt;
  for (uint32_t tries = 0; tries < settings().frames; ++tries) {
    const auto found = FindLost(newest);
    if (!found) {
      endings_ = endings;
      return std::nullopt;
    }
    // Otherwise another worker was faster.
    if (auto item = Take(found->slot, found->claim)) return item;
  }
  return std::nullopt;
}

LookAgain QueueWorker::Look() const {
  if (!StillOwned(own(), lease_)) return LookAgain::kEnded;
  const uint64_t endings = Endings();  // As in Next.
  const Reading writer = Read(table_.writer());
  const uint64_t newest = table_.NewestBefore(writer);
  uint64_t cursor = cursor_;
  if (FindNew(newest, &cursor)) return LookAgain::kNow;
  if (endings != endings_ && FindLost(newest)) return LookAgain::kNow;
  if (!writer.ended()) return LookAgain::kOnAlarm;
  return OthersAreDone(newest) ? LookAgain::kEnded : LookAgain::kByTimer;
}

bool QueueWorker::OthersAreDone(uint64_t newest) const {
  for (uint32_t slot = 0; slot < settings().frames; ++slot) {
    const FrameEntry& entry = table_.entry(slot);
    const uint64_t claim = entry.claim.load(std::memory_order_acquire);
    const uint64_t seq = entry.seq.load(std::memory_order_acquire);
    if (claim == 0 || seq == 0 || seq > newest) continue;
    if (entry.done.load(std::memory_order_acquire) == seq) continue;
    const Holder holder = Unpack(claim);
    const bool mine = holder.cell == cell_ && holder.incarnation == incarnation_;
    if (!mine) return false;
  }
  return true;
}

Result<Frame> QueueWorker::Next(const Deadline& deadline) {
  for (Poll poll(deadline, &table_.writer());;) {
    if (const auto owned = StillOwned(own(), lease_); !owned) {
      return std::unexpected(owned.error());
    }
    // Read before the number, so that the claims of ended workers are visible.
    const uint64_t endings = Endings();
    const Reading writer = Read(table_.writer());
    const uint64_t newest = table_.NewestBefore(writer);
    if (auto item = TakeAny(newest, endings)) return *std::move(item);
    if (auto item = TakeNew(newest)) return *std::move(item);
    if (writer.ended() && OthersAreDone(newest)) {
      return std::unexpected(NoMore(writer, newest));
    }
    if (!poll.Again()) {
      return Fail(
          Code::kTimeout,
          Concat(writer.ended() ? "the writer has ended, and other workers have its last items"
                                : "no item is available for this worker",
                 ": the newest is ", newest),
          "use a larger timeout_ms");
    }
  }
}

Result<void> QueueWorker::Check(uint64_t seq) const {
  if (const auto complete = table_.Complete(seq); !complete) return complete;
  return StillOwned(own(), lease_);
}

Result<Point> QueueWorker::Done(const Frame& item) const {
  if (item.slot < settings().frames) {
    FrameEntry& entry = table_.entry(item.slot);
    const Holder holder = Unpack(entry.claim.load(std::memory_order_relaxed));
    const bool mine = holder.cell == cell_ && holder.incarnation == incarnation_;
    if (mine && entry.seq.load(std::memory_order_relaxed) == item.seq) {
      return Point{&entry.done, item.seq};
    }
  }
  return NotMine(item);
}

Result<void> QueueWorker::GiveBack(const Frame& item) const {
  if (const auto point = Done(item); !point) return std::unexpected(point.error());
  FrameEntry& entry = table_.entry(item.slot);
  uint64_t claim = entry.claim.load(std::memory_order_relaxed);
  Holder nobody = Unpack(claim);
  nobody.cell = kNobody;
  // Fails if the broker has ended this worker and another one has the item.
  if (!entry.claim.compare_exchange_strong(claim, Pack(nobody), std::memory_order_acq_rel)) {
    return NotMine(item);
  }
  table_.writer().words[kReturnsWord].fetch_add(1, std::memory_order_release);
  WakeSleepers(table_.writer());
  return {};
}

Result<void> QueueWorker::DoneNow(const Frame& item) const {
  const auto point = Done(item);
  if (!point) return std::unexpected(point.error());
  point->word->store(point->value, std::memory_order_release);  // Pairs with Free.
  return {};
}

}  // namespace gpushm::sync
