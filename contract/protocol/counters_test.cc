#include "contract/protocol/counters.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>

namespace gpushm::protocol {
namespace {

// Positions are permanent, because programs of other versions read the bytes.
TEST(Counters, LieWhereTheyAlwaysLay) {
  EXPECT_EQ(WordOf(Counter::kFirstAttaches), 0u);
  EXPECT_EQ(WordOf(Counter::kWaitNs), 7u);
  EXPECT_EQ(WordOf(Counter::kFirstAttachNs), 13u);
  EXPECT_EQ(WordOf(Code::kInvalidArgument), 33u);
  EXPECT_EQ(WordOf(Code::kInternal), 53u);
  EXPECT_EQ(offsetof(CounterSegmentHeader, ready_ns), 16u);
  EXPECT_EQ(offsetof(CounterSegmentHeader, mps), 24u);
  EXPECT_EQ(offsetof(CounterRecord, words), 64u);
  EXPECT_EQ(offsetof(CounterRecord, private_bytes), 768u);
  EXPECT_EQ(CounterSegmentBytes(0), 4096u);
  EXPECT_EQ(CounterSegmentBytes(4), 4096u);
  EXPECT_EQ(CounterSegmentBytes(5), 8192u);
}

TEST(Counters, NoTwoShareAWord) {
  std::set<size_t> words;
  for (size_t i = 0; i <= WordOf(Counter::kFirstAttachNs); ++i) words.insert(i);
  for (int code = 1; code <= kMaxCode; ++code) words.insert(WordOf(static_cast<Code>(code)));
  for (const uint64_t bound : kFirstAttachBoundsNs) words.insert(WordOfFirstAttach(bound));
  words.insert(WordOfFirstAttach(kFirstAttachBoundsNs.back() + 1));
  EXPECT_EQ(words.size(), WordOf(Counter::kFirstAttachNs) + 1 + kMaxCode + kFirstAttachBuckets);
  EXPECT_LT(*words.rbegin(), kCounterWords);
}

TEST(Counters, BucketsEndAtTheirBound) {
  EXPECT_EQ(WordOfFirstAttach(0), kFirstAttachBucketsAt);
  EXPECT_EQ(WordOfFirstAttach(25'000), kFirstAttachBucketsAt);
  EXPECT_EQ(WordOfFirstAttach(25'001), kFirstAttachBucketsAt + 1);
  EXPECT_EQ(WordOfFirstAttach(1'000'000'000), kFirstAttachBucketsAt + 14);
  EXPECT_EQ(WordOfFirstAttach(~uint64_t{0}), kFirstAttachBucketsAt + 15);
}

TEST(Counters, NeitherFallNorOverflow) {
  CounterWords words{};
  CounterValues seen{};
  words[0] = 7;
  words[1] = ~uint64_t{0};
  ReadCounters(words, &seen);
  EXPECT_EQ(seen[0], 7u);
  EXPECT_EQ(seen[1], kMaxCount);
  words[0] = 3;
  words[1] = 0;
  ReadCounters(words, &seen);
  EXPECT_EQ(seen[0], 7u);
  EXPECT_EQ(seen[1], kMaxCount);
  CounterValues sum{};
  for (int i = 0; i < 5000; ++i) AddCounters(seen, &sum);
  EXPECT_EQ(sum[0], 35'000u);
  EXPECT_EQ(sum[1], kMaxCount);
  EXPECT_EQ(static_cast<uint64_t>(static_cast<double>(kMaxCount)), kMaxCount);
}

}  // namespace
}  // namespace gpushm::protocol
