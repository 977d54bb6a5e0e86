#include "contract/tensors/dtype.h"

#include <gtest/gtest.h>

#include <array>

namespace gpushm::tensors {
namespace {

TEST(DTypeTest, EveryNumberHasANameAndASize) {
  for (uint16_t number = 1; number <= kMaxDType; ++number) {
    const auto dtype = static_cast<DType>(number);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype) << DTypeName(dtype);
    EXPECT_GT(DTypeBits(dtype), 0U) << DTypeName(dtype);
    EXPECT_NE(DTypeNames().find(DTypeName(dtype)), std::string::npos);
  }
  EXPECT_FALSE(IsDType(0));
  EXPECT_FALSE(IsDType(kMaxDType + 1));
  EXPECT_EQ(DTypeName(static_cast<DType>(0)), "?");
  EXPECT_EQ(DTypeBits(static_cast<DType>(kMaxDType + 1)), 0U);
  EXPECT_FALSE(ParseDType("f32"));
  EXPECT_FALSE(ParseDType(""));
}

// Goal: the rows of the table stand at their numbers, which tables and programs have stored.
TEST(DTypeTest, NumbersStay) {
  EXPECT_EQ(DTypeName(DType::kBool), "BOOL");
  EXPECT_EQ(DTypeName(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(DTypeName(DType::kF8E5M2Fnuz), "F8_E5M2FNUZ");
  EXPECT_EQ(DTypeName(DType::kBF16), "BF16");
  EXPECT_EQ(DTypeName(DType::kF32), "F32");
  EXPECT_EQ(DTypeName(DType::kC64), "C64");
  EXPECT_EQ(DTypeName(DType::kU64), "U64");
  EXPECT_EQ(DTypeName(DType::kF4), "F4");
  EXPECT_EQ(DTypeName(DType::kF6E2M3), "F6_E2M3");
  EXPECT_EQ(DTypeName(DType::kF6E3M2), "F6_E3M2");
  EXPECT_EQ(static_cast<int>(DType::kF32), 15);
  EXPECT_EQ(DTypeBits(DType::kF6E3M2), 6U);
  EXPECT_EQ(DTypeBits(DType::kC64), 64U);
}

std::optional<uint64_t> Bytes(DType dtype, std::vector<uint64_t> shape) {
  return TensorBytes(dtype, shape);
}

TEST(DTypeTest, SizesOfTensors) {
  EXPECT_EQ(Bytes(DType::kF32, {}), 4U);
  EXPECT_EQ(Bytes(DType::kF32, {2, 3}), 24U);
  EXPECT_EQ(Bytes(DType::kF32, {0}), 0U);
  EXPECT_EQ(Bytes(DType::kF4, {2}), 1U);
  EXPECT_EQ(Bytes(DType::kF6E2M3, {4}), 3U);
  EXPECT_EQ(Bytes(DType::kU8, {uint64_t{1} << 60}), uint64_t{1} << 60);
}

TEST(DTypeTest, RefusesSizesThatOverflowOrEndInsideOfAByte) {
  EXPECT_FALSE(Bytes(DType::kF4, {3}));
  EXPECT_FALSE(Bytes(DType::kF4, {}));
  EXPECT_FALSE(Bytes(DType::kF6E3M2, {2}));
  EXPECT_FALSE(Bytes(DType::kU8, {uint64_t{1} << 61}));
  EXPECT_FALSE(Bytes(DType::kU8, {uint64_t{1} << 32, uint64_t{1} << 32}));
  // The product overflows before the 0 comes, as in the reference implementation.
  EXPECT_FALSE(Bytes(DType::kU8, {UINT64_MAX, 2, 0}));
  EXPECT_EQ(Bytes(DType::kU8, {0, UINT64_MAX, 2}), 0U);
}

TEST(DTypeTest, ShapesInMessagesAreShort) {
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ShapeText(std::array<uint64_t, 2>{2, 3}), "[2, 3]");
  EXPECT_EQ(ShapeText(std::array<uint64_t, 9>{}), "[0, 0, 0, 0, 0, 0, 0, 0, ...]");
}

}  // namespace
}  // namespace gpushm::tensors
