#include "contract/tensors/tensor.h"

#include <algorithm>

namespace gpushm::tensors {
namespace {

constexpr size_t kQuotedBytes = 96;

bool IsControl(char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }

// The bytes of the character at the start of `text`, which is not empty; 0: it is not UTF-8.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t bytes = first < 0xc2   ? 0
                       : first < 0xe0 ? 2
                       : first < 0xf0 ? 3
                       : first < 0xf5 ? 4
                                      : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  // No characters that have a shorter form, no halves of UTF-16's pairs, nothing above U+10FFFF.
  const uint8_t second = at(1);
  if (first == 0xe0 && second < 0xa0) return 0;
  if (first == 0xed && second > 0x9f) return 0;
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;
  return bytes;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace

const char* NameProblem(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (std::any_of(name.begin(), name.end(), IsControl)) return "it has a control character";
  return IsUtf8(name) ? nullptr : "it is not UTF-8";
}

const char* TextProblem(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return "it has a NUL character";
  return IsUtf8(text) ? nullptr : "it is not UTF-8";
}

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

}  // namespace gpushm::tensors
