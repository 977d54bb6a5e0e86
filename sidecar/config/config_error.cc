#include "sidecar/config/config_error.h"

#include <array>
#include <cstdint>

namespace gpushm::config {
namespace {

// Longest text of the configuration's own that a message repeats.
constexpr size_t kQuotedBytes = 96;

// Printable ASCII stays; the rest becomes \xNN, so that a message is one line of clean text.
void AppendEscaped(std::string& out, std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
}

std::string Clean(std::string_view text) {
  std::string out;
  AppendEscaped(out, text.substr(0, 2 * kQuotedBytes));
  if (text.size() > 2 * kQuotedBytes) out += "...";
  return out;
}

}  // namespace

std::string Quote(std::string_view text) {
  std::string out = "\"";
  AppendEscaped(out, text.substr(0, kQuotedBytes));
  if (text.size() > kQuotedBytes) out += "...";
  out += '"';
  return out;
}

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
                Concat("mend the configuration; ", document, " has every key"));
}

}  // namespace gpushm::config
