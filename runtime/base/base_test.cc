#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace gpushm {
namespace {

TEST(Status, SaysWhatFailedAndWhatToDo) {
  const Status status(Code::kNotFound, "no buffer \"weigths\"", "gpushmctl ls shows the names");
  EXPECT_EQ(status.ToString(),
            "NOT_FOUND: no buffer \"weigths\". Remedy: gpushmctl ls shows the names");
  const Status outer = status.WithContext("attach");
  EXPECT_EQ(outer.what(), "attach: no buffer \"weigths\"");
  EXPECT_EQ(outer.remedy(), status.remedy());
}

TEST(Status, EveryCodeHasAName) {
  for (int code = 1; code <= kMaxCode; ++code) {
    EXPECT_NE(CodeName(static_cast<Code>(code)), "UNKNOWN") << code;
  }
  EXPECT_EQ(CodeName(static_cast<Code>(kMaxCode + 1)), "UNKNOWN");
  EXPECT_EQ(CodeName(Code::kInternal), "INTERNAL");
}

TEST(UniqueFd, ClosesWhatItOwnsAndNothingElse) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd reader(ends[0]);
  {
    UniqueFd writer(ends[1]);
    UniqueFd moved(std::move(writer));
    EXPECT_FALSE(writer.valid());  // NOLINT(bugprone-use-after-move): what is tested
  }
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "the write end is still open";
  const int released = reader.Release();
  EXPECT_EQ(close(released), 0);
}

TEST(Deadline, NeverEndsEarlyAndDoesNotOverflow) {
  EXPECT_TRUE(Deadline::AfterMs(-5).Passed());
  EXPECT_EQ(Deadline::AfterMs(0).RemainingMs(), 0);
  EXPECT_GE(Deadline::After(std::chrono::nanoseconds(900'000)).RemainingMs(), 0);
  EXPECT_GT(Deadline::After(std::chrono::nanoseconds(INT64_MAX)).RemainingNs(), INT64_MAX / 2);
  EXPECT_GT(Deadline::AfterMs(60'000).RemainingMs(), 59'000);
}

}  // namespace
}  // namespace gpushm
