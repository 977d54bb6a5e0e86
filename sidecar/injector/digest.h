// FNV-1a. It distinguishes texts, but it does not resist deliberate collisions.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpushm::injector {

inline constexpr uint64_t kEmptyDigest = 14695981039346656037U;

// The digest of what `digest` stands for and of `text` after it.
constexpr uint64_t AddToDigest(uint64_t digest, std::string_view text) {
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return digest;
}

// 16 digits.
inline std::string HexDigits(uint64_t digest) {
  std::string text(16, '0');
  for (char& c : text) {
    c = "0123456789abcdef"[digest >> 60];
    digest <<= 4;
  }
  return text;
}

}  // namespace gpushm::injector
