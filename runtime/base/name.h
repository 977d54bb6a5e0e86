// The rule for names of buffers and containers, the same for annotations, messages, the registry
// and the library's callers.
#pragma once

#include <algorithm>
#include <string_view>

#include "runtime/base/limits.h"

namespace gpushm {

// RFC 1123: 1 to 63 of a-z, 0-9 and '-', neither first nor last a '-'. Fits an annotation's key.
constexpr bool IsDnsLabel(std::string_view text) {
  if (text.empty() || text.size() > limits::kNameBytes) return false;
  if (text.front() == '-' || text.back() == '-') return false;
  return std::ranges::all_of(
      text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

}  // namespace gpushm
