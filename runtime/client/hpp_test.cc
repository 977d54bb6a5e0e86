// gpushm.hpp compiles as a user's code does, and its owners move.
#include "gpushm/gpushm.hpp"

#include <gtest/gtest.h>

#include <type_traits>

namespace {

using namespace std::chrono_literals;

static_assert(!std::is_copy_constructible_v<gpushm::Attachment>);
static_assert(std::is_nothrow_move_constructible_v<gpushm::Client>);
static_assert(gpushm::Timeout(1500us).ms() == 2);
static_assert(gpushm::Timeout().ms() == 0);
static_assert(gpushm::Timeout::DontWait().ms() == GPUSHM_DONT_WAIT);

TEST(Hpp, CarriesTheError) {
  const auto client = gpushm::Client::Open({.folder = "/nonexistent", .timeout = 0s});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().status(), GPUSHM_UNAVAILABLE);
  EXPECT_FALSE(client.error().remedy().empty());
}

TEST(Hpp, EmptyAttachmentIsHarmless) {
  gpushm::Attachment a;
  gpushm::Attachment b = std::move(a);
  EXPECT_FALSE(b);
  EXPECT_EQ(b.address(), 0u);
  EXPECT_TRUE(b.Detach());
}

}  // namespace
