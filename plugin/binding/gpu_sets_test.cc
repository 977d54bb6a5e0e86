// Goal: the search for the cheapest set is exact. Method: for 20,000 random nodes of up to nine
// GPUs, with random links, it is compared with a search through all subsets.
#include "plugin/binding/gpu_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "platform/base/testing.h"

namespace gpushm::plugin {
namespace {

struct Found {
  bool any = false;
  uint64_t cost = 0;
};

bool AllLinked(const std::vector<Candidate>& all, uint64_t members) {
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t others = members & ~(uint64_t{1} << i);
    if ((members >> i & 1) != 0 && (all[i].nvlink & others) != others) return false;
  }
  return true;
}

// Every subset of that size.
Found Exhaustive(const std::vector<Candidate>& all, size_t count, bool nvlink) {
  Found best;
  for (uint64_t members = 0; members < uint64_t{1} << all.size(); ++members) {
    if (static_cast<size_t>(std::popcount(members)) != count) continue;
    if (nvlink && !AllLinked(all, members)) continue;
    uint64_t cost = 0;
    for (size_t i = 0; i < all.size(); ++i) cost += (members >> i & 1) * all[i].cost;
    if (!best.any || cost < best.cost) best = {true, cost};
  }
  return best;
}

TEST(GpuSets, FindsWhatAnExhaustiveSearchFinds) {
  std::mt19937 random(gpushm::testing::TestSeed(1));
  int none = 0;
  int linked = 0;
  for (int round = 0; round < 20'000; ++round) {
    SCOPED_TRACE(round);
    std::vector<Candidate> all(random() % 10);
    const auto density = static_cast<unsigned>(random() % 5);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].cost = random() % 20;
      for (size_t j = 0; j < i; ++j) {
        if (random() % 4 >= density) continue;
        all[i].nvlink |= uint64_t{1} << j;
        all[j].nvlink |= uint64_t{1} << i;
      }
    }
    const size_t count = 1 + random() % 5;
    const bool nvlink = random() % 2 == 0;
    const Found expected = Exhaustive(all, count, nvlink);
    const auto set = CheapestSet(all, count, nvlink);
    ASSERT_EQ(set.has_value(), expected.any);
    if (!set) {
      ++none;
      continue;
    }
    ASSERT_EQ(set->size(), count);
    uint64_t members = 0;
    uint64_t cost = 0;
    for (const size_t i : *set) {
      members |= uint64_t{1} << i;
      cost += all[i].cost;
    }
    ASSERT_EQ(static_cast<size_t>(std::popcount(members)), count) << "one occurs twice";
    ASSERT_TRUE(std::ranges::is_sorted(*set));
    ASSERT_EQ(cost, expected.cost);
    ASSERT_TRUE(!nvlink || AllLinked(all, members));
    linked += nvlink && count > 1 ? 1 : 0;
  }
  EXPECT_GT(none, 1000) << "the test must produce both results";
  EXPECT_GT(linked, 1000);
}

TEST(GpuSets, OfEqualSumsTheFirst) {
  const std::vector<Candidate> all(4);
  EXPECT_EQ(CheapestSet(all, 2, false), (std::vector<size_t>{0, 1}));
}

TEST(GpuSets, BoundsItsWork) {
  // More GPUs than any node has, without a link: neither search may take long.
  std::vector<Candidate> all(100, Candidate{.cost = 7, .nvlink = 0});
  EXPECT_TRUE(CheapestSet(all, 16, false));
  EXPECT_FALSE(CheapestSet(all, 16, true));
  EXPECT_FALSE(CheapestSet(all, 0, false));
  EXPECT_FALSE(CheapestSet({}, 2, false));
}

}  // namespace
}  // namespace gpushm::plugin
