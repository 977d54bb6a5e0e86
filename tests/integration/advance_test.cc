// Goal: new weights come to the address of the old ones, under graphs that were captured before,
// and a failure leaves the old ones there. Method: processes on the driver, whose calls are made to
// fail.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

class AdvanceTest : public LinkedTest {
 protected:
  // Faults that the simulated driver injects from now on.
  void Inject(const std::string& faults) const {
    const std::string path = folder_ + "/sim/faults.yaml";
    std::ofstream(path + ".new") << faults << '\n';
    std::filesystem::rename(path + ".new", path);
  }
  static Answer Make(Worker* writer, const char* verb, int word, const char* bytes = "4096") {
    const Answer made = writer->Do(Concat(verb, "-unpublished weights ", bytes));
    EXPECT_EQ(made.status, GPUSHM_OK);
    EXPECT_EQ(writer->Do(Concat("write ", word)).status, 0);
    EXPECT_EQ(writer->Do("publish").status, GPUSHM_OK);
    EXPECT_EQ(writer->Do("detach").status, GPUSHM_OK);
    return made;
  }
};

TEST_F(AdvanceTest, TheAddressAndItsGraphGetEachNewGeneration) {
  auto [broker, writer, reader] = Pair(run());
  const Answer first = Make(&writer, "create", 1);
  ASSERT_EQ(reader.Do("attach weights r 0").value, first.value);
  const int64_t address = reader.Do("address").value;
  ASSERT_EQ(reader.Do("graph capture").status, 0);
  ASSERT_EQ(reader.Do("graph run").value, 1);
  EXPECT_EQ(reader.Do("advance 0 -1 0").value, first.value)
      << "without a newer generation, advance must keep the current one";
  for (int i = 2; i <= 6; ++i) {
    const Answer next = Make(&writer, "replace", i);
    EXPECT_EQ(reader.Do("current").status, GPUSHM_STALE);
    EXPECT_EQ(reader.Do("graph run").value, i - 1);
    const Answer advanced = reader.Do("advance 0 63 0");
    ASSERT_EQ(advanced.status, GPUSHM_OK);
    EXPECT_EQ(advanced.value, next.value);
    EXPECT_EQ(reader.Do("address").value, address);
    EXPECT_EQ(reader.Do("current").status, GPUSHM_OK);
    EXPECT_EQ(reader.Do("graph run").value, i);
    EXPECT_EQ(reader.Do("holders weights").value, 1)
        << "the lease on the old generation must have ended";
  }
  EXPECT_EQ(reader.Do("detach").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("holders weights").value, 0);
}

TEST_F(AdvanceTest, AnotherSizeAndAnUnpublishedOneAreRefused) {
  auto [broker, writer, reader] = Pair(run());
  const Answer first = Make(&writer, "create", 7);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  const Answer larger = Make(&writer, "replace", 8, "8000000");
  const Answer refused = reader.Do("advance 0 -1 0");
  EXPECT_EQ(refused.status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(refused.value, first.value);
  EXPECT_EQ(reader.Do("read").value, 7);
  EXPECT_EQ(reader.Do(Concat("advance ", larger.value + 1, " -1 50")).status, GPUSHM_TIMEOUT);
  EXPECT_EQ(reader.Do(Concat("advance ", larger.value - 1, " -1 50")).status, GPUSHM_STALE);
  ASSERT_EQ(writer.Do("replace-unpublished weights 4096").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("advance 0 -1 0").status, GPUSHM_INVALID_ARGUMENT);
}

// The stream works until the signal is set.
TEST_F(AdvanceTest, WorkOnTheStreamsIsWaitedFor) {
  auto [broker, writer, reader] = Pair(run());
  Make(&writer, "create", 1);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("signal open go w 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("signal open go r 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("signal await 5 1").status, GPUSHM_OK);
  const Answer next = Make(&writer, "replace", 2);
  EXPECT_EQ(reader.Do("advance 0 5 100").status, GPUSHM_TIMEOUT);
  EXPECT_EQ(reader.Do("read").value, 1);
  ASSERT_TRUE(reader.Begin("advance 0 5 20000"));
  ASSERT_EQ(writer.Do("signal set 1").status, GPUSHM_OK);
  EXPECT_EQ(reader.Await("advance").value, next.value);
  EXPECT_EQ(reader.Do("read").value, 2);
}

TEST_F(AdvanceTest, AFailureLeavesTheOldBytes) {
  auto [broker, writer, reader] = Pair(run());
  const Answer first = Make(&writer, "create", 1);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("read").value, 1);
  if (!simulated()) GTEST_SKIP() << "only the simulated driver fails on request";
  const Answer next = Make(&writer, "replace", 2);
  for (const char* call :
       {"cuMemImportFromShareableHandle", "cuMemRetainAllocationHandle", "cuMemUnmap"}) {
    Inject(Concat("results: {", call, ": 999}"));
    const Answer failed = reader.Do("advance 0 -1 0");
    EXPECT_EQ(failed.status, GPUSHM_DRIVER) << "while " << call << " fails";
    EXPECT_EQ(failed.value, first.value) << "while " << call << " fails";
    Inject("{}");
    EXPECT_EQ(reader.Do("read").value, 1) << "after " << call << " failed";
    EXPECT_EQ(reader.Do("holders weights").value, 1) << "after " << call << " failed";
  }
  EXPECT_EQ(reader.Do("advance 0 -1 0").value, next.value);
  EXPECT_EQ(reader.Do("read").value, 2);
  // The driver maps neither the new memory nor the old one.
  Make(&writer, "replace", 3);
  Inject("results: {cuMemMap: 2}");
  EXPECT_EQ(reader.Do("advance 0 -1 0").status, GPUSHM_DEVICE_LOST);
  Inject("{}");
  EXPECT_EQ(reader.Do("detach").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("read").value, 3);
}

// What a process published it may advance, too, and what its ring holds stays where it is.
TEST_F(AdvanceTest, AMakerAdvancesAndItsRingKeepsItsFrames) {
  auto [broker, maker, other] = Pair(run(), {"create-unpublished weights 4096", "publish"});
  for (int i = 2; i <= 3; ++i) {
    const Answer next = Make(&other, "replace", i);
    EXPECT_EQ(maker.Do("current").status, GPUSHM_STALE);
    EXPECT_EQ(maker.Do("advance 0 -1 0").value, next.value);
    EXPECT_EQ(maker.Do("current").status, GPUSHM_OK);
    EXPECT_EQ(maker.Do("read").value, i);
  }
  Worker writer(run());
  Worker reader(run());
  ASSERT_EQ(writer.Do("ring write video oldest 4 65536 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("ring read video 0").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("attach video r 0").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("ring put 7").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("ring begin 0").value, 1);
  ASSERT_EQ(reader.Do("ring look").value, 7)
      << "the reader must see the value of the complete frame";
  writer.Kill();
  Worker successor(run());
  ASSERT_EQ(successor.Do("ring write video oldest 4 65536 20000").status, GPUSHM_OK);
  ASSERT_EQ(successor.Do("ring pump 8").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("advance 0 -1 0").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring look").value, 7)
      << "advance must not change the frame that the reader holds";
  EXPECT_EQ(reader.Do("ring end").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("ring close").status, GPUSHM_OK);
}

TEST_F(AdvanceTest, AnOrphanAdvancesToTheNewBrokersBuffer) {
  auto [broker, writer, reader] = Pair(run());
  Make(&writer, "create", 1);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  broker.Kill();
  broker.Start();
  const Answer next = Make(&writer, "create", 2);
  const Answer advanced = reader.Do("advance 0 -1 0");
  EXPECT_EQ(advanced.status, GPUSHM_OK);
  EXPECT_EQ(advanced.value, next.value);
  EXPECT_EQ(reader.Do("read").value, 2);
}

}  // namespace
}  // namespace gpushm::integration
