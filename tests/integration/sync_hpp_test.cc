// Goal: the C++ owners of signals, barriers and rings close what they own, and only when that is
// safe. Method: one process with a real broker and streams of the driver.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/integration/sync_fixture.h"

namespace gpushm::integration {
namespace {

using namespace std::chrono_literals;

TEST_F(SyncHppTest, ASignalEndsWithItsOwner) {
  auto waiter = Signal::Open(*client_, "ready", {.timeout = 0s});
  ASSERT_FALSE(waiter);
  EXPECT_EQ(waiter.error().status(), GPUSHM_NOT_FOUND);
  {
    auto writer = Must(Signal::Open(*client_, "ready", {.role = GPUSHM_SIGNAL_WRITER}));
    waiter = Signal::Open(*client_, "ready");
    ASSERT_TRUE(waiter) << waiter.error().text();
    EXPECT_EQ(waiter->Check(1).error().status(), GPUSHM_BUSY);
    ASSERT_TRUE(writer.Record(stream_, 1));
    EXPECT_TRUE(waiter->Wait(1));
    ASSERT_TRUE(writer.Set(2));
    EXPECT_EQ(waiter->GetInfo()->value, 2);
    EXPECT_TRUE(writer.DeviceAddress());
  }
  EXPECT_TRUE(waiter->Check(2));
  EXPECT_EQ(waiter->Check(3).error().status(), GPUSHM_ENDED);
  EXPECT_EQ(waiter->Wait(3).error().status(), GPUSHM_ENDED);
  EXPECT_EQ(waiter->WaitOnStream(stream_, 3).error().status(), GPUSHM_ENDED);
  EXPECT_EQ(waiter->GetInfo()->state, GPUSHM_SIGNAL_LEFT);
  EXPECT_TRUE(waiter->Close());
  EXPECT_FALSE(*waiter);
}

TEST_F(SyncHppTest, ABarrierIsPassedByTwo) {
  auto first = Must(Barrier::Open(*client_, "step", 2));
  {
    auto second = Must(Barrier::Open(*client_, "step", 2));
    EXPECT_EQ(first.Wait(0s).error().status(), GPUSHM_TIMEOUT);
    EXPECT_TRUE(second.Wait());
    EXPECT_TRUE(first.Wait());
    EXPECT_TRUE(first.Check());
    EXPECT_EQ(first.GetInfo()->point, 1);
  }
  EXPECT_EQ(first.Wait().error().status(), GPUSHM_ENDED);
}

// Goal: gpushm_sync_lookup reports kind and value of each object without joining the barrier.
TEST_F(SyncHppTest, ALookTakesNoPart) {
  EXPECT_EQ(LookupSync(*client_, "none").error().status(), GPUSHM_NOT_FOUND);
  auto signal = Signal::Open(*client_, "looked", {.role = GPUSHM_SIGNAL_WRITER});
  ASSERT_TRUE(signal && signal->Set(5));
  const auto live = Must(LookupSync(*client_, "looked"));
  EXPECT_EQ(live.kind, GPUSHM_SYNC_SIGNAL);
  EXPECT_EQ(live.value, 5);
  EXPECT_EQ(live.state, GPUSHM_SIGNAL_LIVE);
  EXPECT_NE(live.writer_lease, 0);
  ASSERT_TRUE(signal->Close());
  EXPECT_EQ(LookupSync(*client_, "looked")->state, GPUSHM_SIGNAL_LEFT);
  EXPECT_EQ(LookupSync(*client_, "looked")->value, 5);

  auto step = Must(Barrier::Open(*client_, "looked-step", 2));
  EXPECT_EQ(LookupSync(*client_, "looked-step")->kind, GPUSHM_SYNC_BARRIER);
  EXPECT_EQ(LookupSync(*client_, "looked-step")->joined, 1);
  EXPECT_EQ(LookupSync(*client_, "looked-step")->places, 2);
  EXPECT_EQ(LookupSync(*client_, "looked-step")->state, GPUSHM_SIGNAL_LIVE);

  Ring writer = Writer(GPUSHM_RING_OVERWRITE_OLDEST);
  Put(writer, 1);
  ASSERT_EQ(api_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(LookupSync(*client_, "video").error().status(), GPUSHM_INVALID_ARGUMENT)
      << "the ring's buffer must not pass for the ring";
  const auto ring = Must(LookupSync(*client_, "video-ring"));
  EXPECT_EQ(ring.kind, GPUSHM_SYNC_RING);
  EXPECT_EQ(ring.value, 1);
  EXPECT_EQ(ring.joined, 1);
}

TEST_F(SyncHppTest, AFrameGoesFromGuardToGuard) {
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  for (unsigned char i = 1; i <= 5; ++i) {
    Put(writer, i);
    auto frame = Must(reader.BeginRead(stream_));
    ReadGuard moved = std::move(frame);
    EXPECT_EQ(moved.metadata()[0], i);
    EXPECT_EQ(moved.size_bytes(), kFrameBytes);
    uint32_t word = 0;
    api_->cuMemcpyDtoH(&word, moved.address(), sizeof word);
    EXPECT_EQ(word, i);
    EXPECT_TRUE(moved.End(stream_));
  }
  EXPECT_EQ(reader.GetInfo()->taken, 5);
  api_->cuStreamSynchronize(stream_);  // A busy owner stays open.
}

// One thread may wait for a frame that can only come after another thread has ended its read.
TEST_F(SyncHppTest, AReadEndsWhileAnotherThreadWaitsForTheNextFrame) {
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  Put(writer, 1);
  Put(writer, 2);
  auto first = reader.BeginRead(stream_);
  auto second = reader.BeginRead(stream_);
  ASSERT_TRUE(first && second);
  std::atomic<bool> waits = false;
  unsigned char got = 0;
  std::thread other([&] {
    EXPECT_TRUE(context_->MakeCurrent());
    waits = true;
    auto third = reader.BeginRead(stream_, 10s);
    if (!third) return;
    got = third->metadata()[0];
    EXPECT_TRUE(third->End(stream_));
  });
  while (!waits) std::this_thread::yield();
  EXPECT_TRUE(first->End(stream_));
  EXPECT_TRUE(second->End(stream_));
  Put(writer, 3);
  other.join();
  EXPECT_EQ(got, 3);
  api_->cuStreamSynchronize(stream_);
}

// An item of a queue does not count as done either: only the wait for it timed out, not the work.
TEST_F(SyncHppTest, AReadThatTimesOutLosesNoFrame) {
  for (const gpushm_ring_policy policy : {GPUSHM_RING_BACK_PRESSURE, GPUSHM_RING_QUEUE}) {
    Ring writer = Writer(policy);
    Ring reader = Reader();
    Signal gate = Gate(stream_);
    Put(writer, 1);  // Announced now, and complete when the gate opens.
    Put(writer, 2);
    EXPECT_EQ(reader.BeginRead(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
    EXPECT_EQ(reader.BeginRead(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
    ASSERT_TRUE(gate.Set(1));
    for (uint64_t i = 1; i <= 2; ++i) {
      auto frame = reader.BeginRead(stream_);
      ASSERT_TRUE(frame) << frame.error().text();
      EXPECT_EQ(frame->frame().number, i);
      EXPECT_EQ(frame->frame().lost, 0);
      EXPECT_EQ(frame->frame().delivery, 1);
      EXPECT_TRUE(frame->End(stream_));
    }
    api_->cuStreamSynchronize(stream_);  // A busy owner stays open.
  }
}

TEST_F(SyncHppTest, AReadOfTheNewestPassesOverWhatTimedOut) {
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  Signal gate = Gate(stream_);
  Put(writer, 1);
  EXPECT_EQ(reader.BeginReadNewest(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
  EXPECT_EQ(reader.BeginReadNewest(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
  Put(writer, 2);
  ASSERT_TRUE(gate.Set(1));
  auto frame = reader.BeginReadNewest(stream_);
  ASSERT_TRUE(frame) << frame.error().text();
  EXPECT_EQ(frame->frame().number, 2);
  EXPECT_EQ(frame->frame().lost, 1);
  EXPECT_TRUE(frame->End(stream_));
  const auto info = Must(reader.GetInfo());
  EXPECT_EQ(info.taken, 1);
  EXPECT_EQ(info.lost, 1);
  api_->cuStreamSynchronize(stream_);  // A busy owner stays open.
}

TEST_F(SyncHppTest, AWorkerThatLeavesAfterATimeoutLeavesTheItemToOthers) {
  Ring writer = Writer(GPUSHM_RING_QUEUE);
  auto leaves = Must(Ring::Read(*client_, "video"));
  Signal gate = Gate(stream_);
  Put(writer, 1);
  EXPECT_EQ(leaves.BeginRead(stream_, 10ms).error().status(), GPUSHM_TIMEOUT);
  EXPECT_TRUE(leaves.Close());
  ASSERT_TRUE(gate.Set(1));
  auto stays = Ring::Read(*client_, "video");
  ASSERT_TRUE(stays) << stays.error().text();
  auto frame = stays->BeginRead(stream_);
  ASSERT_TRUE(frame) << frame.error().text();
  EXPECT_EQ(frame->frame().delivery, 2);
  EXPECT_TRUE(frame->End(stream_));
  api_->cuStreamSynchronize(stream_);  // A busy owner stays open.
}

TEST_F(SyncHppTest, AWriteThatIsNotEndedIsGivenUp) {
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  {
    auto frame = writer.BeginWrite();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->frame().number, 1);
    frame->set_bytes(kFrameBytes + 1);
    EXPECT_EQ(frame->End(stream_).error().status(), GPUSHM_INVALID_ARGUMENT);
    EXPECT_TRUE(frame->open());
  }
  EXPECT_EQ(reader.BeginRead(stream_, 0s).error().status(), GPUSHM_TIMEOUT);
  Put(writer, 7);
  auto frame = reader.BeginRead(stream_);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->frame().number, 1) << "the next frame must get the number of the abandoned one";
  EXPECT_TRUE(frame->End(stream_));
  api_->cuStreamSynchronize(stream_);  // A busy owner stays open.
}

// If a guard is just destroyed, its frame returns to the writer when the stream has read it, not
// before.
TEST_F(SyncHppTest, AReadThatIsNotEndedEndsWithItsStream) {
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  Put(writer, 1);
  Put(writer, 2);
  CUstream held = nullptr;
  ASSERT_EQ(api_->cuStreamCreate(&held, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  Signal gate;
  {
    auto frame = Must(reader.BeginRead(held));
    gate = Gate(held);
  }
  EXPECT_EQ(writer.BeginWrite(50ms).error().status(), GPUSHM_TIMEOUT)
      << "the writer must not get a slot that a stream still reads";
  EXPECT_EQ(reader.Close().error().status(), GPUSHM_BUSY);
  ASSERT_TRUE(gate.Set(1));
  EXPECT_TRUE(writer.BeginWrite());
  EXPECT_EQ(api_->cuStreamSynchronize(held), CUDA_SUCCESS);
  EXPECT_TRUE(reader.Close());
  EXPECT_EQ(api_->cuStreamDestroy(held), CUDA_SUCCESS);
  api_->cuStreamSynchronize(stream_);  // A busy owner stays open.
}

// A worker fails with an exception: another worker gets its item again, and can tell that it is a
// repeat.
TEST_F(SyncHppTest, AnItemWhoseGuardGoesIsDeliveredAgain) {
  Ring writer = Writer(GPUSHM_RING_QUEUE);
  auto worker = Ring::Read(*client_, "video");
  auto other = Ring::Read(*client_, "video");
  ASSERT_TRUE(worker && other);
  Put(writer, 5);
  const auto work = [&] {
    auto item = Must(worker->BeginRead(stream_));
    EXPECT_EQ(item.delivery(), 1U);
    throw 1;
  };
  EXPECT_THROW(work(), int);
  {
    auto item = Must(other->BeginRead(stream_));
    EXPECT_EQ(item.delivery(), 2U);
    EXPECT_EQ(item.metadata()[0], 5);
    item.Abandon();
    EXPECT_FALSE(item.open());
  }
  auto item = Must(worker->BeginRead(stream_));
  EXPECT_EQ(item.delivery(), 3U);
  EXPECT_TRUE(item.End(stream_)) << "a worker must be able to end an item that has failed before";
  EXPECT_EQ(other->BeginRead(stream_, 0s).error().status(), GPUSHM_TIMEOUT);
  api_->cuStreamSynchronize(stream_);
  EXPECT_TRUE(worker->Close());
  EXPECT_TRUE(other->Close());
}

// An earlier frame's store is still pending when the driver refuses the next one. It must neither
// end the ring nor leave a frame that is never completed.
TEST_F(SyncHppTest, AFrameWhoseStoreTheDriverRefusesIsStillOpen) {
  if (!api_->simulated()) GTEST_SKIP() << "only the simulated driver fails on request";
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  auto gate = Must(Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER}));
  const CUstream held = StreamBehind(gate, 1);
  auto first = writer.BeginWrite();
  ASSERT_TRUE(first && first->End(held));
  auto second = Must(writer.BeginWrite());
  Inject("results: {cuStreamWriteValue64: 999}");
  EXPECT_EQ(second.End(held).error().status(), GPUSHM_DRIVER);
  Inject("");
  EXPECT_TRUE(second.open());
  ASSERT_TRUE(gate.Set(1));
  ASSERT_EQ(api_->cuStreamSynchronize(held), CUDA_SUCCESS);
  auto frame = reader.BeginRead(stream_);
  ASSERT_TRUE(frame) << frame.error().text();
  EXPECT_TRUE(frame->End(stream_));
  EXPECT_EQ(reader.BeginRead(stream_, 0s).error().status(), GPUSHM_TIMEOUT)
      << "a frame whose end failed must not reach the reader";
  EXPECT_TRUE(second.End(held)) << "the frame must end once the driver accepts the store";
  frame = reader.BeginRead(stream_);
  ASSERT_TRUE(frame) << frame.error().text();
  EXPECT_EQ(frame->frame().number, 2U);
  EXPECT_TRUE(frame->End(stream_));
  for (CUstream stream : {held, stream_}) api_->cuStreamSynchronize(stream);
  EXPECT_TRUE(reader.Close());
  EXPECT_EQ(api_->cuStreamDestroy(held), CUDA_SUCCESS);
}

// The pool has room for 32 of them. The ledger's test has 10,000.
TEST_F(SyncHppTest, RingsThatAllHaveClosedGiveTheirMemoryBack) {
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "ring" + std::to_string(i);
    const auto policy = i % 2 == 0 ? GPUSHM_RING_QUEUE : GPUSHM_RING_OVERWRITE_OLDEST;
    auto writer =
        Ring::Write(*client_, name, {.policy = policy, .frames = 2, .frame_bytes = kFrameBytes});
    ASSERT_TRUE(writer) << "ring " << i << ": " << writer.error().text();
    auto reader = Must(Ring::Read(*client_, name));
    ASSERT_TRUE(writer->Close());
    ASSERT_TRUE(client_->Lookup(name)) << "the ring must stay while its reader has it open";
    ASSERT_TRUE(reader.Close());
    ASSERT_EQ(client_->Lookup(name).error().status(), GPUSHM_NOT_FOUND);
    ASSERT_EQ(client_->Lookup(name + "-ring").error().status(), GPUSHM_NOT_FOUND);
  }
}

TEST_F(SyncHppTest, ARingIsKeptOnRequestAndWhereItsBufferIsTheUsers) {
  {
    auto kept =
        Ring::Write(*client_, "kept", {.frames = 2, .frame_bytes = kFrameBytes, .keep = true});
    ASSERT_TRUE(kept) << kept.error().text();
    auto frames = Must(client_->Create("own", 4 * kFrameBytes));
    auto own = Must(Ring::Write(*client_, "own", {.frames = 2, .frame_bytes = kFrameBytes}));
  }
  EXPECT_TRUE(client_->Lookup("kept") && client_->Lookup("kept-ring"));
  EXPECT_TRUE(client_->Lookup("own"));
  EXPECT_FALSE(client_->Lookup("own-ring"));
  for (const char* name : {"kept", "kept-ring", "own"}) {
    EXPECT_TRUE(client_->Delete(name)) << name << " must still exist";
  }
}

// Errors name other processes by container and kind, which people know, not by a place in a page.
TEST_F(SyncHppTest, ErrorsNameContainerAndKind) {
  Ring writer = Writer(GPUSHM_RING_BACK_PRESSURE);
  Ring reader = Reader();
  Put(writer, 1);
  Put(writer, 2);
  ASSERT_EQ(api_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  const std::string slow = writer.BeginWrite(1ms).error().text();
  EXPECT_NE(slow.find("the slowest reader is at frame 1, 2 behind: container \"main\" (client "),
            std::string::npos)
      << "the error must name the slowest reader: " << slow;
  auto one = Barrier::Open(*client_, "step", 3);
  auto two = Barrier::Open(*client_, "step", 3);
  ASSERT_TRUE(one && two);
  const std::string missing = one->Wait(1ms).error().text();
  EXPECT_NE(missing.find("1 of 3 are at point 1, 1 have yet to join; missing: container \"main\""),
            std::string::npos)
      << "the error must name who is missing: " << missing;
  for (const std::string& text : {slow, missing}) EXPECT_EQ(text.find("cell"), std::string::npos);
  const auto read = [&](const char* name) {
    return Ring::Read(*client_, name, {.timeout = 0s}).error().what();
  };
  EXPECT_EQ(read("nobody"), "open ring \"nobody\": no ring \"nobody\"");
  EXPECT_EQ(Signal::Open(*client_, "nobody", {.timeout = 0s}).error().what(),
            "open signal \"nobody\": no signal \"nobody\"");
  ASSERT_TRUE(client_->Create("plain", 1));
  EXPECT_EQ(read("plain"),
            "open ring \"plain\": no ring \"plain\"; there is only a buffer of that name");
  EXPECT_TRUE(client_->Delete("plain"));
  const auto forgotten = Ring::Write(*client_, "new", {.frames = 2}).error();
  EXPECT_EQ(forgotten.what(), "open ring \"new\": frame_bytes is 0");
  EXPECT_EQ(forgotten.remedy(), "set frame_bytes to the size of the largest frame");
  api_->cuStreamSynchronize(stream_);
}

TEST_F(SyncHppTest, AWriterStartsWithReadersAndGoesOnWithThoseThatAreLeft) {
  WriteRingOptions options{
      .policy = GPUSHM_RING_BACK_PRESSURE, .frames = 2, .frame_bytes = kFrameBytes};
  options.start_readers = 16;
  EXPECT_EQ(Ring::Write(*client_, "video", options).error().status(), GPUSHM_INVALID_ARGUMENT);
  options.policy = GPUSHM_RING_OVERWRITE_OLDEST;  // Its frames wait for no reader, as in 0.1.
  options.need_readers = 16;
  EXPECT_TRUE(Ring::Write(*client_, "video", options));
  options = {.policy = GPUSHM_RING_BACK_PRESSURE, .frames = 2, .frame_bytes = kFrameBytes};
  options.start_readers = 2;
  auto writer = Must(Ring::Write(*client_, "video", options));
  auto first = Must(Ring::Read(*client_, "video"));
  EXPECT_EQ(writer.BeginWrite(0s).error().what(), "ring \"video\": 1 of 2 readers are present");
  {
    auto second = Must(Ring::Read(*client_, "video"));
    Put(writer, 1);
  }
  ASSERT_EQ(api_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  Put(writer, 2);
  api_->cuStreamSynchronize(stream_);
}

TEST_F(SyncHppTest, OwnersMayOutliveTheirClient) {
  auto signal = Must(Signal::Open(*client_, "late", {.role = GPUSHM_SIGNAL_WRITER}));
  auto barrier = Must(Barrier::Open(*client_, "point", 1));
  Ring writer = Writer(GPUSHM_RING_OVERWRITE_OLDEST);
  Ring reader = Reader();
  Put(writer, 1);
  auto read = Must(reader.BeginRead(stream_));
  auto write = Must(writer.BeginWrite());
  ASSERT_EQ(api_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  client_.reset();  // This ends them all, also the open frames.
  EXPECT_EQ(signal.Set(1).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(barrier.Wait().error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(write.End(stream_).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(read.End(stream_).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(writer.BeginWrite().error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(reader.Close().error().status(), GPUSHM_INVALID_ARGUMENT);
}

TEST_F(SyncHppTest, AWaiterReportsWhatWasAdded) {
  auto writer = Writer(GPUSHM_RING_OVERWRITE_OLDEST);
  Ring reader = Reader();
  auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER});
  auto opened = Signal::Open(*client_, "gate");
  ASSERT_TRUE(gate && opened);
  auto made = Must(Waiter::Open(*client_));
  Waiter waiter = std::move(made);
  EXPECT_FALSE(made);
  EXPECT_EQ(made.Wait().error().status(), GPUSHM_INVALID_ARGUMENT);
  ASSERT_TRUE(waiter.AddRing(reader, 1));
  ASSERT_TRUE(waiter.AddSignal(*opened, 5, 2));
  ASSERT_TRUE(waiter.AddName("waited-for", 0, 3));
  EXPECT_EQ(waiter.AddName("Not a name", 0, 4).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(waiter.AddSignal(*opened, UINT64_MAX, 4).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(waiter.Wait(Timeout(1s), 0).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_TRUE(waiter.Wait(50ms)->empty());
  Put(writer, 1);
  ASSERT_TRUE(gate->Set(7));
  ASSERT_TRUE(client_->Create("waited-for", 4096));
  std::array<bool, 4> seen{};
  for (int i = 0; i < 100 && !(seen[1] && seen[2] && seen[3]); ++i) {
    const auto events = Must(waiter.Wait(10s));
    for (const Event& event : events) {
      EXPECT_EQ(event.status, uint32_t{GPUSHM_OK});
      EXPECT_EQ(event.struct_size, sizeof event);
      seen.at(event.tag) = true;
    }
  }
  EXPECT_TRUE(seen[1] && seen[2] && seen[3]);
  ASSERT_TRUE(reader.Close());
  EXPECT_EQ(waiter.AddRing(reader, 1).error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_TRUE(waiter.Wait(50ms)->empty())
      << "neither a reported signal nor a closed ring may cause an event";
  EXPECT_TRUE(waiter.Remove(3));
  EXPECT_EQ(waiter.Remove(3).error().status(), GPUSHM_NOT_FOUND);
  EXPECT_TRUE(client_->Delete("waited-for"));
}

// Regression: after the first frame that came late from the GPU, the waiter's timer stayed off.
TEST_F(SyncHppTest, AWaiterReportsEachFrameThatTheGpuCompletesLate) {
  auto gate = Must(Signal::Open(*client_, "late", {.role = GPUSHM_SIGNAL_WRITER}));
  auto writer = Writer(GPUSHM_RING_OVERWRITE_OLDEST);
  Ring reader = Reader();
  auto waiter = Waiter::Open(*client_);
  ASSERT_TRUE(waiter && waiter->AddRing(reader, 1));
  const CUstream stream = StreamBehind(gate, 1);
  for (uint64_t value = 1; value <= 2; ++value) {
    if (value > 1) {
      ASSERT_EQ(
          api_->cuStreamWaitValue64(stream, *gate.DeviceAddress(), value, CU_STREAM_WAIT_VALUE_GEQ),
          CUDA_SUCCESS);
    }
    auto frame = Must(writer.BeginWrite());
    frame.set_bytes(kFrameBytes);
    ASSERT_TRUE(frame.End(stream));
  }
  const auto read = [&] { return reader.BeginRead(GPUSHM_NO_STREAM, Timeout::DontWait()); };
  for (uint64_t value = 1; value <= 2; ++value) {
    EXPECT_EQ(waiter->Wait(10s)->size(), 1) << "the waiter must report a frame that is announced";
    auto early = read();
    ASSERT_FALSE(early);
    EXPECT_EQ(early.error().status(), GPUSHM_TIMEOUT);
    EXPECT_TRUE(waiter->Wait(50ms)->empty());
    ASSERT_TRUE(gate.Set(value));
    EXPECT_EQ(waiter->Wait(10s)->size(), 1) << "the waiter must report a frame that is complete";
    auto frame = Must(read());
    ASSERT_TRUE(frame.End(GPUSHM_NO_STREAM));
  }
  End(stream);
}

// A waiter of one client cannot wait for what another one has open, and closes with its client.
TEST_F(SyncHppTest, AWaiterBelongsToItsClient) {
  auto writer = Writer(GPUSHM_RING_OVERWRITE_OLDEST);
  auto other = Client::Open({.folder = run()});
  ASSERT_TRUE(other) << other.error().text();
  auto waiter = Must(Waiter::Open(*other));
  EXPECT_EQ(waiter.AddRing(writer, 1).error().status(), GPUSHM_INVALID_ARGUMENT);
  auto reader = Must(Ring::Read(*other, "video"));
  ASSERT_TRUE(waiter.AddRing(reader, 1));
  EXPECT_TRUE(waiter.Wait(20ms)->empty());
  other = Client::Open({.folder = run()});
  EXPECT_EQ(waiter.Wait().error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(waiter.descriptor(), -1);
}

}  // namespace
}  // namespace gpushm::integration
