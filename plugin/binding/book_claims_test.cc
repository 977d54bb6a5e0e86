// Claims of dynamic resource allocation in the book.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "plugin/binding/book.h"

namespace gpushm::plugin::binding {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class BookClaimsTest : public ::testing::Test {
 protected:
  BookClaimsTest() {
    book_.SetGpus({{.uuid = "GPU-a", .units = 10, .bytes = 10 * kGiB + 512 * kMiB},
                   {.uuid = "GPU-b", .units = 6, .bytes = 6 * kGiB},
                   {.uuid = "MIG-c", .units = 4, .instance = true, .bytes = 4 * kGiB}});
  }
  static ClaimedGpus Claim(const std::string& uid, uint64_t bytes,
                           std::vector<std::string> gpus = {"GPU-a"}) {
    return {.uid = uid, .pod = {"default", "pod"}, .gpus = std::move(gpus), .bytes = bytes};
  }
  Code CodeOf(const ClaimedGpus& claim) {
    const auto bound = book_.BindClaim(claim);
    EXPECT_FALSE(bound);
    return bound ? Code::kInternal : bound.error().code();
  }
  Book book_{kGiB};
};

TEST_F(BookClaimsTest, CountsBytes) {
  const auto bound = book_.BindClaim(Claim("one", 3 * kGiB + 2 * kMiB));
  ASSERT_TRUE(bound) << bound.error().ToString();
  EXPECT_EQ(bound->name(), "one");
  EXPECT_EQ(bound->BytesOfEach(kGiB), 3 * kGiB + 2 * kMiB);
  EXPECT_EQ(book_.FreeBytes("GPU-a"), 7 * kGiB + 510 * kMiB);
  EXPECT_EQ(book_.FreeUnits("GPU-a"), 7U);
  EXPECT_TRUE(book_.BindClaim(Claim("two", 7 * kGiB + 510 * kMiB)));
  EXPECT_EQ(book_.FreeBytes("GPU-a"), 0U);
}

TEST_F(BookClaimsTest, AKnownClaimIsTheSameBindingAgain) {
  const auto first = book_.BindClaim(Claim("one", 8 * kGiB));
  const auto second = book_.BindClaim(Claim("one", 8 * kGiB));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(book_.bindings().size(), 1U);
  EXPECT_EQ(CodeOf(Claim("one", 9 * kGiB)), Code::kInvalidArgument);
}

// The scheduler gives the memory of a pod that was deleted by force away at once.
TEST_F(BookClaimsTest, MemoryIsNotGivenTwice) {
  ASSERT_TRUE(book_.BindClaim(Claim("one", 8 * kGiB)));
  const auto second = book_.BindClaim(Claim("two", 8 * kGiB));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kExhausted);
  EXPECT_THAT(second.error().ToString(), HasSubstr("has not ended yet"));
  ASSERT_TRUE(book_.ReleaseClaim("one"));
  EXPECT_TRUE(book_.BindClaim(Claim("two", 8 * kGiB)));
}

TEST_F(BookClaimsTest, BindingsOfTheDevicePluginCountToo) {
  Snapshot now;
  now.Add({{"default", "old"}, "gpushm"}, Resource::kMemory, {"m0000", "m0001"});
  ASSERT_EQ(book_.Bind(Resource::kMemory, {"m0000", "m0001"}, now)->gpus.front(), "MIG-c");
  EXPECT_EQ(CodeOf(Claim("one", 3 * kGiB, {"MIG-c"})), Code::kExhausted);
  EXPECT_TRUE(book_.BindClaim(Claim("one", 2 * kGiB, {"MIG-c"})));
}

// A claim is in no list of device IDs, and that proves nothing.
TEST_F(BookClaimsTest, AListingOfTheKubeletEndsNoClaim) {
  ASSERT_TRUE(book_.BindClaim(Claim("one", kGiB)));
  Snapshot now;
  now.kubelet_run = 1;
  EXPECT_THAT(book_.Observe(now, 0), IsEmpty());
  EXPECT_THAT(book_.Observe(now, 100'000), IsEmpty());
  EXPECT_FALSE(book_.WaitsForProof());
  EXPECT_TRUE(book_.HasClaim("one"));
}

TEST_F(BookClaimsTest, AGpuThatTakesNoPodIsRefused) {
  EXPECT_EQ(CodeOf(Claim("one", kGiB, {"GPU-gone"})), Code::kDeviceLost);
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .healthy = false, .bytes = 10 * kGiB},
                 {.uuid = "GPU-b", .units = 6, .taken_by = "nvidia.com/gpu", .bytes = 6 * kGiB}});
  EXPECT_EQ(CodeOf(Claim("one", kGiB)), Code::kDeviceLost);
  EXPECT_EQ(CodeOf(Claim("one", kGiB, {"GPU-b"})), Code::kExhausted);
}

TEST_F(BookClaimsTest, SeveralGpusGiveTheSame) {
  ASSERT_TRUE(book_.BindClaim(Claim("one", 6 * kGiB, {"GPU-a", "GPU-b"})));
  EXPECT_EQ(book_.FreeBytes("GPU-b"), 0U);
  EXPECT_EQ(CodeOf(Claim("two", kGiB, {"GPU-a", "GPU-a"})), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Claim("two", kGiB, {"GPU-a", "MIG-c"})), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Claim("two", 0)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Claim("two", kGiB, {})), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpushm::plugin::binding
