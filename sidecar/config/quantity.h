// Kubernetes' resource.Quantity, as far as bytes and CPUs go.
//
//   number   digits, with an optional leading '+' and an optional fraction: 8, 1.5, .5, 2.
//   suffix   Ki Mi Gi Ti Pi Ei (powers of 1024), k M G T P E (of 1000), or an exponent e3, E-2
//
// As in Kubernetes' "Resource units" page and apimachinery's Quantity, with three differences that
// keep mistakes out: the value has to come out in whole bytes (Kubernetes rounds up), the suffixes
// m, u and n are refused for bytes (400m of memory is a well-known slip for 400Mi), and negative
// values are refused. Exact: no floating point.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace gpushm::config {

// The value in bytes, zero included, or the reason why not ("\"8GB\" is not a quantity (write 8Gi
// or 8G)").
std::expected<uint64_t, std::string> ParseBytes(std::string_view text);

// CPUs in thousandths: "250m", "0.25" and "1" are 250, 250 and 1000.
std::expected<uint64_t, std::string> ParseMilliCpus(std::string_view text);

// The shortest exact form: "8Gi", "1536Mi", "12345". Parses back to the same value.
std::string FormatBytes(uint64_t bytes);

}  // namespace gpushm::config
