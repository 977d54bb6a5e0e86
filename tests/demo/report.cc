#include "tests/demo/report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

namespace gpushm::demo {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

}  // namespace

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line = " ";
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const std::string& cell = rows[r][i];
      const std::string gap(widths[i] - cell.size(), ' ');
      const bool number =
          r > 0 && !cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0]));
      line += " " + (number ? gap + cell : cell + gap) + " ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r != 0) continue;
    size_t total = 2;
    for (const size_t width : widths) total += width + 2;
    text += "  " + std::string(total - 4, '-') + "\n";
  }
  return text;
}

std::string Bytes(uint64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double value = static_cast<double>(bytes);
  if (value >= 1024 * kMiB) return Format("%.2f GiB", value / (1024 * kMiB));
  return Format("%.1f MiB", value / kMiB);
}

std::string Microseconds(double microseconds) {
  if (microseconds < 10) return Format("%.2f us", microseconds);
  if (microseconds < 1000) return Format("%.0f us", microseconds);
  if (microseconds < 1e6) return Format("%.1f ms", microseconds / 1000);
  return Format("%.2f s", microseconds / 1e6);
}

std::string Ratio(double ratio) { return Format(ratio < 10 ? "%.1fx" : "%.0fx", ratio); }

std::string Hex(uint64_t value) {
  return Format("%016llx", static_cast<unsigned long long>(value));
}

}  // namespace gpushm::demo
