#include "platform/yaml/config_error.h"

#include <array>
#include <cstdint>

namespace gpushm::yaml {
namespace {

// The longest part of the configuration's own text that a message repeats.
constexpr size_t kQuotedBytes = 96;

std::string Escaped(char c) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(c);
  if (byte >= 0x20 && byte < 0x7F) return {c};
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  return {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
}

std::string Clean(std::string_view text) { return Excerpt(text, 2 * kQuotedBytes); }

}  // namespace

std::string Excerpt(std::string_view text, size_t most_bytes) {
  std::string out;
  for (const char c : text) {
    const std::string next = Escaped(c);
    if (out.size() + next.size() > most_bytes) return out + "...";
    out += next;
  }
  return out;
}

std::string Quote(std::string_view text) { return Concat("\"", Excerpt(text, kQuotedBytes), "\""); }

std::string ConfigError::ToString() const {
  std::string out = file.empty() ? Clean(annotation) : file;
  if (line > 0) out += Concat(":", line, ":", column);
  if (!out.empty()) out += ": ";
  if (!file.empty() && !annotation.empty()) out += Clean(annotation) + ": ";
  if (!field.empty()) out += Clean(field) + ": ";
  out += reason;
  if (!example.empty()) out += "; example: " + example;
  return out;
}

Status ToStatus(std::span<const ConfigError> errors, std::string_view document) {
  std::string text;
  for (const ConfigError& error : errors) {
    if (!text.empty()) text += " | ";
    text += error.ToString();
  }
  return Status(Code::kInvalidArgument, std::move(text),
                Concat("fix the configuration; ", document, " lists every key"));
}

}  // namespace gpushm::yaml
