#include "platform/base/nearest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>

namespace gpushm {
namespace {

constexpr size_t kComparedBytes = 128;
constexpr size_t kMostSimilar = 3;

template <typename Texts>
std::string_view NearestOf(std::string_view text, const Texts& names) {
  size_t best_distance = SIZE_MAX;
  std::string_view best;
  for (const std::string_view name : names) {
    const size_t distance = EditDistance(text, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace

size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedBytes);
  b = b.substr(0, kComparedBytes);
  std::array<size_t, kComparedBytes + 1> row;
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string_view Nearest(std::string_view text, std::span<const std::string_view> names) {
  return NearestOf(text, names);
}

std::string_view Nearest(std::string_view text, std::span<const std::string> names) {
  return NearestOf(text, names);
}

std::vector<std::string_view> Similar(std::string_view text,
                                      std::span<const std::string_view> names) {
  const size_t farthest = std::max<size_t>(text.size() / 3, 1);
  std::vector<std::pair<size_t, std::string_view>> near;
  for (const std::string_view name : names) {
    // The distance is at least the difference of the lengths, which is cheap to compute.
    const size_t lengths_differ =
        std::max(name.size(), text.size()) - std::min(name.size(), text.size());
    if (lengths_differ > farthest) continue;
    const size_t distance = EditDistance(text, name);
    if (distance <= farthest) near.emplace_back(distance, name);
  }
  // Sorted by distance, then in the given order. libstdc++'s stable_sort uses a function that clang
  // reports as deprecated.
  std::ranges::sort(near, {}, [&](const auto& item) {
    const auto at = std::ranges::find(names, item.second);
    return std::pair(item.first, at - names.begin());
  });
  if (near.size() > kMostSimilar) near.resize(kMostSimilar);
  std::vector<std::string_view> similar;
  for (const auto& [distance, name] : near) similar.push_back(name);
  return similar;
}

}  // namespace gpushm
