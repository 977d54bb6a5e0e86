// The demo's output: plain text tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpushm::demo {

// Columns are as wide as their longest cell; the first row is the heading. Numbers ("1.5 ms") are
// right-aligned.
std::string Table(const std::vector<std::vector<std::string>>& rows);

std::string Bytes(uint64_t bytes);              // "86.7 MiB"
std::string Microseconds(double microseconds);  // "64 us", "2.4 ms"
std::string Ratio(double ratio);                // "37x"
std::string Hex(uint64_t value);                // 16 digits

}  // namespace gpushm::demo
