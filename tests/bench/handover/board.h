// Shared memory between the endpoints of a run: whose turn it is, when a consumer had read, and the
// page that streams write to and wait on.
//
// The board times nothing by itself: producer and consumers store what they saw, by a clock that
// all processes share. Every wait has a deadline.
//
// Threads: each field says who writes it; others read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "tests/bench/poll.h"

namespace gpushm::bench::handover {

inline constexpr size_t kMaxPeers = 64;
inline constexpr size_t kMaxSamples = 4096;
inline constexpr size_t kNoteBytes = 192;
inline constexpr size_t kPageBytes = 4096;

// A release store pairs with the acquire loads in WaitUntil, for every field that is waited for.
struct Board {
  // Written by the consumer of that number.
  struct alignas(64) Seat {
    std::atomic<uint64_t> armed;    // It is ready for that hand-over.
    std::atomic<uint64_t> done;     // It has read it and let it go.
    std::atomic<int64_t> read_ns;   // MonotonicNs when it had read. Valid once done.
    std::atomic<int64_t> after_ns;  // What letting it go took. Valid once done.
    std::atomic<uint32_t> failed;
  };
  struct Sample {
    int64_t before_ns;  // What the producer took to have memory for the tensor.
    int64_t ns;         // From "the bytes are there" until the last consumer has read.
    int64_t after_ns;   // The longest that a consumer took to let it go.
  };

  std::array<Seat, kMaxPeers> seats;
  // Written by the producer.
  alignas(64) std::atomic<uint64_t> turn;              // That hand-over will be.
  std::atomic<uint64_t> closed;                        // That one will not be in this block.
  alignas(64) std::atomic<uint64_t> flag;              // The host flag of ways that need one.
  alignas(64) std::array<std::byte, kNoteBytes> note;  // Stands while `flag` says so.
  std::array<Sample, kMaxSamples> samples;             // Read by the parent after the block.
  // A page of its own, registered with the driver: a word that streams write and wait on.
  alignas(kPageBytes) std::atomic<uint64_t> signal;
  std::array<std::byte, kPageBytes - sizeof(uint64_t)> rest;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Board) % kPageBytes == 0);

// A board in this process's memory, unmapped at the end.
class BoardMapping {
 public:
  static Result<UniqueFd> Make();
  static Result<BoardMapping> Map(int fd);
  Board& operator*() const { return *board_; }
  Board* operator->() const { return board_; }

  BoardMapping(BoardMapping&& other) noexcept : board_(std::exchange(other.board_, nullptr)) {}
  BoardMapping& operator=(BoardMapping&&) = delete;
  BoardMapping(const BoardMapping&) = delete;
  BoardMapping& operator=(const BoardMapping&) = delete;
  ~BoardMapping();

 private:
  explicit BoardMapping(Board* board) : board_(board) {}
  Board* board_;
};

}  // namespace gpushm::bench::handover
