#include "platform/base/quote.h"

#include <cstdint>

namespace gpushm {
namespace {

constexpr size_t kQuotedBytes = 96;

}  // namespace

std::string Quote(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    if (out.size() > kQuotedBytes) return out + "...\"";
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + "\"";
}

}  // namespace gpushm
