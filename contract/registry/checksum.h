// A checksum of 64-bit words against bugs, bit flips and torn copies; not against malice. A sum of
// products with fixed odd factors: any change of one word changes it, the words are independent of
// each other (12 ns for a record), and no table or instruction set is needed.
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

// Never 0 for zeros, so that an unwritten record fails. Chain blocks by `seed`.
inline uint64_t Checksum(std::span<const uint64_t> words, uint64_t seed = 0) {
  uint64_t sum = seed + 0x9e3779b97f4a7c15;
  for (;;) {
    // Look-ups go through here: no branch per word, and unrolled where the size is known.
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
