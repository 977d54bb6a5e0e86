// Goal: a buffer's content is what the last load brought or its writer said, and a new generation
// starts with all of its bytes as content. Method: only the ledger.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "sidecar/broker/ledger.h"
#include "sidecar/broker/testing/keeper_model.h"

namespace gpushm::broker {
namespace {

constexpr Ledger::Making kAttached{.attach = true};
constexpr Ledger::Making kUnpublished{.attach = true, .unpublished = true};
using ::testing::StartsWith;

constexpr uint64_t kSize = 2 << 20;
const Client kApp{.id = 1, .container = "app"};
const Client kOther{.id = 2, .container = "other"};
const Reason kMissing{.code = Code::kNotFound, .text = "no file d.bin", .passes = true};
const Reason kBad{.code = Code::kInvalidArgument, .text = "d.bin is empty"};

class LedgerContentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Policy policy;
    policy.creator = kApp.container;
    policy.writers_all = true;
    const auto ticket = ledger_.BeginCreate(kApp, "a", kSize, policy, kAttached);
    ASSERT_TRUE(ticket) << ticket.error().ToString();
    lease_ = ledger_.Commit(*ticket, Memory(), true, 0)->lease_id;
  }
  Grant Replace(const Ledger::Making& how) {
    const auto ticket = ledger_.BeginReplace(kApp, "a", 0, how);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    return *ledger_.Commit(*ticket, Memory(), true, 0);
  }

  // As others see it.
  uint64_t Content() const { return registry::ContentBytes(ledger_.Records().front()); }

  void Declare(annotations::BufferSpec spec = {}) {
    if (spec.name.empty()) {
      spec.name = "d";
      spec.size_bytes = kSize;
      spec.file = "models/d.bin";
    }
    const auto ticket = ledger_.BeginDeclared(spec);
    ASSERT_TRUE(ticket) << ticket.error().ToString();
    ASSERT_TRUE(ledger_.Commit(*ticket, Memory(), true, 0));
  }
  uint64_t AttachToWrite(const Client& client, const std::string& name) {
    const auto grant = ledger_.Attach(client, name, Access::kReadWrite, 0, GpuUuid{}, 0);
    EXPECT_TRUE(grant) << grant.error().ToString();
    return grant->lease_id;
  }
  // What the registry shows of it: the state and the reason.
  std::string Shown(const std::string& name = "a") {
    for (Change& change : ledger_.TakeChanges()) shown_[change.name] = std::move(change);
    const Change& change = shown_.at(name);
    std::string text(registry::BufferStateName(change.record->state));
    const uint32_t code = registry::ReasonCode(*change.record);
    EXPECT_EQ(code == 0, change.reason.empty());
    if (code != 0) text += Concat(", ", CodeName(static_cast<Code>(code)), ": ", change.reason);
    return text;
  }

  std::map<std::string, Change> shown_;
  uint64_t next_client_ = 100;
  // What the registry has of it.
  Digest ShownDigest() {
    for (const Change& change : ledger_.TakeChanges()) {
      digest_ = change.record ? change.record->digest : Digest();
    }
    return digest_;
  }

  Digest digest_;
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

// ---- why there is none

TEST_F(LedgerContentTest, AReasonStandsUntilTheNextLoadBegins) {
  EXPECT_TRUE(ledger_.StateReason(kApp, "a", kMissing));
  EXPECT_EQ(Shown(), "ready") << "it has its content";
  Declare();
  EXPECT_EQ(Shown("d"), "loading");
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kMissing));
  EXPECT_EQ(Shown("d"), "loading, NOT_FOUND: no file d.bin");
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kMissing));
  EXPECT_TRUE(ledger_.TakeChanges().empty()) << "nothing is new";
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kBad));
  EXPECT_EQ(Shown("d"), "failed, INVALID_ARGUMENT: d.bin is empty");
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kMissing));
  EXPECT_EQ(Shown("d"), "failed, NOT_FOUND: no file d.bin") << "it has failed since";

  const uint64_t lease = AttachToWrite(kApp, "d");
  ASSERT_TRUE(ledger_.SetContent(kApp, lease, 0, false));
  EXPECT_EQ(Shown("d"), "loading") << "a load began";
  ASSERT_TRUE(ledger_.SetContent(kApp, lease, 5, true));
  EXPECT_EQ(Shown("d"), "ready");
}

// Goal: a failed load shows its own reason from the first moment on, or who gave it up.
TEST_F(LedgerContentTest, ALoadThatIsGivenUpFailsWithTheReasonOfItsLoader) {
  Declare();
  const auto give_up = [&](bool states, bool dies) {
    const Client loader{.id = next_client_++, .container = "app"};
    const uint64_t lease = AttachToWrite(loader, "d");
    EXPECT_TRUE(ledger_.SetContent(loader, lease, 3, false));
    EXPECT_TRUE(ledger_.StateReason(kOther, "d", kMissing));
    EXPECT_EQ(Shown("d"), "loading") << "another process loads it";
    if (states) {
      EXPECT_TRUE(ledger_.StateReason(loader, "d", kBad));
      EXPECT_EQ(Shown("d"), "loading, INVALID_ARGUMENT: d.bin is empty");
    }
    if (dies) {
      ledger_.EndClient(loader.id);
    } else {
      EXPECT_TRUE(ledger_.Detach(loader, lease));
    }
    return Shown("d");
  };
  for (const bool dies : {false, true}) {
    EXPECT_EQ(give_up(true, dies), "failed, INVALID_ARGUMENT: d.bin is empty");
  }
  EXPECT_EQ(give_up(false, false),
            "failed, ENDED: the process that loaded it detached before the load was complete");
  EXPECT_EQ(give_up(false, true),
            "failed, PEER_DIED: the process that loaded it died before the load was complete");
  const Client loader{.id = 7, .container = annotations::LoaderOf("d")};
  ASSERT_TRUE(ledger_.SetContent(loader, AttachToWrite(loader, "d"), 3, false));
  ledger_.EndClient(loader.id);
  EXPECT_EQ(Shown("d"),
            "loading, PEER_DIED: the process that loaded it died before the load was complete")
      << "it begins again";
}

// Goal: nobody sees a failure that the next try of the buffer's own loader may not have.
TEST_F(LedgerContentTest, AnAttemptOfItsLoaderFailsOnlyForWhatDoesNotPass) {
  Declare();
  const std::string own = annotations::LoaderOf("d");
  const auto give_up = [&](const std::string& container, const Reason& why) {
    const Client loader{.id = next_client_++, .container = container};
    const uint64_t lease = AttachToWrite(loader, "d");
    EXPECT_TRUE(ledger_.SetContent(loader, lease, 3, false));
    EXPECT_TRUE(ledger_.StateReason(loader, "d", why));
    EXPECT_TRUE(ledger_.Detach(loader, lease));
    return Shown("d");
  };
  EXPECT_EQ(give_up(own, kMissing), "loading, NOT_FOUND: no file d.bin");
  EXPECT_EQ(give_up(own, kBad), "failed, INVALID_ARGUMENT: d.bin is empty");
  EXPECT_EQ(give_up("app", kMissing), "failed, NOT_FOUND: no file d.bin")
      << "it may not come again";
}

// Goal: a load that hangs can say nothing, so the process that started it does.
TEST_F(LedgerContentTest, TheProcessThatStaysSpeaksForItsChild) {
  Declare();
  const Client child{.id = next_client_++, .container = annotations::LoaderOf("d")};
  const Client stays{.id = next_client_++, .container = child.container};
  const uint64_t lease = AttachToWrite(child, "d");
  ASSERT_TRUE(ledger_.SetContent(child, lease, 3, false));
  EXPECT_TRUE(ledger_.StateReason(stays, "d", kMissing));
  EXPECT_EQ(Shown("d"), "loading, NOT_FOUND: no file d.bin");
  ASSERT_TRUE(ledger_.SetContent(child, lease, 4, false));
  EXPECT_EQ(Shown("d"), "loading") << "bytes move";
  const Client app{.id = next_client_++, .container = "app"};
  ASSERT_TRUE(ledger_.Detach(child, lease));
  ASSERT_TRUE(ledger_.SetContent(app, AttachToWrite(app, "d"), 3, false));
  EXPECT_TRUE(ledger_.StateReason(stays, "d", kMissing));
  EXPECT_EQ(Shown("d"), "loading") << "another one's load is not its own";
}

TEST_F(LedgerContentTest, AReasonIsInTheErrorsOfThoseWhoWantTheContent) {
  Declare();
  const auto attach = [&] {
    return ledger_.Attach(kOther, "d", Access::kRead, 0, GpuUuid{}, 0).error().ToString();
  };
  const auto describe = [&] { return ledger_.FindDescription(kOther, "d", 0).error().ToString(); };
  EXPECT_THAT(attach(), StartsWith("LOADING: the content of \"d\" is not loaded yet. Remedy"));
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kMissing));
  EXPECT_THAT(attach(),
              StartsWith("LOADING: the content of \"d\" is not loaded yet: no file d.bin."));
  EXPECT_EQ(attach(), describe());
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kBad));
  EXPECT_THAT(attach(), StartsWith("SYSTEM: loading \"d\" failed: d.bin is empty."));
  EXPECT_EQ(attach(), describe());
}

TEST_F(LedgerContentTest, OnlyWhoMayWriteOrLoadItStatesAReason) {
  annotations::BufferSpec spec;
  spec.name = "listed";
  spec.size_bytes = kSize;
  spec.file = "models/d.bin";
  spec.writers = {"app"};
  Declare(spec);
  const Client fetch{.id = 7, .container = annotations::LoaderOf("listed")};
  EXPECT_EQ(ledger_.StateReason(kOther, "listed", kMissing).error().code(), Code::kDenied);
  EXPECT_EQ(ledger_.StateReason(kOther, "none", kMissing).error().code(), Code::kNotFound);
  EXPECT_EQ(Shown("listed"), "loading");
  EXPECT_TRUE(ledger_.StateReason(fetch, "listed", kMissing));
  EXPECT_EQ(Shown("listed"), "loading, NOT_FOUND: no file d.bin");
  EXPECT_TRUE(ledger_.StateReason(kApp, "listed", kBad));
  EXPECT_EQ(Shown("listed"), "failed, INVALID_ARGUMENT: d.bin is empty");
  ASSERT_TRUE(ledger_.SetContent(kApp, AttachToWrite(kApp, "listed"), 1, true));
  EXPECT_EQ(ledger_.StateReason(fetch, "listed", kMissing).error().code(), Code::kDenied)
      << "it has its content";
}

TEST_F(LedgerContentTest, TheNextGenerationHasNoReasonOfTheFormer) {
  Declare();
  ASSERT_TRUE(ledger_.StateReason(kApp, "d", kBad));
  const auto ticket = ledger_.BeginReplace(kApp, "d", 0, {});
  ASSERT_TRUE(ticket) << ticket.error().ToString();
  ASSERT_TRUE(ledger_.Commit(*ticket, Memory(), true, 0));
  EXPECT_EQ(Shown("d"), "ready");
}

constexpr Digest kDigest{{5, 6}};

TEST_F(LedgerContentTest, TheDigestIsThatOfTheContent) {
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 0, false));
  EXPECT_TRUE(ShownDigest().empty()) << "it is loading";
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true, kDigest));
  EXPECT_EQ(ShownDigest(), kDigest);
  ASSERT_TRUE(ledger_.Detach(kApp, lease_));
  EXPECT_EQ(ShownDigest(), kDigest);
  ASSERT_TRUE(ledger_.Attach(kOther, "a", Access::kRead, 0, {}, 0));
  EXPECT_EQ(ShownDigest(), kDigest) << "a reader changes nothing";
  const uint64_t writer = ledger_.Attach(kOther, "a", Access::kReadWrite, 0, {}, 0)->lease_id;
  EXPECT_TRUE(ShownDigest().empty()) << "it is open for writing";
  ASSERT_TRUE(ledger_.Detach(kOther, writer));
  EXPECT_TRUE(ShownDigest().empty()) << "nobody knows what was written";
}

TEST_F(LedgerContentTest, NoDigestWhileSomebodyElseMayWrite) {
  const uint64_t writer = ledger_.Attach(kOther, "a", Access::kReadWrite, 0, {}, 0)->lease_id;
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true, kDigest));
  EXPECT_TRUE(ShownDigest().empty());
  ASSERT_TRUE(ledger_.Detach(kOther, writer));
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true, kDigest));
  EXPECT_EQ(ShownDigest(), kDigest);
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true));
  EXPECT_TRUE(ShownDigest().empty()) << "its writer says that it has other content";
}

TEST_F(LedgerContentTest, AGenerationBringsItsDigestWithIt) {
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true, kDigest));
  const uint64_t next = Replace(kUnpublished).lease_id;
  const Digest other{{7, 8}};
  ASSERT_TRUE(ledger_.SetContent(kApp, next, 6, true, other));
  EXPECT_EQ(ShownDigest(), kDigest) << "it is not published";
  ASSERT_TRUE(ledger_.SetContent(kApp, next, 0, false)) << "a load begins";
  ASSERT_TRUE(ledger_.SetContent(kApp, next, 6, true, other));
  ASSERT_TRUE(ledger_.Publish(kApp, next));
  EXPECT_EQ(ShownDigest(), other);
  Replace({});
  EXPECT_TRUE(ShownDigest().empty());
}

TEST_F(LedgerContentTest, EachGenerationHasItsOwn) {
  ASSERT_TRUE(ledger_.SetContent(kApp, lease_, 5, true));
  const uint64_t next = Replace(kUnpublished).lease_id;
  EXPECT_TRUE(ledger_.SetContent(kApp, next, 0, false)) << "a load begins";
  EXPECT_EQ(testing::StateOf(ledger_, "a"), BufferState::kReady) << "nobody sees it";
  ASSERT_TRUE(ledger_.SetContent(kApp, next, 6, true));
  EXPECT_EQ(Content(), 5u) << "it is not published";
  ASSERT_TRUE(ledger_.Publish(kApp, next));
  EXPECT_EQ(Content(), 6u);
  Replace({});
  EXPECT_EQ(Content(), kSize);
}

}  // namespace
}  // namespace gpushm::broker
