#include "contract/sync/barrier.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

namespace gpushm::sync {
namespace {

// A participant that learns that another one has ended leaves the barrier itself. So a death is
// reported first, because it is the reason why the others left.
std::unexpected<Status> Broken(const Page& page, uint32_t cell) {
  for (uint32_t i = 0; i < page.cells(); ++i) {
    if (Read(page.cell(i)).state == CellState::kDied) cell = i;
  }
  const Reading gone = Read(page.cell(cell));
  return Fail(gone.end(),
              Concat(gone.end() == Code::kEnded ? "a participant has left" : "a participant died",
                     " after point ", gone.value, " (place ", cell + 1, " of ", page.cells(), ")"),
              "open the barrier again, which makes a new generation");
}

}  // namespace

Result<Barrier> Barrier::Join(const Page& page, uint64_t lease) {
  if (page.kind() != Kind::kBarrier) {
    return Fail(Code::kInvalidArgument,
                Concat("this is a ", KindName(page.kind()), ", not a barrier"));
  }
  const auto stale = [] {
    return Fail(Code::kStale, "a participant of this barrier has ended",
                "make a new generation of the barrier");
  };
  if (IsBroken(page)) return stale();
  for (uint32_t i = 0; i < page.cells(); ++i) {
    if (!Claim(page.cell(i), lease, /*again=*/false)) continue;
    // If a thread sees no end although it has claimed this free cell, nobody can claim it later.
    // Pairs with the broker's stores: the claim is visible before this check.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!IsBroken(page)) return Barrier(page, lease, i);
    EndCell(page.cell(i), lease, CellState::kLeft);
    return stale();
  }
  return Fail(Code::kExhausted, Concat("all ", page.cells(), " participants have already joined"),
              "make the barrier for more participants");
}

bool Barrier::IsBroken(const Page& page) {
  for (uint32_t i = 0; i < page.cells(); ++i) {
    if (Read(page.cell(i)).ended()) return true;
  }
  return false;
}

Result<Point> Barrier::ArriveOnStream() {
  Cell& own = page_.cell(cell_);
  if (const auto owned = StillOwned(own, lease_); !owned) return std::unexpected(owned.error());
  return Point{&own.value, ++arrived_};
}

Result<uint64_t> Barrier::Arrive() {
  const auto point = ArriveOnStream();
  if (!point) return std::unexpected(point.error());
  // Release pairs with Wait, or with the wait of a stream: what was done before is visible after
  // it.
  point->word->store(point->value, std::memory_order_release);
  return point->value;
}

Result<bool> Barrier::Passed(uint64_t point) const {
  bool passed = true;
  bool nobody_there = false;
  std::optional<uint32_t> ended_cell;
  for (uint32_t i = 0; i < page_.cells(); ++i) {
    const Reading reading = Read(page_.cell(i));  // Acquire: pairs with Arrive.
    passed = passed && reading.value >= point;
    nobody_there = nobody_there || reading.state == CellState::kFree;
    if (!reading.ended()) continue;
    if (reading.value < point) return Broken(page_, i);
    ended_cell = i;
  }
  // A participant that has not joined never will.
  if (!passed && nobody_there && ended_cell) return Broken(page_, *ended_cell);
  return passed;
}

Result<void> Barrier::Wait(uint64_t point, const Deadline& deadline) const {
  for (Poll poll(deadline);;) {
    const Result<bool> passed = Passed(point);
    if (!passed) return std::unexpected(passed.error());
    if (*passed) return {};
    if (!poll.Again()) {
      return Fail(Code::kTimeout, HowMany(point),
                  "use a larger timeout_ms, or find out what delays them");
    }
  }
}

std::vector<uint64_t> Barrier::Missing(uint64_t point) const {
  std::vector<uint64_t> leases;
  for (uint32_t i = 0; i < page_.cells(); ++i) {
    const Cell& cell = page_.cell(i);
    if (Read(cell).value < point) leases.push_back(cell.owner.load(std::memory_order_relaxed));
  }
  return leases;
}

std::string Barrier::HowMany(uint64_t point) const {
  const std::vector<uint64_t> missing = Missing(point);
  const auto absent = std::ranges::count(missing, uint64_t{0});
  return Concat(page_.cells() - missing.size(), " of ", page_.cells(), " are at point ", point,
                ", ", absent, " have yet to join");
}

std::vector<Point> Barrier::WaitOnStream(uint64_t point) const {
  std::vector<Point> points;
  for (uint32_t i = 0; i < page_.cells(); ++i) {
    if (i != cell_) points.push_back({&page_.cell(i).value, point});
  }
  return points;
}

}  // namespace gpushm::sync
