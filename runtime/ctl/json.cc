#include "runtime/ctl/json.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "runtime/ctl/format.h"

namespace gpushm::ctl {

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  for (const char c : ValidUtf8(text)) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          char escaped[8];
          std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
          out += escaped;
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

void JsonWriter::NewLine() {
  if (indent_ == 0) return;
  out_ += '\n';
  out_.append(has_members_.size() * static_cast<size_t>(indent_), ' ');
}

void JsonWriter::BeforeValue() {
  if (std::exchange(after_key_, false) || has_members_.empty()) return;
  if (has_members_.back()) out_ += indent_ == 0 ? ", " : ",";
  has_members_.back() = true;
  NewLine();
}

void JsonWriter::Raw(std::string_view text) {
  BeforeValue();
  out_ += text;
}

void JsonWriter::Close(char bracket) {
  const bool had_members = has_members_.back();
  has_members_.pop_back();
  if (had_members) NewLine();
  out_ += bracket;
}

JsonWriter& JsonWriter::BeginObject() {
  Raw("{");
  has_members_.push_back(false);
  return *this;
}
JsonWriter& JsonWriter::EndObject() {
  Close('}');
  return *this;
}
JsonWriter& JsonWriter::BeginArray() {
  Raw("[");
  has_members_.push_back(false);
  return *this;
}
JsonWriter& JsonWriter::EndArray() {
  Close(']');
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Raw(JsonQuote(key));
  out_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::Text(std::string_view value) {
  Raw(JsonQuote(value));
  return *this;
}
JsonWriter& JsonWriter::Number(uint64_t value) {
  Raw(std::to_string(value));
  return *this;
}
JsonWriter& JsonWriter::Number(int64_t value) {
  Raw(std::to_string(value));
  return *this;
}
JsonWriter& JsonWriter::Number(double value) {
  if (!std::isfinite(value)) return Null();
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", value);
  Raw(text);
  return *this;
}
JsonWriter& JsonWriter::Id(uint64_t value) { return Text(std::to_string(value)); }
JsonWriter& JsonWriter::Bool(bool value) {
  Raw(value ? "true" : "false");
  return *this;
}
JsonWriter& JsonWriter::Null() {
  Raw("null");
  return *this;
}

std::string JsonWriter::Take() {
  out_ += '\n';
  return std::exchange(out_, {});
}

}  // namespace gpushm::ctl
