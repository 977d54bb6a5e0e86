// A broker that is killed between any two stores leaves a segment that everybody can still use.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <string>

#include "contract/registry/reader.h"
#include "contract/registry/segment_writer.h"
#include "contract/registry/testing/registry.h"

namespace gpushm::registry {
namespace {

struct CrashHooks {
  static inline int stores_left = -1;  // Negative: no crash.
  static void BeforeLoad() {}
  static void BeforeStore() {
    if (stores_left == 0) kill(getpid(), SIGKILL);
    --stores_left;
  }
};
using CrashingWriter = BasicSegmentWriter<CrashHooks>;

struct Change {
  std::string name;
  std::function<void(CrashingWriter&)> make;
  // What a look-up of "a" and "b" gives before and after the change: a generation, or 0 for none.
  uint64_t a_after;
  uint64_t b_after;
  bool retired_after = false;
  int stores;
};

uint64_t GenerationOf(const RegistryReader& reader, const char* name) {
  const Result<Found> found = reader.Find(name);
  if (!found) {
    EXPECT_EQ(found.error().code(), Code::kNotFound) << found.error().ToString();
    return 0;
  }
  EXPECT_EQ(found->record, SomeRecord(name, found->record.generation));
  return found->record.generation;
}

class RegistryCrashTest : public ::testing::TestWithParam<Change> {
 protected:
  void SetUp() override {
    constants_ = *NewHeaderConstants(4, 0);
    segment_ = *MakeSealedSegment(SegmentBytes(constants_));
  }

  // A segment in which "a" is live with generation 1.
  CrashingWriter Fresh() {
    std::memset(segment_.mapping.address(), 0, segment_.mapping.bytes());
    CrashingWriter writer(segment_.mapping.address(), constants_);
    writer.Publish(0, EncodeRecord(SomeRecord("a", 1))->data());
    return writer;
  }

  std::unique_ptr<RegistryReader> Open() const {
    return *RegistryReader::Open(UniqueFd(dup(segment_.fd.get())));
  }

  // True if it was killed before its n-th store.
  static bool RunKilled(CrashingWriter& writer, const Change& change, int stores) {
    const pid_t child = fork();
    if (child == 0) {
      CrashHooks::stores_left = stores;
      change.make(writer);
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status);
  }

  HeaderConstants constants_;
  WritableSegment segment_;
};

// Method: fork a writer that sends SIGKILL to itself before its n-th store, for n = 0, 1, 2 ...
// until it survives. After each death, a reader from before and a new reader read the segment. Then
// another writer continues without any repair.
TEST_P(RegistryCrashTest, EveryRecordStaysReadable) {
  const Change& change = GetParam();
  int deaths = 0;
  bool seen_after = false;
  for (bool killed = true; killed;) {
    SCOPED_TRACE(::testing::Message() << "killed before store " << deaths);
    CrashingWriter writer = Fresh();
    const auto before = Open();
    const uint64_t version_before = before->table_version();
    killed = RunKilled(writer, change, deaths);

    const auto after = Open();
    const uint64_t a = GenerationOf(*after, "a");
    const uint64_t b = GenerationOf(*after, "b");
    const bool is_after =
        a == change.a_after && b == change.b_after && after->retired() == change.retired_after;
    ASSERT_TRUE(is_after || (a == 1 && b == 0 && !after->retired())) << a << " " << b;
    ASSERT_TRUE(is_after || !seen_after) << "the change was visible and disappeared";
    seen_after = seen_after || is_after;
    ASSERT_TRUE(killed || is_after);
    ASSERT_TRUE(after->List());

    // A reader that was connected before sees the change at the latest when the table version
    // changes.
    const bool announced = before->WaitForChange(version_before, Deadline::AfterMs(0));
    ASSERT_TRUE(!announced || is_after);
    if (announced) {
      ASSERT_EQ(GenerationOf(*before, "a"), change.a_after);
      ASSERT_EQ(GenerationOf(*before, "b"), change.b_after);
    }

    writer.Publish(0, EncodeRecord(SomeRecord("a", 7))->data());
    writer.Publish(3, EncodeRecord(SomeRecord("c", 8))->data());
    for (const auto* reader : {&before, &after}) {
      ASSERT_EQ(GenerationOf(**reader, "a"), 7u);
      ASSERT_EQ(GenerationOf(**reader, "c"), 8u);
    }
    if (killed) ++deaths;
  }
  EXPECT_EQ(deaths, change.stores) << "the crash points may not be compiled in";
}

// Goal: a waiter sees a change whose writer died before it could wake anybody.
// Method: a process waits. The writer is killed before the wake, and before the word on which the
// waiter sleeps.
TEST_P(RegistryCrashTest, WaitersDoNotNeedTheWake) {
  const Change& change = GetParam();
  for (const int missing : {1, 2}) {
    CrashingWriter writer = Fresh();
    const auto reader = Open();
    const uint64_t seen = reader->table_version();
    const pid_t waiter = fork();
    if (waiter == 0) {
      const Deadline deadline = Deadline::AfterMs(30'000);
      while (!deadline.Passed()) {
        if (reader->WaitForChange(seen, deadline)) _exit(0);
      }
      _exit(1);
    }
    ASSERT_TRUE(RunKilled(writer, change, change.stores - missing));
    int status = 0;
    ASSERT_EQ(waitpid(waiter, &status, 0), waiter);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// For a change of a slot: log entry, 32 words of the reason if it has one, 32 words, version. For
// every change: table version, wake word,
// wake.
INSTANTIATE_TEST_SUITE_P(
    Changes, RegistryCrashTest,
    ::testing::Values(
        Change{.name = "Insert",
               .make = [](auto& w) { w.Publish(1, EncodeRecord(SomeRecord("b", 2))->data()); },
               .a_after = 1,
               .b_after = 2,
               .stores = 1 + 32 + 1 + 3},
        Change{.name = "Update",
               .make = [](auto& w) { w.Publish(0, EncodeRecord(SomeRecord("a", 2))->data()); },
               .a_after = 2,
               .b_after = 0,
               .stores = 1 + 32 + 1 + 3},
        Change{.name = "UpdateWithAReason",
               .make =
                   [](auto& w) {
                     const ReasonWords reason{'a'};
                     w.Publish(0, EncodeRecord(SomeRecord("a", 2))->data(), reason.data());
                   },
               .a_after = 2,
               .b_after = 0,
               .stores = 1 + 32 + 32 + 1 + 3},
        Change{.name = "Withdraw",
               .make = [](auto& w) { w.Withdraw(0); },
               .a_after = 0,
               .b_after = 0,
               .stores = 1 + 1 + 3},
        Change{.name = "Retire",
               .make = [](auto& w) { w.Retire(); },
               .a_after = 1,
               .b_after = 0,
               .retired_after = true,
               .stores = 1 + 1 + 3}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace gpushm::registry
