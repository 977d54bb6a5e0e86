// Interleavings of a slot's writer and reader, in one thread. The writer's stores do not depend on
// the reader, so they are recorded as a history of states. The reader runs over the history, which
// moves on before each of its loads according to a schedule.
#include "contract/registry/slot.h"
#include "contract/limits.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

namespace gpushm::registry {
namespace {

struct StepHooks {
  static inline std::function<void()> before_load;
  static inline std::function<void()> before_store;
  static void BeforeLoad() {
    if (before_load) before_load();
  }
  static void BeforeStore() {
    if (before_store) before_store();
  }
};

template <uint32_t kWords>
class SlotHistory {
 public:
  using Slot = BasicSlot<kWords, StepHooks>;
  using Record = typename Slot::Record;

  static Record Filled(uint64_t value) {
    Record record;
    record.fill(value);
    return record;
  }

  // The n-th commit fills the record with n; 0 means a withdrawal.
  explicit SlotHistory(const std::vector<uint64_t>& commits) {
    slot().Publish(Filled(commits.front()));
    StepHooks::before_store = [this] { states_.push_back(bytes_); };
    for (size_t i = 1; i < commits.size(); ++i) {
      if (commits[i] == 0) {
        slot().Withdraw();
      } else {
        slot().Publish(Filled(commits[i]));
      }
    }
    states_.push_back(bytes_);
    StepHooks::before_store = nullptr;
  }

  size_t last() const { return states_.size() - 1; }

  // Reads the slot; advance() returns by how many states the writer moves on before each load.
  void CheckRead(const std::function<size_t()>& advance) {
    size_t at = 0;
    size_t begin = SIZE_MAX;
    StepHooks::before_load = [&] {
      at += advance();
      ASSERT_LE(at, last());
      bytes_ = states_[at];
      if (begin == SIZE_MAX) begin = at;
    };
    Record record;
    uint64_t version = 0;
    const SlotRead read = slot().Read(&record, &version);
    StepHooks::before_load = nullptr;

    ASSERT_NE(read, SlotRead::kContended) << "there are too few commits for that";
    // What was read was true at a moment between the read's first and last load.
    bool was_true = false;
    for (size_t state = begin; state <= at; ++state) {
      bytes_ = states_[state];
      Record true_record;
      uint64_t true_version = 0;
      const SlotRead true_read = slot().Read(&true_record, &true_version);
      was_true = was_true || (true_read == read && true_version == version &&
                              (read == SlotRead::kNotLive || true_record == record));
    }
    ASSERT_TRUE(was_true) << "version " << version << " never had this content";
    if (read == SlotRead::kLive) {
      ASSERT_EQ(record, Filled(record[0])) << "torn";
    }
  }

 private:
  using Bytes = std::array<std::byte, sizeof(Slot)>;
  Slot& slot() { return *reinterpret_cast<Slot*>(bytes_.data()); }

  alignas(64) Bytes bytes_{};
  std::vector<Bytes> states_;
};

// Every sequence of choices, each below its own bound, like an odometer.
class AllChoices {
 public:
  size_t Next(size_t bound) {
    if (at_ == choices_.size()) choices_.push_back({0, bound});
    return choices_[at_++].value;
  }
  bool NextSequence() {
    at_ = 0;
    while (!choices_.empty() && choices_.back().value + 1 >= choices_.back().bound) {
      choices_.pop_back();
    }
    if (choices_.empty()) return false;
    ++choices_.back().value;
    return true;
  }

 private:
  struct Choice {
    size_t value;
    size_t bound;
  };
  std::vector<Choice> choices_;
  size_t at_ = 0;
};

int CheckAllInterleavings(const std::vector<uint64_t>& commits) {
  SlotHistory<3> history(commits);
  AllChoices choices;
  int schedules = 0;
  do {
    size_t left = history.last();
    history.CheckRead([&] {
      const size_t step = choices.Next(left + 1);
      left -= step;
      return step;
    });
    ++schedules;
  } while (!::testing::Test::HasFatalFailure() && choices.NextSequence());
  return schedules;
}

TEST(SlotInterleaving, AllOfTwoCommitsWithOneRead) {
  EXPECT_GT(CheckAllInterleavings({1, 2, 3}), 1287);  // C(5 + 8, 8): the ones without a retry.
}

TEST(SlotInterleaving, AllWithAWithdrawalBetween) {
  EXPECT_GE(CheckAllInterleavings({1, 0, 2}), 252);
  EXPECT_GE(CheckAllInterleavings({1, 2, 0}), 252);
}

// Goal: with few switches, no schedule tears the real record.
// Method: the writer does `first` steps, the reader loads `loads` words, the writer does `second`
// steps, and the reader finishes. All combinations over two commits are tried.
TEST(SlotInterleaving, AllOfTheRealRecordWithTwoContextSwitches) {
  SlotHistory<kRecordWords> history({1, 2, 3});
  for (size_t first = 0; first <= history.last(); ++first) {
    for (size_t second = 0; first + second <= history.last(); ++second) {
      for (size_t loads = 1; loads <= kRecordWords + 2; ++loads) {
        size_t load = 0;
        history.CheckRead([&] {
          const size_t step = load == 0 ? first : load == loads ? second : 0;
          ++load;
          return step;
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Goal: a writer that never stops costs a reader a bounded number of attempts.
TEST(Slot, AWriterThatCommitsBeforeEveryLoadMeansContended) {
  BasicSlot<3, StepHooks> slot;
  slot.Publish({1, 1, 1});
  int loads = 0;
  StepHooks::before_load = [&] {
    ++loads;
    slot.Publish({2, 2, 2});
  };
  std::array<uint64_t, 3> record;
  uint64_t version = 0;
  EXPECT_EQ(slot.Read(&record, &version), SlotRead::kContended);
  StepHooks::before_load = nullptr;
  EXPECT_EQ(loads, limits::kReadAttempts * 5);
}

TEST(Slot, VersionsGrowAndNeverRepeat) {
  BasicSlot<3> slot;
  EXPECT_EQ(slot.Withdraw(), 1u) << "withdrawing an unused slot must leave it withdrawn";
  EXPECT_EQ(slot.Publish({}), 2u);
  EXPECT_EQ(slot.Publish({}), 4u);
  EXPECT_TRUE(slot.IsCurrent(4));
  EXPECT_EQ(slot.Withdraw(), 5u);
  EXPECT_EQ(slot.Withdraw(), 5u);
  EXPECT_FALSE(slot.IsCurrent(4));
  EXPECT_EQ(slot.Publish({}), 6u);
}

}  // namespace
}  // namespace gpushm::registry
