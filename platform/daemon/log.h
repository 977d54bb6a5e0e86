// The log of the daemons: one line for each event that matters to an operator, as text or JSON.
// Events have fixed names and key=value fields. Nothing is logged at the rate of attaches.
//
// Events that clients can cause are bounded: each event gets at most kLinesPerWindow lines in
// kWindowMs. The next line after that says how many were left out (`suppressed`). A long value is
// cut, with a mark that says how many bytes are missing.
//
// The log never waits for the reader of standard error. A pipe gets a line whole or not at all.
// Lines that find the pipe full are lost, and the next line that is written counts them
// (`lost_lines`). Lines below the configured level count nowhere.
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

// Longer values are cut, so that a client cannot fill the log with what it sends. The limit applies
// to the escaped text. It is lower in a line with many long values, because a line has at most
// PIPE_BUF bytes.
inline constexpr size_t kMaxLogValueBytes = 1024;

// A field's value. Numbers are printed as numbers; text is quoted where necessary.
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

// Until this is called: text, from level info on.
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
