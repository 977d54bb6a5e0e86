// The numbers of the digest g1 (docs/design/digest.md), which the CPU's code and the GPU's share.
// For CUDA's compiler, too: nothing here needs a library.
#pragma once

#include <cstdint>

namespace gpushm::digest_rule {

// A piece is 32 rows of 32 granules. A column of a piece is the unit whose value is mixed with its
// number.
inline constexpr uint32_t kGranuleBytes = 16;
inline constexpr uint32_t kColumns = 32;
inline constexpr uint32_t kRows = 32;
inline constexpr uint32_t kRowBytes = kColumns * kGranuleBytes;
inline constexpr uint32_t kPieceBytes = kRows * kRowBytes;
static_assert(kPieceBytes == 16384);

inline constexpr uint64_t kSeed = 0x6770757368206731;  // "gpush g1"
inline constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

// Splitmix64's last step: one to one, and each bit of the input changes half of the bits.
constexpr uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Splitmix64's numbers from kSeed.
constexpr uint64_t Number(uint64_t index) { return Mix(kSeed + (index + 1) * kStep); }

// The four words that are added to a granule of a row, as two numbers of two words each; `half` is
// that of the digest.
struct Key {
  uint64_t low;
  uint64_t high;
};
constexpr Key KeyOf(uint32_t row, uint32_t half) {
  return {Number(4 * row + 2 * half), Number(4 * row + 2 * half + 1)};
}

// What a granule of four words adds to its column.
constexpr uint64_t Product(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, Key key) {
  const uint32_t a = w0 + static_cast<uint32_t>(key.low);
  const uint32_t b = w1 + static_cast<uint32_t>(key.low >> 32);
  const uint32_t c = w2 + static_cast<uint32_t>(key.high);
  const uint32_t d = w3 + static_cast<uint32_t>(key.high >> 32);
  return uint64_t{a} * b + uint64_t{c} * d;
}

// What a column, counted from the first byte of the content, adds to a half of the digest.
constexpr uint64_t Column(uint64_t number, uint64_t sum) { return Mix(sum + (number + 1) * kStep); }

// A half of the digest, from the sum of its columns.
constexpr uint64_t Finish(uint64_t sum, uint64_t bytes, uint32_t half) {
  return Mix(sum + Mix(bytes + Number(4 * kRows + half)));
}

}  // namespace gpushm::digest_rule
