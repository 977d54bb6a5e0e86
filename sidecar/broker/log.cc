#include "sidecar/broker/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <memory>

namespace gpushm::broker {
namespace {

std::atomic<bool> json{false};

spdlog::level::level_enum ToSpdlog(config::LogLevel level) {
  switch (level) {
    case config::LogLevel::kDebug:
      return spdlog::level::debug;
    case config::LogLevel::kInfo:
      return spdlog::level::info;
    case config::LogLevel::kWarning:
      return spdlog::level::warn;
    case config::LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// In quotes, with JSON's escapes; control characters cannot forge a line.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

bool IsPlain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:@,").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

}  // namespace

void ConfigureLog(const config::LogConfig& config) {
  json = config.format == config::LogFormat::kJson;
  const auto logger =
      std::make_shared<spdlog::logger>("gpushm", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(ToSpdlog(config.level));
  logger->flush_on(spdlog::level::debug);
  logger->set_pattern(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %l %v",
      spdlog::pattern_time_type::utc);
  spdlog::set_default_logger(logger);
}

void Log(config::LogLevel level, std::string_view event, std::initializer_list<Field> fields) {
  std::string line = json ? "\"event\":" + Quote(event) : std::string(event);
  for (const Field& field : fields) {
    if (json) {
      line +=
          "," + Quote(field.key()) + ":" + (field.quoted() ? Quote(field.value()) : field.value());
    } else {
      const bool plain = !field.quoted() || IsPlain(field.value());
      line += " " + field.key() + "=" + (plain ? field.value() : Quote(field.value()));
    }
  }
  spdlog::default_logger_raw()->log(ToSpdlog(level),
                                    spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace gpushm::broker
