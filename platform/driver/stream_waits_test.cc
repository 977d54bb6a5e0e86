// Goal: waiting streams are counted as long as they wait, and the word that they wait for is not
// read after its memory is gone.
// Method: words of this process instead of a sync page's; pages that are unmapped.
#include "platform/driver/stream_waits.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace gpushm {
namespace {

CUstream Stream(uintptr_t number) { return reinterpret_cast<CUstream>(number); }

TEST(StreamWaits, CountsStreamsAndNotWaits) {
  StreamWaits waits(3);
  StreamWaits::Word word = 0;
  ASSERT_TRUE(waits.Add(Stream(1), word, 1));
  ASSERT_TRUE(waits.Add(Stream(1), word, 2));
  ASSERT_TRUE(waits.Add(Stream(2), word, 1));
  const auto refused = waits.Add(Stream(3), word, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  word = 1;
  EXPECT_TRUE(waits.HasPending(&word, sizeof word)) << "the first stream still waits for 2";
  EXPECT_TRUE(waits.Add(Stream(3), word, 2)) << "the second stream does not wait any more";
  word = 2;
  EXPECT_FALSE(waits.HasPending(&word, sizeof word));
}

TEST(StreamWaits, AWaitThatDidNotEnterIsTakenBack) {
  StreamWaits waits(2);
  StreamWaits::Word word = 0;
  ASSERT_TRUE(waits.Add(Stream(1), word, 1));
  waits.Remove(Stream(1), word, 1);
  EXPECT_FALSE(waits.HasPending(&word, sizeof word));
  EXPECT_TRUE(waits.Add(Stream(2), word, 1));
}

// Two threads put waits into one stream, and the first one's wait does not enter.
TEST(StreamWaits, AWaitIsTakenBackAlsoWhenAnotherCameAfterIt) {
  StreamWaits waits(2);
  StreamWaits::Word first = 0;
  StreamWaits::Word second = 0;
  ASSERT_TRUE(waits.Add(Stream(1), first, 1));
  ASSERT_TRUE(waits.Add(Stream(1), second, 1));
  waits.Remove(Stream(1), first, 1);
  EXPECT_FALSE(waits.HasPending(&first, sizeof first));
  EXPECT_TRUE(waits.HasPending(&second, sizeof second));
  second = 1;
  EXPECT_FALSE(waits.AnyPending());
}

TEST(StreamWaits, MemoryThatHasGoneIsForgotten) {
  StreamWaits waits(2);
  void* const page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  ASSERT_TRUE(waits.Add(Stream(1), *static_cast<StreamWaits::Word*>(page), 1));
  waits.Forget(page, 4096);
  munmap(page, 4096);
  StreamWaits::Word word = 0;
  EXPECT_TRUE(waits.Add(Stream(2), word, 1)) << "nobody waits, and nobody reads the unmapped page";
}

TEST(StreamWaits, OneConnectionLeavesNone) {
  StreamWaits waits(1);
  StreamWaits::Word word = 0;
  EXPECT_FALSE(waits.Add(Stream(1), word, 1));
}

}  // namespace
}  // namespace gpushm
