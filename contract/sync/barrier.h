// A barrier: N participants, each with its own cell, pass a point when all have arrived there. It
// is reusable: the n-th arrival of each participant belongs to the n-th point.
//
// Invariants
//   (1) Cell i counts the arrivals of participant i, or of its stream. Point v is passed when all
//       cells are at v or beyond. So no participant can miss a point, however slow it is.
//   (2) When a participant ends, the barrier is permanently broken for all. The point at which it
//       had arrived is passed if the others arrive there too, so that they agree about it. Later
//       points are never passed, and nobody can join any more. The others make a new generation.
//
// Threads: one thread at a time uses an object. Participants share nothing but the sync page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/sync/frames.h"

namespace gpushm::sync {

class Barrier {
 public:
  Barrier(Barrier&&) = default;
  Barrier& operator=(Barrier&&) = default;
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  ~Barrier() = default;

  // kExhausted: all participants have joined. kStale: one has ended. kInvalidArgument: another kind
  // of sync page.
  static Result<Barrier> Join(const Page& page, uint64_t lease);
  // Whether a participant has ended.
  static bool IsBroken(const Page& page);

  // This participant arrives at its next point; returns its number. kOrphaned: the broker has ended
  // this participant.
  Result<uint64_t> Arrive();
  // The same for a stream, which stores the point once its work before the barrier is done.
  Result<Point> ArriveOnStream();
  // Undoes the last ArriveOnStream if it was not given to the stream.
  void TakeBack() { --arrived_; }

  // Checks once whether all have arrived at `point`. kEnded, kPeerDied as with Wait.
  Result<bool> Passed(uint64_t point) const;
  // Waits until all have arrived at `point`, including those that have yet to join. kTimeout: the
  // text says how many are missing. kPeerDied: one died before it arrived, or before all had
  // joined. kEnded: one left that way, and none died.
  Result<void> Wait(uint64_t point, const Deadline& deadline) const;
  // The points for which the arriving stream waits, one after the other. Each wait ends when that
  // participant ends, if it has joined. Wait says afterwards whether the point was passed.
  std::vector<Point> WaitOnStream(uint64_t point) const;

  // Leases of those that have not arrived at `point`; 0 for one that has not joined.
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

}  // namespace gpushm::sync
