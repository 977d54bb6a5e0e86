// The types of a tensor's elements: those of the safetensors format. Their numbers are those of
// GPUSHM_DTYPE_* and of the tensor table. Never renumber them, only append.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::tensors {

enum class DType : uint16_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kF8E5M2 = 4,
  kF8E4M3 = 5,
  kF8E8M0 = 6,
  kF8E4M3Fnuz = 7,
  kF8E5M2Fnuz = 8,
  kI16 = 9,
  kU16 = 10,
  kF16 = 11,
  kBF16 = 12,
  kI32 = 13,
  kU32 = 14,
  kF32 = 15,
  kC64 = 16,  // Complex: two numbers of 32 bits.
  kF64 = 17,
  kI64 = 18,
  kU64 = 19,
  kF4 = 20,      // 4 bits; two elements share a byte.
  kF6E2M3 = 21,  // 6 bits; four elements share three bytes.
  kF6E3M2 = 22,
};
inline constexpr uint16_t kMaxDType = 22;

// Whether the number is one of the types above.
constexpr bool IsDType(uint16_t number) { return number >= 1 && number <= kMaxDType; }

// The name in a safetensors header: "BF16", "F8_E4M3". "?" for a number that IsDType refuses.
std::string_view DTypeName(DType dtype);
std::optional<DType> ParseDType(std::string_view name);
// All names, for the text of an error: "BOOL, U8, ...".
std::string DTypeNames();

// Bits of one element; 0 for a number that IsDType refuses.
uint32_t DTypeBits(DType dtype);

// Bytes of a tensor without padding. An empty shape is one element. Nothing if the product of its
// dimensions (multiplied from the first one on) or its number of bits exceeds 64 bits, or if the
// bits do not fill whole bytes.
std::optional<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape);

// For messages: "[2, 3]". It shows at most eight dimensions.
std::string ShapeText(std::span<const uint64_t> shape);

}  // namespace gpushm::tensors
