#include "contract/tensors/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "contract/tensors/encode.h"
#include "contract/tensors/testing.h"
#include "platform/base/testing_vectors.h"

namespace gpushm::tensors {
namespace {

using testing::Make;
using Bytes = std::vector<std::byte>;

// A buffer of tensors at chosen places, and its digest.
class Set {
 public:
  void Add(const Tensor& tensor, const Bytes& bytes) {
    tensors_.push_back(tensor);
    if (memory_.size() < tensor.offset + bytes.size()) memory_.resize(tensor.offset + bytes.size());
    std::ranges::copy(bytes, memory_.begin() + static_cast<ptrdiff_t>(tensor.offset));
  }
  Digest digest(const Metadata& metadata = {}) const {
    const auto encoded = EncodeTable(tensors_, metadata, memory_.size());
    EXPECT_TRUE(encoded.has_value());
    const auto table = TensorTable::Open(*encoded, memory_.size());
    EXPECT_TRUE(table.has_value());
    std::vector<Digest> parts;
    for (const DigestPart& part : TensorParts(*table)) {
      parts.push_back(DigestOf(std::span(memory_).subspan(part.offset, part.bytes)));
    }
    return TensorsDigest(*table, parts);
  }

 private:
  std::vector<Tensor> tensors_;
  Bytes memory_;
};

Digest OfRaw(const Bytes& bytes) {
  std::vector<Digest> parts;
  for (const DigestPart& part : RawParts(bytes.size())) {
    parts.push_back(DigestOf(std::span(bytes).subspan(part.offset, part.bytes)));
  }
  return RawDigest(bytes.size(), parts);
}

TEST(BufferDigest, IsThatOfTheDesign) {
  const auto vectors = gpushm::testing::Vectors("digest");
  ASSERT_EQ(vectors.size(), 3U);
  for (const auto& [what, digest] : vectors) {
    if (!what.starts_with("tensors")) {
      EXPECT_EQ(OfRaw(gpushm::testing::Pattern(std::stoul(what))).ToString(), digest) << what;
      continue;
    }
    Set set;
    set.Add(Make("a", DType::kF32, {2, 3}, 256), gpushm::testing::Pattern(24));
    set.Add(Make("b.weight", DType::kBF16, {5}, 0), gpushm::testing::Pattern(10));
    set.Add(Make("empty", DType::kU8, {0}, 7), {});
    EXPECT_EQ(set.digest().ToString(), digest);
  }
}

// Goal: only names, types, shapes and bytes count. Method: tensors in every order, at any places,
// with other bytes between them.
TEST(BufferDigest, PlacesOrderPaddingAndMetadataDoNotCount) {
  std::mt19937 random(7);
  std::vector<Tensor> tensors;
  std::vector<Bytes> contents;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(Make("t" + std::to_string(i), i % 2 == 0 ? DType::kBF16 : DType::kU8,
                           {1 + random() % 5, random() % 9000}));
    Bytes& bytes = contents.emplace_back(tensors.back().bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  }
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Digest first;
  for (int round = 0; round < 10; ++round) {
    std::ranges::shuffle(order, random);
    Set set;
    uint64_t end = random() % 500;
    for (const size_t i : order) {
      Tensor tensor = tensors[i];
      tensor.offset = end;
      set.Add(tensor, contents[i]);
      end += tensor.bytes + random() % 500;
    }
    const Digest digest = set.digest({{"round", std::to_string(round)}});
    if (round == 0) first = digest;
    EXPECT_EQ(digest, first) << round;
  }
}

TEST(BufferDigest, NameTypeShapeAndBytesCount) {
  const Bytes bytes = gpushm::testing::Pattern(24);
  const auto of = [&](const Tensor& tensor, const Bytes& content) {
    Set set;
    set.Add(tensor, content);
    return set.digest();
  };
  const Digest digest = of(Make("w", DType::kF32, {2, 3}), bytes);
  EXPECT_NE(of(Make("v", DType::kF32, {2, 3}), bytes), digest);
  EXPECT_NE(of(Make("w", DType::kI32, {2, 3}), bytes), digest);
  EXPECT_NE(of(Make("w", DType::kF32, {3, 2}), bytes), digest);
  EXPECT_NE(of(Make("w", DType::kF32, {6}), bytes), digest);
  EXPECT_NE(of(Make("w", DType::kF32, {2, 3, 1}), bytes), digest);
  Bytes other = bytes;
  other.back() ^= std::byte{1};
  EXPECT_NE(of(Make("w", DType::kF32, {2, 3}), other), digest);
  EXPECT_NE(OfRaw(bytes), digest);
}

// Two tensors of one type and shape that exchange their bytes: a checkpoint that was mixed up.
TEST(BufferDigest, ExchangedTensorsChangeIt) {
  const Bytes a(64, std::byte{1});
  const Bytes b(64, std::byte{2});
  const auto of = [](const Bytes& first, const Bytes& second) {
    Set set;
    set.Add(Make("a", DType::kU8, {64}, 0), first);
    set.Add(Make("b", DType::kU8, {64}, 64), second);
    return set.digest();
  };
  EXPECT_NE(of(a, b), of(b, a));
}

TEST(BufferDigest, NothingHasOneToo) {
  EXPECT_FALSE(OfRaw({}).empty());
  EXPECT_FALSE(Set().digest().empty());
  EXPECT_NE(OfRaw({}), Set().digest());
}

}  // namespace
}  // namespace gpushm::tensors
