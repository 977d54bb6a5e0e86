// UTF-8 as RFC 3629 defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpushm {

// Length in bytes of the sequence at the start of `text`, which is not empty; 0 if it is invalid.
inline size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) >= 0xA0) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) >= 0x90) return 0;
  return length;
}

// The same of a character that a line of text may have; 0 also for control characters (C0, DEL,
// C1).
inline size_t LineCharacterLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const size_t length = Utf8Length(text);
  if (length == 1 && (byte(0) < 0x20 || byte(0) == 0x7F)) return 0;
  if (length == 2 && byte(0) == 0xC2 && byte(1) < 0xA0) return 0;
  return length;
}

// Whether it is one line of text: valid UTF-8 without control characters. It may be empty.
inline bool IsLine(std::string_view text) {
  while (!text.empty()) {
    const size_t length = LineCharacterLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// `text` as such a line of at most `most_bytes`: other bytes become '?', and what does not fit is
// cut off between two characters.
inline std::string ToLine(std::string_view text, size_t most_bytes) {
  std::string line;
  while (!text.empty()) {
    const size_t length = LineCharacterLength(text);
    const std::string_view character = length == 0 ? "?" : text.substr(0, length);
    if (line.size() + character.size() > most_bytes) break;
    line += character;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return line;
}

}  // namespace gpushm
