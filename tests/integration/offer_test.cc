// Offers of memory that an application already had, and pods that share through /dev/shm.
#include <optional>

#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

constexpr int kCopied = 100;

using OfferTest = IntegrationTest;

TEST_F(OfferTest, CudaMallocGoesByCuIpcBetweenPidNumbersThatDiffer) {
  auto [broker, owner, reader] = Pair(run());
  const Answer offered = owner.Do("offer mine 2097152 99 malloc");
  ASSERT_EQ(offered.status, GPUSHM_OK);
  EXPECT_EQ(offered.value, GPUSHM_TRANSPORT_CUIPC);
  EXPECT_EQ(reader.Do("attach mine r 0").status, GPUSHM_UNSUPPORTED)
      << "CUDA IPC memory needs a context in the process that attaches it";
  ASSERT_EQ(reader.Do("context").status, 0);
  ASSERT_EQ(reader.Do("attach mine r 0").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("read").value, 99);
  owner.Kill();
  Worker late(run());
  EXPECT_TRUE(Eventually([&] { return late.Do("attach mine r -1").status == GPUSHM_NOT_FOUND; }))
      << "the buffer must disappear when its owner dies";
}

// Goal: two entrypoints that are both PID 1 get an error before the driver poisons the reader's
// context.
TEST_F(OfferTest, CudaMallocIsRefusedBetweenEqualPidNumbersAndPoisonsNothing) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do("create weights 2097152").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 7").status, 0);
  IsolatedWorker owner(run());
  IsolatedWorker reader(run());
  if (!owner.started() || !reader.started()) GTEST_SKIP() << "this system forbids namespaces";
  ASSERT_EQ(owner.Do("offer mine 2097152 99 malloc").status, GPUSHM_OK);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("read").value, 7)
      << "the reader must see the buffer; this also makes its context";
  EXPECT_EQ(reader.Do("attach mine r 0").status, GPUSHM_UNSUPPORTED);
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  const Answer read = reader.Do("read");
  EXPECT_EQ(read.status, 0) << "the refused attach must not spoil the reader's context";
  EXPECT_EQ(read.value, 7);
}

// An owner gets its memory back when the last process has let it go, also by dying.
TEST_F(OfferTest, AnOwnerSeesWhoUsesItsMemory) {
  auto [broker, owner, first] = Pair(run());
  std::optional<Worker> second(run());
  ASSERT_EQ(owner.Do("offer mine 2097152 99 vmm").value, GPUSHM_TRANSPORT_VMM);
  EXPECT_EQ(owner.Do("offer-state mine").value, 0)
      << "the name must exist, and no process may use the offer yet";
  ASSERT_EQ(first.Do("attach mine r 0").status, GPUSHM_OK);
  ASSERT_EQ(second->Do("attach mine r 0").status, GPUSHM_OK);
  EXPECT_EQ(owner.Do("offer-state mine").value, 2);
  ASSERT_EQ(owner.Do("delete mine").status, GPUSHM_OK);
  EXPECT_EQ(owner.Do("offer-state mine").value, 2);
  // The next memory of that name is other memory.
  ASSERT_EQ(second->Do("create mine 4096").status, GPUSHM_OK);
  EXPECT_EQ(owner.Do("offer-state mine").value, 2);
  first.Kill();
  EXPECT_TRUE(Eventually([&] { return owner.Do("offer-state mine").value == 1; }));
  second->Kill();
  EXPECT_TRUE(Eventually([&] { return owner.Do("offer-state mine").value == 100; }));
}

// Goal: what an allocator gave out is shared without a copy, wherever it lies in its allocations.
TEST_F(OfferTest, ARangeWithinOrAcrossAllocationsIsSharedAsItIs) {
  auto [broker, owner, reader] = Pair(run());
  struct Case {
    const char* name;
    const char* bytes;
    int blocks;
  };
  for (const auto& [name, bytes, blocks] :
       {Case{"within", "8192", 1}, Case{"edge", "2092800", 1}, Case{"two", "2097152", 2},
        Case{"many", "9000000", 5}}) {
    const std::string offer = Concat("offer ", name, " ", bytes, " 98 blocks");
    ASSERT_EQ(owner.Do(offer).value, GPUSHM_TRANSPORT_VMM) << "offer " << name;
    EXPECT_EQ(owner.Do("offered-blocks").value, blocks) << "offer " << name;
    EXPECT_EQ(owner.Do("offered-bytes").value, blocks * (2 << 20)) << "offer " << name;
    ASSERT_EQ(reader.Do(Concat("attach ", name, " r 0")).status, GPUSHM_OK) << "offer " << name;
    EXPECT_EQ(reader.Do("read").value, 98) << "offer " << name;
    EXPECT_EQ(reader.Do("read-last").value, 99) << "offer " << name;
    EXPECT_EQ(reader.Do("advance 0").status, GPUSHM_UNSUPPORTED);
    EXPECT_EQ(owner.Do(Concat("offer-state ", name)).value, 1) << "offer " << name;
  }
  // 257 blocks of 2 MiB.
  EXPECT_EQ(owner.Do("offer giant 536880000 98 blocks").status, GPUSHM_UNSUPPORTED);
  // What is stored is seen, and the memory outlives its owner.
  ASSERT_EQ(owner.Do("attach many w 0").status, GPUSHM_OK);
  ASSERT_EQ(owner.Do("write 4711").status, 0);
  EXPECT_EQ(reader.Do("read").value, 4711);
  owner.Kill();
  Worker late(run());
  ASSERT_EQ(late.Do("attach many r 0").status, GPUSHM_OK);
  EXPECT_EQ(late.Do("read-last").value, 99);
}

// A broker without a plugin loses what it knew, and others may still use the memory.
TEST_F(OfferTest, AfterABrokersDeathNobodyKnowsWhoUsesIt) {
  auto [broker, owner, reader] = Pair(run(), {"offer mine 2097152 99 vmm"}, {"attach mine r 0"});
  EXPECT_EQ(reader.Do("offer-state mine").status, GPUSHM_INVALID_ARGUMENT)
      << "a process that offered nothing must get no state of an offer";
  broker.Kill();
  broker.Start();
  EXPECT_EQ(owner.Do("offer-state mine").status, GPUSHM_ORPHANED);
}

TEST_F(OfferTest, WhatCannotBeSharedIsCopiedOnlyIfAllowed) {
  auto [broker, owner, reader] = Pair(run());
  EXPECT_EQ(owner.Do("offer mine 2097152 98 private").status, GPUSHM_UNSUPPORTED);
  EXPECT_EQ(reader.Do("attach mine r -1").status, GPUSHM_NOT_FOUND);
  const Answer copied = owner.Do("offer mine 2097152 99 copy");
  ASSERT_EQ(copied.status, GPUSHM_OK);
  EXPECT_EQ(copied.value, kCopied);
  ASSERT_EQ(reader.Do("attach mine r 0").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("read").value, 99);
  owner.Kill();
  EXPECT_EQ(reader.Do("read").value, 99);
}

TEST_F(OfferTest, HostIpcPodsFindABufferByThePodsUid) {
  const std::string uid = "0b6f9a5e-0000-4000-8000-000000000001";
  const std::string host = folder_ + "/shm";
  std::filesystem::create_directory(host);
  Broker broker(run(), "64Mi", {"--host-ipc", "--pod-uid", uid, "--host-dir", host});
  Worker writer(run());
  ASSERT_EQ(writer.Do("create weights 2097152").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 4711").status, 0);
  Worker guest(host, uid);
  ASSERT_EQ(guest.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(guest.Do("read").value, 4711);
  Worker stranger(host, "0b6f9a5e-0000-4000-8000-000000000002");
  EXPECT_EQ(stranger.Do("attach weights r 0").status, GPUSHM_UNAVAILABLE);
}

}  // namespace
}  // namespace gpushm::integration
