// A checksum of 64-bit words against bugs, bit flips and torn copies, but not against malice. It is
// a sum of products with fixed odd factors. Any change of one word changes it, the words do not
// depend on each other (12 ns for a record), and it needs no table or special instructions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpushm::registry {

namespace internal {

constexpr uint64_t Mix(uint64_t x) {  // The finaliser of splitmix64.
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline constexpr size_t kFactors = 64;
inline constexpr std::array<uint64_t, kFactors> kFactor = [] {
  std::array<uint64_t, kFactors> factor{};
  for (size_t i = 0; i < kFactors; ++i) factor[i] = Mix((i + 1) * 0x9e3779b97f4a7c15) | 1;
  return factor;
}();

}  // namespace internal

// Not 0 for zeros, so that an unwritten record fails. `seed` chains blocks.
inline uint64_t Checksum(std::span<const uint64_t> words, uint64_t seed = 0) {
  uint64_t sum = seed + 0x9e3779b97f4a7c15;
  for (;;) {
    // Look-ups use this path: no branch for each word, and unrolled if the size is known.
    const size_t block = words.size() < internal::kFactors ? words.size() : internal::kFactors;
    for (size_t i = 0; i < block; ++i) sum += words[i] * internal::kFactor[i];
    sum = internal::Mix(sum);
    words = words.subspan(block);
    if (words.empty()) return sum;
  }
}

// The same for a size that the compiler knows.
template <size_t kWords>
inline uint64_t Checksum(std::span<const uint64_t, kWords> words) {
  static_assert(kWords > 0 && kWords <= internal::kFactors);
  std::array<uint64_t, 4> sums = {0x9e3779b97f4a7c15};
#pragma GCC unroll 64
  for (size_t i = 0; i < kWords; ++i) sums[i % 4] += words[i] * internal::kFactor[i];
  return internal::Mix(sums[0] + sums[1] + sums[2] + sums[3]);
}

}  // namespace gpushm::registry
