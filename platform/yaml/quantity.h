// Kubernetes' resource.Quantity, as far as bytes and CPUs go.
//
//   number   digits, with an optional leading '+' and an optional fraction: 8, 1.5, .5, 2.
//   suffix   Ki Mi Gi Ti Pi Ei (powers of 1024), k M G T P E (of 1000), or an exponent e3, E-2
//
// As in Kubernetes' "Resource units" page and apimachinery's Quantity, with differences that keep
// mistakes out: the value has to come out in whole bytes or thousandths of a CPU (Kubernetes rounds
// up), the suffixes m, u and n are refused for bytes (400m of memory is a well-known slip for
// 400Mi), negative values are refused, and so is what has no digit (Kubernetes reads "Gi" and "."
// as 0). Exact: no floating point. tests/foreign has all of it as a table.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace gpushm::config {

// The largest quantity of bytes that is accepted: more than any GPU has.
inline constexpr uint64_t kMostBytes = uint64_t{64} << 40;

// The value in bytes, zero included, or the reason why not ("\"8GB\" is not a quantity (write 8Gi
// or 8G)").
std::expected<uint64_t, std::string> ParseBytes(std::string_view text);

// CPUs in thousandths: "250m", "0.25" and "1" are 250, 250 and 1000.
std::expected<uint64_t, std::string> ParseMilliCpus(std::string_view text);

// Whether both are quantities of one value, of any size and precision, however they are written:
// "1500m" and "1.5". What is no quantity, or longer than 64 bytes, is the same as its own text
// only.
bool IsSameQuantity(std::string_view one, std::string_view other);

// The shortest exact form: "8Gi", "1536Mi", "12345". Parses back to the same value.
std::string FormatBytes(uint64_t bytes);

}  // namespace gpushm::config
