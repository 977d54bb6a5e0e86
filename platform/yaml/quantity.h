// Kubernetes' resource.Quantity for bytes and CPUs.
//
//   number   digits, with an optional leading '+' and an optional fraction: 8, 1.5, .5, 2.
//   suffix   Ki Mi Gi Ti Pi Ei (powers of 1024), k M G T P E (of 1000), or an exponent e3, E-2
//
// The rules are those of Kubernetes' "Resource units" page and of apimachinery's Quantity, with a
// few differences that prevent mistakes. The value must be a whole number of bytes or of
// thousandths of a CPU (Kubernetes rounds up). The suffixes m, u and n are refused for bytes,
// because 400m of memory is a well-known typing mistake for 400Mi. Negative values are refused, and
// so is a text without a digit (Kubernetes reads "Gi" and "." as 0). So is a number of more than 38
// digits, not counting zeros at both ends (Kubernetes keeps 2^63-1, and nine digits after the
// point). The arithmetic is exact and uses no floating point. tests/foreign has all of this as a
// table.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace gpushm::yaml {

// The largest quantity of bytes that is accepted: more than any GPU has.
inline constexpr uint64_t kMostBytes = uint64_t{64} << 40;

// The value in bytes, which may be zero, or the reason for refusing the text ("\"8GB\" is not a
// quantity (write 8Gi or 8G)").
std::expected<uint64_t, std::string> ParseBytes(std::string_view text);

// CPUs in thousandths: "250m", "0.25" and "1" are 250, 250 and 1000.
std::expected<uint64_t, std::string> ParseMilliCpus(std::string_view text);

// Whether both texts are quantities of the same value, of any size, however they are written
// ("1500m" and "1.5"). A text that is not a quantity is equal only to the same text.
bool IsSameQuantity(std::string_view one, std::string_view other);

// The shortest exact form: "8Gi", "1536Mi", "12345". It parses back to the same value.
std::string FormatBytes(uint64_t bytes);

}  // namespace gpushm::yaml
