// Goal: a file system that does not respond blocks the load of its own file and nothing else: not
// the broker's loop, not other loads, not the broker's end. Method: the real broker, and a FUSE
// file system whose daemon stops responding at each request that a load makes.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "platform/base/testing_code.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using ::testing::HasSubstr;
using ::testing::Not;

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }

struct Hang {
  const char* name;
  HangAt at;
};
void PrintTo(const Hang& hang, std::ostream* out) { *out << hang.name; }
constexpr Hang kHangs[] = {{"Lookup", HangAt::kLookup}, {"Getattr", HangAt::kGetattr},
                           {"Open", HangAt::kOpen},     {"Read", HangAt::kRead},
                           {"Flush", HangAt::kFlush},   {"AllOnceOpen", HangAt::kAllOnceOpen}};

class HungVolumeTest : public ::testing::TestWithParam<Hang> {
 protected:
  // Mounts the hanging file system as volume "hung" next to a volume "good", and starts a broker
  // that loads a file from each.
  void Start(HangAt at, const std::string& more_buffers = "") {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    std::filesystem::create_directory(files_ / "hung");
    std::filesystem::create_directory(files_ / "good");
    std::ofstream(files_ / "good/file") << std::string(1 << 20, 'g');
    auto fuse = HungFuse::Mount(files_ / "hung", at, 1 << 20);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    fuse_.emplace(std::move(*fuse));
    broker_.emplace(
        folder_.path(),
        BrokerSettings{.arguments = {"--container", "app", "--container", "other", "--pool", "64Mi",
                                     "--test-files", files_.path(), "--drain-timeout-ms", "200",
                                     "--test-transfer-stall-ms", "1000"},
                       .buffers = "buffers.gpushm.io/weights: 4Mi\n" + more_buffers});
    ASSERT_TRUE(broker_->ready()) << broker_->log();
  }
  void TearDown() override {
    if (fuse_)
      fuse_->Abort();  // Before the broker's log, which a loader has open, is read to its end.
  }
  // A load by a client of that container, from a file that responds.
  Result<void> LoadIn(const std::string& container) {
    RawClient client(broker_->Socket(container));
    if (auto hello = client.Hello(); !hello) return std::unexpected(hello.error());
    const UniqueFd file(open((files_ / "good/file").c_str(), O_RDONLY | O_CLOEXEC));
    const auto load = client.Transfer("weights", 1, file.get());
    if (!load) return std::unexpected(load.error());
    return client.FinishTransfer(load->transfer_id);
  }
  // The same, as soon as no other load runs.
  bool LoadsIn(const std::string& container) {
    return Eventually([&] { return LoadIn(container).has_value(); });
  }

  const TempFolder folder_;
  const TempFolder files_;
  std::optional<HungFuse> fuse_;
  std::optional<BrokerProcess> broker_;
};

constexpr char kFiles[] =
    "buffers.gpushm.io/hung: {size: 2Mi, file: hung/file}\n"
    "buffers.gpushm.io/good: {size: 2Mi, file: good/file}";

TEST_P(HungVolumeTest, HoldsUpItsOwnLoadAloneAndEndsWithTheHang) {
  Start(GetParam().at, kFiles);
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(fuse_->WaitUntilHung());
  EXPECT_TRUE(broker_->WaitForLog("buffer-loaded buffer=good"));
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  EXPECT_TRUE(client.Attach("good"));
  EXPECT_TRUE(client.Create("made", 1));
  EXPECT_TRUE(LoadsIn("other"));
  fuse_->Answer();
  EXPECT_TRUE(broker_->WaitForLog("buffer-loaded buffer=hung"));
}

// Goal: nothing that hangs keeps the broker from ending, and the log names what hangs.
TEST_P(HungVolumeTest, DoesNotKeepTheBrokerFromEnding) {
  Start(GetParam().at, kFiles);
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(fuse_->WaitUntilHung());
  broker_->Signal(SIGTERM);
  EXPECT_EQ(broker_->WaitForEnd(), 0);
  // A read that waits for a missing page of the page cache is the only wait that SIGKILL ends.
  if (GetParam().at != HangAt::kRead) {
    EXPECT_TRUE(broker_->WaitForLog("child-hangs child=loader"));
    EXPECT_THAT(broker_->log(), HasSubstr("kernel_function=request_wait_answer"));
  }
}

// Goal: even if a hung volume has more files than there are loaders, files of other volumes are
// loaded.
TEST_F(HungVolumeTest, ManyFilesOfItKeepNoOtherFromBeingLoaded) {
  std::string buffers;
  for (int i = 0; i < 9; ++i) {
    buffers += Concat("buffers.gpushm.io/hung-", i, ": {size: 2Mi, file: hung/file-", i, "}\n");
  }
  Start(HangAt::kLookup, buffers + "buffers.gpushm.io/the-good: {size: 2Mi, file: good/file}");
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(fuse_->WaitUntilHung());
  EXPECT_TRUE(broker_->WaitForLog("buffer-loaded buffer=the-good"));
  fuse_->Answer();
  for (int i = 0; i < 9; ++i) {
    EXPECT_TRUE(broker_->WaitForLog(Concat("file-waiting buffer=hung-", i))) << "it has its turn";
  }
}

TEST_F(HungVolumeTest, ManyVolumesThatHangKeepNoOtherFromBeingLoaded) {
  if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
  std::string buffers;
  std::vector<HungFuse> others;
  for (int i = 0; i < 20; ++i) {
    if (i % 2 == 0) {
      const std::string volume = files_ / Concat("hung-", i);
      std::filesystem::create_directory(volume);
      auto fuse = HungFuse::Mount(volume, HangAt::kLookup);
      ASSERT_TRUE(fuse) << fuse.error().ToString();
      others.push_back(std::move(*fuse));
    }
    buffers += Concat("buffers.gpushm.io/hung-", i, ": {size: 2Mi, file: hung-", i / 2 * 2,
                      "/file-", i, "}\n");
  }
  Start(HangAt::kLookup, buffers + "buffers.gpushm.io/the-good: {size: 2Mi, file: good/file}");
  if (HasFatalFailure()) return;
  EXPECT_TRUE(broker_->WaitForLog("buffer-loaded buffer=the-good"));
}

// Goal: a load of the broker's own that makes no progress gives its place to a transfer that can
// use it, but not to a request that is refused.
TEST_F(HungVolumeTest, ALoadThatStandsStillGivesWayToOnesThatStart) {
  Start(HangAt::kRead,
        "buffers.gpushm.io/hung: {size: 2Mi, file: hung/file}\n"
        "buffers.gpushm.io/small: {size: 2Mi, file: good/large}");
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(fuse_->WaitUntilHung());
  // It appears whole: a broker that saw it empty would load it.
  std::ofstream(files_ / "good/part") << std::string(5 << 20, 'l');
  std::filesystem::rename(files_ / "good/part", files_ / "good/large");
  EXPECT_TRUE(broker_->WaitForLog("load-failed buffer=small"));
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto refusal = [&](const std::string& path, int flags) {
    const UniqueFd file(open(path.c_str(), flags | O_CLOEXEC));
    return CodeOf(client.Transfer("weights", 1, file.get()));
  };
  const std::string large = files_ / "good/large";
  EXPECT_TRUE(Eventually([&] { return refusal(large, O_RDONLY) == As(Code::kInvalidArgument); }));
  EXPECT_EQ(refusal(large, O_WRONLY), As(Code::kInvalidArgument));
  EXPECT_EQ(refusal("/dev/null", O_RDONLY), As(Code::kInvalidArgument));
  EXPECT_THAT(broker_->log(), Not(HasSubstr("load-gave-way")));
  EXPECT_TRUE(LoadsIn("app"));
  EXPECT_THAT(broker_->log(), HasSubstr("load-gave-way buffer=hung"));
}

bool AnyThreadSleepsIn(pid_t pid, const std::string& function) {
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(Concat("/proc/", pid, "/task"), error)) {
    std::ifstream file(thread.path() / "wchan");
    std::string where;
    std::getline(file, where);  // Unlike an iterator, it does not throw if the thread has ended.
    if (where == function) return true;
  }
  return false;
}

// Goal: the log names the driver's thread if the kernel holds it, whether the broker is told to end
// during its start or gives up. Method: the simulated GPUs are on a file system that hangs.
TEST_F(HungVolumeTest, ACallOfTheDriverThatTheKernelHoldsIsNamed) {
  if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
  for (const bool told : {true, false}) {
    const TempFolder cards;
    auto fuse = HungFuse::Mount(cards.path(), HangAt::kLookup);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    BrokerSettings settings;
    settings.arguments = {"--start-timeout-ms", told ? "60000" : "300"};
    settings.simulated_state = cards.path();
    settings.wait = false;
    BrokerProcess broker(folder_.path(), settings);
    ASSERT_TRUE(fuse->WaitUntilHung());
    // The file system has the request a moment before the thread that made it sleeps.
    EXPECT_TRUE(Eventually([&] { return AnyThreadSleepsIn(broker.pid(), "request_wait_answer"); }));
    if (told) broker.Signal(SIGTERM);
    EXPECT_TRUE(broker.WaitForLog(told ? "stopped" : "start-failed"));
    EXPECT_TRUE(broker.WaitForLog("name=gpushm-driver"));
    EXPECT_THAT(broker.log(), HasSubstr("thread-hangs"));
    EXPECT_THAT(broker.log(), HasSubstr("kernel_function=request_wait_answer"));
    fuse->Abort();
    EXPECT_EQ(broker.WaitForEnd(), told ? 0 : 1);
  }
}

// Goal: if a client's file hangs, its container cannot transfer through the broker while it hangs;
// others can. Method: the whole file is dead, so that closing it also hangs, in broker and loader.
TEST_F(HungVolumeTest, AClientsFileThatHangsHoldsUpItsContainerAlone) {
  Start(HangAt::kAllOnceOpen);
  if (IsSkipped() || HasFatalFailure()) return;
  const auto file = fuse_->Open(O_RDWR);
  ASSERT_TRUE(file) << file.error().ToString();
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto load = client.Transfer("weights", 1, *file);
  ASSERT_TRUE(load) << load.error().ToString();
  EXPECT_TRUE(client.Info()) << "requests are answered meanwhile";
  const auto ended = client.FinishTransfer(load->transfer_id);
  ASSERT_FALSE(ended);
  EXPECT_EQ(CodeOf(ended), As(Code::kTimeout));
  EXPECT_TRUE(broker_->WaitForLog("child-hangs child=loader"));
  const auto refused = LoadIn("app");
  ASSERT_EQ(CodeOf(refused), As(Code::kBusy));
  EXPECT_THAT(refused.error().what(), HasSubstr("container \"app\" sent is still being closed"));
  const auto other = LoadIn("other");
  EXPECT_TRUE(other) << other.error().ToString();
  fuse_->Abort();
  EXPECT_TRUE(LoadsIn("app"));
}

INSTANTIATE_TEST_SUITE_P(, HungVolumeTest, ::testing::ValuesIn(kHangs),
                         [](const auto& hang) { return hang.param.name; });

// Regression: a lease on the file at the broker's start (samba, or any process of its owner) made
// the buffer FAILED permanently.
TEST(FileLease, IsWaitedFor) {
  signal(SIGIO, SIG_IGN);  // The kernel requests the lease.
  const TempFolder folder;
  const TempFolder files;
  std::filesystem::create_directory(files / "volume");
  const std::string path = files / "volume/file";
  std::ofstream(path) << "content";
  const UniqueFd leased(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(fcntl(leased.get(), F_SETLEASE, F_WRLCK), 0);
  BrokerSettings settings = TwoContainers();
  settings.arguments.insert(settings.arguments.end(), {"--test-files", files.path()});
  settings.buffers = "buffers.gpushm.io/leased: {size: 2Mi, file: volume/file}";
  const BrokerProcess broker(folder.path(), settings);
  ASSERT_TRUE(broker.ready()) << broker.log();
  EXPECT_TRUE(broker.WaitForLog("file-waiting buffer=leased"));
  ASSERT_EQ(fcntl(leased.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_TRUE(broker.WaitForLog("buffer-loaded buffer=leased"));
}

// Goal: a descriptor of such a file, sent instead of GPU memory, harms only the container that sent
// it. Method: the file system does not respond once its file is open, so that fstat and close
// block. Another container is served meanwhile.
class HungDescriptorTest : public HungVolumeTest {
 protected:
  void SetUp() override {
    Start(HangAt::kAllOnceOpen, "buffers.gpushm.io/good: {size: 2Mi, file: good/file}");
    if (IsSkipped() || HasFatalFailure()) return;
    const auto file = fuse_->Open(O_RDWR);
    ASSERT_TRUE(file) << file.error().ToString();
    file_ = *file;
    ASSERT_TRUE(broker_->WaitForLog("buffer-loaded buffer=good"));
  }
  void ExpectOthersAreServed() {
    RawClient other(broker_->Socket("other"));
    ASSERT_TRUE(other.Hello());
    EXPECT_TRUE(other.Attach("good"));
    EXPECT_TRUE(other.Announce());
    EXPECT_TRUE(LoadsIn("other")) << "a child is started, a descriptor taken";
  }
  int file_ = -1;
};

TEST_F(HungDescriptorTest, OfferedAsMemory) {
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto offered = client.Offer("mine", file_);
  EXPECT_EQ(CodeOf(offered), As(Code::kInvalidArgument));
  EXPECT_THAT(offered.error().what(), HasSubstr("is a file"));
  ASSERT_TRUE(fuse_->WaitUntilHung()) << "it is being closed";
  ExpectOthersAreServed();
  EXPECT_TRUE(client.Attach("good")) << "it is served as well";
  // Until it is closed, the container may not send another descriptor.
  EXPECT_TRUE(Eventually([&] { return CodeOf(client.Announce()) == As(Code::kBusy); }));
  fuse_->Answer();
  EXPECT_TRUE(Eventually([&] { return client.Announce().has_value(); }));
}

// The connection of a client that sends an unannounced descriptor, or too many, is closed.
TEST_F(HungDescriptorTest, WhereNoneBelongs) {
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  ASSERT_TRUE(client.Announce());
  const std::array two = {file_, file_};
  (void)client.Post(protocol::Kind::kBrokerInfo, protocol::BrokerInfoRequest{}, two);
  EXPECT_TRUE(client.IsDisconnected());
  ASSERT_TRUE(fuse_->WaitUntilHung());
  ExpectOthersAreServed();
}

TEST_F(HungDescriptorTest, TheBrokerEndsOnceTheFileSystemDoes) {
  RawClient client(broker_->Socket("app"));
  ASSERT_TRUE(client.Hello());
  EXPECT_FALSE(client.Offer("mine", file_));
  ASSERT_TRUE(fuse_->WaitUntilHung());
  broker_->Signal(SIGTERM);
  EXPECT_TRUE(broker_->WaitForLog("thread-hangs"));
  fuse_->Abort();
  EXPECT_EQ(broker_->WaitForEnd(), 0);
}

}  // namespace
}  // namespace gpushm::broker::testing
