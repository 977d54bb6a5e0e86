// Goal: a descriptor of a FUSE file whose daemon no longer answers, sent to the keeper in place of
// the right kind, harms only its sender. Method: a real FUSE file system (hung_fuse.h) that answers
// nothing once its file is open: fstat, fstatfs, poll and close block.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <functional>
#include <utility>
#include <vector>

#include "contract/sync/page.h"
#include "platform/base/testing.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "platform/daemon/testing/lingering_socket.h"
#include "plugin/keeper/testing/keeper_fixture.h"

namespace gpushm::plugin::keeper::testing {
namespace {

using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using gpushm::testing::LingeringSocket;
using gpushm::testing::TempFolder;
using protocol::LinkKind;

// Longer than any test.
constexpr int64_t kNeverMs = 3'600'000;

class KeeperForeignTest : public KeeperTest {
 protected:
  void SetUp() override {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    Begin(kNeverMs);
  }

  // A keeper, a link m0001 that must keep working, and the file system.
  void Begin(int64_t foreign_ms) {
    fuse_.reset();
    StartKeeper({.foreign_ms = foreign_ms, .memory = {}});
    StartBystander();
    MountFuse();
  }
  // Mounted where the keeper does not see it, as it does not see a pod's mounts.
  void MountFuse(bool visible = false) {
    auto fuse = HungFuse::Mount(mount_.path(), HangAt::kAllOnceOpen);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    fuse_ = std::make_unique<HungFuse>(std::move(*fuse));
    const auto file = fuse_->Open(O_RDWR);
    ASSERT_TRUE(file) << file.error().ToString();
    file_ = *file;
    if (visible) return;
    ASSERT_EQ(umount2(mount_.path().c_str(), MNT_DETACH), 0);
  }
  void TearDown() override {
    keeper_.reset();
    fuse_.reset();
  }

  // A process that greets, calls `say` with the file, and waits for the end of its connection. The
  // file closes when the file system ends, and the process must have ended before.
  void Send(const std::string& link, const std::function<Result<void>(FakeBroker*, int)>& say) {
    const int refused = Count(ForeignStep::kRefused);
    FakeBroker broker(folder_.Socket(link));
    ASSERT_TRUE(broker.Greet(false));
    ASSERT_TRUE(SayOneOfEach(&broker));
    ASSERT_TRUE(say(&broker, file_));
    EXPECT_TRUE(broker.WaitForEnd());
    EXPECT_TRUE(Eventually([&] { return Count(ForeignStep::kRefused) == refused + 1; }));
  }
  void SendMemory(const std::string& link) {
    Send(link, [](FakeBroker* broker, int file) {
      if (auto said = broker->Say(BufferOf("odd", 8)); !said) return said;
      return broker->Say(GenerationOf("odd", 8), file);
    });
  }

  const TempFolder mount_;
  std::unique_ptr<HungFuse> fuse_;
  int file_ = -1;
};

TEST_F(KeeperForeignTest, InPlaceOfAnything) {
  const std::vector<std::pair<const char*, std::function<Result<void>(FakeBroker*, int)>>> kinds = {
      {"memory",
       [](FakeBroker* broker, int file) {
         (void)broker->Say(BufferOf("odd", 8));
         return broker->Say(GenerationOf("odd", 8), file);
       }},
      {"page",
       [](FakeBroker* broker, int file) {
         protocol::LinkGeneration page = GenerationOf("odd", 8, sync::kPageBytes);
         page.transport = static_cast<uint32_t>(protocol::Transport::kHost);
         page.pooled = 0;
         (void)broker->Say(BufferOf("odd", 8));
         return broker->Say(page, file);
       }},
      {"pidfd", [](FakeBroker* broker, int file) { return broker->Say(ClientOf(2), file); }},
      {"registry",
       [](FakeBroker* broker, int file) {
         return broker->Say(LinkKind::kRegistry, protocol::LinkRegistry{1}, file);
       }},
      {"counters",
       [](FakeBroker* broker, int file) {
         return broker->Say(LinkKind::kCounters,
                            protocol::LinkCounters{protocol::kCountersVersion, 0}, file);
       }},
      {"where none belongs", [](FakeBroker* broker, int file) {
         return broker->Say(LinkKind::kLease, LeaseOf(2, 1, 7), file);
       }}};
  for (const auto& [what, say] : kinds) {
    SCOPED_TRACE(what);
    Send("m0000", say);
    EXPECT_TRUE(fuse_->WaitUntilHung()) << "it is being closed";
    EXPECT_EQ(Look("m0000").kept.leases, 1u) << "earlier statements stay";
    ExpectUnharmed();
    FakeBroker refused(folder_.Socket("m0000"));
    EXPECT_FALSE(refused.Greet(false)) << "nobody is accepted until it is closed";
    ASSERT_NO_FATAL_FAILURE(Begin(kNeverMs));
  }
}

// Regression: eight threads closed what all brokers had sent.
TEST_F(KeeperForeignTest, OtherMemoryIsFreedAtOnce) {
  constexpr int kHostile = 10;
  for (int i = 0; i < kHostile; ++i) {
    const std::string link = Concat("x", i);
    Open(link);
    SendMemory(link);
  }
  ASSERT_TRUE(fuse_->WaitUntilHung(kHostile)) << "each one blocks a thread";
  ASSERT_TRUE(bystander_->Say(protocol::LinkDrop{.what = 3, .reserved = 0, .id = 7, .name = {}}));
  EXPECT_TRUE(Eventually([&] {
    const LinkView view = Look("m0001");
    return view.kept.generations == 0 && view.closing == 0;
  }));
}

// The sender's own memory is freed too, and the next pod with its IDs is served while the file is
// still open.
TEST_F(KeeperForeignTest, ThePodThatFollowsHasItsLink) {
  const auto kept_memory = [] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(entry.path(), gone);
      count += target.string().starts_with("/memfd:memory") ? 1u : 0u;
    }
    return count;
  };
  // Killed later: it must not hold the file, because its own end would wait for the daemon.
  fuse_.reset();
  Process broker([&] {
    FakeBroker greeted(folder_.Socket("m0000"));
    if (greeted.Greet(false) && SayOneOfEach(&greeted)) WaitToBeKilled();
  });
  ASSERT_TRUE(WaitForKept("m0000", kOneOfEach));
  MountFuse();
  ASSERT_EQ(kept_memory(), 2u) << "its own, and the bystander's";
  {
    FakeBroker stranger(folder_.Socket("m0000"));
    ASSERT_TRUE(stranger.Say(LinkKind::kEnd, protocol::LinkEnd{}, file_));
    EXPECT_TRUE(stranger.WaitForEnd());
  }
  ASSERT_TRUE(fuse_->WaitUntilHung());
  broker.Kill();
  ASSERT_TRUE(events_.Wait("m0000", false));
  keeper_->Drop({"m0000"});
  EXPECT_TRUE(Eventually([&] { return kept_memory() == 1; }));
  const auto opened = keeper_->Open("m0000", {.gpus = {kGpu}, .pool_bytes = kGiB, .pod = "other"});
  ASSERT_TRUE(opened) << opened.error().ToString();
  FakeBroker next(folder_.Socket("m0000"));
  ASSERT_TRUE(next.Greet(false));
  ASSERT_TRUE(SayOneOfEach(&next));
  EXPECT_TRUE(WaitForKept("m0000", kOneOfEach));
  EXPECT_GT(Look("m0000").closing, 0u) << "the file is still not closed";
}

TEST_F(KeeperForeignTest, ItsFileSystemIsAbortedAndTheLogNamesThePod) {
  ASSERT_NO_FATAL_FAILURE(Begin(50));
  folder_.Add("m0007");
  ASSERT_TRUE(keeper_->Open("m0007", {.gpus = {kGpu}, .pool_bytes = kGiB, .pod = "shop/cart"}));
  ::testing::internal::CaptureStderr();
  SendMemory("m0007");
  EXPECT_TRUE(Eventually([&] { return Count(ForeignStep::kAborted) == 1; }));
  EXPECT_TRUE(Eventually([&] { return Look("m0007").closing == 0; }));
  ExpectUnharmed();
  keeper_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::HasSubstr("close-held-up"));
  EXPECT_THAT(log, ::testing::HasSubstr("pod=shop/cart"));
  EXPECT_THAT(log, ::testing::HasSubstr("aborted=true"));
}

// Other pods use it, and its daemon may merely be slow.
TEST_F(KeeperForeignTest, AFileSystemOfTheNodeIsNotAborted) {
  ASSERT_NO_FATAL_FAILURE(Begin(20));
  fuse_.reset();
  MountFuse(/*visible=*/true);
  SendMemory("m0000");
  ASSERT_TRUE(fuse_->WaitUntilHung());
  EXPECT_TRUE(Eventually([&] { return Count(ForeignStep::kHeldUp) > 1; }));
  fuse_->Answer();
  EXPECT_TRUE(Eventually([&] { return Look("m0000").closing == 0; }));
  EXPECT_EQ(Count(ForeignStep::kAborted), 0);
}

// The daemon of a CSI volume may run in the pod itself, and the node sees where it is mounted.
TEST_F(KeeperForeignTest, AVolumeOfOnePodAloneIsAborted) {
  ASSERT_NO_FATAL_FAILURE(Begin(50));
  const std::string volume = mount_.path() + "/pods/1a2b/volumes/kubernetes.io~csi/data/mount";
  ASSERT_TRUE(std::filesystem::create_directories(volume));
  auto fuse = HungFuse::Mount(volume, HangAt::kAllOnceOpen);
  ASSERT_TRUE(fuse) << fuse.error().ToString();
  fuse_ = std::make_unique<HungFuse>(std::move(*fuse));
  const auto file = fuse_->Open(O_RDWR);
  ASSERT_TRUE(file) << file.error().ToString();
  file_ = *file;
  SendMemory("m0000");
  EXPECT_TRUE(Eventually([&] { return Count(ForeignStep::kAborted) == 1; }));
  EXPECT_TRUE(Eventually([&] { return Look("m0000").closing == 0; }));
}

// Regression: each connection that was closed behind such a socket leaked a descriptor.
TEST_F(KeeperForeignTest, SocketsThatLingerTakeNoDescriptors) {
  constexpr int kConnections = 500;
  LingeringSocket lingering;
  {
    // The keeper does not read what the broker sends before it hangs up, because it does not read
    // its dump. So the keeper's copy is the last one.
    FakeBroker broker(folder_.Socket("m0000"));
    ASSERT_TRUE(broker.Greet(false));
    ASSERT_TRUE(SayOneOfEach(&broker));
    for (uint64_t id = 2; id < 5'000; ++id) ASSERT_TRUE(broker.Say(LeaseOf(id, 1, 7)));
    ASSERT_TRUE(broker.End());
    FakeBroker deaf(folder_.Socket("m0000"));
    ASSERT_TRUE(deaf.Hello(true, 1));
    ASSERT_TRUE(deaf.Say(ClientOf(2), lingering.TakeWrapped().get()));
  }
  for (int i = 0; i < kConnections; ++i) (void)protocol::Connect(folder_.Socket("m0000"));
  ExpectUnharmed();
  EXPECT_GT(Look("m0000").closing, 0u);
  EXPECT_LT(Look("m0000").closing, 100u);
  lingering.Read();
  EXPECT_TRUE(Eventually([&] { return Look("m0000").closing == 0; }));
  FakeBroker again(folder_.Socket("m0000"));
  ASSERT_TRUE(again.Hello(false));
  EXPECT_TRUE(again.WaitForEnd())
      << "it is accepted, then refused because its process sent the socket";
}

// Otherwise the process would not end, and its successor could not start.
TEST_F(KeeperForeignTest, ItsEndAbortsWhatIsHeldUp) {
  SendMemory("m0000");
  ASSERT_TRUE(fuse_->WaitUntilHung());
  keeper_.reset();
  EXPECT_EQ(Count(ForeignStep::kAborted), 1);
  // Before the abort this would hang.
  Process asks([&] {
    struct stat file{};
    if (fstat(file_, &file) != 0 && errno == ENOTCONN) _exit(0);
  });
  ASSERT_TRUE(asks.WaitForEnd());
  EXPECT_EQ(asks.status(), 0);
}

}  // namespace
}  // namespace gpushm::plugin::keeper::testing
