// The log of broker and plugin: one line for each event that an operator cares about, as text or
// JSON. Events have fixed names and key=value fields; nothing is printed at the rate of attaches.
//
// What clients can cause is bounded: of each event, kLinesPerWindow lines in kWindowMs; the next
// line after that says how many were left out (`suppressed`). Of a long value only the beginning
// is written, with a mark that says how many bytes were cut off.
//
// Nothing waits for whoever reads standard error. A pipe gets a line whole or not at all; lines
// that find it full are lost, and the next line that is written counts them (`lost_lines`). Lines
// that the level filters out do not count as anything.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "platform/base/log_config.h"
#include "platform/base/status.h"

namespace gpushm {

// Longer values are cut, so that nothing that somebody sent comes back whole. Of the text as it is
// escaped; less where a line has many long values, because a line has PIPE_BUF bytes at most.
inline constexpr size_t kMaxLogValueBytes = 1024;

// A field's value; numbers print as numbers, text is quoted where it must be.
class Field {
 public:
  Field(std::string_view key, std::string_view value) : key_(key), value_(value), quoted_(true) {}
  Field(std::string_view key, const char* value) : Field(key, std::string_view(value)) {}
  Field(std::string_view key, const std::string& value) : Field(key, std::string_view(value)) {}
  Field(std::string_view key, bool value)
      : key_(key), value_(value ? "true" : "false"), quoted_(false) {}
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  Field(std::string_view key, Number value) : key_(key), value_(Concat(value)), quoted_(false) {}

  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }
  bool quoted() const { return quoted_; }

 private:
  std::string key_;
  std::string value_;
  bool quoted_;
};

// Without it: text, from level info on.
void ConfigureLog(const LogConfig& config);
void Log(LogLevel level, std::string_view event, std::initializer_list<Field> fields);

inline void LogInfo(std::string_view event, std::initializer_list<Field> fields) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(std::string_view event, std::initializer_list<Field> fields) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(std::string_view event, std::initializer_list<Field> fields) {
  Log(LogLevel::kError, event, fields);
}

}  // namespace gpushm
