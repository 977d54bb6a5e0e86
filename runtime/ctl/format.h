// Numbers, times and tables for people. Pure: no I/O, no locale, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::ctl {

// "8Gi", "1.50Gi", "86.7Mi", "512": exact sizes without decimals, else three significant digits.
std::string FormatBytes(uint64_t bytes);
// "38.2 GiB/s"; "-" if no time has passed.
std::string FormatRate(uint64_t bytes, int64_t elapsed_ns);
// "850ms", "12s", "3m20s", "5h10m", "3d4h": two units, as kubectl's AGE. Negative: "0s".
std::string FormatAge(int64_t age_ns);
// "2026-11-21T11:28:33.123456789Z"; "" for 0.
std::string FormatTime(int64_t unix_ns);
// "GPU-1b2c3d4e-...": the 16 bytes of a UUID; all zero: "".
std::string FormatUuid(std::span<const uint8_t, 16> bytes);
// "GPU-1b2c3d4e": enough to tell a node's GPUs apart.
std::string FormatShortUuid(std::span<const uint8_t, 16> bytes);

// The text, with everything that is not UTF-8 replaced by U+FFFD.
std::string ValidUtf8(std::string_view text);
// As ValidUtf8. Control characters, which could control a terminal, become '?'.
std::string Printable(std::string_view text);

enum class Color { kNone, kGreen, kYellow, kRed, kBold, kDim };
std::string Paint(std::string_view text, Color color, bool enabled);

struct Cell {
  std::string text;
  Color color = Color::kNone;
};

// Columns as wide as their content, with two spaces between them and nothing after the last.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A row has as many cells as there are columns; missing cells are empty.
  void Add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  std::string Render(bool color) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// "weights  [#######-------------]  35%  3.1Gi of 8.9Gi  1.20 GiB/s  eta 5s", at most `width`
// columns, without a newline.
std::string ProgressLine(std::string_view name, uint64_t done_bytes, uint64_t total_bytes,
                         int64_t elapsed_ns, int width);

}  // namespace gpushm::ctl
