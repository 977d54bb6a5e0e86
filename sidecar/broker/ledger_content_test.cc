// Goal: a buffer's content is what the last load brought or its writer said, and a new generation
// starts with all of its bytes as content. Method: only the ledger.
#include <gtest/gtest.h>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

using protocol::kFlagAttach;
using protocol::kFlagUnpublished;

constexpr uint64_t kSize = 2 << 20;
const Client kApp{.id = 1, .container = "app"};

class LedgerContentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Policy policy;
    policy.creator = kApp.container;
    policy.writers_all = true;
    const auto ticket = ledger_.BeginCreate(kApp, "a", kSize, policy, kFlagAttach);
    ASSERT_TRUE(ticket) << ticket.error().ToString();
    lease_ = ledger_.Commit(*ticket, Memory(), true, 0)->lease_id;
  }
  Grant Replace(uint32_t flags) {
    const auto ticket = ledger_.BeginReplace(kApp, "a", 0, flags);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    return *ledger_.Commit(*ticket, Memory(), true, 0);
  }

  // As others see it.
  uint64_t Content() const { return registry::ContentBytes(ledger_.Records().front()); }

  Ledger ledger_{{.pool_bytes = 64 * kSize}, {LedgerGpu{}}, 1000};
  uint64_t lease_ = 0;
};

TEST_F(LedgerContentTest, AWriterSaysIt) {
  EXPECT_EQ(Content(), kSize) << "nobody said it";
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 3, false));
  EXPECT_EQ(Content(), 3u) << "so far";
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true));
  EXPECT_EQ(Content(), 5u);
  EXPECT_FALSE(ledger_.SetContent(kApp, lease_, kSize + 1, true));
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 0, true));
  EXPECT_EQ(Content(), 0u) << "nothing is not unsaid";
}

TEST_F(LedgerContentTest, EachGenerationHasItsOwn) {
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true));
  const uint64_t next = Replace(kFlagAttach | kFlagUnpublished).lease_id;
  EXPECT_TRUE(ledger_.SetContent(kApp, next, 0, false)) << "a load begins";
  EXPECT_EQ(ledger_.StateOf("a"), BufferState::kReady) << "nobody sees it";
  ASSERT_TRUE(ledger_.SetContent(kApp, next, 6, true));
  EXPECT_EQ(Content(), 5u) << "it is not published";
  ASSERT_TRUE(ledger_.Publish(kApp, next));
  EXPECT_EQ(Content(), 6u);
  Replace(0);
  EXPECT_EQ(Content(), kSize);
}

}  // namespace
}  // namespace gpushm::broker
