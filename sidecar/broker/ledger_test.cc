// The ledger's rules, one per test. ledger_property_test.cc has what holds whatever happens.
#include "sidecar/broker/ledger.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "contract/limits.h"
#include "platform/base/testing/code.h"

namespace gpushm::broker {
namespace {

constexpr Ledger::Making kAttached{.attach = true};
constexpr Ledger::Making kUnpublished{.attach = true, .unpublished = true};
using protocol::OnWriterExit;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kPage = 2 << 20;
constexpr uint64_t kFirstGeneration = 1000;
constexpr int64_t kNow = 77;
const GpuUuid kGpu{{1, 2, 3}};
const Client kApp{1, "app"};
const Client kOther{2, "other"};

class LedgerTest : public ::testing::Test {
 protected:
  static Policy Made(const Client& by) {
    Policy policy;
    policy.creator = by.container;
    return policy;
  }
  static annotations::BufferSpec Spec(const std::string& name, uint64_t size_bytes = kPage) {
    annotations::BufferSpec spec;
    spec.name = name;
    spec.size_bytes = size_bytes;
    return spec;
  }

  void Declare(const annotations::BufferSpec& spec) {
    const auto ticket = ledger_.BeginDeclared(spec);
    ASSERT_TRUE(ticket) << ticket.error().ToString();
    ASSERT_TRUE(ledger_.Commit(*ticket, Memory(), true, kNow));
  }
  Grant Create(const Client& client, const std::string& name, const Ledger::Making& how = {},
               std::optional<Policy> policy = std::nullopt) {
    const auto ticket =
        ledger_.BeginCreate(client, name, kPage, policy.value_or(Made(client)), how);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    auto grant = ledger_.Commit(*ticket, Memory(), true, kNow);
    EXPECT_TRUE(grant);
    return *grant;
  }
  Result<Grant> Replace(const Client& client, const std::string& name,
                        const Ledger::Making& how = {}, uint64_t size_bytes = 0) {
    const auto ticket = ledger_.BeginReplace(client, name, size_bytes, how);
    if (!ticket) return std::unexpected(ticket.error());
    return ledger_.Commit(*ticket, Memory(), true, kNow);
  }
  Result<Grant> Attach(const Client& client, const std::string& name, Access access = Access::kRead,
                       uint64_t generation = 0) {
    return ledger_.Attach(client, name, access, generation, kGpu, kNow);
  }
  // The result of Attach: 0 or a Code.
  int AttachCode(const Client& client, const std::string& name, Access access = Access::kRead) {
    const auto grant = Attach(client, name, access);
    return grant ? 0 : static_cast<int>(grant.error().code());
  }
  // The state that peers see; nullopt if they see no such buffer.
  std::optional<BufferState> Shown(const std::string& name) const {
    for (const auto& record : ledger_.Records()) {
      if (record.name.view() == name) return record.state;
    }
    return std::nullopt;
  }

  Ledger ledger_{LedgerLimits{.pool_bytes = 8 * kPage, .granularity = kPage},
                 {LedgerGpu{kGpu}},
                 kFirstGeneration};
};

using gpushm::testing::CodeOf;
constexpr int kOk = 0;
constexpr int As(Code code) { return static_cast<int>(code); }

// ---- rights

TEST_F(LedgerTest, ADeclaredBufferIsOpenToEveryContainerUnlessListed) {
  Declare(Spec("open"));
  EXPECT_EQ(AttachCode(kApp, "open"), kOk);
  EXPECT_EQ(AttachCode(kOther, "open", Access::kReadWrite), kOk);

  annotations::BufferSpec listed = Spec("listed");
  listed.containers = {"app"};
  Declare(listed);
  EXPECT_EQ(AttachCode(kApp, "listed", Access::kReadWrite), kOk);
  EXPECT_EQ(AttachCode(kOther, "listed"), As(Code::kDenied));
}

TEST_F(LedgerTest, OnlyNamedWritersWrite) {
  annotations::BufferSpec spec = Spec("weights");
  spec.writers = {"app"};
  Declare(spec);
  EXPECT_EQ(AttachCode(kApp, "weights", Access::kReadWrite), kOk);
  EXPECT_EQ(AttachCode(kOther, "weights"), kOk);
  const auto denied = Attach(kOther, "weights", Access::kReadWrite);
  ASSERT_EQ(CodeOf(denied), As(Code::kDenied));
  EXPECT_THAT(denied.error().remedy(), HasSubstr("buffers.gpushm.io/weights: writers"));
  EXPECT_EQ(CodeOf(Replace(kOther, "weights")), As(Code::kDenied));
}

TEST_F(LedgerTest, AMadeBufferIsWrittenByItsCreatorsContainerUnlessOpened) {
  Create(kApp, "frames");
  EXPECT_EQ(AttachCode(kOther, "frames"), kOk);
  EXPECT_EQ(AttachCode(kOther, "frames", Access::kReadWrite), As(Code::kDenied));
  EXPECT_EQ(AttachCode(Client{9, "app"}, "frames", Access::kReadWrite), kOk);
  Policy open = Made(kApp);
  open.writers_all = true;
  Create(kApp, "shared", {}, open);
  EXPECT_EQ(AttachCode(kOther, "shared", Access::kReadWrite), kOk);
}

TEST_F(LedgerTest, NobodyWritesAReadOnlyBuffer) {
  annotations::BufferSpec spec = Spec("weights");
  spec.access = annotations::WriteRule::kReadOnly;
  Declare(spec);
  const auto denied = Attach(kApp, "weights", Access::kReadWrite);
  ASSERT_EQ(CodeOf(denied), As(Code::kDenied));
  EXPECT_THAT(denied.error().what(), HasSubstr("read-only"));
  EXPECT_EQ(CodeOf(Replace(kApp, "weights")), As(Code::kDenied));
}

// Goal: the loader of a file writes what has no content yet, whatever the lists say. Nobody else
// does, and it may do nothing else.
TEST_F(LedgerTest, TheLoaderOfAFileWritesWhatHasNoContentYet) {
  annotations::BufferSpec read_only = Spec("weights");
  read_only.file = "models/w";
  read_only.containers = {"app"};
  read_only.access = annotations::WriteRule::kReadOnly;
  annotations::BufferSpec listed = Spec("listed");
  listed.file = "models/l";
  listed.writers = {"app"};
  listed.on_writer_exit = annotations::OnWriterExit::kDrop;
  annotations::BufferSpec awaited = Spec("awaited");
  awaited.loads = true;
  awaited.containers = {"app"};
  for (const auto& spec : {read_only, listed, awaited}) Declare(spec);
  EXPECT_EQ(AttachCode({9, "gpushm-load-awaited"}, "awaited", Access::kReadWrite),
            As(Code::kDenied));
  for (const std::string name : {"weights", "listed"}) {
    SCOPED_TRACE(name);
    const Client loader{3, "gpushm-load-" + name};
    EXPECT_EQ(AttachCode({4, "gpushm-load-other"}, name, Access::kReadWrite), As(Code::kDenied));
    EXPECT_EQ(AttachCode(kOther, name, Access::kReadWrite), As(Code::kDenied));
    EXPECT_EQ(AttachCode(kApp, name), As(Code::kLoading));
    const auto failed = Attach(loader, name, Access::kReadWrite);
    ASSERT_TRUE(failed) << failed.error().ToString();
    ASSERT_TRUE(ledger_.SetContent(loader, failed->lease_id, 1, false));
    ASSERT_TRUE(ledger_.Detach(loader, failed->lease_id));
    EXPECT_EQ(Shown(name), BufferState::kFailed);
    const auto killed = Attach(loader, name, Access::kReadWrite);
    ASSERT_TRUE(killed) << "again after a failure: " << killed.error().ToString();
    ASSERT_TRUE(ledger_.SetContent(loader, killed->lease_id, 1, false));
    ledger_.EndClient(loader.id);
    EXPECT_EQ(Shown(name), BufferState::kLoading) << "another one will load it";
    const auto whole = Attach(loader, name, Access::kReadWrite);
    ASSERT_TRUE(whole) << whole.error().ToString();
    ASSERT_TRUE(ledger_.SetContent(loader, whole->lease_id, kPage, true));
    ledger_.EndClient(loader.id);
    EXPECT_EQ(Shown(name), BufferState::kReady) << "it was done";
    EXPECT_EQ(AttachCode(kApp, name), kOk);
    EXPECT_EQ(AttachCode(loader, name, Access::kReadWrite), As(Code::kDenied));
  }
}

// Goal: where one socket serves all containers, any of them may be the loader.
TEST_F(LedgerTest, WithOneSocketEverybodyMayBeTheLoader) {
  Ledger ledger({.pool_bytes = 8 * kPage, .granularity = kPage, .one_socket = true},
                {LedgerGpu{kGpu}}, 1000);
  annotations::BufferSpec spec = Spec("weights");
  spec.file = "/models/w";
  spec.access = annotations::WriteRule::kReadOnly;
  const auto ticket = ledger.BeginDeclared(spec);
  ASSERT_TRUE(ticket) << ticket.error().ToString();
  ASSERT_TRUE(ledger.Commit(*ticket, Memory(), true, kNow));
  const auto grant = ledger.Attach(kApp, "weights", Access::kReadWrite, 0, kGpu, kNow);
  ASSERT_TRUE(grant) << grant.error().ToString();
  ASSERT_TRUE(ledger.SetContent(kApp, grant->lease_id, kPage, true));
  EXPECT_FALSE(ledger.Attach(kApp, "weights", Access::kReadWrite, 0, kGpu, kNow));
}

TEST_F(LedgerTest, OneWriterIsOne) {
  annotations::BufferSpec spec = Spec("ring");
  spec.access = annotations::WriteRule::kOneWriter;
  Declare(spec);
  const auto first = Attach(kApp, "ring", Access::kReadWrite);
  ASSERT_TRUE(first);
  EXPECT_EQ(AttachCode(kOther, "ring", Access::kReadWrite), As(Code::kBusy));
  EXPECT_EQ(AttachCode(kOther, "ring"), kOk);
  EXPECT_EQ(CodeOf(Replace(kOther, "ring", kAttached)), As(Code::kBusy));
  ASSERT_TRUE(ledger_.Detach(kApp, first->lease_id));
  EXPECT_EQ(AttachCode(kOther, "ring", Access::kReadWrite), kOk);
}

// Regression: between the begin and the commit of a replacement that attaches, another writer was
// accepted, and there were two.
TEST_F(LedgerTest, AReplacementUnderWayIsTheOneWriter) {
  annotations::BufferSpec spec = Spec("ring");
  spec.access = annotations::WriteRule::kOneWriter;
  Declare(spec);
  const auto ticket = ledger_.BeginReplace(kApp, "ring", 0, kAttached);
  ASSERT_TRUE(ticket);
  EXPECT_EQ(AttachCode(kOther, "ring", Access::kReadWrite), As(Code::kBusy));
  ASSERT_TRUE(ledger_.Commit(*ticket, Memory(), true, kNow));
  EXPECT_EQ(AttachCode(kOther, "ring", Access::kReadWrite), As(Code::kBusy));

  ledger_.EndClient(kApp.id);
  const auto refused = ledger_.BeginReplace(kApp, "ring", 0, kAttached);
  ASSERT_TRUE(refused);
  ledger_.Abort(*refused);
  EXPECT_EQ(AttachCode(kOther, "ring", Access::kReadWrite), kOk);
}

TEST_F(LedgerTest, WhoDoesNotSeeTheGpuIsRefused) {
  Declare(Spec("weights"));
  const auto blind = ledger_.Attach(kApp, "weights", Access::kRead, 0, GpuUuid{}, kNow);
  ASSERT_EQ(CodeOf(blind), As(Code::kDenied));
  EXPECT_THAT(blind.error().remedy(), HasSubstr("gpushm.io/attach"));
}

// ---- names and generations

TEST_F(LedgerTest, NamesAreTakenOnceAndFreedByDelete) {
  Create(kApp, "a");
  EXPECT_EQ(CodeOf(ledger_.BeginCreate(kOther, "a", kPage, Made(kOther), {})),
            As(Code::kAlreadyExists));
  EXPECT_EQ(AttachCode(kApp, "b"), As(Code::kNotFound));
  EXPECT_EQ(CodeOf(ledger_.Delete(kOther, "a")), As(Code::kDenied));
  EXPECT_EQ(CodeOf(ledger_.Delete(kApp, "a")), kOk);
  EXPECT_EQ(CodeOf(ledger_.Delete(kApp, "a")), As(Code::kNotFound));
  Declare(Spec("declared"));
  EXPECT_EQ(CodeOf(ledger_.Delete(kApp, "declared")), As(Code::kDenied));
}

// ---- several GPUs

constexpr Ledger::Making OnGpu(uint32_t gpu) { return {.gpu = gpu}; }

class LedgerGpusTest : public LedgerTest {
 protected:
  LedgerGpusTest() {
    ledger_ = Ledger(LedgerLimits{.pool_bytes = 2 * kPage, .granularity = kPage},
                     {LedgerGpu{kGpu, 3 * kPage}, LedgerGpu{kSecond, 8 * kPage}}, kFirstGeneration);
  }
  Result<uint64_t> Offer(const std::string& name, uint32_t gpu, uint64_t bytes) {
    Memory memory;
    memory.transport = protocol::Transport::kCuIpc;
    memory.size_bytes = memory.mapped_bytes = bytes;
    memory.offerer_pid = 1;
    memory.gpu = gpu;
    return ledger_.Offer(kApp, name, Made(kApp), &memory, kNow);
  }

  const GpuUuid kSecond{{4, 5, 6}};
};

TEST_F(LedgerGpusTest, ADeclaredBufferIsOnItsGpuAndComesBackThereOnly) {
  annotations::BufferSpec spec = Spec("kv");
  spec.gpu = 1;
  spec.on_writer_exit = annotations::OnWriterExit::kDrop;
  Declare(spec);
  EXPECT_EQ(ledger_.used_bytes(0), 0U);
  EXPECT_EQ(ledger_.used_bytes(1), kPage);
  EXPECT_EQ(AttachCode(kApp, "kv"), As(Code::kDenied)) << "it sees the first GPU";
  ASSERT_TRUE(ledger_.Attach(kApp, "kv", Access::kReadWrite, 0, kSecond, kNow));
  ledger_.EndClient(kApp.id);
  EXPECT_EQ(ledger_.used_bytes(1), 0U);
  const auto elsewhere = ledger_.BeginCreate(kApp, "kv", kPage, Made(kApp), {});
  ASSERT_EQ(CodeOf(elsewhere), As(Code::kInvalidArgument));
  EXPECT_THAT(elsewhere.error().ToString(),
              HasSubstr("declared for GPU 1 of the pod, not for GPU 0"));
  EXPECT_TRUE(ledger_.BeginCreate(kApp, "kv", kPage, Made(kApp), OnGpu(1)));
  spec.name = "third";
  spec.gpu = 2;
  EXPECT_EQ(CodeOf(ledger_.BeginDeclared(spec)), As(Code::kInvalidArgument));
  const auto no_such = ledger_.BeginCreate(kApp, "third", kPage, Made(kApp), OnGpu(2));
  ASSERT_EQ(CodeOf(no_such), As(Code::kInvalidArgument));
  EXPECT_THAT(no_such.error().what(), HasSubstr("the pod has 2 GPUs, numbers 0 to 1"));
}

TEST_F(LedgerGpusTest, EachPoolHasItsOwnRoom) {
  Create(kApp, "a", OnGpu(1));
  ASSERT_TRUE(Replace(kApp, "a"));
  const auto lease = ledger_.Attach(kOther, "a", Access::kRead, 0, kSecond, kNow);
  ASSERT_TRUE(lease);
  ASSERT_TRUE(Replace(kApp, "a"));
  EXPECT_EQ(ledger_.used_bytes(1), 2 * kPage);
  const auto full = ledger_.BeginReplace(kApp, "a", 0, {});
  ASSERT_EQ(CodeOf(full), As(Code::kExhausted));
  EXPECT_THAT(full.error().what(), HasSubstr("the pool on GPU 1 has 0 of"));
  EXPECT_THAT(full.error().remedy(), HasSubstr("detach the old one"));
  Create(kApp, "b", OnGpu(0));
  const auto ticket = ledger_.BeginCreate(kApp, "c", kPage, Made(kApp), OnGpu(0));
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ledger_.used_bytes(0), 2 * kPage);
  ledger_.Abort(*ticket);
  EXPECT_EQ(ledger_.used_bytes(0), kPage);
}

TEST_F(LedgerGpusTest, OffersHaveTheRoomOfTheirGpu) {
  EXPECT_EQ(CodeOf(Offer("large", 0, 4 * kPage)), As(Code::kInvalidArgument));
  EXPECT_TRUE(Offer("large", 1, 4 * kPage));
  EXPECT_TRUE(Offer("small", 0, 3 * kPage));
  const auto full = Offer("more", 0, kPage);
  ASSERT_EQ(CodeOf(full), As(Code::kExhausted));
  EXPECT_THAT(full.error().what(), HasSubstr("on it and GPU 0 has"));
  ASSERT_TRUE(ledger_.Delete(kApp, "small"));
  EXPECT_TRUE(Offer("more", 0, kPage));
  EXPECT_EQ(ledger_.GpuOf("large"), 1U);
}

TEST_F(LedgerTest, ReplaceMovesTheGenerationAndOldOnesAreStale) {
  const Grant first = Create(kApp, "a");
  const auto old = Attach(kOther, "a");
  const auto second = Replace(kApp, "a", {}, 3 * kPage);
  ASSERT_TRUE(second);
  EXPECT_GT(second->generation, first.generation);
  EXPECT_EQ(second->memory->size_bytes, 3 * kPage);
  EXPECT_EQ(CodeOf(Attach(kOther, "a", Access::kRead, first.generation)), As(Code::kStale));
  EXPECT_EQ(CodeOf(Attach(kOther, "a", Access::kRead, second->generation)), kOk);
  EXPECT_EQ(ledger_.used_bytes(0), 4 * kPage);
  ASSERT_TRUE(ledger_.Detach(kOther, old->lease_id));
  EXPECT_EQ(ledger_.used_bytes(0), 3 * kPage);
  EXPECT_EQ(Replace(kApp, "a")->memory->size_bytes, 3 * kPage) << "0: as before";
}

TEST_F(LedgerTest, UnpublishedIsSeenByItsMakerAlone) {
  const Grant made = Create(kApp, "a", kUnpublished);
  EXPECT_FALSE(Shown("a"));
  EXPECT_TRUE(ledger_.TakeChanges().empty());
  EXPECT_EQ(AttachCode(kOther, "a"), As(Code::kLoading));
  EXPECT_EQ(CodeOf(ledger_.Publish(kOther, made.lease_id)), As(Code::kNotFound));
  ASSERT_TRUE(ledger_.Publish(kApp, made.lease_id));
  EXPECT_EQ(CodeOf(ledger_.Publish(kApp, made.lease_id)), As(Code::kInvalidArgument));
  EXPECT_EQ(Shown("a"), BufferState::kReady);
  EXPECT_EQ(AttachCode(kOther, "a"), kOk);
}

TEST_F(LedgerTest, AnUnpublishedReplacementLeavesTheOldOneInUse) {
  const Grant first = Create(kApp, "a");
  const auto next = Replace(kApp, "a", kUnpublished);
  ASSERT_TRUE(next);
  EXPECT_EQ(Attach(kOther, "a")->generation, first.generation);
  EXPECT_EQ(CodeOf(Replace(kApp, "a")), As(Code::kBusy));
  // A client that detaches an unpublished generation gives it up.
  ASSERT_TRUE(ledger_.Detach(kApp, next->lease_id));
  EXPECT_EQ(Attach(kOther, "a")->generation, first.generation);
  EXPECT_EQ(ledger_.used_bytes(0), kPage);
  const auto again = Replace(kApp, "a", kUnpublished);
  ledger_.EndClient(kApp.id);  // So does a client that dies.
  EXPECT_EQ(Attach(kOther, "a")->generation, first.generation);
  EXPECT_EQ(ledger_.used_bytes(0), kPage);
  EXPECT_EQ(CodeOf(Replace(Client{5, "app"}, "a")), kOk);
}

TEST_F(LedgerTest, AnUnpublishedBufferGoesWithItsMaker) {
  Create(kApp, "a", kUnpublished);
  const auto ended = ledger_.EndClient(kApp.id);
  EXPECT_EQ(ended.leases, 1u);
  EXPECT_THAT(ended.dropped, ElementsAre("a"));
  EXPECT_EQ(ledger_.used_bytes(0), 0u);
  EXPECT_EQ(ledger_.TakeFreed().size(), 1u);
  EXPECT_EQ(AttachCode(kOther, "a"), As(Code::kNotFound));
}

TEST_F(LedgerTest, WhatItsMakerDidNotLiveToSeeIsDropped) {
  for (const Ledger::Making& how : {kAttached, kUnpublished}) {
    const auto ticket = ledger_.BeginCreate(kApp, "a", kPage, Made(kApp), how);
    ASSERT_TRUE(ticket);
    EXPECT_EQ(CodeOf(ledger_.Commit(*ticket, Memory(), false, kNow)), As(Code::kPeerDied));
    EXPECT_EQ(ledger_.used_bytes(0), 0u);
    EXPECT_EQ(ledger_.buffer_count(), 0u);
    EXPECT_EQ(ledger_.TakeFreed().size(), 1u);
  }
  // A replacement that nobody will fill does not replace content.
  const Grant first = Create(kApp, "b");
  const auto ticket = ledger_.BeginReplace(kApp, "b", 0, kAttached);
  EXPECT_EQ(CodeOf(ledger_.Commit(*ticket, Memory(), false, kNow)), As(Code::kPeerDied));
  EXPECT_EQ(Attach(kOther, "b")->generation, first.generation);
}

// Regression: if a buffer was dropped (its writer died) while its replacement was being allocated,
// the broker crashed. A buffer made with the same name meanwhile got the memory of the old one.
TEST_F(LedgerTest, ABufferMayGoWhileItsReplacementIsAllocated) {
  Policy policy = Made(kApp);
  policy.writers_all = true;
  policy.on_writer_exit = OnWriterExit::kDrop;
  Create(kApp, "a", kAttached, policy);
  const auto ticket = ledger_.BeginReplace(kOther, "a", 0, {});
  ASSERT_TRUE(ticket);
  EXPECT_THAT(ledger_.EndClient(kApp.id).dropped, ElementsAre("a"));
  const Grant anew = Create(kOther, "a");
  EXPECT_EQ(CodeOf(ledger_.Commit(*ticket, Memory(), true, kNow)), As(Code::kNotFound));
  EXPECT_EQ(Attach(kOther, "a")->generation, anew.generation);
  EXPECT_EQ(ledger_.used_bytes(0), kPage);
  EXPECT_EQ(ledger_.TakeFreed().size(), 2u);

  Create(kApp, "b", kAttached, policy);
  const auto failing = ledger_.BeginReplace(kOther, "b", 0, {});
  ledger_.EndClient(kApp.id);
  ledger_.Abort(*failing);
  EXPECT_EQ(ledger_.used_bytes(0), kPage);
}

// ---- limits

TEST_F(LedgerTest, ThePoolIsRoundedAndNeverExceeded) {
  const auto ticket = ledger_.BeginCreate(kApp, "a", 7 * kPage + 1, Made(kApp), {});
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ticket->mapped_bytes, 8 * kPage);
  EXPECT_EQ(ledger_.used_bytes(0), 8 * kPage) << "reserved while it is being allocated";
  EXPECT_EQ(CodeOf(ledger_.BeginCreate(kApp, "b", 1, Made(kApp), {})), As(Code::kExhausted));
  ledger_.Abort(*ticket);
  EXPECT_EQ(ledger_.used_bytes(0), 0u);
  EXPECT_EQ(AttachCode(kApp, "a"), As(Code::kNotFound));
}

TEST_F(LedgerTest, AFullPoolNamesTheOldGeneration) {
  Declare(Spec("weights", 5 * kPage));
  const auto refused = Replace(kApp, "weights");
  ASSERT_EQ(CodeOf(refused), As(Code::kExhausted));
  EXPECT_THAT(refused.error().remedy(), HasSubstr("generations: 2"));
}

TEST_F(LedgerTest, BuffersGenerationsAndLeasesAreCounted) {
  Ledger small(LedgerLimits{.pool_bytes = 100 * kPage, .buffers = 2, .leases = 3},
               {LedgerGpu{kGpu}}, 1);
  const auto made = small.BeginCreate(kApp, "a", 1, Made(kApp), kAttached);
  ASSERT_TRUE(small.Commit(*made, Memory(), true, kNow));
  ASSERT_TRUE(small.BeginCreate(kApp, "b", 1, Made(kApp), {}));
  EXPECT_EQ(CodeOf(small.BeginCreate(kApp, "c", 1, Made(kApp), {})), As(Code::kExhausted));
  Memory offered;
  EXPECT_EQ(CodeOf(small.Offer(kApp, "c", Made(kApp), &offered, kNow)), As(Code::kExhausted));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(small.Attach(kApp, "a", Access::kRead, 0, kGpu, kNow));
  }
  const auto refused = small.Attach(kApp, "a", Access::kRead, 0, kGpu, kNow);
  ASSERT_EQ(CodeOf(refused), As(Code::kExhausted));
  EXPECT_THAT(refused.error().what(), HasSubstr("3 leases"));
  // Regression: an attachment made together with its buffer was not counted.
  EXPECT_EQ(CodeOf(small.BeginReplace(kApp, "a", 0, kAttached)), As(Code::kExhausted));
}

TEST_F(LedgerTest, OldGenerationsAreBounded) {
  Ledger roomy(LedgerLimits{.pool_bytes = 100 * kPage}, {LedgerGpu{kGpu}}, 1);
  const auto made = roomy.BeginCreate(kApp, "a", 1, Made(kApp), kAttached);
  ASSERT_TRUE(roomy.Commit(*made, Memory(), true, kNow));
  for (uint32_t i = 1; i < limits::kGenerations; ++i) {
    const auto next = roomy.BeginReplace(kApp, "a", 0, kAttached);
    ASSERT_TRUE(next) << i;
    ASSERT_TRUE(roomy.Commit(*next, Memory(), true, kNow));
  }
  EXPECT_EQ(CodeOf(roomy.BeginReplace(kApp, "a", 0, {})), As(Code::kExhausted));
}

// The plugin could not keep more.
TEST_F(LedgerTest, GenerationsOfAllBuffersAreBounded) {
  Ledger roomy(LedgerLimits{.pool_bytes = 2 * limits::kLinkGenerations * kPage}, {LedgerGpu{kGpu}},
               1);
  for (uint32_t i = 0; i < limits::kLinkGenerations; ++i) {
    const std::string name = Concat("b", i / limits::kGenerations);
    const auto made = i % limits::kGenerations == 0
                          ? roomy.BeginCreate(kApp, name, 1, Made(kApp), kAttached)
                          : roomy.BeginReplace(kApp, name, 0, kAttached);
    ASSERT_TRUE(made) << i << ": " << made.error().ToString();
    ASSERT_TRUE(roomy.Commit(*made, Memory(), true, kNow));
  }
  const auto refused = roomy.BeginCreate(kApp, "one-more", 1, Made(kApp), {});
  ASSERT_EQ(CodeOf(refused), As(Code::kExhausted));
  EXPECT_THAT(refused.error().what(), HasSubstr("8192 generations"));
}

// ---- offers

TEST_F(LedgerTest, OfferedMemoryIsNotOfThePool) {
  Memory memory;
  memory.size_bytes = memory.mapped_bytes = 100 * kPage;
  const auto generation = ledger_.Offer(kApp, "a", Made(kApp), &memory, kNow);
  ASSERT_TRUE(generation);
  EXPECT_EQ(ledger_.used_bytes(0), 0u);
  EXPECT_EQ(Attach(kOther, "a")->memory->size_bytes, 100 * kPage);
  EXPECT_EQ(CodeOf(ledger_.Offer(kOther, "a", Made(kOther), &memory, kNow)),
            As(Code::kAlreadyExists));
  ledger_.EndClient(kApp.id);
  EXPECT_TRUE(Shown("a")) << "a descriptor keeps the memory";
}

// Regression: a cuIpc offer of 64 TiB was believed, and made the node's sums wrong.
TEST_F(LedgerTest, OffersAreHeldToWhatTheGpuHas) {
  Ledger ledger(LedgerLimits{.pool_bytes = 0}, {LedgerGpu{kGpu, 8 * kPage}}, 1);
  const auto offer = [&](const std::string& name, protocol::Transport transport, uint64_t size,
                         uint64_t mapped) {
    Memory memory;
    memory.transport = transport;
    memory.size_bytes = size;
    memory.mapped_bytes = mapped;
    return ledger.Offer(kApp, name, Made(kApp), &memory, kNow);
  };
  using enum protocol::Transport;
  const auto giant = offer("a", kCuIpc, kPage, 9 * kPage);
  ASSERT_EQ(CodeOf(giant), As(Code::kInvalidArgument));
  EXPECT_EQ(giant.error().ToString(),
            "INVALID_ARGUMENT: size: the allocation offered as \"a\" has 18874368 bytes, "
            "but its GPU has 16777216. "
            "Remedy: give the size that cuMemGetAddressRange returns, for example 2097152");
  // Two ranges of one allocation count only as the ranges.
  ASSERT_TRUE(offer("a", kCuIpc, 3 * kPage, 8 * kPage));
  ASSERT_TRUE(offer("b", kCuIpc, 3 * kPage, 8 * kPage));
  const auto more = offer("c", kVmm, kPage, 3 * kPage);
  ASSERT_EQ(CodeOf(more), As(Code::kExhausted));
  EXPECT_THAT(more.error().what(),
              HasSubstr("other offers of the pod already have 12582912 and their GPU has"));
  EXPECT_TRUE(offer("c", kVmm, kPage, 2 * kPage));
  // A deleted buffer counts as long as somebody holds it.
  const auto held = ledger.Attach(kOther, "a", Access::kRead, 0, kGpu, kNow);
  ASSERT_TRUE(held);
  ASSERT_TRUE(ledger.Delete(kApp, "a"));
  EXPECT_EQ(CodeOf(offer("d", kVmm, kPage, kPage)), As(Code::kExhausted));
  ASSERT_TRUE(ledger.Detach(kOther, held->lease_id));
  EXPECT_TRUE(offer("d", kVmm, kPage, 3 * kPage));
}

TEST_F(LedgerTest, ACuIpcOfferEndsWithItsClient) {
  Memory memory;
  memory.transport = protocol::Transport::kCuIpc;
  memory.size_bytes = memory.mapped_bytes = kPage;
  ASSERT_TRUE(ledger_.Offer(kApp, "a", Made(kApp), &memory, kNow));
  EXPECT_TRUE(ledger_.HasLeases(kApp.id)) << "its end must be noticed";
  const auto lease = Attach(kOther, "a");
  ASSERT_TRUE(lease);
  EXPECT_THAT(ledger_.EndClient(kApp.id).dropped, ElementsAre("a"));
  EXPECT_FALSE(Shown("a"));
  ASSERT_TRUE(ledger_.Detach(kOther, lease->lease_id));
  EXPECT_EQ(ledger_.TakeFreed().size(), 1u);
}

// ---- the end of a client

// Regression: once its writer's death had dropped a declared name, every container could make it
// again and so escape the access list.
TEST_F(LedgerTest, ADroppedNameKeepsItsRules) {
  annotations::BufferSpec spec = Spec("a");
  spec.on_writer_exit = annotations::OnWriterExit::kDrop;
  spec.writers = {kApp.container};
  Declare(spec);
  ASSERT_TRUE(Attach(kApp, "a", Access::kReadWrite));
  ASSERT_THAT(ledger_.EndClient(kApp.id).dropped, ElementsAre("a"));
  EXPECT_EQ(CodeOf(ledger_.BeginCreate(kOther, "a", kPage, Made(kOther), {})), As(Code::kDenied));
  Memory memory;
  EXPECT_EQ(CodeOf(ledger_.Offer(kOther, "a", Made(kOther), &memory, kNow)), As(Code::kDenied));
  Create(kApp, "a");
  EXPECT_EQ(AttachCode(kOther, "a", Access::kReadWrite), As(Code::kDenied));
  EXPECT_EQ(AttachCode(kOther, "a"), kOk);
}

TEST_F(LedgerTest, ADeadReaderOrAWriterThatDetachedChangesNothing) {
  Declare(Spec("a"));
  const auto lease = Attach(kApp, "a", Access::kReadWrite);
  ASSERT_TRUE(ledger_.Detach(kApp, lease->lease_id));
  ASSERT_TRUE(Attach(kApp, "a"));
  ledger_.EndClient(kApp.id);
  EXPECT_EQ(Shown("a"), BufferState::kReady);
}

TEST_F(LedgerTest, ALeaseIsItsClientsAlone) {
  Declare(Spec("a"));
  const auto lease = Attach(kApp, "a");
  EXPECT_EQ(CodeOf(ledger_.Detach(kOther, lease->lease_id)), As(Code::kNotFound));
  EXPECT_EQ(ledger_.EndClient(kOther.id).leases, 0u);
  EXPECT_EQ(ledger_.lease_count(), 1u);
  EXPECT_EQ(ledger_.Holders("a", 0, 10).size(), 1u);
  EXPECT_EQ(ledger_.Holders("", lease->lease_id, 10).size(), 0u);
  ASSERT_TRUE(ledger_.Detach(kApp, lease->lease_id));
  EXPECT_EQ(CodeOf(ledger_.Detach(kApp, lease->lease_id)), As(Code::kNotFound));
}

// ---- content

TEST_F(LedgerTest, AWriterSaysHowFarItsLoadIs) {
  Declare(Spec("a"));
  const auto writer = Attach(kApp, "a", Access::kReadWrite);
  const auto reader = Attach(kApp, "a");
  EXPECT_EQ(CodeOf(ledger_.SetContent(kApp, reader->lease_id, 1, false)), As(Code::kDenied));
  EXPECT_EQ(CodeOf(ledger_.SetContent(kApp, writer->lease_id, kPage + 1, false)),
            As(Code::kInvalidArgument));
  ASSERT_TRUE(ledger_.SetContent(kApp, writer->lease_id, 1, false));
  EXPECT_EQ(AttachCode(kOther, "a"), As(Code::kLoading));
  const auto second = Attach(kOther, "a", Access::kReadWrite);
  EXPECT_EQ(CodeOf(ledger_.SetContent(kOther, second->lease_id, 1, true)), As(Code::kBusy));
  ASSERT_TRUE(ledger_.SetContent(kApp, writer->lease_id, kPage, true));
  EXPECT_EQ(AttachCode(kOther, "a"), kOk);
  ASSERT_TRUE(Replace(kApp, "a"));
  EXPECT_EQ(CodeOf(ledger_.SetContent(kApp, writer->lease_id, 1, false)), As(Code::kStale));
}

TEST_F(LedgerTest, ALoadThatIsGivenUpIsFailedNotReady) {
  Declare(Spec("a"));
  const auto writer = Attach(kApp, "a", Access::kReadWrite);
  ASSERT_TRUE(ledger_.SetContent(kApp, writer->lease_id, 1, false));
  ASSERT_TRUE(ledger_.Detach(kApp, writer->lease_id));
  EXPECT_EQ(Shown("a"), BufferState::kFailed);
  EXPECT_EQ(AttachCode(kOther, "a"), As(Code::kSystem));
  const auto dying = Attach(kApp, "a", Access::kReadWrite);
  ASSERT_TRUE(ledger_.SetContent(kApp, dying->lease_id, 1, false));
  ledger_.EndClient(kApp.id);
  EXPECT_EQ(Shown("a"), BufferState::kFailed);
}

}  // namespace
}  // namespace gpushm::broker
