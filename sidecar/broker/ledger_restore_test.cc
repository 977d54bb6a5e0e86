// What a successor makes of the kept state, one rule per test. ledger_property_test.cc has random
// histories, and statements that are cut off at any place.
#include <fcntl.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sidecar/broker/ledger.h"
#include "sidecar/broker/testing/keeper_model.h"

namespace gpushm::broker {
namespace {

constexpr Ledger::Making kAttached{.attach = true};
constexpr Ledger::Making kUnpublished{.attach = true, .unpublished = true};
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kPage = 2 << 20;
constexpr int64_t kNow = 77;
const GpuUuid kGpu{{1, 2, 3}};
const Client kApp{1, "app"};
const Client kOther{2, "other"};
const LedgerLimits kLimits{.pool_bytes = 8 * kPage, .granularity = kPage};

class LedgerRestoreTest : public ::testing::Test {
 protected:
  LedgerRestoreTest() {
    keeper_.AddClient(kApp.id, kApp.container);
    keeper_.AddClient(kOther.id, kOther.container);
    ledger_.emplace(kLimits, std::vector{LedgerGpu{kGpu}}, 1000);
    KeepJournal();
  }
  void KeepJournal() { ledger_->KeepJournal(&journal_.emplace(&*ledger_)); }
  annotations::BufferSpec& Spec(const std::string& name) {
    auto& specs = pod_.buffers;  // Ordered.
    const auto at =
        specs.insert(std::ranges::lower_bound(specs, name, {}, &annotations::BufferSpec::name),
                     annotations::BufferSpec{.name = name, .size_bytes = kPage});
    return *at;
  }
  void MakeDeclared() {
    for (const auto& spec : pod_.buffers) {
      const auto ticket = ledger_->BeginDeclared(spec);
      ASSERT_TRUE(ticket);
      ASSERT_TRUE(ledger_->Commit(*ticket, Memory(), true, kNow));
    }
    for (const auto& spec : pod_.signals) {
      const auto ticket = ledger_->BeginDeclared(spec, 4096);
      ASSERT_TRUE(ticket);
      ASSERT_TRUE(ledger_->Commit(*ticket, HostPage(), true, kNow));
    }
  }
  static Memory HostPage() {
    Memory memory;
    memory.transport = protocol::Transport::kHost;
    memory.pooled = false;
    return memory;
  }
  Grant Create(const Client& client, const std::string& name,
               const Ledger::Making& how = kAttached) {
    Policy policy;
    policy.creator = client.container;
    const auto ticket = ledger_->BeginCreate(client, name, kPage, policy, how);
    EXPECT_TRUE(ticket);
    return *ledger_->Commit(*ticket, Memory(), true, kNow);
  }
  Grant Attach(const Client& client, const std::string& name, Access access = Access::kRead) {
    const auto grant = ledger_->Attach(client, name, access, 0, kGpu, kNow);
    EXPECT_TRUE(grant) << grant.error().ToString();
    return grant ? *grant : Grant{};
  }
  // As others see it.
  uint64_t Content(std::string_view name) const {
    for (const auto& record : ledger_->Records()) {
      if (record.name.view() == name) return registry::ContentBytes(record);
    }
    return UINT64_MAX;
  }
  // The broker is killed, and another one is told what it had stated.
  Ledger::Restored Restart() {
    for (const Statement& statement : journal_->Take()) keeper_.Apply(statement);
    return RestartWith(keeper_.Dump());
  }
  Ledger::Restored RestartWith(Ledger::Kept kept) {
    ledger_.emplace(kLimits, std::vector{LedgerGpu{kGpu}}, 2000);
    auto restored = ledger_->Restore(std::move(kept), pod_);
    KeepJournal();
    return restored;
  }
  static UniqueFd Null() { return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)); }

  annotations::PodSpec pod_;
  testing::KeeperModel keeper_;
  std::optional<Ledger> ledger_;
  std::optional<Journal> journal_;
};

TEST_F(LedgerRestoreTest, EverybodyGoesOnWithWhatTheyHad) {
  Spec("weights").writers = {"app"};
  MakeDeclared();
  const uint64_t generation = Attach(kApp, "weights", Access::kReadWrite).generation;
  const Grant read = Attach(kOther, "weights");
  const Grant made = Create(kApp, "made", kUnpublished);
  const uint64_t used = ledger_->used_bytes(0);
  const auto restored = Restart();
  EXPECT_THAT(restored.dropped, IsEmpty());
  EXPECT_THAT(restored.settled, ElementsAre("weights"));
  EXPECT_EQ(ledger_->lease_count(), 3u);
  EXPECT_EQ(ledger_->used_bytes(0), used);
  EXPECT_EQ(Attach(kOther, "weights").generation, generation);
  EXPECT_TRUE(ledger_->Detach(kOther, read.lease_id));
  EXPECT_FALSE(ledger_->Attach(kOther, "weights", Access::kReadWrite, 0, kGpu, kNow))
      << "rules of declared buffers are read again";
  EXPECT_TRUE(ledger_->Publish(kApp, made.lease_id));
  EXPECT_EQ(Attach(kOther, "made").generation, made.generation);
}

// Regression: each of 65,536 leases of a dead writer was shown, noted and dropped. This took more
// memory than the broker may have, and so did its successor's.
TEST_F(LedgerRestoreTest, AWriterOfManyLeasesEndsInFewWords) {
  constexpr size_t kLeases = 1000;
  Memory memory;
  memory.transport = protocol::Transport::kCuIpc;
  memory.size_bytes = memory.mapped_bytes = kPage;
  memory.offerer_pid = 1;
  Policy policy;
  policy.creator = kApp.container;
  policy.writers_all = true;
  ASSERT_TRUE(ledger_->Offer(kApp, "offered", policy, &memory, kNow));
  for (size_t i = 0; i < kLeases; ++i) Attach(kOther, "offered", Access::kReadWrite);
  const Grant held = Attach(kApp, "offered");
  for (const Statement& statement : journal_->Take()) keeper_.Apply(statement);
  ASSERT_FALSE(ledger_->TakeChanges().empty());
  const auto ended = ledger_->EndClient(kOther.id);
  EXPECT_EQ(ended.leases, kLeases);
  EXPECT_THAT(ended.marked, ElementsAre("offered"));
  EXPECT_EQ(ledger_->TakeChanges().size(), 1u);
  const auto statements = journal_->Take();
  EXPECT_EQ(statements.size(), 1u);
  for (const Statement& statement : statements) keeper_.Apply(statement);
  keeper_.DropClient(kOther.id);  // As the broker states it.
  Restart();
  EXPECT_EQ(ledger_->lease_count(), 1u);
  EXPECT_EQ(testing::StateOf(*ledger_, "offered"), BufferState::kWriterDied);
  EXPECT_TRUE(ledger_->Detach(kApp, held.lease_id));
}

// Goal: an offer across allocations is restored with all of them, or not at all. Method: a broker
// that is killed after each of its statements.
TEST_F(LedgerRestoreTest, AnOfferOfSeveralBlocksIsRestoredWholeOrNotAtAll) {
  Memory memory;
  memory.transport = protocol::Transport::kBlocks;
  memory.size_bytes = kPage;
  memory.mapped_bytes = 3 * kPage;
  memory.offset = kPage + 512;
  for (int i = 0; i < 3; ++i) {
    memory.blocks.push_back({UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)), kPage});
  }
  Policy policy;
  policy.creator = kApp.container;
  ASSERT_TRUE(ledger_->Offer(kApp, "offered", policy, &memory, kNow));
  EXPECT_EQ(ledger_->block_count(), 3u);
  const std::vector<Statement> statements = journal_->Take();
  ASSERT_EQ(statements.size(), 5u) << "the buffer, its generation, its blocks";
  for (size_t stated = 0; stated <= statements.size(); ++stated) {
    testing::KeeperModel keeper;
    for (size_t i = 0; i < stated; ++i) keeper.Apply(statements[i]);
    Ledger successor(LedgerLimits{}, {LedgerGpu{kGpu}}, 2000);
    const auto restored = successor.Restore(keeper.Dump(), pod_);
    const bool whole = stated == statements.size();
    EXPECT_EQ(testing::StateOf(successor, "offered").has_value(), whole) << stated;
    EXPECT_EQ(successor.block_count(), whole ? 3u : 0u);
    if (stated > 1 && !whole) {
      EXPECT_THAT(restored.dropped,
                  Contains(HasSubstr(Concat(stated - 2, " of its 3 blocks were received"))));
    }
    if (!whole) continue;
    EXPECT_EQ(testing::LinesDiffer(*ledger_, successor), "");
    const auto grant = successor.Attach(kApp, "offered", Access::kRead, 0, kGpu, kNow);
    ASSERT_TRUE(grant);
    const auto granted = successor.MemoryOf(kApp, grant->lease_id);
    ASSERT_TRUE(granted);
    EXPECT_EQ((*granted)->blocks.size(), 3u);
    EXPECT_FALSE(successor.MemoryOf(kOther, grant->lease_id)) << "another client's lease";
  }
}

TEST_F(LedgerRestoreTest, OffersOfMoreThanTheGpuHasAreDropped) {
  for (const char* name : {"giant", "offered", "small"}) {
    Memory memory;
    memory.transport = protocol::Transport::kCuIpc;
    memory.size_bytes = memory.mapped_bytes = name == std::string("giant") ? 99 * kPage : 4 * kPage;
    memory.offerer_pid = 1;
    Policy policy;
    policy.creator = kApp.container;
    ASSERT_TRUE(ledger_->Offer(kApp, name, policy, &memory, kNow));
  }
  for (const Statement& statement : journal_->Take()) keeper_.Apply(statement);
  ledger_.emplace(LedgerLimits{.pool_bytes = 0}, std::vector{LedgerGpu{kGpu, 7 * kPage}}, 2000);
  const auto restored = ledger_->Restore(keeper_.Dump(), pod_);
  EXPECT_THAT(restored.dropped,
              Contains(HasSubstr(Concat("giant: it is larger than the GPU: ", 99 * kPage, " of ",
                                        7 * kPage, " bytes"))));
  EXPECT_THAT(restored.dropped,
              Contains(HasSubstr("small: more memory is offered than the GPU has")));
  EXPECT_TRUE(testing::StateOf(*ledger_, "offered"));
  EXPECT_EQ(ledger_->buffer_count(), 1u);
}

TEST_F(LedgerRestoreTest, WhatIsOnAGpuThatThePodNoLongerHasIsDropped) {
  const std::vector<LedgerGpu> gpus{{kGpu}, {GpuUuid{{4}}}};
  ledger_.emplace(kLimits, gpus, 1000);
  KeepJournal();
  Create(kApp, "first");
  Create(kApp, "second", {.gpu = 1});
  for (const Statement& statement : journal_->Take()) keeper_.Apply(statement);
  ledger_.emplace(kLimits, gpus, 2000);
  EXPECT_THAT(ledger_->Restore(keeper_.Dump(), pod_).dropped, IsEmpty());
  EXPECT_EQ(ledger_->GpuOf("first"), 0U);
  EXPECT_EQ(ledger_->GpuOf("second"), 1U);
  EXPECT_EQ(ledger_->used_bytes(1), kPage);
  EXPECT_THAT(RestartWith(keeper_.Dump()).dropped,
              Contains(HasSubstr("of second: its GPU is number 1, but the pod has 1")));
  EXPECT_TRUE(testing::StateOf(*ledger_, "first"));
  EXPECT_FALSE(testing::StateOf(*ledger_, "second"));
}

TEST_F(LedgerRestoreTest, ADeclaredSignalKeepsItsPageAndItsRules) {
  pod_.signals.push_back({.name = "ready", .containers = {"app", "other"}, .writers = {"app"}});
  MakeDeclared();
  const uint64_t generation = Attach(kApp, "ready", Access::kReadWrite).generation;
  const auto restored = Restart();
  EXPECT_THAT(restored.dropped, IsEmpty());
  EXPECT_THAT(restored.settled, ElementsAre("ready"));
  EXPECT_EQ(Attach(kOther, "ready").generation, generation);
  EXPECT_FALSE(ledger_->Attach(kOther, "ready", Access::kReadWrite, 0, kGpu, kNow));
  EXPECT_FALSE(ledger_->Attach({3, "third"}, "ready", Access::kRead, 0, kGpu, kNow));
  Policy wider;
  wider.writers_all = true;
  EXPECT_FALSE(ledger_->BeginPage(kOther, "ready", 4096, wider, generation))
      << "what follows it has its rules, too";
  ledger_->EndClient(kApp.id);
  EXPECT_TRUE(ledger_->BeginPage(kApp, "ready", 4096, Policy{}, generation));
}

// A broker that is run by hand may get a different declaration than its predecessor.
TEST_F(LedgerRestoreTest, ANameThatIsDeclaredAsSomethingElseIsMadeAnew) {
  Spec("now-signal");
  pod_.signals.push_back({.name = "now-buffer"});
  MakeDeclared();
  pod_.buffers = {{.name = "now-buffer", .size_bytes = kPage}};
  pod_.signals = {{.name = "now-signal"}};
  const auto restored = Restart();
  EXPECT_THAT(restored.dropped, Contains(HasSubstr("declared as something else")));
  EXPECT_THAT(restored.settled, IsEmpty());
  EXPECT_EQ(ledger_->used_bytes(0), 0U);
  MakeDeclared();
  EXPECT_TRUE(ledger_->IsPage("now-signal"));
  EXPECT_FALSE(ledger_->IsPage("now-buffer"));
}

TEST_F(LedgerRestoreTest, WhoDiedMeanwhileIsMarkedAsDeclared) {
  Spec("marked");
  Spec("kept").on_writer_exit = annotations::OnWriterExit::kKeep;
  Spec("dropped").on_writer_exit = annotations::OnWriterExit::kDrop;
  MakeDeclared();
  for (const char* name : {"marked", "kept", "dropped"}) Attach(kApp, name, Access::kReadWrite);
  Create(kApp, "unpublished", kUnpublished);
  Restart();
  const auto ended = ledger_->EndClient(kApp.id);
  EXPECT_EQ(ended.leases, 4u);
  EXPECT_THAT(ended.marked, ElementsAre("marked"));
  EXPECT_EQ(ended.dropped.size(), 2u);
  EXPECT_EQ(testing::StateOf(*ledger_, "marked"), BufferState::kWriterDied);
  EXPECT_EQ(testing::StateOf(*ledger_, "kept"), BufferState::kReady);
  EXPECT_EQ(testing::StateOf(*ledger_, "dropped"), std::nullopt);
  // It also stays dropped for the next broker: only its writers may use the name again.
  EXPECT_THAT(Restart().settled, Contains("dropped"));
  EXPECT_EQ(testing::StateOf(*ledger_, "dropped"), std::nullopt);
  Create(kOther, "dropped");
}

// ---- loads

TEST_F(LedgerRestoreTest, ALoadUnderWayHasFailedAndSaysSo) {
  Spec("weights").loads = true;
  MakeDeclared();
  const Grant writer = Attach(kApp, "weights", Access::kReadWrite);
  ASSERT_TRUE(ledger_->SetContent(kApp, writer.lease_id, 100, false));
  ledger_->EndClient(kApp.id);
  Restart();
  EXPECT_EQ(testing::StateOf(*ledger_, "weights"), BufferState::kFailed);
  const auto attached = ledger_->Attach(kApp, "weights", Access::kRead, 0, kGpu, kNow);
  ASSERT_FALSE(attached);
  EXPECT_THAT(attached.error().what(), HasSubstr("in progress when the broker was restarted"));
  EXPECT_TRUE(ledger_->Attach(kApp, "weights", Access::kReadWrite, 0, kGpu, kNow));
}

TEST_F(LedgerRestoreTest, ALoadFromAFileIsAwaitedAgainUnlessItWasDone) {
  Spec("done").file = "/models/done";
  Spec("cut").file = "/models/cut";
  Spec("awaited").loads = true;
  MakeDeclared();
  for (const std::string name : {"done", "cut"}) {
    const Client loader{3, annotations::LoaderOf(name)};
    keeper_.AddClient(loader.id, loader.container);
    const Grant grant = Attach(loader, name, Access::kReadWrite);
    ASSERT_TRUE(ledger_->SetContent(loader, grant.lease_id, 100, name == "done"));
    ledger_->EndClient(loader.id);
  }
  Restart();
  EXPECT_EQ(testing::StateOf(*ledger_, "done"), BufferState::kReady);
  EXPECT_EQ(testing::StateOf(*ledger_, "cut"), BufferState::kLoading);
  EXPECT_EQ(testing::StateOf(*ledger_, "awaited"), BufferState::kLoading) << "nobody had begun";
}

TEST_F(LedgerRestoreTest, WhoLoadsByItselfGoesOn) {
  const Grant made = Create(kApp, "made");
  ASSERT_TRUE(ledger_->SetContent(kApp, made.lease_id, 100, false));
  Restart();
  EXPECT_EQ(testing::StateOf(*ledger_, "made"), BufferState::kLoading);
  EXPECT_TRUE(ledger_->SetContent(kApp, made.lease_id, 200, false));
  Restart();
  EXPECT_TRUE(ledger_->SetContent(kApp, made.lease_id, kPage, true));
  EXPECT_EQ(testing::StateOf(*ledger_, "made"), BufferState::kReady);
  ASSERT_TRUE(ledger_->SetContent(kApp, made.lease_id, 100, false));
  Restart();
  ledger_->EndClient(kApp.id);
  EXPECT_EQ(testing::StateOf(*ledger_, "made"), BufferState::kFailed);
}

// Regression: the death of a writer made content usable that had failed to load, or was still
// loading.
TEST_F(LedgerRestoreTest, ADeathMakesNothingReady) {
  Spec("weights").loads = true;
  MakeDeclared();
  Attach(kApp, "weights", Access::kReadWrite);
  ledger_->EndClient(kApp.id);
  EXPECT_EQ(testing::StateOf(*ledger_, "weights"), BufferState::kLoading);
}

// ---- inconsistent state

TEST_F(LedgerRestoreTest, WhatDoesNotHoldTogetherIsDroppedAndNamed) {
  Create(kApp, "a");
  Create(kApp, "b");
  Create(kApp, "c", kUnpublished);
  for (const Statement& statement : journal_->Take()) keeper_.Apply(statement);
  struct Case {
    const char* said;
    std::function<void(Ledger::Kept*)> change;
  };
  const std::vector<Case> cases = {
      {"a: its memory does not exist", [](auto* k) { k->buffers[0].second.current = 99; }},
      {"a: its memory does not exist", [](auto* k) { k->buffers[0].second.current = 1001; }},
      {"of a: nothing refers to it",
       [](auto* k) {
         k->buffers[0].second.current = 99;
         k->leases.erase(k->leases.begin());
       }},
      {"of a: its memory was not received",
       [](auto* k) { k->generations[0].second.memory.descriptor.Reset(); }},
      {"of a: this broker never makes memory of this size",
       [](auto* k) { k->generations[0].second.memory.mapped_bytes = 3 * kPage; }},
      {"of b: its buffer was not stated",
       [](auto* k) { k->buffers.erase(k->buffers.begin() + 1); }},
      {"of b: duplicate number", [](auto* k) { k->generations[1].first = 1000; }},
      {"of b: invalid number", [](auto* k) { k->generations[1].first = ~uint64_t{0}; }},
      {"of b: the pool has no room",
       [](auto* k) {
         Memory& memory = k->generations[1].second.memory;
         memory.size_bytes = memory.mapped_bytes = 8 * kPage;
       }},
      {"of c: nothing refers to it", [](auto* k) { k->leases.pop_back(); }},
      {"buffer c: its memory does not exist",
       [](auto* k) { k->generations[2].second.publisher_client = 0; }},
      {"lease 1: its client was not stated: client 9", [](auto* k) { k->leases[0].client.id = 9; }},
      {"lease 1: its client was not stated", [](auto* k) { k->clients.erase(1); }},
      {"lease 2: its generation does not exist: generation 9",
       [](auto* k) { k->leases[1].generation = 9; }},
      {"lease 1: duplicate number", [](auto* k) { k->leases[1].id = 1; }},
      {"lease 18446744073709551615: invalid number",
       [](auto* k) { k->leases[1].id = ~uint64_t{0}; }},
      {"buffer b: the pod does not declare it any more",
       [](auto* k) { k->buffers[1].second.policy.declared = true; }},
      {"buffer b: it has no creator", [](auto* k) { k->buffers[1].second.policy.creator = {}; }},
      {"buffer b: the process that offered it is gone",
       [](auto* k) {
         k->generations[1].second.memory.transport = protocol::Transport::kCuIpc;
         k->generations[1].second.offerer_client = 9;
       }},
  };
  for (const Case& c : cases) {
    auto kept = keeper_.Dump();
    c.change(&kept);
    const auto restored = RestartWith(std::move(kept));
    EXPECT_THAT(restored.dropped, Contains(HasSubstr(c.said))) << c.said;
    // It continues to work within its invariants.
    EXPECT_LE(ledger_->used_bytes(0), ledger_->pool_bytes());
    Create(kOther, "next");
    ledger_->EndClient(kApp.id);
    ledger_->EndClient(kOther.id);
    uint64_t used = 0;
    for (const auto& record : ledger_->Records()) used += record.mapped_bytes;
    EXPECT_LE(ledger_->used_bytes(0), used) << "memory that nobody holds is counted: " << c.said;
  }
}

TEST_F(LedgerRestoreTest, ABufferThatWasNeverFinishedIsMadeAnew) {
  Spec("weights");
  MakeDeclared();
  const auto statements = journal_->Take();
  keeper_.Apply(statements.at(0));  // Only the name.
  const auto restored = RestartWith(keeper_.Dump());
  EXPECT_THAT(restored.settled, IsEmpty());
  EXPECT_EQ(ledger_->buffer_count(), 0u);
  MakeDeclared();
  EXPECT_EQ(testing::StateOf(*ledger_, "weights"), BufferState::kReady);
}

}  // namespace
}  // namespace gpushm::broker
