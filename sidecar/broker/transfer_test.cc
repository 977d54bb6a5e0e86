// Loads and saves of clients that stall or give up. The pod has one transfer at a time, and nobody
// keeps it from the others.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "platform/base/clock.h"
#include "platform/base/testing_code.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kStallMs = 1000;

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }

BrokerSettings WithAShortStall() {
  BrokerSettings settings = TwoContainers();
  settings.arguments.insert(settings.arguments.end(),
                            {"--test-transfer-stall-ms", std::to_string(kStallMs)});
  return settings;
}

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() : broker_(folder_.path(), WithAShortStall()), client_(broker_.Socket("app")) {}
  void SetUp() override {
    ASSERT_TRUE(broker_.ready());
    ASSERT_TRUE(client_.Hello());
  }

  const TempFolder folder_;
  BrokerProcess broker_;
  RawClient client_;
};

TEST_F(TransferTest, ASilentPipeHoldsNobodyUp) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const auto silent = client_.Transfer("weights", 1, reader.get());
  ASSERT_TRUE(silent) << silent.error().ToString();
  EXPECT_TRUE(client_.Info()) << "requests are answered meanwhile";
  ASSERT_TRUE(client_.CancelTransfer(silent->transfer_id));
  EXPECT_FALSE(client_.FinishTransfer(silent->transfer_id));
}

TEST_F(TransferTest, ResultsThatNobodyAsksForKeepNobodyFromLoading) {
  for (int i = 0; i < 70; ++i) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reader(ends[0]);
    const UniqueFd writer(ends[1]);
    const Deadline deadline = Deadline::AfterMs(20'000);
    auto silent = client_.Transfer("weights", 1, reader.get());
    while (CodeOf(silent) == As(Code::kBusy) && !deadline.Passed()) {  // The last one is ending.
      poll(nullptr, 0, 1);
      silent = client_.Transfer("weights", 1, reader.get());
    }
    ASSERT_TRUE(silent) << i << ": " << silent.error().ToString();
    ASSERT_TRUE(client_.CancelTransfer(silent->transfer_id));
  }
}

// Goal: a stalled pipe blocks the pod's only transfer for a minute, not indefinitely, and its owner
// is told. A pipe that is only slow is not interrupted. Method: the test's broker has a shorter
// minute.
TEST_F(TransferTest, APipeThatStandsStillIsGivenUp) {
  for (const uint32_t direction : {2u, 1u}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reader(ends[0]);
    const UniqueFd writer(ends[1]);
    const auto still =
        client_.Transfer("weights", direction, direction == 1 ? reader.get() : writer.get());
    ASSERT_TRUE(still) << still.error().ToString();
    const auto ended = client_.FinishTransfer(still->transfer_id);
    ASSERT_FALSE(ended);
    EXPECT_EQ(CodeOf(ended), As(Code::kTimeout));
    EXPECT_THAT(ended.error().what(), HasSubstr("no byte moved for 1000 ms"));
  }
  // Less than a chunk in total, for longer than the limit.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const auto slow = client_.Transfer("weights", 1, reader.get());
  ASSERT_TRUE(slow) << slow.error().ToString();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(write(writer.get(), "byte", 4), 4);
    poll(nullptr, 0, static_cast<int>(kStallMs / 10));  // sleep: the pace of a slow writer
  }
  writer.Reset();
  const auto loaded = client_.FinishTransfer(slow->transfer_id);
  EXPECT_TRUE(loaded) << loaded.error().ToString();
}

}  // namespace
}  // namespace gpushm::broker::testing
