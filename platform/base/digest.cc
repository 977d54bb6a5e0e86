#include "platform/base/digest.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gpushm {
namespace {

using namespace digest_rule;

constexpr std::string_view kVersion = "g1:";
constexpr size_t kHalfDigits = 16;

// Two sums of 64 bits, for the first and for the last two words of granules.
#if defined(__SSE2__)
using Words = __m128i;
using Sums = __m128i;

Words LoadWords(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
Sums Plus(Sums sums, Words words, Words key) {
  const Words keyed = _mm_add_epi32(words, key);
  return _mm_add_epi64(sums, _mm_mul_epu32(keyed, _mm_srli_epi64(keyed, 32)));
}
#else
// The compiler makes vector instructions of these.
struct Words {
  std::array<uint32_t, 4> word;
};
struct Sums {
  std::array<uint64_t, 2> sum;
};

Words LoadWords(const void* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
Sums Plus(Sums sums, Words words, Words key) {
  for (size_t i = 0; i < 2; ++i) {
    const uint32_t even = words.word[2 * i] + key.word[2 * i];
    const uint32_t odd = words.word[2 * i + 1] + key.word[2 * i + 1];
    sums.sum[i] += uint64_t{even} * odd;
  }
  return sums;
}
#endif
static_assert(sizeof(Words) == kGranuleBytes && sizeof(Sums) == 16);

// Of one column, by half of the digest.
struct Both {
  Sums low{};
  Sums high{};
};

uint64_t Total(const Sums& sums) {
  std::array<uint64_t, 2> both;
  std::memcpy(both.data(), &sums, sizeof both);
  return both[0] + both[1];
}

// By row, then by half.
constexpr auto kKeys = [] {
  std::array<std::array<Key, 2>, kRows> keys{};
  for (uint32_t row = 0; row < kRows; ++row) {
    keys[row] = {KeyOf(row, 0), KeyOf(row, 1)};
  }
  return keys;
}();

// Four columns at a time: as many as the registers of any processor hold, and a line of its caches.
constexpr uint32_t kTogether = 4;

void AddPiece(uint64_t first_column, const std::byte* piece, DigestSums* to) {
  for (uint32_t column = 0; column < kColumns; column += kTogether) {
    std::array<Both, kTogether> sums{};
    for (uint32_t row = 0; row < kRows; ++row) {
      const std::byte* const line = piece + row * kRowBytes + column * kGranuleBytes;
      // A column has a line of each row only, which no processor foresees.
      __builtin_prefetch(line + kPieceBytes);
      const Words low_key = LoadWords(&kKeys[row][0]);
      const Words high_key = LoadWords(&kKeys[row][1]);
      for (uint32_t i = 0; i < kTogether; ++i) {
        const Words words = LoadWords(line + i * kGranuleBytes);
        sums[i].low = Plus(sums[i].low, words, low_key);
        sums[i].high = Plus(sums[i].high, words, high_key);
      }
    }
    for (uint32_t i = 0; i < kTogether; ++i) {
      to->halves[0] += Column(first_column + column + i, Total(sums[i].low));
      to->halves[1] += Column(first_column + column + i, Total(sums[i].high));
    }
  }
}

// The last piece of a content: its last granule is filled with zeros, and granules that are not
// there add nothing.
void AddLastPiece(uint64_t first_column, std::span<const std::byte> piece, DigestSums* to) {
  const size_t granules = (piece.size() + kGranuleBytes - 1) / kGranuleBytes;
  for (uint32_t column = 0; column < std::min<size_t>(granules, kColumns); ++column) {
    Both sums;
    for (size_t at = column; at < granules; at += kColumns) {
      const std::span<const std::byte> granule = piece.subspan(at * kGranuleBytes);
      std::array<std::byte, kGranuleBytes> filled{};
      std::ranges::copy(granule.first(std::min<size_t>(granule.size(), kGranuleBytes)),
                        filled.begin());
      const Words words = LoadWords(filled.data());
      sums.low = Plus(sums.low, words, LoadWords(&kKeys[at / kColumns][0]));
      sums.high = Plus(sums.high, words, LoadWords(&kKeys[at / kColumns][1]));
    }
    to->halves[0] += Column(first_column + column, Total(sums.low));
    to->halves[1] += Column(first_column + column, Total(sums.high));
  }
}

}  // namespace

void DigestSums::Add(uint64_t offset, std::span<const std::byte> bytes) {
  uint64_t column = offset / kPieceBytes * kColumns;
  for (; bytes.size() >= kPieceBytes; bytes = bytes.subspan(kPieceBytes), column += kColumns) {
    AddPiece(column, bytes.data(), this);
  }
  AddLastPiece(column, bytes, this);
}

Digest DigestSums::Finish(uint64_t bytes) const {
  return {{digest_rule::Finish(halves[0], bytes, 0), digest_rule::Finish(halves[1], bytes, 1)}};
}

Digest DigestOf(std::span<const std::byte> bytes) {
  DigestSums sums;
  sums.Add(0, bytes);
  return sums.Finish(bytes.size());
}

std::string Digest::ToString() const {
  if (empty()) return {};
  std::array<char, 2 * kHalfDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx%016llx",
                static_cast<unsigned long long>(halves[0]),
                static_cast<unsigned long long>(halves[1]));
  return std::string(kVersion) + digits.data();
}

std::optional<Digest> Digest::Parse(std::string_view text) {
  if (!text.starts_with(kVersion) || text.size() != kVersion.size() + 2 * kHalfDigits) return {};
  Digest digest;
  for (size_t i = 0; i < 2; ++i) {
    const char* const from = text.data() + kVersion.size() + i * kHalfDigits;
    const auto parsed = std::from_chars(from, from + kHalfDigits, digest.halves[i], 16);
    if (parsed.ec != std::errc() || parsed.ptr != from + kHalfDigits) return {};
  }
  if (digest.empty()) return {};  // Zeros stand for no digest.
  return digest;
}

}  // namespace gpushm
