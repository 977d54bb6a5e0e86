// A barrier: N participants, each with a cell of its own, pass a point when all have arrived there.
// It can be used again and again: the n-th arrival of each belongs to the n-th point.
//
// Invariants
//   (1) Cell i counts the arrivals of participant i, or of its stream. Point v is passed when all
//       cells are at v or beyond. So nobody can miss a point, however slow it is.
//   (2) A participant's end breaks the barrier for all, for good: the point that it had arrived at
//       is passed if the others get there too, so that they agree about it; later ones never are,
//       and nobody joins any more. The others make a new generation.
//
// Threads: an object is used by one thread at a time. Participants share nothing but the page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/sync/frames.h"

namespace gpushm::signal {

class Barrier {
 public:
  Barrier(Barrier&&) = default;
  Barrier& operator=(Barrier&&) = default;
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  ~Barrier() = default;

  // kExhausted: all participants are there. kStale: one has ended.
  // kInvalidArgument: another kind of page.
  static Result<Barrier> Join(const Page& page, uint64_t lease);
  // Whether a participant has ended.
  static bool IsBroken(const Page& page);

  // This participant is at its next point; returns which. kOrphaned: the broker has ended it.
  Result<uint64_t> Arrive();
  // The same for a stream: it stores the point where its work before the barrier is over.
  Result<Point> ArriveOnStream();
  // The last ArriveOnStream, which the stream was not told of.
  void TakeBack() { --arrived_; }

  // One look whether all have arrived at `point`. kEnded, kPeerDied as with Wait.
  Result<bool> Passed(uint64_t point) const;
  // Until all have arrived at `point`, also those that have yet to join.
  // kTimeout says how many are missing. kPeerDied: one died before it arrived, or
  // before all had joined. kEnded: one left so, and none died.
  Result<void> Wait(uint64_t point, const Deadline& deadline) const;
  // What the stream that arrives waits for, one after the other. Each wait ends when that
  // participant ends, if it has joined: Wait says afterwards whether the point was passed.
  std::vector<Point> WaitOnStream(uint64_t point) const;

  // Those that have not arrived at `point`: their leases; 0 for one that has not joined.
  std::vector<uint64_t> Missing(uint64_t point) const;
  // The same in a sentence.
  std::string HowMany(uint64_t point) const;

  uint32_t cell() const { return cell_; }
  uint32_t participants() const { return page_.cells(); }
  uint64_t arrived() const { return arrived_; }

 private:
  Barrier(const Page& page, uint64_t lease, uint32_t cell)
      : page_(page), lease_(lease), cell_(cell) {}

  Page page_;
  uint64_t lease_;
  uint32_t cell_;
  uint64_t arrived_ = 0;
};

}  // namespace gpushm::signal
