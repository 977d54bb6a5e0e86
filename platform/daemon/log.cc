#include "platform/daemon/log.h"

#include <limits.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>

#include "platform/base/clock.h"

namespace gpushm {
namespace {

// Maximum bytes of one line: a pipe takes a line of this size whole or not at all (pipe(7)).
constexpr size_t kMaxLineBytes = PIPE_BUF;
// Of these, the share of the time, the level, the counts at the end and the braces.
constexpr size_t kFrameBytes = 256;

// By LogLevel.
constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};

// Lines of one event within a window: enough to see what goes on, too few to fill a disk.
constexpr int kLinesPerWindow = 20;
constexpr int64_t kWindowMs = 10'000;

struct Window {
  int64_t start_ns = 0;
  int lines = 0;
  uint64_t suppressed = 0;  // Lines left out since the last one that was written.
};

struct State {
  std::mutex mutex;  // Guards the members below.
  LogConfig config;
  bool inside_line = false;                            // A part of a line was written last.
  uint64_t lost_lines = 0;                             // Since the last line that was written.
  std::map<std::string, Window, std::less<>> windows;  // By event, which are a few literals.
};

State& TheState() {
  // Never destroyed, because threads may log until the end.
  static State* const state = new State();
  return *state;
}

// Whether one more line may be written in this window.
bool Admit(Window* window) {
  const int64_t now_ns = MonotonicNs();
  if (now_ns - window->start_ns > kWindowMs * 1'000'000) {
    window->start_ns = now_ns;
    window->lines = 0;
  }
  if (window->lines >= kLinesPerWindow) {
    ++window->suppressed;
    return false;
  }
  ++window->lines;
  return true;
}

// "2026-11-21T11:28:33.123Z"
std::string TimeText() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[64];
  const size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ",
                static_cast<int>(now.tv_nsec / 1'000'000));
  return text;
}

// Writes to standard error, without ever waiting for its reader. A pipe that poll() reports as
// writable has room for PIPE_BUF bytes, so it takes each line whole. A file or a terminal may take
// a part of a line; then the next line starts with a line feed. False: not written as a whole.
bool Write(std::string line, bool* inside_line) {
  if (*inside_line) line.insert(0, "\n");
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  const ssize_t wrote = write(STDERR_FILENO, line.data(), line.size());
  if (wrote <= 0) return false;
  *inside_line = line[static_cast<size_t>(wrote) - 1] != '\n';
  return static_cast<size_t>(wrote) == line.size();
}

// Escapes as in JSON, so that control characters cannot forge a line.
void AppendEscaped(std::string& out, char c) {
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

std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) AppendEscaped(out, c);
  return out + '"';
}

bool IsPlain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:@,").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// True if the byte continues a UTF-8 character: text must not be cut before it.
bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// `value` in at most `room` bytes after escaping; a mark at its end says how much was cut off.
std::string Bounded(std::string_view value, size_t room) {
  size_t fits = 0;       // Bytes of the value that fit.
  size_t with_mark = 0;  // The same with the longest mark after them.
  constexpr size_t kMarkBytes = sizeof("...(18446744073709551615 more bytes)");
  std::string escaped;
  while (fits < value.size()) {
    AppendEscaped(escaped, value[fits]);
    if (escaped.size() > room) break;
    ++fits;
    if (escaped.size() + kMarkBytes <= room) with_mark = fits;
  }
  if (fits == value.size()) return std::string(value);
  while (with_mark > 0 && Continues(value[with_mark])) --with_mark;
  return Concat(value.substr(0, with_mark), "...(", value.size() - with_mark, " more bytes)");
}

// The minimum share of the line for each field: its key and the start of its value.
size_t LeastBytes(const Field& field) {
  constexpr size_t kAround = sizeof(R"(,"":"")");
  constexpr size_t kLeastValueBytes = 64;
  return field.key().size() + kAround + (field.quoted() ? kLeastValueBytes : field.value().size());
}

std::string Shown(const Field& field, bool json, size_t room) {
  if (!field.quoted()) return field.value();
  const std::string value = Bounded(field.value(), std::min(room, kMaxLogValueBytes));
  return !json && IsPlain(value) ? value : Quote(value);
}

}  // namespace

void ConfigureLog(const LogConfig& config) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  state.config = config;
}

// A line below the level takes no place in its event's window and resets no count: only a line that
// is written reports the counts.
void Log(LogLevel level, std::string_view event, std::initializer_list<Field> fields) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (level < state.config.level) return;
  const bool json = state.config.format == LogFormat::kJson;
  Window& window = state.windows.try_emplace(std::string(event)).first->second;
  if (!Admit(&window)) return;
  std::string line = json ? "\"event\":" + Quote(event) : std::string(event);
  const auto add = [&](const Field& field, size_t limit) {
    const std::string key = json ? "," + Quote(field.key()) + ":" : " " + field.key() + "=";
    constexpr size_t kQuotes = 2;
    const size_t used = line.size() + key.size() + kQuotes;
    line += key + Shown(field, json, used < limit ? limit - used : 0);
  };
  size_t limit = kMaxLineBytes - kFrameBytes;
  for (const Field& field : fields) limit -= LeastBytes(field);
  for (const Field& field : fields) {
    limit += LeastBytes(field);
    add(field, limit);
  }
  if (window.suppressed > 0) add({"suppressed", window.suppressed}, kMaxLineBytes);
  if (state.lost_lines > 0) add({"lost_lines", state.lost_lines}, kMaxLineBytes);
  const std::string_view name = kLevels[static_cast<size_t>(level)];
  const std::string whole =
      json ? Concat(R"({"time":")", TimeText(), R"(","level":")", name, R"(",)", line, "}\n")
           : Concat(TimeText(), " ", name, " ", line, "\n");
  if (Write(whole, &state.inside_line)) {
    window.suppressed = 0;
    state.lost_lines = 0;
  } else {
    ++state.lost_lines;
  }
}

}  // namespace gpushm
