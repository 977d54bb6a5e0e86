// Goal: what has ended, or what the driver refused, leaves no process waiting and nothing open.
// Method: one process with a real broker and streams of the driver.
#include "tests/integration/sync_fixture.h"

namespace gpushm::integration {
namespace {

using namespace std::chrono_literals;

TEST_F(SyncHppTest, AFrameEndsOnce) {
  for (const auto policy : {GPUSHM_RING_QUEUE, GPUSHM_RING_BACK_PRESSURE}) {
    SCOPED_TRACE(policy);
    Ring writer = Writer(policy);
    Ring reader = Reader();
    auto gate = Must(Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER}));
    Put(writer, 1);
    Put(writer, 2);
    const CUstream held = StreamBehind(gate, 1);
    auto frame = reader.BeginRead(held);
    ASSERT_TRUE(frame) << frame.error().text();
    const Frame same = frame->frame();
    EXPECT_TRUE(frame->End(held));
    EXPECT_EQ(gpushm_ring_end_read(reader.get(), held, &same, 0), GPUSHM_INVALID_ARGUMENT);
    EXPECT_EQ(gpushm_ring_abandon_read(reader.get(), held, &same), GPUSHM_INVALID_ARGUMENT);
    ASSERT_TRUE(gate.Set(1));
    End(held);
    auto next = Must(reader.BeginRead(stream_));
    EXPECT_EQ(next.frame().number, 2U) << "the first frame has ended, so it must not come again";
    EXPECT_TRUE(next.End(stream_));
    api_->cuStreamSynchronize(stream_);
    const auto closed = reader.Close();
    EXPECT_TRUE(closed) << closed.error().text();
    EXPECT_TRUE(writer.Close());
    EXPECT_TRUE(gate.Close());
  }
}

TEST_F(SyncHppTest, AReadWhoseStoreTheDriverRefusesIsStillOpen) {
  if (!api_->simulated()) GTEST_SKIP() << "only the simulated driver fails on request";
  for (const auto policy : {GPUSHM_RING_QUEUE, GPUSHM_RING_BACK_PRESSURE}) {
    SCOPED_TRACE(policy);
    Ring writer = Writer(policy);
    Ring reader = Reader();
    Put(writer, 1);
    Put(writer, 2);
    auto frame = Must(reader.BeginRead(stream_));
    api_->cuStreamSynchronize(stream_);
    Inject("results: {cuStreamWriteValue64: 999}");
    EXPECT_EQ(frame.End(stream_).error().status(), GPUSHM_DRIVER);
    Inject("");
    EXPECT_TRUE(frame.open());
    EXPECT_EQ(reader.Close().error().status(), GPUSHM_BUSY);
    const auto ended = frame.End(stream_);
    EXPECT_TRUE(ended) << ended.error().text();
    api_->cuStreamSynchronize(stream_);
    const auto opened = writer.BeginWrite();
    EXPECT_TRUE(opened) << "the end of the read must free the slot: " << opened.error().text();
    EXPECT_TRUE(reader.Close());
  }
}

// A reader that lost its place reports it once and stores nothing there, because another may have
// it.
TEST_F(SyncHppTest, AReadThatIsOrphanedIsOver) {
  auto process = Client::Open({.folder = run()});  // Acts as another process: it has other leases.
  ASSERT_TRUE(process) << process.error().text();
  for (const auto policy : {GPUSHM_RING_QUEUE, GPUSHM_RING_BACK_PRESSURE}) {
    SCOPED_TRACE(policy);
    Ring writer = Writer(policy);
    Ring reader = Reader();
    Put(writer, 1);
    Put(writer, 2);
    {
      auto frame = reader.BeginRead(stream_);
      auto dropped = reader.BeginRead(stream_);
      ASSERT_TRUE(frame && dropped);
      const auto page =
          PageOf(policy == GPUSHM_RING_QUEUE ? sync::Kind::kQueue : sync::Kind::kRing);
      EndAsBroker(page.cell(1));
      auto other =
          Must(Ring::Read(*process, "video", {.from_oldest = policy != GPUSHM_RING_QUEUE}));
      auto again = Must(other.BeginRead(stream_));
      EXPECT_EQ(again.frame().number, 1U);
      EXPECT_EQ(frame->End(stream_).error().status(), GPUSHM_ORPHANED);
      EXPECT_FALSE(frame->open());
      dropped->Abandon();
      api_->cuStreamSynchronize(stream_);
      EXPECT_EQ(writer.BeginWrite(0s).error().status(), GPUSHM_TIMEOUT)
          << "the writer must not get a slot that another reader uses";
      EXPECT_TRUE(again.End(stream_));
      api_->cuStreamSynchronize(stream_);
      EXPECT_TRUE(other.Close());
    }
    const auto closed = reader.Close();
    EXPECT_TRUE(closed) << closed.error().text();
    EXPECT_TRUE(writer.Close());
  }
}

// A broker that does not know a participant ends it. A store that the participant's stream has yet
// to make comes after the poison. A process that waits for a larger value must not wait
// indefinitely.

TEST_F(SyncHppTest, ABarriersStreamIsReleasedAgainAfterALateStore) {
  auto process = Must(Client::Open({.folder = run()}));
  for (const bool by_check : {true, false}) {
    SCOPED_TRACE(by_check);
    auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER});
    auto ended = Barrier::Open(*client_, "step", 2);
    auto other = Barrier::Open(process, "step", 2);
    ASSERT_TRUE(gate && ended && other);
    const CUstream late = StreamBehind(*gate, 1);
    ASSERT_TRUE(ended->WaitOnStream(late));
    ASSERT_TRUE(other->WaitOnStream(stream_));
    ASSERT_EQ(
        api_->cuStreamWaitValue64(stream_, *gate->DeviceAddress(), 2, CU_STREAM_WAIT_VALUE_GEQ),
        CUDA_SUCCESS);
    ASSERT_TRUE(other->WaitOnStream(stream_));
    const auto page = PageOf(sync::Kind::kBarrier);
    ASSERT_TRUE(Reaches(page.cell(1), 1)) << "the other participant's stream must arrive";
    EndAsBroker(page.cell(0));
    EXPECT_EQ(ended->Close().error().status(), GPUSHM_BUSY)
        << "a barrier must not close while its stream has yet to arrive";
    ASSERT_TRUE(gate->Set(1));
    ASSERT_TRUE(Passes(late));
    ASSERT_EQ(page.cell(0).value.load(), 1U)
        << "the late store must replace the poison, or the test proves nothing";
    ASSERT_TRUE(gate->Set(2));
    const auto said = by_check ? other->Check() : other->Wait();
    EXPECT_EQ(said.error().status(), GPUSHM_PEER_DIED);
    EXPECT_TRUE(Passes(stream_));
    sync::KeepPoison(page.cell(0));  // The stream goes on after a failure, too.
    End(late);
    api_->cuStreamSynchronize(stream_);
    EXPECT_TRUE(ended->Close());
    EXPECT_TRUE(other->Close());
    EXPECT_TRUE(gate->Close());
  }
}

TEST_F(SyncHppTest, ASignalsCloseWaitsForALateStoreAndReleasesItsWaiters) {
  auto process = Must(Client::Open({.folder = run()}));
  auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER});
  auto writer = Signal::Open(*client_, "late", {.role = GPUSHM_SIGNAL_WRITER});
  ASSERT_TRUE(gate && writer);
  auto waiter = Must(Signal::Open(process, "late"));
  const CUstream late = StreamBehind(*gate, 1);
  ASSERT_TRUE(writer->Set(7));
  ASSERT_TRUE(writer->Record(late, 8));
  const CUstream waits = StreamBehind(*gate, 2);
  ASSERT_TRUE(waiter.WaitOnStream(waits, 9));
  const auto page = PageOf(sync::Kind::kSignal, /*value=*/7);
  EndAsBroker(page.cell(0));
  EXPECT_EQ(writer->Close().error().status(), GPUSHM_BUSY)
      << "a signal must not close while a stream has yet to record";
  ASSERT_TRUE(gate->Set(1));
  ASSERT_TRUE(Passes(late));
  ASSERT_EQ(page.cell(0).value.load(), 8U)
      << "the late store must replace the poison, or the test proves nothing";
  ASSERT_TRUE(gate->Set(2));
  const auto closed = writer->Close();
  EXPECT_TRUE(closed) << closed.error().text();
  EXPECT_TRUE(Passes(waits));
  End(late);
  End(waits);
}

TEST_F(SyncHppTest, ARingsReaderIsReleasedAgainAfterALateStore) {
  auto process = Must(Client::Open({.folder = run()}));
  auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER});
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  auto reader = Ring::Read(process, "video");
  ASSERT_TRUE(gate && reader);
  const CUstream first = StreamBehind(*gate, 1);
  const CUstream reads = StreamBehind(*gate, 2);
  const CUstream second = StreamBehind(*gate, 3);
  for (const CUstream stream : {first, second}) {
    auto frame = writer.BeginWrite();
    ASSERT_TRUE(frame && frame->End(stream));
  }
  auto one = reader->BeginRead(reads);
  auto two = reader->BeginRead(reads);
  ASSERT_TRUE(one && two);
  const auto page = PageOf(sync::Kind::kRing);
  sync::Cell& cell = page.cell(0);
  EndAsBroker(cell);
  ASSERT_TRUE(gate->Set(1));
  ASSERT_TRUE(Passes(first));
  ASSERT_EQ(cell.value.load(), 1U)
      << "the late store must replace the poison, or the test proves nothing";
  ASSERT_TRUE(gate->Set(2));
  EXPECT_EQ(two->End(reads).error().status(), GPUSHM_PEER_DIED);
  EXPECT_TRUE(Passes(reads));
  EXPECT_EQ(one->End(reads).error().status(), GPUSHM_PEER_DIED);
  EXPECT_EQ(writer.Close().error().status(), GPUSHM_BUSY)
      << "a ring must not close while a stream has yet to store";
  ASSERT_TRUE(gate->Set(3));
  ASSERT_TRUE(Passes(second));
  ASSERT_EQ(PageOf(sync::Kind::kRing).cell(0).value.load(), 2U);
  EXPECT_TRUE(writer.Close());
  EXPECT_EQ(PageOf(sync::Kind::kRing).cell(0).value.load(), sync::kPoison);
  for (const CUstream stream : {first, reads, second}) End(stream);
  EXPECT_TRUE(reader->Close());
}

}  // namespace
}  // namespace gpushm::integration
