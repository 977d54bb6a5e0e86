// Pods of several GPUs: which sets the book chooses, and what it says when it finds none. The
// property test compares 10,000 pods with an exhaustive search over the node's GPUs.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "platform/base/testing.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin::binding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kGiB = uint64_t{1} << 30;

DeviceIds Ids(char kind, size_t first, size_t count) {
  DeviceIds ids;
  for (size_t i = first; i < first + count; ++i) ids.insert(Concat(kind, 1000 + i));
  return ids;
}

// What a sidecar requests.
struct Asks {
  size_t units = 0;  // In all.
  size_t gpus = 0;   // 0: it does not request gpushm.io/gpus.
  bool nvlink = false;
  size_t exclusive = 0;
};

class BookSeveralTest : public ::testing::Test {
 protected:
  // Four GPUs of 10 units; a and c, b and d have NVLink between them.
  BookSeveralTest() {
    gpus_ = {{.uuid = "GPU-a", .units = 10, .tokens = 4, .nvlink = {"GPU-c"}},
             {.uuid = "GPU-b", .units = 10, .tokens = 4, .nvlink = {"GPU-d"}},
             {.uuid = "GPU-c", .units = 10, .tokens = 4, .nvlink = {"GPU-a"}},
             {.uuid = "GPU-d", .units = 10, .tokens = 4, .nvlink = {"GPU-b"}}};
    book_.SetGpus(gpus_);
  }

  Result<Binding> Start(const std::string& pod, const Asks& asks,
                        const std::string& name_space = "default") {
    const Owner owner{{name_space, pod}, "gpushm"};
    const DeviceIds ids = Ids('m', next_, asks.units);
    now_.Add(owner, Resource::kMemory, ids);
    if (asks.gpus > 0) now_.Add(owner, Resource::kGpus, Ids('g', next_, asks.gpus));
    if (asks.nvlink) now_.Add(owner, Resource::kNvlink, Ids('n', next_, 1));
    if (asks.exclusive > 0) {
      now_.Add(owner, Resource::kExclusive, Ids('x', next_, asks.exclusive));
    }
    next_ += std::max({asks.units, asks.gpus, asks.exclusive, size_t{1}});
    return book_.Bind(Resource::kMemory, ids, now_);
  }

  std::vector<Gpu> gpus_;
  Book book_{kGiB};
  Snapshot now_;
  size_t next_ = 0;
};

TEST_F(BookSeveralTest, GpusWithNvlinkComeFirst) {
  ASSERT_THAT(Start("one", {.units = 6})->gpus, ElementsAre("GPU-a"));
  ASSERT_THAT(Start("two", {.units = 6})->gpus, ElementsAre("GPU-b"));
  // The fullest two GPUs with room are a and b, but they have no NVLink.
  const auto pod = Start("pod", {.units = 8, .gpus = 2});
  ASSERT_TRUE(pod) << pod.error().ToString();
  EXPECT_THAT(pod->gpus, ElementsAre("GPU-a", "GPU-c")) << "in the order of their numbers";
  EXPECT_EQ(book_.FreeUnits("GPU-a"), 0u);
  EXPECT_EQ(book_.FreeUnits("GPU-c"), 6u);
  // No pair with NVLink has 7 units left on both: b and d have 4 and 10.
  EXPECT_THAT(Start("other", {.units = 12, .gpus = 2})->gpus, ElementsAre("GPU-c", "GPU-d"));
}

TEST_F(BookSeveralTest, NvlinkAsAConditionWaitsForASetThatHasIt) {
  ASSERT_TRUE(Start("one", {.units = 9}));  // On a.
  ASSERT_TRUE(Start("two", {.units = 9}));  // On b.
  const auto pod = Start("pod", {.units = 10, .gpus = 2, .nvlink = true});
  ASSERT_FALSE(pod);
  EXPECT_EQ(pod.error().code(), Code::kExhausted);
  EXPECT_THAT(pod.error().ToString(),
              HasSubstr("needs 5 GiB on each of 2 GPUs with NVLink; the nearest set is GPU-a, "
                        "GPU-c; GPU GPU-a has 1 GiB free and lacks 4 GiB"));
  EXPECT_TRUE(Start("any", {.units = 10, .gpus = 2})) << "c and d have room";
}

TEST_F(BookSeveralTest, NeverIsNotWaiting) {
  const auto many = Start("many", {.units = 10, .gpus = 5});
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code(), Code::kUnsupported);
  EXPECT_THAT(many.error().ToString(), HasSubstr("this node has 4 GPUs of that size"));
  const auto linked = Start("linked", {.units = 9, .gpus = 3, .nvlink = true});
  ASSERT_FALSE(linked);
  EXPECT_EQ(linked.error().code(), Code::kUnsupported);
  EXPECT_THAT(linked.error().ToString(), HasSubstr("without NVLink between that many"));
  EXPECT_EQ(Start("large", {.units = 22, .gpus = 2}).error().code(), Code::kUnsupported);
}

TEST_F(BookSeveralTest, MigInstancesAreNotCombined) {
  for (Gpu& gpu : gpus_) gpu.instance = true;
  book_.SetGpus(gpus_);
  const auto pod = Start("pod", {.units = 4, .gpus = 2});
  ASSERT_FALSE(pod);
  EXPECT_EQ(pod.error().code(), Code::kUnsupported);
  EXPECT_THAT(pod.error().ToString(), HasSubstr("MIG instances cannot be used together"));
  EXPECT_TRUE(Start("single", {.units = 4}));
}

TEST_F(BookSeveralTest, SaysWhatIsInTheWay) {
  gpus_[0].drained = "a new driver";
  gpus_[1].healthy = false;
  gpus_[2].taken_by = "nvidia.com/gpu";
  book_.SetGpus(gpus_);
  const auto pod = Start("pod", {.units = 4, .gpus = 2});
  ASSERT_FALSE(pod);
  EXPECT_EQ(pod.error().code(), Code::kExhausted);
  EXPECT_THAT(pod.error().ToString(), HasSubstr("the nearest set is GPU-a, GPU-d; GPU GPU-a is "
                                                "drained: a new driver"));
  EXPECT_THAT(pod.error().ToString(), HasSubstr("gpushmctl gpu undrain GPU-a"));
}

TEST_F(BookSeveralTest, AloneOnAllOfThem) {
  ASSERT_THAT(Start("shared", {.units = 1})->gpus, ElementsAre("GPU-a"));
  const auto alone = Start("alone", {.units = 4, .gpus = 2, .exclusive = 2});
  ASSERT_TRUE(alone) << alone.error().ToString();
  EXPECT_THAT(alone->gpus, ElementsAre("GPU-b", "GPU-d"));
  EXPECT_EQ(Start("next", {.units = 20, .gpus = 3}).error().code(), Code::kInvalidArgument)
      << "20 units are not three equal parts";
  EXPECT_EQ(Start("third", {.units = 21, .gpus = 3}).error().code(), Code::kExhausted);
  // Of the exclusive IDs, those of a and c are unhealthy, because a pod shares a: two GPUs are
  // taken by the pod that has them alone.
  EXPECT_THAT(book_.Unhealthy(Resource::kExclusive, Ids('x', 0, 4)), SizeIs(1));
}

TEST_F(BookSeveralTest, LargestFreeIsWhatANewPodGetsOnEach) {
  EXPECT_THAT(book_.LargestFree(), ElementsAre(10, 10, 10, 10));
  ASSERT_TRUE(Start("one", {.units = 4}));
  ASSERT_TRUE(Start("alone", {.units = 1, .exclusive = 1}));
  EXPECT_THAT(book_.LargestFree(), ElementsAre(10, 10, 6, 0));
  book_.SetTenancy(Tenancy::kNamespace);
  EXPECT_THAT(book_.LargestFree(), ElementsAre(10, 10, 6, 0)) << "as for the namespace of the pods";
  gpus_[2].instance = true;
  gpus_[2].units = 20;
  gpus_[3].drained = "a new driver";
  book_.SetGpus(gpus_);
  EXPECT_THAT(book_.LargestFree(), ElementsAre(20, 0, 0)) << "MIG instances are not combined";
  book_.SetGpus({});
  EXPECT_THAT(book_.LargestFree(), ElementsAre(0));
}

TEST_F(BookSeveralTest, TenancyHoldsForEachGpu) {
  book_.SetTenancy(Tenancy::kNamespace);
  ASSERT_THAT(Start("one", {.units = 2}, "red")->gpus, ElementsAre("GPU-a"));
  EXPECT_THAT(Start("two", {.units = 4, .gpus = 2}, "blue")->gpus, ElementsAre("GPU-b", "GPU-d"));
  EXPECT_THAT(Start("three", {.units = 4, .gpus = 2}, "red")->gpus, ElementsAre("GPU-a", "GPU-c"));
  EXPECT_EQ(Start("four", {.units = 6, .gpus = 3}, "blue").error().code(), Code::kExhausted);
}

TEST_F(BookSeveralTest, WhatASidecarMayNotRequest) {
  const auto code = [this](const Asks& asks) {
    return Start(Concat("pod-", next_), asks).error().code();
  };
  EXPECT_EQ(code({.units = 5, .gpus = 2}), Code::kInvalidArgument);
  EXPECT_EQ(code({.units = 17, .gpus = 17}), Code::kInvalidArgument);
  EXPECT_EQ(code({.units = 4, .gpus = 2, .exclusive = 1}), Code::kInvalidArgument);
  EXPECT_EQ(code({.units = 4, .exclusive = 2}), Code::kInvalidArgument);
  EXPECT_EQ(code({.units = 4, .nvlink = true}), Code::kInvalidArgument);
  const auto odd = Start("odd", {.units = 5, .gpus = 2});
  EXPECT_THAT(odd.error().ToString(),
              HasSubstr("requests 5 units of gpushm.io/memory and gpushm.io/gpus: 2"));
}

TEST_F(BookSeveralTest, OnlyASidecarMayRequestThem) {
  now_.Add({{"default", "pod"}, "app"}, Resource::kGpus, Ids('g', 0, 2));
  const auto checked = book_.CheckSidecar(Resource::kGpus, Ids('g', 0, 2), now_);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(checked.error().ToString(), HasSubstr("requests gpushm.io/gpus without"));
}

TEST_F(BookSeveralTest, OneSickGpuTakesItsPartOfTheIds) {
  ASSERT_TRUE(Start("pod", {.units = 8, .gpus = 2}));  // m1000 to m1003 on a, m1004 to m1007 on c.
  gpus_[2].healthy = false;
  book_.SetGpus(gpus_);
  const DeviceIds sick = book_.Unhealthy(Resource::kMemory, Ids('m', 0, 40));
  EXPECT_THAT(sick, SizeIs(10));
  EXPECT_FALSE(sick.contains("m1003"));
  for (const char* const id : {"m1004", "m1005", "m1006", "m1007"}) EXPECT_TRUE(sick.contains(id));
  // A container of the pod cannot start, because CUDA would not initialise.
  const auto again = book_.Bind(Resource::kMemory, Ids('m', 0, 8), now_);
  EXPECT_EQ(again.error().code(), Code::kDeviceLost);
}

// What an exhaustive search over all sets of the node's GPUs finds for a pod.
struct Expected {
  bool any = false;
  bool linked = false;
  uint32_t free = 0;  // Sum over the set.
};

Expected Exhaustive(const Book& book, const std::vector<Gpu>& gpus, size_t count, uint32_t units,
                    bool nvlink) {
  Expected best;
  for (uint32_t members = 0; members < 1U << gpus.size(); ++members) {
    if (static_cast<size_t>(std::popcount(members)) != count) continue;
    Expected set{.any = true, .linked = true, .free = 0};
    for (size_t i = 0; i < gpus.size(); ++i) {
      if ((members >> i & 1) == 0) continue;
      const uint32_t free = book.FreeUnits(gpus[i].uuid);
      set.any = set.any && gpus[i].healthy && !gpus[i].closed() && free >= units;
      set.free += free;
      for (size_t j = 0; j < gpus.size(); ++j) {
        if (i != j && (members >> j & 1) != 0 && !gpus[i].nvlink.contains(gpus[j].uuid)) {
          set.linked = false;
        }
      }
    }
    if (!set.any || (nvlink && !set.linked)) continue;
    const bool better = !best.any || (set.linked && !best.linked) ||
                        (set.linked == best.linked && set.free < best.free);
    if (better) best = set;
  }
  return best;
}

TEST(BookSeveralProperty, ChoosesWhatAnExhaustiveSearchChooses) {
  std::mt19937 random(gpushm::testing::TestSeed(1));
  int bound = 0;
  int refused = 0;
  int pods = 0;
  while (pods < 10'000) {
    std::vector<Gpu> gpus(2 + random() % 8);
    const auto density = static_cast<unsigned>(random() % 5);
    for (size_t i = 0; i < gpus.size(); ++i) {
      gpus[i] = {.uuid = Concat("GPU-", i), .units = static_cast<uint32_t>(4 + random() % 20)};
      gpus[i].healthy = random() % 8 != 0;
      if (random() % 8 == 0) gpus[i].drained = "a reason";
      for (size_t j = 0; j < i; ++j) {
        if (random() % 4 >= density) continue;
        gpus[i].nvlink.insert(gpus[j].uuid);
        gpus[j].nvlink.insert(gpus[i].uuid);
      }
    }
    Book book(kGiB);
    book.SetGpus(gpus);
    Snapshot now;
    size_t id = 0;
    for (int pod = 0; pod < 12; ++pod, ++pods) {
      SCOPED_TRACE(Concat("pod ", pods));
      const size_t count = 1 + random() % 5;
      const auto units = static_cast<uint32_t>(1 + random() % 8);
      const bool nvlink = count > 1 && random() % 3 == 0;
      const Owner owner{{"default", Concat("pod-", pod)}, "gpushm"};
      const DeviceIds ids = Ids('m', id, units * count);
      now.Add(owner, Resource::kMemory, ids);
      if (count > 1) now.Add(owner, Resource::kGpus, Ids('g', id, count));
      if (nvlink) now.Add(owner, Resource::kNvlink, Ids('n', id, 1));
      id += units * count;
      const Expected expected = Exhaustive(book, gpus, count, units, nvlink);
      uint32_t free = 0;
      std::map<std::string, uint32_t> before;
      for (const Gpu& gpu : gpus) before[gpu.uuid] = book.FreeUnits(gpu.uuid);
      const auto binding = book.Bind(Resource::kMemory, ids, now);
      ASSERT_EQ(binding.has_value(), expected.any)
          << (binding ? std::string() : binding.error().ToString());
      if (!binding) {
        ++refused;
        continue;
      }
      ++bound;
      for (const std::string& gpu : binding->gpus) free += before[gpu];
      ASSERT_EQ(free, expected.free);
      for (const std::string& gpu : binding->gpus) {
        ASSERT_EQ(book.FreeUnits(gpu), before[gpu] - units);
      }
    }
  }
  EXPECT_GT(bound, 2000) << "the test must produce both results";
  EXPECT_GT(refused, 2000);
}

// Goal: the label promises neither more nor less than the book does. Method: asks copies of the
// book for exactly as much as it says, and for one unit more.
TEST(BookSeveralProperty, LargestFreeIsExact) {
  std::mt19937 random(gpushm::testing::TestSeed(2));
  for (int node = 0; node < 300; ++node) {
    std::vector<Gpu> gpus(1 + random() % 5);
    for (size_t i = 0; i < gpus.size(); ++i) {
      gpus[i] = {.uuid = Concat("GPU-", i), .units = static_cast<uint32_t>(random() % 20)};
      gpus[i].healthy = random() % 6 != 0;
      gpus[i].instance = random() % 6 == 0;
      if (random() % 6 == 0) gpus[i].drained = "a reason";
    }
    Book book(kGiB);
    book.SetGpus(gpus);
    size_t id = 0;
    const auto start = [&id](Book* on, size_t count, size_t units, bool exclusive) {
      const Owner owner{{"default", Concat("pod-", id)}, "gpushm"};
      const DeviceIds ids = Ids('m', id, units * count);
      Snapshot now;
      now.Add(owner, Resource::kMemory, ids);
      if (count > 1) now.Add(owner, Resource::kGpus, Ids('g', id, count));
      if (exclusive) now.Add(owner, Resource::kExclusive, Ids('x', id, count));
      id += units * count;
      return on->Bind(Resource::kMemory, ids, now).has_value();
    };
    for (int pod = 0; pod < 6; ++pod) {
      (void)start(&book, 1 + random() % 2, 1 + random() % 8, random() % 6 == 0);
    }
    const std::vector<uint32_t> free = book.LargestFree();
    for (size_t i = 0; i < free.size(); ++i) {
      Book exactly = book;
      Book more = book;
      EXPECT_TRUE(free[i] == 0 || start(&exactly, i + 1, free[i], false)) << i + 1 << " GPUs";
      EXPECT_FALSE(start(&more, i + 1, free[i] + 1, false)) << i + 1 << " GPUs";
    }
    EXPECT_FALSE(start(&book, free.size() + 1, 1, false)) << "a GPU more than it says";
    ASSERT_FALSE(HasFailure()) << "node " << node;
  }
}

}  // namespace
}  // namespace gpushm::plugin::binding
