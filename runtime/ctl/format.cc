#include "runtime/ctl/format.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "platform/base/utf8.h"
#include "platform/driver/device.h"

namespace gpushm::ctl {
namespace {

constexpr std::array<std::string_view, 7> kBinary = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
constexpr int64_t kSecondNs = 1'000'000'000;

// Three significant digits: 1.50, 86.7, 512.
std::string ThreeDigits(double value) {
  char text[64];
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string_view Escape(Color color) {
  switch (color) {
    case Color::kNone:
      return "";
    case Color::kGreen:
      return "\033[32m";
    case Color::kYellow:
      return "\033[33m";
    case Color::kRed:
      return "\033[31m";
    case Color::kBold:
      return "\033[1m";
    case Color::kDim:
      return "\033[2m";
  }
  return "";
}

// Characters, not bytes. This is good enough here, because names contain no wide characters.
size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

bool IsZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  size_t unit = 0;
  uint64_t whole = bytes;
  while (unit + 1 < kBinary.size() && whole >= 1024 && whole % 1024 == 0) {
    whole /= 1024;
    ++unit;
  }
  if (whole < 10000) return std::to_string(whole) + std::string(kBinary[unit]);
  auto value = static_cast<double>(bytes);
  unit = 0;
  while (unit + 1 < kBinary.size() && value >= 999.5) {
    value /= 1024;
    ++unit;
  }
  return ThreeDigits(value) + std::string(kBinary[unit]);
}

std::string FormatRate(uint64_t bytes, int64_t elapsed_ns) {
  if (elapsed_ns <= 0) return "-";
  double value =
      static_cast<double>(bytes) * static_cast<double>(kSecondNs) / static_cast<double>(elapsed_ns);
  size_t unit = 0;
  while (unit + 1 < kBinary.size() && value >= 999.5) {
    value /= 1024;
    ++unit;
  }
  return ThreeDigits(value) + " " + std::string(kBinary[unit]) + "B/s";
}

std::string FormatAge(int64_t age_ns) {
  if (age_ns < 0) age_ns = 0;
  const int64_t seconds = age_ns / kSecondNs;
  if (seconds == 0 && age_ns > 0) return std::to_string(age_ns / 1'000'000) + "ms";
  const auto two = [](int64_t value, int64_t unit, char name, int64_t next, char next_name) {
    std::string text = std::to_string(value / unit) + name;
    if (const int64_t rest = value % unit / next; rest != 0) {
      text += std::to_string(rest) + next_name;
    }
    return text;
  };
  if (seconds < 60) return std::to_string(seconds) + "s";
  if (seconds < 3600) return two(seconds, 60, 'm', 1, 's');
  if (seconds < 86400) return two(seconds, 3600, 'h', 60, 'm');
  return two(seconds, 86400, 'd', 3600, 'h');
}

std::string FormatTime(int64_t unix_ns) {
  if (unix_ns <= 0) return "";
  const time_t seconds = unix_ns / kSecondNs;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  const size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%09dZ",
                static_cast<int>(unix_ns % kSecondNs));
  return text;
}

std::string FormatUuid(std::span<const uint8_t, 16> bytes) {
  if (IsZero(bytes)) return "";
  GpuUuid uuid;
  std::ranges::copy(bytes, uuid.bytes.begin());
  return uuid.ToString();
}

std::string FormatShortUuid(std::span<const uint8_t, 16> bytes) {
  return FormatUuid(bytes).substr(0, std::string_view("GPU-1b2c3d4e").size());
}

std::string ValidUtf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      out += "\xef\xbf\xbd";
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

std::string Printable(std::string_view text) {
  std::string out = ValidUtf8(text);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<unsigned char>(out[i]);
    if (byte < 0x20 || byte == 0x7f) out[i] = '?';
    // U+0080 to U+009F are control characters, too.
    const bool c1 =
        byte == 0xc2 && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xa0;
    if (c1) out.replace(i, 2, "?");
  }
  return out;
}

std::string Paint(std::string_view text, Color color, bool enabled) {
  if (!enabled || color == Color::kNone || text.empty()) return std::string(text);
  std::string out(Escape(color));
  out += text;
  out += "\033[0m";
  return out;
}

std::string Table::Render(bool color) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = Width(columns_[c].title);
    for (const auto& row : rows_) {
      if (c < row.size()) width = std::max(width, Width(row[c].text));
    }
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](const std::vector<Cell>& row) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const Cell cell = c < row.size() ? row[c] : Cell{};
      const std::string pad(widths[c] - Width(cell.text), ' ');
      const std::string painted = Paint(cell.text, cell.color, color);
      text += columns_[c].right ? pad + painted : painted + pad;
      if (c + 1 < columns_.size()) text += "  ";
    }
    while (text.ends_with(' ')) text.pop_back();
    out += text + '\n';
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.push_back({column.title, Color::kBold});
  line(titles);
  for (const auto& row : rows_) line(row);
  return out;
}

std::string ProgressLine(std::string_view name, uint64_t done_bytes, uint64_t total_bytes,
                         int64_t elapsed_ns, int width) {
  constexpr size_t kBar = 24;
  if (total_bytes == 0) {  // A stream, whose total is not known.
    const std::string text = std::string(name) + "  " + FormatBytes(done_bytes) + "  " +
                             FormatRate(done_bytes, elapsed_ns);
    return text.substr(0, static_cast<size_t>(std::max(width, 1)));
  }
  const uint64_t done = std::min(done_bytes, total_bytes);
  const double part = static_cast<double>(done) / static_cast<double>(total_bytes);
  const auto filled = static_cast<size_t>(part * kBar);
  char percent[16];
  std::snprintf(percent, sizeof percent, "%3d%%", static_cast<int>(part * 100));
  std::string head = std::string(name) + "  ";
  std::string bar = "[" + std::string(filled, '#') + std::string(kBar - filled, '-') + "]  ";
  std::string tail = std::string(percent) + "  " + FormatBytes(done) + " of " +
                     FormatBytes(total_bytes) + "  " + FormatRate(done, elapsed_ns);
  if (done > 0 && done < total_bytes && elapsed_ns > 0) {
    const double left = static_cast<double>(elapsed_ns) * (1.0 - part) / part;
    tail += "  eta " + FormatAge(static_cast<int64_t>(left) / kSecondNs * kSecondNs);
  }
  const auto room = static_cast<size_t>(std::max(width, 1));
  if (head.size() + bar.size() + tail.size() <= room) return head + bar + tail;
  if (bar.size() + tail.size() <= room) return bar + tail;
  return tail.substr(0, room);
}

}  // namespace gpushm::ctl
