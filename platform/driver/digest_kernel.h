// What the digest's kernel gets and gives. The kernel (digest.cu), its caller and the simulated
// driver share it.
#pragma once

#include <cstdint>

#include "platform/base/digest_rule.h"

namespace gpushm::digest_kernel {

// gpushm_digest_g1(const Range* ranges, uint32_t count, uint64_t pieces, Sums* sums)
//
// Adds to each range's sums. `pieces`: of all ranges, at least 1. All pointers are the device's.
inline constexpr char kName[] = "gpushm_digest_g1";

struct Range {
  uint64_t address;
  uint64_t bytes;
  uint64_t first_piece;  // The pieces of all ranges before it.
};
static_assert(sizeof(Range) == 24);

struct Sums {
  unsigned long long low;
  unsigned long long high;
};
static_assert(sizeof(Sums) == 16);

constexpr uint64_t PiecesOf(uint64_t bytes) {
  return (bytes + digest_rule::kPieceBytes - 1) / digest_rule::kPieceBytes;
}

inline constexpr uint32_t kThreads = 256;    // Of a block.
inline constexpr uint32_t kSpanPieces = 16;  // 256 KiB, which a warp reads at a time.

}  // namespace gpushm::digest_kernel
