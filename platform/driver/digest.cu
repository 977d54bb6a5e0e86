// Digests of ranges of a GPU's memory (docs/design/digest.md). `./run kernels` makes digest.ptx of
// it, and the build machine code of that.
//
// A warp takes a span of pieces, and a lane its column of a piece: 32 rows of 512 bytes, each one
// load of the warp. What a warp collects of a range is added to that range's sums once.
#include <cstdint>

#include "platform/driver/digest_kernel.h"

namespace {

namespace rule = gpushm::digest_rule;
using gpushm::digest_kernel::Range;
using gpushm::digest_kernel::Sums;

struct Pair {
  uint64_t low = 0;
  uint64_t high = 0;
};

__device__ __forceinline__ void AddGranule(uint4 words, uint32_t row, Pair* column) {
  column->low += rule::Product(words.x, words.y, words.z, words.w, rule::KeyOf(row, 0));
  column->high += rule::Product(words.x, words.y, words.z, words.w, rule::KeyOf(row, 1));
}

// The first `bytes` of a granule at any address, then zeros.
__device__ uint4 LoadBytes(const uint8_t* from, uint64_t bytes) {
  uint32_t words[4] = {};
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    if (i < bytes) words[i / 4] |= uint32_t{from[i]} << (8 * (i % 4));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ void AddPiece(const Range& range, uint64_t piece, uint32_t lane,
                                         Pair* sums) {
  const uint64_t offset = piece * rule::kPieceBytes + lane * rule::kGranuleBytes;
  if (offset >= range.bytes) return;
  const uint8_t* const from = reinterpret_cast<const uint8_t*>(range.address) + offset;
  const uint64_t rest = range.bytes - offset;
  const bool aligned = range.address % rule::kGranuleBytes == 0;
  Pair column;
  if (aligned && range.bytes - piece * rule::kPieceBytes >= rule::kPieceBytes) {
#pragma unroll
    for (uint32_t row = 0; row < rule::kRows; ++row) {
      AddGranule(__ldcs(reinterpret_cast<const uint4*>(from + row * rule::kRowBytes)), row,
                 &column);
    }
  } else {
#pragma unroll 1
    for (uint32_t row = 0; row < rule::kRows && row * rule::kRowBytes < rest; ++row) {
      const uint64_t at = row * rule::kRowBytes;
      AddGranule(aligned && rest - at >= rule::kGranuleBytes
                     ? __ldcs(reinterpret_cast<const uint4*>(from + at))
                     : LoadBytes(from + at, rest - at),
                 row, &column);
    }
  }
  const uint64_t number = piece * rule::kColumns + lane;
  sums->low += rule::Column(number, column.low);
  sums->high += rule::Column(number, column.high);
}

__device__ __forceinline__ uint64_t SumOfWarp(uint64_t value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_down_sync(~0u, value, lanes);
  return value;
}

__device__ void Give(Pair* mine, uint32_t lane, Sums* to) {
  const uint64_t low = SumOfWarp(mine->low);
  const uint64_t high = SumOfWarp(mine->high);
  *mine = {};
  if (lane != 0) return;
  atomicAdd(&to->low, low);
  atomicAdd(&to->high, high);
}

// The last range that does not begin after the piece.
__device__ uint32_t RangeOf(const Range* ranges, uint32_t count, uint64_t piece) {
  uint32_t low = 0;
  uint32_t high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (ranges[middle].first_piece <= piece ? low : high) = middle;
  }
  return low;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(gpushm::digest_kernel::kThreads, 4)
    gpushm_digest_g1(const Range* ranges, uint32_t count, uint64_t pieces, Sums* sums) {
  using gpushm::digest_kernel::kSpanPieces;
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t warps = uint64_t{gridDim.x} * (blockDim.x / 32);
  const uint64_t first = uint64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  for (uint64_t piece = first * kSpanPieces; piece < pieces; piece += warps * kSpanPieces) {
    const uint64_t end = piece + kSpanPieces < pieces ? piece + kSpanPieces : pieces;
    uint32_t at = RangeOf(ranges, count, piece);
    Pair mine;
    for (uint64_t next = piece; next < end; ++next) {
      if (at + 1 < count && ranges[at + 1].first_piece <= next) {
        Give(&mine, lane, sums + at);
        do {
          ++at;
        } while (at + 1 < count && ranges[at + 1].first_piece <= next);
      }
      AddPiece(ranges[at], next - ranges[at].first_piece, lane, &mine);
    }
    Give(&mine, lane, sums + at);
  }
}
