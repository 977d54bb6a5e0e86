// A small JSON writer (RFC 8259) for -o json.
//
// Members appear in the order of the calls, so the output is stable. Text that is not UTF-8 is
// replaced by U+FFFD, and control characters are escaped: the output is always valid JSON.
//
// 64-bit identifiers (generations, leases) are written by Id() as strings, because readers that
// store numbers as doubles (jq, JavaScript) would change them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::ctl {

class JsonWriter {
 public:
  // `indent` 0 puts everything on one line, for streams with one object on each line.
  explicit JsonWriter(int indent = 2) : indent_(indent) {}

  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view key);

  JsonWriter& Text(std::string_view value);
  JsonWriter& Number(uint64_t value);
  JsonWriter& Number(int64_t value);
  // With three decimals; null if not finite.
  JsonWriter& Number(double value);
  JsonWriter& Id(uint64_t value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();

  // Returns the document, with a newline at its end.
  std::string Take();

 private:
  void BeforeValue();
  void NewLine();
  void Raw(std::string_view text);
  void Close(char bracket);

  int indent_;
  std::string out_;
  std::vector<bool> has_members_;  // One for each open object or array.
  bool after_key_ = false;
};

// `text` as a JSON string, with its quotes.
std::string JsonQuote(std::string_view text);

}  // namespace gpushm::ctl
