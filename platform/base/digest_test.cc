#include "platform/base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/testing_vectors.h"

namespace gpushm {
namespace {

using digest_rule::kColumns;
using digest_rule::kGranuleBytes;
using digest_rule::kPieceBytes;
using testing::Pattern;
using Bytes = std::vector<std::byte>;

Bytes Random(size_t bytes, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  Bytes made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

TEST(Digest, IsThatOfTheDesign) {
  const auto vectors = testing::Vectors("digest of bytes");
  ASSERT_GE(vectors.size(), 10U);
  for (const auto& [bytes, digest] : vectors) {
    EXPECT_EQ(DigestOf(Pattern(std::stoul(bytes))).ToString(), digest) << bytes;
  }
}

TEST(Digest, TextAndBack) {
  const Digest digest{{0x0123456789abcdef, 0x00000000deadbeef}};
  EXPECT_EQ(digest.ToString(), "g1:0123456789abcdef00000000deadbeef");
  EXPECT_EQ(Digest::Parse(digest.ToString()), digest);
  EXPECT_EQ(Digest::Parse("g1:0123456789ABCDEF00000000DEADBEEF"), digest);
  EXPECT_EQ(Digest{}.ToString(), "");
  for (const char* const wrong :
       {"", "g1:", "0123456789abcdef00000000deadbeef", "g2:0123456789abcdef00000000deadbeef",
        "g1:0123456789abcdef00000000deadbee", "g1:0123456789abcdef00000000deadbeef0",
        "g1:0123456789abcdef00000000deadbeeg", "g1:-123456789abcdef00000000deadbeef",
        "g1:0x23456789abcdef00000000deadbeef", "G1:0123456789abcdef00000000deadbeef"}) {
    EXPECT_EQ(Digest::Parse(wrong), std::nullopt) << wrong;
  }
}

TEST(Digest, DependsOnTheLengthAloneOfZeros) {
  std::set<std::string> seen;
  for (size_t bytes = 0; bytes <= 4 * kPieceBytes; bytes += bytes < 1100 ? 1 : 509) {
    EXPECT_TRUE(seen.insert(DigestOf(Bytes(bytes)).ToString()).second) << bytes;
  }
}

// Goal: each bit of the content counts. Method: flips each bit of a few granules, and one of each
// other granule, also in the last piece, which is not whole.
TEST(Digest, OneFlippedBitChangesBothHalves) {
  Bytes bytes = Random(2 * kPieceBytes + 1000);
  const Digest before = DigestOf(bytes);
  const auto check = [&](size_t byte, unsigned bit) {
    bytes[byte] ^= std::byte{1} << bit;
    const Digest after = DigestOf(bytes);
    bytes[byte] ^= std::byte{1} << bit;
    EXPECT_NE(after.halves[0], before.halves[0]) << byte << ':' << bit;
    EXPECT_NE(after.halves[1], before.halves[1]) << byte << ':' << bit;
  };
  for (size_t byte = 0; byte < 2 * kGranuleBytes; ++byte) {
    for (unsigned bit = 0; bit < 8; ++bit) check(byte, bit);
  }
  for (size_t byte = 7; byte < bytes.size(); byte += 41) check(byte, byte % 8);
}

// Goal: places count. Method: swaps two parts of some sizes, some distances apart.
TEST(Digest, SwappedPartsChangeIt) {
  const Bytes bytes = Random(3 * kPieceBytes);
  const Digest before = DigestOf(bytes);
  for (const size_t size : {1U, 2U, 4U, 8U, 16U, 512U, 16384U}) {
    for (const size_t apart :
         {size, size_t{4}, size_t{8}, size_t{16}, size_t{512}, size_t{1024}, size_t{kPieceBytes}}) {
      if (apart < size) continue;
      Bytes swapped = bytes;
      std::swap_ranges(swapped.begin(), swapped.begin() + static_cast<ptrdiff_t>(size),
                       swapped.begin() + static_cast<ptrdiff_t>(apart));
      EXPECT_NE(DigestOf(swapped), before) << size << " bytes, " << apart << " apart";
    }
  }
}

TEST(Digest, EqualPiecesInAnotherNumberOrOrderChangeIt) {
  const Bytes a = Random(kPieceBytes, 1);
  const Bytes b = Random(kPieceBytes, 2);
  std::set<std::string> seen;
  for (const std::vector<const Bytes*>& order :
       std::vector<std::vector<const Bytes*>>{{&a},
                                              {&a, &a},
                                              {&a, &a, &a},
                                              {&a, &b},
                                              {&b, &a},
                                              {&a, &a, &b},
                                              {&a, &b, &a},
                                              {&b, &a, &a}}) {
    Bytes bytes;
    for (const Bytes* const piece : order) bytes.insert(bytes.end(), piece->begin(), piece->end());
    EXPECT_TRUE(seen.insert(DigestOf(bytes).ToString()).second);
  }
}

// Goal: nothing is lost at the ends. Method: cuts or adds bytes, zeros included.
TEST(Digest, EachLengthHasItsOwn) {
  std::set<std::string> seen;
  Bytes bytes = Random(kPieceBytes + 64);
  std::fill_n(bytes.end() - 80, 80, std::byte{0});
  for (; bytes.size() > kPieceBytes - 64; bytes.pop_back()) {
    EXPECT_TRUE(seen.insert(DigestOf(bytes).ToString()).second) << bytes.size();
  }
}

TEST(Digest, PiecesInAnyOrderAndApart) {
  const Bytes bytes = Random(5 * kPieceBytes + 77);
  const auto all = std::span(bytes);
  DigestSums first;
  DigestSums second;
  second.Add(5 * kPieceBytes, all.subspan(5 * kPieceBytes));
  first.Add(2 * kPieceBytes, all.subspan(2 * kPieceBytes, 3 * kPieceBytes));
  second.Add(kPieceBytes, all.subspan(kPieceBytes, kPieceBytes));
  second.Add(0, all.first(kPieceBytes));
  for (size_t i = 0; i < 2; ++i) first.halves[i] += second.halves[i];
  EXPECT_EQ(first.Finish(bytes.size()), DigestOf(bytes));
}

TEST(Digest, DoesNotDependOnTheAddress) {
  const Bytes bytes = Random(kPieceBytes + 100);
  Bytes room(bytes.size() + 64);
  for (size_t shift = 0; shift < 64; shift += 3) {
    std::ranges::copy(bytes, room.begin() + static_cast<ptrdiff_t>(shift));
    EXPECT_EQ(DigestOf(std::span(room).subspan(shift, bytes.size())), DigestOf(bytes)) << shift;
  }
}

// Goal: no collisions among contents that are alike. Method: 10^5 contents of zeros with one word.
TEST(Digest, SparseContentsDiffer) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  Bytes bytes(kColumns * kGranuleBytes);
  for (size_t at = 0; at + 2 <= bytes.size(); at += 2) {
    for (unsigned value = 1; value < 400; ++value) {
      bytes[at] = static_cast<std::byte>(value);
      bytes[at + 1] = static_cast<std::byte>(value >> 8);
      const Digest digest = DigestOf(bytes);
      EXPECT_TRUE(seen.emplace(digest.halves[0], digest.halves[1]).second);
    }
    bytes[at] = bytes[at + 1] = std::byte{0};
  }
}

}  // namespace
}  // namespace gpushm
