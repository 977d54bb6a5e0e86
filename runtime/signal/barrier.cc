#include "runtime/signal/barrier.h"

#include <atomic>
#include <optional>
#include <string>

namespace gpushm::signal {
namespace {

std::unexpected<Status> Broken(uint32_t cell) {
  return Fail(Code::kPeerDied, Concat("the participant in cell ", cell, " has ended"),
              "make a new generation of the barrier");
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
    // Who has seen an end and this cell free knows that nobody takes it. Pairs with the broker's
    // stores: the claim is seen before this look.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!IsBroken(page)) return Barrier(page, lease, i);
    EndCell(page.cell(i), lease, CellState::kLeft);
    return stale();
  }
  return Fail(Code::kExhausted, Concat("all ", page.cells(), " participants are there"),
              "make the barrier for more");
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
  // Release pairs with Wait, or with the wait of a stream: what was done before is seen after it.
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
    if (reading.value < point) return Broken(i);
    ended_cell = i;
  }
  // Who has not joined never will.
  if (!passed && nobody_there && ended_cell) return Broken(*ended_cell);
  return passed;
}

Result<void> Barrier::Wait(uint64_t point, const Deadline& deadline) const {
  for (Poll poll(deadline);;) {
    const Result<bool> passed = Passed(point);
    if (!passed) return std::unexpected(passed.error());
    if (*passed) return {};
    if (!poll.Again()) {
      return Fail(Code::kTimeout, Concat("not yet at point ", point, ": cells", Missing(point)),
                  "are these participants at work? wait longer: timeout_ms");
    }
  }
}

std::string Barrier::Missing(uint64_t point) const {
  std::string cells;
  for (uint32_t i = 0; i < page_.cells(); ++i) {
    if (Read(page_.cell(i)).value < point) cells += Concat(cells.empty() ? " " : ", ", i);
  }
  return cells;
}

std::vector<Point> Barrier::WaitOnStream(uint64_t point) const {
  std::vector<Point> points;
  for (uint32_t i = 0; i < page_.cells(); ++i) {
    if (i != cell_) points.push_back({&page_.cell(i).value, point});
  }
  return points;
}

}  // namespace gpushm::signal
