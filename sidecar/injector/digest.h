// FNV-1a. It distinguishes texts, but it does not resist deliberate collisions.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpushm::injector {

inline constexpr uint64_t kEmptyDigest = 14695981039346656037U;

// The digest of what `digest` stands for and of `text` after it.
constexpr uint64_t AddToDigest(uint64_t digest, std::string_view text) {
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return digest;
}

}  // namespace gpushm::injector
