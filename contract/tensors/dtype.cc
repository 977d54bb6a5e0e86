#include "contract/tensors/dtype.h"

#include <array>

namespace gpushm::tensors {
namespace {

struct Row {
  std::string_view name;
  uint32_t bits;
};

// In the order of the numbers, from 1 on.
constexpr std::array<Row, kMaxDType> kRows{{
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
    {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
    {"C64", 64},    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6},
}};

const Row* Find(DType dtype) {
  const auto number = static_cast<uint16_t>(dtype);
  return IsDType(number) ? &kRows[number - 1U] : nullptr;
}

constexpr size_t kShownDimensions = 8;

}  // namespace

std::string_view DTypeName(DType dtype) {
  const Row* const row = Find(dtype);
  return row != nullptr ? row->name : "?";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i + 1);
  }
  return std::nullopt;
}

std::string DTypeNames() {
  std::string names;
  for (const Row& row : kRows) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

uint32_t DTypeBits(DType dtype) {
  const Row* const row = Find(dtype);
  return row != nullptr ? row->bits : 0;
}

std::optional<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape) {
  uint64_t elements = 1;
  for (const uint64_t dimension : shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements)) return std::nullopt;
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, uint64_t{DTypeBits(dtype)}, &bits)) return std::nullopt;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    if (i == kShownDimensions) {
      text += "...";
      break;
    }
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace gpushm::tensors
