// Goal: a buffer that is to be removed with its last lease is removed then and frees its memory, in
// whatever order clients end, also if the broker dies. Nothing else is removed. Method: only the
// ledger.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "sidecar/broker/ledger.h"
#include "sidecar/broker/testing/keeper_model.h"

namespace gpushm::broker {
namespace {

using testing::KeeperModel;

constexpr uint64_t kPage = 2 << 20;
constexpr uint64_t kPageBytes = 8192;
const Client kWriter{.id = 1, .container = "decoder"};
const Client kReader{.id = 2, .container = "model"};
const LedgerLimits kLimits{.pool_bytes = 2 * kPage, .granularity = kPage};

// A ring as the library makes it: frames "x" and a page "x-ring".
class LedgerUnusedTest : public ::testing::Test {
 protected:
  LedgerUnusedTest() { Start(); }

  void Start() {
    ledger_.emplace(kLimits, std::vector{LedgerGpu{}}, 1000);
    ledger_->KeepJournal(&journal_.emplace(&*ledger_));
  }
  static Policy PolicyOf(bool until_unused) {
    Policy policy;
    policy.creator = kWriter.container;
    policy.writers_all = true;
    policy.until_unused = until_unused;
    policy.on_writer_exit = protocol::OnWriterExit::kKeep;
    return policy;
  }
  static Memory HostPage() {
    Memory memory;
    memory.transport = protocol::Transport::kHost;
    memory.pooled = false;
    return memory;
  }
  Grant MakePage(const std::string& name, bool until_unused = true, uint64_t after = 0) {
    const auto ticket =
        ledger_->BeginPage(kWriter, name, kPageBytes, PolicyOf(until_unused), after);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    const Grant grant = *ledger_->Commit(*ticket, HostPage(), true, 0);
    EXPECT_TRUE(ledger_->Publish(kWriter, grant.lease_id));
    return grant;
  }
  Grant MakeFrames(const std::string& name, bool until_unused = true) {
    const auto ticket =
        ledger_->BeginCreate(kWriter, name, kPage, PolicyOf(until_unused), {.attach = true});
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    return *ledger_->Commit(*ticket, Memory(), true, 0);
  }
  Result<Grant> Attach(const std::string& name, const Client& client = kReader) {
    return ledger_->Attach(client, name, Access::kRead, 0, GpuUuid{}, 0);
  }
  void Detach(const Client& client, const Grant& grant) {
    ASSERT_TRUE(ledger_->Detach(client, grant.lease_id));
  }
  void ExpectNothing() const {
    EXPECT_EQ(ledger_->buffer_count(), 0U);
    EXPECT_EQ(ledger_->used_bytes(0), 0U);
    EXPECT_TRUE(ledger_->generations().all().empty());
  }

  std::optional<Ledger> ledger_;
  std::optional<Journal> journal_;
};

TEST_F(LedgerUnusedTest, TenThousandOneAfterAnotherFit) {
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = i % 2 == 0 ? "x" : Concat("x", i);
    const Grant page = MakePage(name + "-ring");
    const Grant frames = MakeFrames(name);
    const auto reader_page = Attach(name + "-ring");
    const auto reader_frames = Attach(name);
    ASSERT_TRUE(reader_page && reader_frames);
    // Either the writer or the reader ends first.
    const bool reader_last = i % 3 != 0;
    if (!reader_last) Detach(kReader, *reader_frames);
    if (!reader_last) Detach(kReader, *reader_page);
    Detach(kWriter, frames);
    Detach(kWriter, page);
    if (reader_last) {
      ASSERT_TRUE(testing::StateOf(*ledger_, name)) << "who reads still has it";
      Detach(kReader, *reader_frames);
      Detach(kReader, *reader_page);
    }
    ledger_->TakeChanges();
    journal_->Take();
    ledger_->TakeEndedParticipants();
    ASSERT_EQ(ledger_->TakeFreed().size(), 2U);
    ASSERT_EQ(ledger_->buffer_count(), 0U);
    ASSERT_EQ(ledger_->used_bytes(0), 0U);
  }
}

TEST_F(LedgerUnusedTest, ADeathIsAnEndToo) {
  MakePage("x-ring");
  MakeFrames("x");
  ASSERT_TRUE(Attach("x-ring"));
  ASSERT_TRUE(Attach("x"));
  ledger_->EndClient(kWriter.id);
  EXPECT_TRUE(testing::StateOf(*ledger_, "x"));
  ledger_->EndClient(kReader.id);
  ExpectNothing();
}

TEST_F(LedgerUnusedTest, WhatWasMadeToStayStays) {
  const Grant page = MakePage("x-ring", false);
  const Grant frames = MakeFrames("x", false);
  Detach(kWriter, page);
  Detach(kWriter, frames);
  EXPECT_EQ(ledger_->buffer_count(), 2U);
  const Grant next = MakePage("x-ring", true, page.generation);
  Detach(kWriter, next);
  EXPECT_EQ(ledger_->buffer_count(), 2U) << "a successor does not take away what was to stay";
}

TEST_F(LedgerUnusedTest, ASuccessorMayKeepIt) {
  const Grant page = MakePage("x-ring");
  const auto reader = Attach("x-ring");
  Detach(kWriter, page);
  const Grant next = MakePage("x-ring", /*until_unused=*/false, page.generation);
  Detach(kReader, *reader);
  Detach(kWriter, next);
  EXPECT_TRUE(testing::StateOf(*ledger_, "x-ring"));
}

// The writer's successor is making the next generation while the last reader of the old one ends.
TEST_F(LedgerUnusedTest, ANextGenerationUnderWayKeepsTheName) {
  const Grant frames = MakeFrames("x");
  const auto reader = Attach("x");
  Detach(kWriter, frames);
  const Ledger::Making how{.attach = true, .until_unused = true};
  auto ticket = ledger_->BeginReplace(kWriter, "x", kPage, how);
  ASSERT_TRUE(ticket);
  Detach(kReader, *reader);
  const auto next = ledger_->Commit(*ticket, Memory(), true, 0);
  ASSERT_TRUE(next);
  ASSERT_TRUE(testing::StateOf(*ledger_, "x"));
  Detach(kWriter, *next);
  ExpectNothing();
  // The same, but the memory could not be allocated.
  const Grant again = MakeFrames("x");
  ticket = ledger_->BeginReplace(kWriter, "x", kPage, how);
  ASSERT_TRUE(ticket);
  Detach(kWriter, again);
  EXPECT_TRUE(testing::StateOf(*ledger_, "x"));
  ledger_->Abort(*ticket);
  ExpectNothing();
}

// The broker is killed at any statement. Once all clients are gone, so is the ring.
TEST_F(LedgerUnusedTest, NothingStaysAfterABrokerWasKilled) {
  std::vector<Statement> all;
  const auto take = [&] {
    for (Statement& statement : journal_->Take()) all.push_back(std::move(statement));
  };
  const Grant page = MakePage("x-ring");
  const Grant frames = MakeFrames("x");
  const auto reader = Attach("x");
  take();
  Detach(kWriter, frames);
  Detach(kWriter, page);
  take();
  Detach(kReader, *reader);
  take();
  ExpectNothing();
  ASSERT_GT(all.size(), 8U);
  for (size_t said = 0; said <= all.size(); ++said) {
    SCOPED_TRACE(said);
    KeeperModel keeper;
    for (const Client& client : {kWriter, kReader}) keeper.AddClient(client.id, client.container);
    for (size_t i = 0; i < said; ++i) keeper.Apply(all[i]);
    Start();
    ledger_->Restore(keeper.Dump(), annotations::PodSpec());
    for (const Client& client : {kWriter, kReader}) ledger_->EndClient(client.id);
    ExpectNothing();
  }
}

}  // namespace
}  // namespace gpushm::broker
