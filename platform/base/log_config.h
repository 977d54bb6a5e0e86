// How a daemon logs. This is part of its configuration.
#pragma once

namespace gpushm {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;

  friend bool operator==(const LogConfig&, const LogConfig&) = default;
};

}  // namespace gpushm
