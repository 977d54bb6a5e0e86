#include "platform/yaml/quantity.h"

#include <array>
#include <limits>
#include <optional>

#include "platform/base/status.h"
#include "platform/yaml/config_error.h"

namespace gpushm::config {
namespace {

struct Suffix {
  std::string_view text;
  int two;  // The value is 2^two x 10^ten.
  int ten;
};
constexpr std::array<Suffix, 16> kSuffixes = {{{"", 0, 0},
                                               {"Ki", 10, 0},
                                               {"Mi", 20, 0},
                                               {"Gi", 30, 0},
                                               {"Ti", 40, 0},
                                               {"Pi", 50, 0},
                                               {"Ei", 60, 0},
                                               {"k", 0, 3},
                                               {"M", 0, 6},
                                               {"G", 0, 9},
                                               {"T", 0, 12},
                                               {"P", 0, 15},
                                               {"E", 0, 18},
                                               {"m", 0, -3},
                                               {"u", 0, -6},
                                               {"n", 0, -9}}};

// digits x 10^ten x 2^two. The digits have neither leading nor trailing zeros; no digits mean zero.
struct Decimal {
  std::string digits;
  int64_t ten = 0;
  int two = 0;
};

struct Parts {
  std::string_view whole;
  std::string_view fraction;
  std::string_view suffix;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view TakeDigits(std::string_view& text) {
  size_t n = 0;
  while (n < text.size() && IsDigit(text[n])) ++n;
  const std::string_view digits = text.substr(0, n);
  text.remove_prefix(n);
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
  std::string_view rest = suffix;
  const std::string_view digits = TakeDigits(rest);
  if (digits.empty() || !rest.empty()) return std::nullopt;
  int value = 0;
  for (const char c : digits) value = value > 100'000 ? value : value * 10 + (c - '0');
  return negative ? -value : value;
}

std::optional<Suffix> FindSuffix(std::string_view text) {
  for (const Suffix& suffix : kSuffixes) {
    if (suffix.text == text) return suffix;
  }
  if (const std::optional<int> exponent = Exponent(text)) return Suffix{text, 0, *exponent};
  return std::nullopt;
}

void TakeTens(Decimal& value) {
  while (value.digits.ends_with('0')) {
    value.digits.pop_back();
    ++value.ten;
  }
}

Decimal Normalize(const Parts& parts, const Suffix& suffix) {
  Decimal value{std::string(parts.whole) + std::string(parts.fraction),
                -static_cast<int64_t>(parts.fraction.size()) + suffix.ten, suffix.two};
  value.digits.erase(0, value.digits.find_first_not_of('0'));
  TakeTens(value);
  return value;
}

// Divides a decimal text by five. Returns false if there is a remainder.
bool DivideByFive(std::string& digits) {
  int rest = 0;
  for (char& c : digits) {
    const int part = rest * 10 + (c - '0');
    c = static_cast<char>('0' + part / 5);
    rest = part % 5;
  }
  digits.erase(0, digits.find_first_not_of('0'));
  return rest == 0;
}

void Double(std::string& digits) {
  int carry = 0;
  for (size_t i = digits.size(); i-- > 0;) {
    const int twice = 2 * (digits[i] - '0') + carry;
    digits[i] = static_cast<char>('0' + twice % 10);
    carry = twice / 10;
  }
  if (carry != 0) digits.insert(digits.begin(), '1');
}

enum class Outcome { kExact, kNotWhole, kTooLarge };

Outcome Multiply(uint64_t& value, uint64_t factor, int64_t times) {
  for (int64_t i = 0; i < times; ++i) {
    if (value > std::numeric_limits<uint64_t>::max() / factor) return Outcome::kTooLarge;
    value *= factor;
  }
  return Outcome::kExact;
}

// Exact. For a negative power of ten, the digits, which do not end in zero, must be divisible by as
// many fives. The quotient is odd, so all the twos have to come from the suffix.
Outcome Evaluate(Decimal decimal, uint64_t& value) {
  value = 0;
  if (decimal.digits.empty()) return Outcome::kExact;
  if (decimal.ten < 0) {
    // Digits that end in 5 are odd, so each factor of two in the tens must come from the suffix.
    const int64_t tens = -decimal.ten;
    if (tens > decimal.two) return Outcome::kNotWhole;
    for (int64_t i = 0; i < tens; ++i) {
      if (!DivideByFive(decimal.digits)) return Outcome::kNotWhole;
    }
    decimal.two -= static_cast<int>(tens);
    decimal.ten = 0;
  }
  if (decimal.digits.size() > 20) return Outcome::kTooLarge;
  for (const char c : decimal.digits) {
    const auto digit = static_cast<uint64_t>(c - '0');
    if (Multiply(value, 10, 1) != Outcome::kExact) return Outcome::kTooLarge;
    if (value > std::numeric_limits<uint64_t>::max() - digit) return Outcome::kTooLarge;
    value += digit;
  }
  if (Multiply(value, 10, decimal.ten) != Outcome::kExact) return Outcome::kTooLarge;
  return Multiply(value, 2, decimal.two);
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
  Parts parts;
  Suffix suffix;
};

std::expected<Read, std::string> ReadText(std::string_view text, std::string_view help) {
  if (text.empty()) return std::unexpected(Concat("is empty (", help, ")"));
  if (text.starts_with('-') && Split(text.substr(1))) return Refuse(text, "is negative");
  const std::optional<Parts> parts = Split(text);
  if (!parts) return Refuse(text, Concat("is not a quantity (", help, ")"));
  const std::optional<Suffix> suffix = FindSuffix(parts->suffix);
  if (!suffix) return Refuse(text, Concat("is not a quantity (", SuffixHint(*parts), ")"));
  return Read{*parts, *suffix};
}

}  // namespace

std::expected<uint64_t, std::string> ParseBytes(std::string_view text) {
  const auto read = ReadText(text, "write, for example, 8Gi or 8G");
  if (!read) return std::unexpected(read.error());
  const std::string_view unit = read->suffix.text;
  if (unit == "m" || unit == "u" || unit == "n") {
    return Refuse(text, "has a suffix for fractions of a byte (write Mi or M for millions)");
  }
  uint64_t bytes = 0;
  switch (Evaluate(Normalize(read->parts, read->suffix), bytes)) {
    case Outcome::kNotWhole:
      return Refuse(text, "is not a whole number of bytes");
    case Outcome::kExact:
      if (bytes <= kMostBytes) return bytes;
      break;
    case Outcome::kTooLarge:
      break;
  }
  return Refuse(text, Concat("is too large; at most ", FormatBytes(kMostBytes)));
}

std::expected<uint64_t, std::string> ParseMilliCpus(std::string_view text) {
  auto read = ReadText(text, "write, for example, 250m or 0.25");
  if (!read) return std::unexpected(read.error());
  read->suffix.ten += 3;
  uint64_t millis = 0;
  switch (Evaluate(Normalize(read->parts, read->suffix), millis)) {
    case Outcome::kNotWhole:
      return Refuse(text, "is finer than a thousandth of a CPU");
    case Outcome::kExact:
      if (millis <= 1'000'000) return millis;
      break;
    case Outcome::kTooLarge:
      break;
  }
  return Refuse(text, "is too large; at most 1000 CPUs");
}

bool IsSameQuantity(std::string_view one, std::string_view other) {
  constexpr size_t kComparedBytes = 64;
  if (one == other) return true;
  if (one.size() > kComparedBytes || other.size() > kComparedBytes) return false;
  // Digits without a suffix of twos and without trailing zeros are unique for each value.
  const auto read = [](std::string_view text) -> std::optional<Decimal> {
    const auto found = ReadText(text, "");
    if (!found) return std::nullopt;
    Decimal value = Normalize(found->parts, found->suffix);
    for (; value.two > 0; --value.two) Double(value.digits);
    TakeTens(value);
    return value;
  };
  const std::optional<Decimal> first = read(one);
  const std::optional<Decimal> second = read(other);
  if (!first || !second || first->digits != second->digits) return false;
  return first->digits.empty() || first->ten == second->ten;
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

}  // namespace gpushm::config
