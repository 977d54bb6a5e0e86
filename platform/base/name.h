// The rules for names: those of buffers and containers, the same for annotations, messages, the
// registry and the library's callers; and those that Kubernetes gives pods and nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpushm {

// RFC 1123.
inline constexpr size_t kDnsLabelBytes = 63;
// Kubernetes' rule for the names of pods and nodes.
inline constexpr size_t kDnsSubdomainBytes = 253;

// One of a-z, 0-9 and '-' at least, neither first nor last a '-'.
constexpr bool IsDnsPart(std::string_view text) {
  if (text.empty() || text.front() == '-' || text.back() == '-') return false;
  return std::ranges::all_of(
      text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

// RFC 1123: such a part of 63 bytes at most. Fits an annotation's key.
constexpr bool IsDnsLabel(std::string_view text) {
  return text.size() <= kDnsLabelBytes && IsDnsPart(text);
}

// What Kubernetes calls a DNS-1123 subdomain: parts with dots between them, 253 bytes in all. A
// part has no limit of its own: a pod's name may be 253 letters.
constexpr bool IsDnsSubdomain(std::string_view text) {
  if (text.size() > kDnsSubdomainBytes) return false;
  for (;;) {
    const size_t dot = text.find('.');
    if (!IsDnsPart(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

}  // namespace gpushm
