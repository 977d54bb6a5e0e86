// Goal: totals of a container never decrease, whatever its brokers do, and nothing in a segment is
// used unchecked. Method: segments made by hand, then random lives of brokers against a model.
#include "plugin/keeper/kept_counters.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>

#include "platform/base/testing/code.h"
#include "plugin/keeper/testing/counter_segment.h"
#include "plugin/keeper/testing/statements.h"

namespace gpushm::plugin::keeper::testing {
namespace {

using protocol::Counter;

constexpr size_t kOffers = protocol::WordOf(Counter::kOffers);

using gpushm::testing::CodeOf;

uint64_t Offers(KeptCounters& counters, const std::string& container) {
  for (const ContainerCounters& row : counters.Read()) {
    if (row.container == container) return row.values[kOffers];
  }
  return ~uint64_t{0};
}

TEST(KeptCountersTest, ReadsWhatIsThereNow) {
  KeptCounters counters;
  EXPECT_TRUE(counters.Read().empty());
  CounterSegment segment({"app", "other"});
  ASSERT_EQ(CodeOf(counters.Take(segment.fd())), 0);
  EXPECT_EQ(Offers(counters, "app"), 0u);
  EXPECT_EQ(counters.ready_seconds(), std::nullopt);
  segment.word(0, Counter::kOffers) = 7;
  segment.header().ready_ns = 250'000'000;
  EXPECT_EQ(Offers(counters, "app"), 7u);
  EXPECT_EQ(Offers(counters, "other"), 0u);
  EXPECT_EQ(counters.ready_seconds(), 0.25);
  segment.word(0, Counter::kOffers) = 2;
  EXPECT_EQ(Offers(counters, "app"), 7u) << "counters never decrease";
  counters.Clear();
  EXPECT_TRUE(counters.Read().empty());
}

TEST(KeptCountersTest, ASuccessorTakesNothingBack) {
  KeptCounters counters;
  auto first = std::make_unique<CounterSegment>(std::vector<std::string>{"app"});
  ASSERT_EQ(CodeOf(counters.Take(first->fd())), 0);
  first->word(0, Counter::kOffers) = 7;
  ASSERT_EQ(CodeOf(counters.Take(first->fd())), 0) << "it connected again";
  EXPECT_EQ(Offers(counters, "app"), 7u);
  first->word(0, Counter::kOffers) = 8;
  first.reset();
  counters.EndSegment();
  EXPECT_EQ(Offers(counters, "app"), 8u) << "read a last time";
  EXPECT_EQ(counters.ready_seconds(), std::nullopt);
  CounterSegment second({"new", "app"});
  second.word(1, Counter::kOffers) = 1;
  ASSERT_EQ(CodeOf(counters.Take(second.fd())), 0);
  EXPECT_EQ(Offers(counters, "app"), 9u);
  EXPECT_EQ(Offers(counters, "new"), 0u);
  CounterSegment third({"app"});
  ASSERT_EQ(CodeOf(counters.Take(third.fd())), 0) << "without an end of the former one";
  EXPECT_EQ(Offers(counters, "app"), 9u);
}

// Goal: what a broker states of its pod is that broker's: none of it outlives the segment.
TEST(KeptCountersTest, MpsAndPrivateMemoryAreTheCurrentBrokers) {
  KeptCounters counters;
  EXPECT_FALSE(counters.mps());
  CounterSegment segment({"app", "other"});
  ASSERT_EQ(CodeOf(counters.Take(segment.fd())), 0);
  EXPECT_FALSE(counters.mps()) << "a pod without MPS";
  EXPECT_EQ(counters.Read()[0].private_bytes, std::nullopt);
  segment.record(0).private_bytes = 5;
  segment.record(1).private_bytes = ~uint64_t{0};
  protocol::MpsWords& words = segment.header().mps;
  words.state = static_cast<uint64_t>(protocol::MpsWord::kReady);
  words.clients = 3;
  words.server_restarts = 2;
  EXPECT_EQ(counters.Read()[0].private_bytes, 5u);
  EXPECT_EQ(counters.Read()[1].private_bytes, protocol::kMaxCount);
  ASSERT_TRUE(counters.mps());
  EXPECT_TRUE(counters.mps()->ready);
  EXPECT_EQ(counters.mps()->clients, 3u);
  EXPECT_EQ(counters.mps()->server_restarts, 2u);
  words.state = 77;
  ASSERT_TRUE(counters.mps());
  EXPECT_FALSE(counters.mps()->ready) << "a state of a later version";
  counters.EndSegment();
  EXPECT_FALSE(counters.mps());
  EXPECT_EQ(counters.Read()[0].private_bytes, std::nullopt);
}

TEST(KeptCountersTest, RefusesWhatIsNone) {
  KeptCounters counters;
  CounterSegment good({"app"});
  good.word(0, Counter::kOffers) = 7;
  ASSERT_EQ(CodeOf(counters.Take(good.fd())), 0);
  std::string text;
  const auto broken = [&](const std::function<void(CounterSegment*)>& change) {
    CounterSegment segment({"app", "other"});
    change(&segment);
    const Result<void> taken = counters.Take(segment.fd());
    text = taken ? "" : taken.error().what();
    return CodeOf(taken);
  };
  const int corrupt = static_cast<int>(Code::kCorrupt);
  EXPECT_EQ(broken([](auto* s) { s->header().constants.magic = 1; }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->header().constants.version = 2; }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->header().constants.containers = 5; }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->header().constants.containers = ~0u; }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->record(1).container = s->record(0).container; }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->record(1).container.fill('a'); }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->record(1).container = {}; }), corrupt);
  EXPECT_EQ(broken([](auto* s) { s->record(1).container[0] = '/'; }), corrupt);
  EXPECT_NE(text.find("container name \"/ther\" is not a DNS label"), std::string::npos) << text;
  EXPECT_EQ(CodeOf(counters.Take(Memfd())), corrupt);
  const auto writable = MakeSealed("counters", 4096, Writers::kAll);
  EXPECT_EQ(CodeOf(counters.Take(writable->fd)), corrupt) << "other processes could write to it";
  const auto large = MakeSealed("counters", 1 << 20, Writers::kMaker);
  EXPECT_EQ(CodeOf(counters.Take(large->fd)), corrupt);
  EXPECT_EQ(Offers(counters, "app"), 7u) << "the current segment stays";
  EXPECT_EQ(counters.Read().size(), 1u);
}

// Container names come from the pod: no broker can make the plugin remember an unlimited number.
TEST(KeptCountersTest, RemembersNoMoreContainersThanAPodHas) {
  KeptCounters counters;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < protocol::kMaxCounterRecords; ++i) names.push_back(Concat("c", i));
  const CounterSegment full(names);
  ASSERT_EQ(CodeOf(counters.Take(full.fd())), 0);
  const CounterSegment more({"one-more"});
  EXPECT_EQ(CodeOf(counters.Take(more.fd())), static_cast<int>(Code::kExhausted));
  EXPECT_EQ(counters.Read().size(), protocol::kMaxCounterRecords);
}

TEST(KeptCountersTest, NoTotalEverFalls) {
  std::mt19937_64 random(1);
  const auto pick = [&](uint64_t below) { return random() % below; };
  KeptCounters counters;
  std::unique_ptr<CounterSegment> segment;
  std::map<std::string, uint64_t> honest;  // What honest brokers counted.
  std::map<std::string, uint64_t> shown;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t what = pick(20);
    if (segment == nullptr || what == 0) {
      const bool known_to_be_gone = pick(2) == 0;
      if (known_to_be_gone) counters.EndSegment();
      segment = std::make_unique<CounterSegment>(std::vector<std::string>{"app", "other"});
      ASSERT_TRUE(counters.Take(segment->fd()));
    } else if (what == 1) {
      ASSERT_TRUE(counters.Take(segment->fd()));
    } else if (what == 2) {  // A false value for "other".
      counters.Read();
      segment->word(1, Counter::kOffers) = pick(2) == 0 ? 0 : random();
    } else {
      segment->word(0, Counter::kOffers) += what;
      honest["app"] += what;
    }
    if (pick(3) != 0) continue;
    for (const ContainerCounters& row : counters.Read()) {
      ASSERT_GE(row.values[kOffers], shown[row.container]);
      ASSERT_LE(row.values[kOffers], protocol::kMaxCount);
      shown[row.container] = row.values[kOffers];
    }
    ASSERT_EQ(shown["app"], honest["app"]);
  }
}

}  // namespace
}  // namespace gpushm::plugin::keeper::testing
