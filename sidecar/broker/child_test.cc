// Goal: whatever happens to the broker's children, or to the spawner that starts them, costs at
// most one load, and never all later ones. Method: the real broker, whose spawner is stopped or
// killed, or whose descriptors run out.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "platform/base/testing_code.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using gpushm::testing::CodeOf;
using ::testing::HasSubstr;

constexpr int As(Code code) { return static_cast<int>(code); }
constexpr char kSpawner[] = "gpushm-spawner";

struct Descendant {
  pid_t pid = -1;
  std::string name;
};

// Includes children that have ended but are not reaped yet.
std::vector<Descendant> ChildrenOf(pid_t parent) {
  std::vector<Descendant> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t begin = stat.find('(');
    const size_t end = stat.rfind(')');  // "PID (name) S PARENT ..."
    if (begin == std::string::npos || end == std::string::npos || end + 4 > stat.size()) continue;
    if (std::strtol(stat.c_str() + end + 4, nullptr, 10) != parent) continue;
    children.push_back({.pid = static_cast<pid_t>(std::strtol(stat.c_str(), nullptr, 10)),
                        .name = stat.substr(begin + 1, end - begin - 1)});
  }
  return children;
}

class ChildTest : public ::testing::Test {
 protected:
  ChildTest() {
    std::filesystem::create_directory(files_ / "volume");
    std::ofstream(files_ / "content") << std::string(1 << 20, 'c');
  }
  // With the buffer "late", whose file does not exist yet.
  static BrokerSettings Settings(const std::string& files) {
    BrokerSettings settings = TwoContainers();
    settings.arguments.insert(settings.arguments.end(), {"--test-files", files});
    settings.buffers += "\nbuffers.gpushm.io/late: {size: 2Mi, file: volume/file}";
    return settings;
  }
  pid_t Spawner() const {
    for (const Descendant& child : ChildrenOf(broker_.pid())) {
      if (child.name == kSpawner) return child.pid;
    }
    ADD_FAILURE() << "there is no spawner";
    return -1;
  }
  bool HasOnlyItsSpawner() const {
    const std::vector<Descendant> children = ChildrenOf(broker_.pid());
    return children.size() == 1 && children.front().name == kSpawner;
  }
  // It appears whole: a broker that saw it empty would load it.
  void WriteLateFile() const {
    std::ofstream(files_ / "part") << "content";
    std::filesystem::rename(files_ / "part", files_ / "volume/file");
  }
  bool LoadsLateFile() const {
    WriteLateFile();
    return broker_.WaitForLog("buffer-loaded buffer=late");
  }
  Result<void> Load() const {
    RawClient client(broker_.Socket("app"));
    if (auto hello = client.Hello(); !hello) return std::unexpected(hello.error());
    const UniqueFd file(open((files_ / "content").c_str(), O_RDONLY | O_CLOEXEC));
    const auto load = client.Transfer("weights", 1, file.get());
    if (!load) return std::unexpected(load.error());
    return client.FinishTransfer(load->transfer_id);
  }
  // Limits the broker's descriptors to numbers below `limit`.
  void LimitDescriptors(rlim_t limit) const {
    rlimit both{};
    ASSERT_EQ(prlimit(broker_.pid(), RLIMIT_NOFILE, nullptr, &both), 0);
    both.rlim_cur = std::min(limit, both.rlim_max);
    ASSERT_EQ(prlimit(broker_.pid(), RLIMIT_NOFILE, &both, nullptr), 0);
  }
  // A limit that leaves this many more descriptors.
  rlim_t LimitFor(size_t more) const {
    std::set<rlim_t> taken;
    for (const auto& entry :
         std::filesystem::directory_iterator(Concat("/proc/", broker_.pid(), "/fd"))) {
      taken.insert(std::stoul(entry.path().filename()));
    }
    rlim_t limit = 0;
    for (size_t free = 0; free < more; ++limit) free += taken.contains(limit) ? 0 : 1;
    return limit;
  }

  const TempFolder folder_;
  const TempFolder files_;
  BrokerProcess broker_{folder_.path(), Settings(files_.path())};
};

// On a loaded node, or in a container that was frozen and thawed, the broker's deadline passes
// before the spawner has run at all.
TEST_F(ChildTest, ASpawnerThatAnswersLateIsAskedAgain) {
  ASSERT_TRUE(LoadsLateFile());
  ASSERT_TRUE(Eventually([&] { return HasOnlyItsSpawner(); }));
  const pid_t spawner = Spawner();
  kill(spawner, SIGSTOP);
  EXPECT_EQ(CodeOf(Load()), As(Code::kBusy));
  EXPECT_EQ(CodeOf(Load()), As(Code::kBusy)) << "one request waits in the spawner, not many";
  kill(spawner, SIGCONT);
  EXPECT_TRUE(Eventually([&] { return Load().has_value(); }));
  EXPECT_TRUE(Eventually([&] { return HasOnlyItsSpawner(); })) << "the late child is ended";
}

TEST_F(ChildTest, AFileWaitsForTheSpawner) {
  ASSERT_TRUE(broker_.WaitForLog("file-waiting buffer=late"));
  ASSERT_TRUE(Eventually([&] { return HasOnlyItsSpawner(); }));
  const pid_t spawner = Spawner();
  kill(spawner, SIGSTOP);
  EXPECT_EQ(CodeOf(Load()), As(Code::kBusy));
  WriteLateFile();
  kill(spawner, SIGCONT);
  EXPECT_TRUE(broker_.WaitForLog("buffer-loaded buffer=late"));
}

// Without a spawner nothing can be loaded, saved or released. A new broker has one, and all
// buffers.
TEST_F(ChildTest, ASpawnerThatEndedEndsTheBroker) {
  const pid_t spawner = Spawner();
  kill(spawner, SIGSTOP);
  EXPECT_EQ(CodeOf(Load()), As(Code::kBusy));
  kill(spawner, SIGKILL);
  EXPECT_EQ(broker_.WaitForEnd(), 1);
  EXPECT_THAT(broker_.log(), HasSubstr("spawner-ended"));
  EXPECT_THAT(broker_.log(), HasSubstr("signal 9"));
}

TEST_F(ChildTest, AFileWaitsForDescriptors) {
  ASSERT_TRUE(broker_.WaitForLog("file-waiting buffer=late"));
  LimitDescriptors(3);
  EXPECT_TRUE(broker_.WaitForLog("loader-not-started buffer=late"));
  LimitDescriptors(RLIM_INFINITY);
  EXPECT_TRUE(LoadsLateFile());
}

// The last descriptor that a load takes is that of its child.
TEST_F(ChildTest, AChildThatCannotBeWatchedIsEnded) {
  ASSERT_TRUE(LoadsLateFile());
  ASSERT_TRUE(Eventually([&] { return HasOnlyItsSpawner(); }));
  const UniqueFd file(open((files_ / "content").c_str(), O_RDONLY | O_CLOEXEC));
  RawClient client(broker_.Socket("app"));
  ASSERT_TRUE(client.Hello());
  LimitDescriptors(LimitFor(3));  // The file, and both ends of the child's channel.
  Result<protocol::TransferReply> load;
  EXPECT_TRUE(Eventually([&] {
    load = client.Transfer("weights", 1, file.get());
    return CodeOf(load) != As(Code::kBusy);  // The spawner may be slow.
  }));
  ASSERT_EQ(CodeOf(load), As(Code::kSystem));
  EXPECT_THAT(load.error().what(), HasSubstr("pidfd_open"));
  LimitDescriptors(RLIM_INFINITY);
  EXPECT_TRUE(Eventually([&] { return HasOnlyItsSpawner(); }));
  EXPECT_TRUE(Eventually([&] { return Load().has_value(); }));
}

}  // namespace
}  // namespace gpushm::broker::testing
