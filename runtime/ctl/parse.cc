#include "runtime/ctl/parse.h"

#include <array>
#include <optional>

#include "contract/limits.h"

namespace gpushm::ctl {
namespace {

constexpr std::string_view kQuantityRemedy = "write it as 8Gi, 512Mi, 1.5G or 4096";
constexpr std::string_view kDurationRemedy = "write it as 10s, 500ms, 2m or 1m30s";
constexpr int64_t kLongestMs = int64_t{365} * 24 * 3600 * 1000;
constexpr size_t kMaxDigits = 60;

struct Unit {
  std::string_view text;
  uint64_t factor;
};
constexpr std::array<Unit, 13> kByteUnits = {{{"", 1},
                                              {"Ki", uint64_t{1} << 10},
                                              {"Mi", uint64_t{1} << 20},
                                              {"Gi", uint64_t{1} << 30},
                                              {"Ti", uint64_t{1} << 40},
                                              {"Pi", uint64_t{1} << 50},
                                              {"Ei", uint64_t{1} << 60},
                                              {"k", 1'000},
                                              {"M", 1'000'000},
                                              {"G", 1'000'000'000},
                                              {"T", 1'000'000'000'000},
                                              {"P", 1'000'000'000'000'000},
                                              {"E", 1'000'000'000'000'000'000}}};
constexpr std::array<Unit, 5> kTimeUnits = {
    {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}}};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view TakeDigits(std::string_view* text) {
  size_t count = 0;
  while (count < text->size() && IsDigit((*text)[count])) ++count;
  const std::string_view digits = text->substr(0, count);
  text->remove_prefix(count);
  return digits;
}

struct Number {
  std::string_view whole;
  std::string_view fraction;
};

std::optional<Number> TakeNumber(std::string_view* text) {
  Number number;
  number.whole = TakeDigits(text);
  if (text->starts_with('.')) {
    text->remove_prefix(1);
    number.fraction = TakeDigits(text);
  }
  while (number.fraction.ends_with('0')) number.fraction.remove_suffix(1);
  if (number.whole.empty() && number.fraction.empty()) return std::nullopt;
  if (number.whole.size() + number.fraction.size() > kMaxDigits) return std::nullopt;
  return number;
}

// number x factor. Nothing overflows: the whole part stays below 2^46 x 2^60, and the product of
// the fraction below 10^18 x 2^60.
struct Product {
  uint64_t whole = 0;
  bool exact = true;
};
std::optional<Product> Multiply(const Number& number, uint64_t factor, uint64_t limit) {
  constexpr size_t kFractionDigits = 18;
  __uint128_t whole = 0;
  for (const char c : number.whole) {
    whole = whole * 10 + static_cast<unsigned>(c - '0');
    if (whole > limit) return std::nullopt;
  }
  whole *= factor;
  __uint128_t fraction = 0;
  __uint128_t scale = 1;
  for (const char c : number.fraction.substr(0, kFractionDigits)) {
    fraction = fraction * 10 + static_cast<unsigned>(c - '0');
    scale *= 10;
  }
  fraction *= factor;
  whole += fraction / scale;
  if (whole > limit) return std::nullopt;
  const bool exact = number.fraction.size() <= kFractionDigits && fraction % scale == 0;
  return Product{static_cast<uint64_t>(whole), exact};
}

template <size_t N>
const Unit* FindUnit(const std::array<Unit, N>& units, std::string_view text) {
  for (const Unit& unit : units) {
    if (unit.text == text) return &unit;
  }
  return nullptr;
}

std::unexpected<Status> Bad(std::string_view text, std::string_view why, std::string_view remedy) {
  return Fail(Code::kInvalidArgument, Concat("\"", text, "\" ", why), std::string(remedy));
}

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  std::string_view rest = text;
  const std::optional<Number> number = TakeNumber(&rest);
  const Unit* unit = number ? FindUnit(kByteUnits, rest) : nullptr;
  if (unit == nullptr) return Bad(text, "is not a size", kQuantityRemedy);
  const std::optional<Product> product = Multiply(*number, unit->factor, limits::kBufferBytes);
  if (!product) return Bad(text, "is more than 64Ti, the limit for a buffer", kQuantityRemedy);
  if (!product->exact) return Bad(text, "is not a whole number of bytes", kQuantityRemedy);
  if (product->whole == 0) return Bad(text, "is zero bytes", kQuantityRemedy);
  return product->whole;
}

Result<int64_t> ParseDurationMs(std::string_view text) {
  std::string_view rest = text;
  uint64_t total_ms = 0;
  bool first = true;
  do {
    const std::optional<Number> number = TakeNumber(&rest);
    size_t length = 0;
    while (length < rest.size() && !IsDigit(rest[length]) && rest[length] != '.') ++length;
    const std::string_view name = rest.substr(0, length);
    rest.remove_prefix(length);
    // Only a number that is the whole text may lack a unit.
    const bool bare = name.empty() && first && rest.empty();
    const Unit* unit = number ? FindUnit(kTimeUnits, bare ? "s" : name) : nullptr;
    if (unit == nullptr) return Bad(text, "is not a duration", kDurationRemedy);
    const std::optional<Product> product = Multiply(*number, unit->factor, kLongestMs);
    if (!product) return Bad(text, "is longer than a year", kDurationRemedy);
    total_ms += product->whole + (product->exact ? 0 : 1);
    if (total_ms > kLongestMs) return Bad(text, "is longer than a year", kDurationRemedy);
    first = false;
  } while (!rest.empty());
  return static_cast<int64_t>(total_ms);
}

}  // namespace gpushm::ctl
