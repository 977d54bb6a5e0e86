#include "runtime/daemon/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/base/clock.h"

namespace gpushm {
namespace {

std::atomic<bool> json{false};
std::atomic<uint64_t> lost_lines{0};

// Standard error, without ever waiting for whoever reads it: a line that finds no room is lost and
// counted. A pipe that poll() calls writable takes PIPE_BUF bytes at once.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t at = 0; at < line.size();) {
      pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      const size_t size = std::min<size_t>(line.size() - at, PIPE_BUF);
      const ssize_t wrote = poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0
                                ? write(STDERR_FILENO, line.data() + at, size)
                                : -1;
      if (wrote <= 0) {
        lost_lines.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      at += static_cast<size_t>(wrote);
    }
  }
  void flush_() override {}
};

// Lines of one event within a window: enough to see what goes on, too few to fill a disk.
constexpr int kLinesPerWindow = 20;
constexpr int64_t kWindowMs = 10'000;

// How many lines of an event have been written and left out in its window.
class Limiter {
 public:
  // Whether this line may be written; `suppressed` is what was left out since the last one.
  bool Admit(std::string_view event, uint64_t* suppressed) {
    const std::lock_guard lock(mutex_);
    Window& window = windows_[std::string(event)];  // Events are a few literals.
    const int64_t now_ns = MonotonicNs();
    if (now_ns - window.start_ns > kWindowMs * 1'000'000) {
      window.start_ns = now_ns;
      window.lines = 0;
    }
    if (window.lines >= kLinesPerWindow) {
      ++window.suppressed;
      return false;
    }
    ++window.lines;
    *suppressed = std::exchange(window.suppressed, 0);
    return true;
  }

 private:
  struct Window {
    int64_t start_ns = 0;
    int lines = 0;
    uint64_t suppressed = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Window> windows_;
};

Limiter& TheLimiter() {
  static Limiter* const limiter = new Limiter();  // Never destroyed: threads may log to the end.
  return *limiter;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
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

void ConfigureLog(const LogConfig& config) {
  json = config.format == LogFormat::kJson;
  const auto logger = std::make_shared<spdlog::logger>("gpushm", std::make_shared<StderrSink>());
  logger->set_level(ToSpdlog(config.level));
  logger->set_pattern(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %l %v",
      spdlog::pattern_time_type::utc);
  spdlog::set_default_logger(logger);
}

void Log(LogLevel level, std::string_view event, std::initializer_list<Field> fields) {
  uint64_t suppressed = 0;
  if (!TheLimiter().Admit(event, &suppressed)) return;
  std::string line = json ? "\"event\":" + Quote(event) : std::string(event);
  const auto add = [&](const Field& field) {
    if (json) {
      line +=
          "," + Quote(field.key()) + ":" + (field.quoted() ? Quote(field.value()) : field.value());
    } else {
      const bool plain = !field.quoted() || IsPlain(field.value());
      line += " " + field.key() + "=" + (plain ? field.value() : Quote(field.value()));
    }
  };
  for (const Field& field : fields) add(field);
  if (suppressed > 0) add({"suppressed", suppressed});
  const uint64_t lost = lost_lines.exchange(0, std::memory_order_relaxed);
  if (lost > 0) add({"lost_lines", lost});
  spdlog::default_logger_raw()->log(ToSpdlog(level),
                                    spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace gpushm
