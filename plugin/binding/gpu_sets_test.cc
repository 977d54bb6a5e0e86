// BookSeveralProperty compares what is chosen with an exhaustive search.
#include "plugin/binding/gpu_sets.h"

#include <gtest/gtest.h>

namespace gpushm::plugin::binding {
namespace {

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
}  // namespace gpushm::plugin::binding
