// The rules for names. Buffers and containers follow the same rules in annotations, messages, the
// registry and the library's API. Pods and nodes follow the rules of Kubernetes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpushm {

// RFC 1123.
inline constexpr size_t kDnsLabelBytes = 63;
// Kubernetes' limit for the names of pods and nodes.
inline constexpr size_t kDnsSubdomainBytes = 253;

// One or more of a-z, 0-9 and '-'. The first and the last character are not '-'.
constexpr bool IsDnsPart(std::string_view text) {
  if (text.empty() || text.front() == '-' || text.back() == '-') return false;
  return std::ranges::all_of(
      text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

// RFC 1123: a part as above of at most 63 bytes. It is valid in an annotation's key.
constexpr bool IsDnsLabel(std::string_view text) {
  return text.size() <= kDnsLabelBytes && IsDnsPart(text);
}

// What Kubernetes calls a DNS-1123 subdomain: parts joined by dots, at most 253 bytes in total. A
// part has no limit of its own: a pod's name may be a single part of 253 letters.
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
