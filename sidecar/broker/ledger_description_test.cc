// Goal: a description belongs to one generation, never changes under a reader, and is limited.
// Method: only the ledger.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "contract/limits.h"
#include "sidecar/broker/journal.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

constexpr Ledger::Making kAttached{.attach = true};
constexpr Ledger::Making kUnpublished{.attach = true, .unpublished = true};
using ::testing::HasSubstr;

constexpr uint64_t kSize = 2 << 20;
const Client kApp{.id = 1, .container = "app"};
const Client kOther{.id = 2, .container = "other"};

class LedgerDescriptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ledger_.KeepJournal(&journal_);
    lease_ = Create("a");
  }
  uint64_t Create(const std::string& name) {
    Policy policy;
    policy.creator = kApp.container;
    policy.writers_all = true;
    const auto ticket = ledger_.BeginCreate(kApp, name, kSize, policy, kAttached);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    return ledger_.Commit(*ticket, Memory(), true, 0)->lease_id;
  }
  Grant Replace(const Ledger::Making& how) {
    const auto ticket = ledger_.BeginReplace(kApp, "a", 0, how);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    return *ledger_.Commit(*ticket, Memory(), true, 0);
  }
  // The text of the error; empty for success.
  std::string Set(uint64_t lease, uint64_t bytes, const Client& client = kApp) {
    UniqueFd memory(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const auto set = ledger_.SetDescription(client, lease, &memory, bytes);
    EXPECT_EQ(set.has_value(), !memory.valid()) << "it is taken on success";
    return set ? "" : set.error().what();
  }
  // The bytes of the current description, or of that generation.
  uint64_t Size(uint64_t generation = 0, const Client& client = kOther) {
    const auto found = ledger_.FindDescription(client, "a", generation);
    EXPECT_TRUE(found) << found.error().ToString();
    if (!found) return 0;
    EXPECT_EQ(found->descriptor >= 0, found->bytes > 0);
    return found->bytes;
  }
  uint64_t Shown() { return ledger_.Records().at(0).description_bytes; }
  Code WhyNot(uint64_t generation, const Client& client = kOther) {
    const auto found = ledger_.FindDescription(client, "a", generation);
    return found ? Code::kInternal : found.error().code();
  }

  Ledger ledger_{{.pool_bytes = 64 * kSize}, {LedgerGpu{}}, 1000};
  Journal journal_{&ledger_};
  uint64_t lease_ = 0;
};

TEST_F(LedgerDescriptionTest, IsSetOnceForWhatIsPublished) {
  EXPECT_EQ(Size(), 0u);
  EXPECT_EQ(Set(lease_, 5), "");
  EXPECT_EQ(Size(), 5u);
  EXPECT_EQ(Shown(), 5u);
  EXPECT_THAT(Set(lease_, 6), HasSubstr("is published and has its description"));
  EXPECT_EQ(Size(), 5u);
}

TEST_F(LedgerDescriptionTest, IsSeenWithItsGeneration) {
  EXPECT_EQ(Set(lease_, 5), "");
  const Grant next = Replace(kUnpublished);
  EXPECT_EQ(Set(next.lease_id, 6), "");
  EXPECT_EQ(Set(next.lease_id, 7), "") << "nobody has seen it";
  EXPECT_EQ(Size(), 5u);
  EXPECT_EQ(WhyNot(next.generation), Code::kStale) << "it is not published";
  EXPECT_EQ(Size(next.generation, kApp), 7u) << "its writer may look";
  ASSERT_TRUE(ledger_.Publish(kApp, next.lease_id));
  EXPECT_EQ(Size(), 7u);
  EXPECT_EQ(Shown(), 7u);
  EXPECT_EQ(Size(1000), 5u) << "the former generation is still attached";
  EXPECT_THAT(Set(lease_, 8), HasSubstr("newer generation"));
  ASSERT_TRUE(ledger_.Detach(kApp, lease_));
  EXPECT_EQ(WhyNot(1000), Code::kStale);
  Replace({});
  EXPECT_EQ(Size(), 0u) << "a new generation has none";
}

TEST_F(LedgerDescriptionTest, OfALoadIsSeenWithItsContent) {
  EXPECT_EQ(Set(lease_, 5), "");
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 0, false));
  EXPECT_EQ(WhyNot(0), Code::kLoading);
  EXPECT_EQ(Shown(), 0u);
  EXPECT_EQ(Set(lease_, 6), "") << "the former one described the former content";
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 1, false)) << "progress";
  EXPECT_EQ(Set(lease_, 7), "") << "nobody has seen it";
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 2, true));
  EXPECT_EQ(Size(), 7u);
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 0, false));
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 2, true));
  EXPECT_EQ(Size(), 0u) << "that load brought none";
}

TEST_F(LedgerDescriptionTest, IsGoneWhenALoadOfWhatIsNotPublishedBegins) {
  const Grant next = Replace(kUnpublished);
  EXPECT_EQ(Set(next.lease_id, 5), "");
  ASSERT_TRUE(ledger_.SetContent(kApp, next.lease_id, 0, false));
  EXPECT_EQ(Size(next.generation, kApp), 0u);
  EXPECT_EQ(Set(next.lease_id, 6), "");
  ASSERT_TRUE(ledger_.SetContent(kApp, next.lease_id, 2, true));
  ASSERT_TRUE(ledger_.Publish(kApp, next.lease_id));
  EXPECT_EQ(Size(), 6u);
}

TEST_F(LedgerDescriptionTest, IsGoneAfterALoadThatFailed) {
  const auto other =
      ledger_.Attach(kOther, "a", Access::kReadWrite, 0, GpuUuid{}, /*now_unix_ns=*/0);
  ASSERT_TRUE(other) << other.error().ToString();
  EXPECT_EQ(Set(lease_, 5), "");
  ASSERT_TRUE(ledger_.SetContent(kOther, other->lease_id, 0, false));
  EXPECT_THAT(Set(lease_, 6), HasSubstr("is being loaded"));
  ASSERT_TRUE(ledger_.Detach(kOther, other->lease_id));
  EXPECT_EQ(WhyNot(0), Code::kSystem);
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 2, true));
  EXPECT_EQ(Size(), 0u);
}

TEST_F(LedgerDescriptionTest, NeedsAWriter) {
  const auto reader = ledger_.Attach(kOther, "a", Access::kRead, 0, GpuUuid{}, /*now_unix_ns=*/0);
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_THAT(Set(reader->lease_id, 5, kOther), HasSubstr("only a writer"));
  EXPECT_THAT(Set(lease_, 5, kOther), HasSubstr("has no lease"));
  EXPECT_EQ(WhyNot(4711), Code::kStale);
}

TEST_F(LedgerDescriptionTest, AllOfAPodAreLimited) {
  constexpr uint64_t kLargest = limits::kDescriptionBytes;
  EXPECT_EQ(Set(lease_, kLargest), "");
  std::vector<uint64_t> leases;
  for (const char* const name : {"b", "c", "d"}) leases.push_back(Create(name));
  for (const uint64_t lease : leases) EXPECT_EQ(Set(lease, kLargest), "");
  const uint64_t fifth = Create("e");
  EXPECT_THAT(Set(fifth, 1), HasSubstr("does not fit"));
  ASSERT_TRUE(ledger_.Delete(kApp, "a"));
  ASSERT_TRUE(ledger_.Detach(kApp, lease_));
  EXPECT_EQ(Set(fifth, 1), "");
}

}  // namespace
}  // namespace gpushm::broker
