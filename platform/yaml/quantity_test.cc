#include "platform/yaml/quantity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "platform/base/status.h"

namespace gpushm::yaml {
namespace {

TEST(QuantityTest, KnownValues) {
  const std::vector<std::pair<std::string, uint64_t>> known = {
      {"0", 0},
      {"1", 1},
      {"+1", 1},
      {"007", 7},
      {"1Ki", 1024},
      {"8Gi", uint64_t{8} << 30},
      {"8G", 8'000'000'000},
      {"1k", 1000},
      {"1M", 1'000'000},
      {"1T", 1'000'000'000'000},
      {"0.001P", 1'000'000'000'000},
      {"1.5Gi", uint64_t{3} << 29},
      {".5Ki", 512},
      {"2.", 2},
      {"0.5Ki", 512},
      {"1.50000", 0},
      {"1e3", 1000},
      {"1E3", 1000},
      {"1e+3", 1000},
      {"12000e-3", 12},
      {"1.5e1", 15},
      {"64Ti", uint64_t{1} << 46},
      {"0.00006103515625Ei", uint64_t{1} << 46},
      {"0.0009765625Ki", 1},
      {"0e9999999999", 0},
      {"0Ei", 0},
  };
  for (const auto& [text, bytes] : known) {
    const auto parsed = ParseBytes(text);
    if (text == "1.50000") {
      EXPECT_FALSE(parsed);
      continue;
    }
    ASSERT_TRUE(parsed) << text << ": " << parsed.error();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(QuantityTest, Cpus) {
  EXPECT_EQ(ParseMilliCpus("250m"), 250U);
  EXPECT_EQ(ParseMilliCpus("0.25"), 250U);
  EXPECT_EQ(ParseMilliCpus("1"), 1000U);
  EXPECT_EQ(ParseMilliCpus("2e0"), 2000U);
  EXPECT_EQ(ParseMilliCpus("1000000u"), 1000U);
  EXPECT_FALSE(ParseMilliCpus("0.5m"));
  EXPECT_FALSE(ParseMilliCpus("-1"));
  EXPECT_FALSE(ParseMilliCpus(""));
}

TEST(QuantityTest, HasAtMost38Digits) {
  const std::string zeros(1000, '0');
  EXPECT_EQ(ParseBytes(zeros + "1." + zeros + "Ki"), 1024U);
  EXPECT_EQ(ParseBytes("0." + zeros + "1e1001"), 1U);
  EXPECT_NE(ParseBytes("1" + zeros).error().find("too large"), std::string::npos);
  const std::string nines(38, '9');
  EXPECT_NE(ParseBytes(nines).error().find("too large"), std::string::npos);
  EXPECT_NE(ParseBytes("0." + nines).error().find("whole"), std::string::npos);
  EXPECT_NE(ParseBytes(nines + "9").error().find("at most 38"), std::string::npos);
  EXPECT_TRUE(IsSameQuantity(nines + "k", nines + "000.0"));
  EXPECT_FALSE(IsSameQuantity(nines, nines + "." + nines));
  EXPECT_TRUE(IsSameQuantity(nines + "9", nines + "9"));
}

TEST(QuantityTest, FormattedTextParsesBack) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bytes = (random() >> (random() % 64)) % (kMostBytes + 1);
    const auto parsed = ParseBytes(FormatBytes(bytes));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, bytes);
  }
  EXPECT_EQ(FormatBytes(0), "0");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1536Mi");
}

// A number as decimal digits, least significant first. This schoolbook arithmetic shares nothing
// with the code under test.
using Digits = std::vector<int>;

Digits Times(Digits number, int factor) {
  int carry = 0;
  for (int& digit : number) {
    carry += digit * factor;
    digit = carry % 10;
    carry /= 10;
  }
  for (; carry > 0; carry /= 10) number.push_back(carry % 10);
  return number;
}

// whole.fraction x base^power in bytes; nullopt if that is not whole or exceeds the limit.
std::optional<uint64_t> Reference(const std::string& whole, const std::string& fraction, int base,
                                  int power) {
  Digits number;
  const std::string digits = whole + fraction;
  for (auto c = digits.rbegin(); c != digits.rend(); ++c) number.push_back(*c - '0');
  for (int i = 0; i < power; ++i) number = Times(std::move(number), base);
  for (size_t i = 0; i < fraction.size(); ++i) {
    if (number[i] != 0) return std::nullopt;
  }
  uint64_t value = 0;
  for (size_t i = number.size(); i-- > fraction.size();) {
    value = value * 10 + static_cast<uint64_t>(number[i]);
    if (value > kMostBytes) return std::nullopt;
  }
  return value;
}

// Goal: exactly the quantities that are whole and within the limit are accepted, with the right
// value. Method: random texts, with fractions that are often whole after all.
TEST(QuantityTest, AgreesWithSchoolbookArithmetic) {
  struct Unit {
    std::string text;
    int base;
    int power;
  };
  const std::vector<Unit> units = {{"", 2, 0},    {"Ki", 2, 10}, {"Mi", 2, 20}, {"Gi", 2, 30},
                                   {"Ti", 2, 40}, {"Pi", 2, 50}, {"Ei", 2, 60}, {"k", 10, 3},
                                   {"M", 10, 6},  {"G", 10, 9},  {"T", 10, 12}, {"P", 10, 15},
                                   {"E", 10, 18}, {"e2", 10, 2}, {"E7", 10, 7}};
  std::mt19937_64 random(20261121);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    const Unit& unit = units[random() % units.size()];
    std::string whole = std::to_string(random() >> (20 + random() % 44));
    std::string fraction;
    if (random() % 2 == 0) {
      // A fraction that is a multiple of 1/1024, or its first digits.
      const size_t length = 1 + random() % 14;
      uint64_t eighths = random() % 1024;
      for (size_t d = 0; d < length; ++d) {
        eighths *= 10;
        fraction += static_cast<char>('0' + eighths / 1024 % 10);
        eighths %= 1024;
      }
    }
    if (random() % 8 == 0) fraction += std::string(random() % 30, '0');
    const std::string text = whole + (fraction.empty() ? "" : "." + fraction) + unit.text;
    const auto expected = Reference(whole, fraction, unit.base, unit.power);
    const auto parsed = ParseBytes(text);
    ASSERT_EQ(parsed.has_value(), expected.has_value()) << text;
    if (parsed) {
      ASSERT_EQ(*parsed, *expected) << text;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 10000);
}

}  // namespace
}  // namespace gpushm::yaml
