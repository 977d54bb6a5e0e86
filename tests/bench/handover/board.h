// Memory that the endpoints of a run share: whose turn it is, when a consumer had read, and the
// page that streams write to and wait on.
//
// The board times nothing by itself. Producer and consumers store the times that they saw, from a
// clock that all processes share. Every wait has a deadline.
//
// Threads: each field says who writes it; the others read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tests/bench/poll.h"

namespace gpushm::bench::handover {

inline constexpr size_t kMaxPeers = 64;
inline constexpr size_t kMaxSamples = 4096;
inline constexpr size_t kNoteBytes = 192;
inline constexpr size_t kPageBytes = 4096;

// For every field on which a process waits, a release store pairs with the acquire loads in
// WaitUntil.
struct Board {
  // Written by the consumer with that number.
  struct alignas(64) Seat {
    std::atomic<uint64_t> armed;    // It is ready for this hand-over.
    std::atomic<uint64_t> done;     // It has read this one and released it.
    std::atomic<int64_t> read_ns;   // MonotonicNs after the read. Valid once done.
    std::atomic<int64_t> after_ns;  // How long the release took. Valid once done.
    std::atomic<uint32_t> failed;
  };
  struct Sample {
    int64_t before_ns;  // How long the producer took to get memory.
    int64_t ns;         // From "the bytes are on the GPU" until the last consumer's read.
    int64_t after_ns;   // The longest release of a consumer.
  };

  std::array<Seat, kMaxPeers> seats;
  // Written by the producer.
  alignas(64) std::atomic<uint64_t> turn;              // The hand-over that comes next.
  std::atomic<uint64_t> closed;                        // That one is not in this block.
  alignas(64) std::atomic<uint64_t> flag;              // For ways that need a host flag.
  alignas(64) std::array<std::byte, kNoteBytes> note;  // Valid while `flag` says so.
  std::array<Sample, kMaxSamples> samples;             // The parent reads these after the block.
  // A page of its own, registered with the driver: a word that streams write and on which they
  // wait.
  alignas(kPageBytes) std::atomic<uint64_t> signal;
  std::array<std::byte, kPageBytes - sizeof(uint64_t)> rest;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Board) % kPageBytes == 0);

}  // namespace gpushm::bench::handover
