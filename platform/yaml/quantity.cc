#include "platform/yaml/quantity.h"

#include <algorithm>
#include <array>
#include <optional>

#include "platform/base/status.h"
#include "platform/yaml/config_error.h"

namespace gpushm::yaml {
namespace {

// GCC's and clang's: 38 decimal digits.
__extension__ using Wide = unsigned __int128;

// 2^two x 10^ten
struct Scale {
  int two = 0;
  int ten = 0;
};

// rest x 2^twos x 5^fives, where neither 2 nor 5 divides the rest: one form for each value.
struct Value {
  Wide rest = 0;
  int64_t twos = 0;
  int64_t fives = 0;
  bool operator==(const Value&) const = default;
};

struct Parts {
  std::string_view whole;
  std::string_view fraction;
  std::string_view suffix;
};

std::string_view TakeDigits(std::string_view& text) {
  const size_t size = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, size);
  text.remove_prefix(size);
  return digits;
}

// nullopt if the text does not begin with a number.
std::optional<Parts> Split(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Parts parts;
  parts.whole = TakeDigits(text);
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    parts.fraction = TakeDigits(text);
  }
  if (parts.whole.empty() && parts.fraction.empty()) return std::nullopt;
  parts.suffix = text;
  return parts;
}

// The exponent of "e3" or "E-3", kept within +-10^6, far beyond every limit.
std::optional<int> Exponent(std::string_view suffix) {
  if (suffix.size() < 2 || (suffix[0] != 'e' && suffix[0] != 'E')) return std::nullopt;
  suffix.remove_prefix(1);
  const bool negative = suffix[0] == '-';
  if (negative || suffix[0] == '+') suffix.remove_prefix(1);
  const std::string_view digits = TakeDigits(suffix);
  if (digits.empty() || !suffix.empty()) return std::nullopt;
  int value = 0;
  for (const char c : digits) value = value > 100'000 ? value : value * 10 + (c - '0');
  return negative ? -value : value;
}

std::optional<Scale> ScaleOf(std::string_view suffix) {
  constexpr std::string_view kLarge = "kMGTPE";
  constexpr std::string_view kSmall = "mun";
  if (suffix.empty()) return Scale{};
  if (suffix.size() == 1) {
    if (const size_t at = kLarge.find(suffix); at < kLarge.size()) {
      return Scale{.ten = 3 * (static_cast<int>(at) + 1)};
    }
    if (const size_t at = kSmall.find(suffix); at < kSmall.size()) {
      return Scale{.ten = -3 * (static_cast<int>(at) + 1)};
    }
  }
  if (suffix.size() == 2 && suffix[1] == 'i') {
    const size_t at = suffix[0] == 'K' ? 0 : kLarge.find(suffix[0], 1);
    if (at < kLarge.size()) return Scale{.two = 10 * (static_cast<int>(at) + 1)};
  }
  if (const std::optional<int> exponent = Exponent(suffix)) return Scale{.ten = *exponent};
  return std::nullopt;
}

int64_t TakeFactors(Wide& number, unsigned factor) {
  int64_t count = 0;
  for (; number % factor == 0; ++count) number /= factor;
  return count;
}

// nullopt if there are more digits, besides zeros at both ends, than Wide has.
std::optional<Value> ValueOf(const Parts& parts, Scale scale) {
  Wide number = 0;
  int64_t zeros = 0;  // Since the last other digit.
  for (const std::string_view digits : {parts.whole, parts.fraction}) {
    for (const char c : digits) {
      ++zeros;
      if (c == '0') continue;
      for (; zeros > 0; --zeros) {
        if (__builtin_mul_overflow(number, Wide{10}, &number)) return std::nullopt;
      }
      if (__builtin_add_overflow(number, Wide(c - '0'), &number)) return std::nullopt;
    }
  }
  if (number == 0) return Value{};
  const int64_t ten = scale.ten + zeros - static_cast<int64_t>(parts.fraction.size());
  Value value;
  value.twos = TakeFactors(number, 2) + ten + scale.two;
  value.fives = TakeFactors(number, 5) + ten;
  value.rest = number;
  return value;
}

// What the user most likely meant by an unknown suffix: "8GB" -> 8Gi or 8G.
std::string SuffixHint(const Parts& parts) {
  std::string number(parts.whole);
  if (!parts.fraction.empty()) number += Concat(".", parts.fraction);
  std::string_view suffix = parts.suffix;
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  if (number.size() > 12 || suffix.empty()) return "write, for example, 8Gi or 8G";
  const size_t unit = std::string_view("kmgtpKMGTP").find(suffix[0]);
  if (unit == std::string_view::npos) {
    if (suffix == "B" || suffix == "b" || suffix == "bytes") return Concat("write ", number);
    return "write, for example, 8Gi or 8G";
  }
  const char binary = "KMGTPKMGTP"[unit];
  const char decimal = "kMGTPkMGTP"[unit];
  return Concat("write ", number, binary, "i or ", number, decimal);
}

std::unexpected<std::string> Refuse(std::string_view text, std::string_view why) {
  return std::unexpected(Concat(Quote(text), " ", why));
}

struct Read {
  Value value;
  std::string_view suffix;
};

// `ten`: the value is 10^ten times what the text says.
std::expected<Read, std::string> ReadText(std::string_view text, std::string_view help, int ten) {
  if (text.empty()) return std::unexpected(Concat("is empty (", help, ")"));
  if (text.starts_with('-') && Split(text.substr(1))) return Refuse(text, "is negative");
  const std::optional<Parts> parts = Split(text);
  if (!parts) return Refuse(text, Concat("is not a quantity (", help, ")"));
  std::optional<Scale> scale = ScaleOf(parts->suffix);
  if (!scale) return Refuse(text, Concat("is not a quantity (", SuffixHint(*parts), ")"));
  scale->ten += ten;
  const std::optional<Value> value = ValueOf(*parts, *scale);
  if (!value) return Refuse(text, "has too many digits; at most 38");
  return Read{*value, parts->suffix};
}

std::expected<uint64_t, std::string> Evaluate(std::string_view text, const Value& value,
                                              uint64_t most, std::string_view not_whole,
                                              std::string_view most_text) {
  if (value.twos < 0 || value.fives < 0) return Refuse(text, not_whole);
  Wide number = value.rest;
  for (int64_t i = 0; i < value.fives && number <= most; ++i) number *= 5;
  for (int64_t i = 0; i < value.twos && number <= most; ++i) number *= 2;
  if (number > most) return Refuse(text, Concat("is too large; at most ", most_text));
  return static_cast<uint64_t>(number);
}

}  // namespace

std::expected<uint64_t, std::string> ParseBytes(std::string_view text) {
  const auto read = ReadText(text, "write, for example, 8Gi or 8G", 0);
  if (!read) return std::unexpected(read.error());
  if (read->suffix == "m" || read->suffix == "u" || read->suffix == "n") {
    return Refuse(text, "has a suffix for fractions of a byte (write Mi or M for millions)");
  }
  return Evaluate(text, read->value, kMostBytes, "is not a whole number of bytes",
                  FormatBytes(kMostBytes));
}

std::expected<uint64_t, std::string> ParseMilliCpus(std::string_view text) {
  const auto read = ReadText(text, "write, for example, 250m or 0.25", 3);
  if (!read) return std::unexpected(read.error());
  return Evaluate(text, read->value, 1'000'000, "is finer than a thousandth of a CPU", "1000 CPUs");
}

bool IsSameQuantity(std::string_view one, std::string_view other) {
  if (one == other) return true;
  const auto first = ReadText(one, "", 0);
  const auto second = ReadText(other, "", 0);
  return first && second && first->value == second->value;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"",   "Ki", "Mi", "Gi",
                                                             "Ti", "Pi", "Ei"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return Concat(bytes, kUnits[unit]);
}

}  // namespace gpushm::yaml
