// The C++ headers compile in a user's code, as C++17 and as C++23, and their owners can be moved.
// tests/integration/sync_hpp_test.cc and tensors_hpp_test.cc test what they do.
#include "gpushm/gpushm.hpp"

#include <gtest/gtest.h>

#include "gpushm/sync.hpp"
#include "gpushm/tensors.hpp"

#include <string>
#include <type_traits>
#include <vector>

#include "runtime/client/c_api/hpp_17.h"

namespace {

using namespace std::chrono_literals;

static_assert(!std::is_copy_constructible_v<gpushm::Attachment>);
static_assert(std::is_nothrow_move_constructible_v<gpushm::Client>);
template <typename T>
constexpr bool kMovesOnly =
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>;
static_assert(kMovesOnly<gpushm::Signal> && kMovesOnly<gpushm::Barrier> &&
              kMovesOnly<gpushm::Ring>);
static_assert(kMovesOnly<gpushm::WriteGuard> && kMovesOnly<gpushm::ReadGuard>);
static_assert(kMovesOnly<gpushm::Description> && kMovesOnly<gpushm::Tensors>);
static_assert(gpushm::Timeout(1500us).ms() == 2);
static_assert(gpushm::Timeout().ms() == 0);
// A long wait stays long in any unit, and no number overflows.
static_assert(gpushm::Timeout(1h).ms() == 3'600'000);
static_assert(gpushm::Timeout(std::chrono::seconds::max()).ms() > 3'600'000);
static_assert(gpushm::Timeout(std::chrono::hours::max()).ms() > 3'600'000);
static_assert(gpushm::Timeout(std::chrono::milliseconds::max()).ms() > 3'600'000);
static_assert(gpushm::Timeout(std::chrono::nanoseconds::max()).ms() > 3'600'000);
static_assert(gpushm::Timeout(std::chrono::seconds::min()).ms() == GPUSHM_DONT_WAIT);
static_assert(gpushm::Timeout(std::chrono::duration<double>(1e300)).ms() > 3'600'000);
static_assert(gpushm::Timeout(0.0015s).ms() == 2);
static_assert(gpushm::Timeout(1ns).ms() == 1);
static_assert(gpushm::Timeout::DontWait().ms() == GPUSHM_DONT_WAIT);

gpushm::Result<gpushm::Client> OpenNothing() {
  gpushm::OpenOptions options;
  options.folder = "/nonexistent";
  options.timeout = 0s;
  return gpushm::Client::Open(options);
}

TEST(Hpp, CarriesTheError) {
  const auto client = OpenNothing();
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().status(), GPUSHM_UNAVAILABLE);
  EXPECT_FALSE(client.error().remedy().empty());
}

TEST(Hpp, AResultIsAValueOrAnError) {
  gpushm::Result<std::string> text = std::string("value");
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(*text, "value");
  EXPECT_EQ(text->size(), 5u);
  EXPECT_EQ(text.value_or("other"), "value");
  const std::string moved = std::move(text).value();
  EXPECT_EQ(moved, "value");
  text = gpushm::Error(GPUSHM_TIMEOUT, "TIMEOUT: late", "late", "");
  EXPECT_FALSE(text);
  EXPECT_EQ(text.error().status(), GPUSHM_TIMEOUT);
  EXPECT_EQ(text.value_or("other"), "other");
  gpushm::Result<void> done;
  EXPECT_TRUE(done);
  done = std::move(text).error();
  EXPECT_FALSE(done);
  EXPECT_EQ(done.error().text(), "TIMEOUT: late");
}

TEST(HppDeathTest, AnErrorHasNoValue) {
  const auto client = OpenNothing();
  EXPECT_DEATH((void)client.value(), "a result without a value was used: UNAVAILABLE");
  EXPECT_DEATH((void)client->get(), "a result without a value was used: UNAVAILABLE");
}

TEST(Hpp, SpansViewRows) {
  std::vector<void*> streams(3);
  const gpushm::Span<void* const> view = streams;
  EXPECT_EQ(view.size(), 3u);
  EXPECT_EQ(view.data(), streams.data());
  unsigned char bytes[] = {1, 2};
  gpushm::Span<unsigned char> row = bytes;
  row[1] = 5;
  EXPECT_EQ(bytes[1], 5);
  static_assert(!std::is_convertible_v<std::vector<gpushm::Client>, gpushm::Span<void* const>>);
}

// hpp_17.cc is the same header compiled as C++17, by another object file of this program.
TEST(Hpp, ObjectsOfBothStandardsLink) {
  const gpushm::Result<gpushm::Client> client = OpenNothingInCpp17();
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().status(), GPUSHM_UNAVAILABLE);
  EXPECT_EQ(StatusInCpp17(OpenNothing()), GPUSHM_UNAVAILABLE);
}

TEST(Hpp, EmptyAttachmentIsHarmless) {
  gpushm::Attachment a;
  gpushm::Attachment b = std::move(a);
  EXPECT_FALSE(b);
  EXPECT_EQ(b.address(), 0u);
  EXPECT_TRUE(b.Detach());
}

TEST(Hpp, EmptyOwnersAreHarmless) {
  gpushm::Signal a;
  gpushm::Signal b = std::move(a);
  a = std::move(b);
  EXPECT_FALSE(a);
  EXPECT_TRUE(a.Close());
  const auto waited = a.Wait(1, 0s);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().status(), GPUSHM_INVALID_ARGUMENT);
  gpushm::Barrier barrier;
  EXPECT_FALSE(barrier.Wait(0s));
  EXPECT_FALSE(barrier.GetInfo());
  gpushm::Ring ring;
  EXPECT_FALSE(ring.BeginWrite(0s));
  EXPECT_FALSE(ring.BeginRead(GPUSHM_NO_STREAM, 0s));
  const gpushm::Description description;
  EXPECT_EQ(description.text(), "");
  const gpushm::Tensors tensors;
  EXPECT_EQ(tensors.begin(), tensors.end());
  EXPECT_FALSE(tensors[0]);
}

TEST(Hpp, NumbersHaveNames) {
  EXPECT_STREQ(gpushm::StatusName(GPUSHM_NOT_FOUND), "NOT_FOUND");
  EXPECT_STREQ(gpushm::DtypeName(GPUSHM_DTYPE_F8_E4M3), "F8_E4M3");
  EXPECT_STREQ(gpushm::DtypeName(gpushm_dtype{}), "?");
  EXPECT_EQ(gpushm::DtypeBits(GPUSHM_DTYPE_F4), 4U);
  EXPECT_EQ(gpushm::LibraryVersion(), gpushm_version());
}

}  // namespace
