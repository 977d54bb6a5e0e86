// Goal: containers have an MPS daemon whatever happens to it, and others can read how it is.
// Method: the real gpushm-mps with the simulator's stand-ins for NVIDIA's programs; daemon and
// server are killed, and the daemon is made deaf.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "contract/status/mps_state.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::mps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStepMs = 60'000;

bool Eventually(const std::function<bool()>& condition) {
  const Deadline end = Deadline::AfterMs(kStepMs);
  while (!condition()) {
    if (end.Passed()) return false;
    poll(nullptr, 0, 5);
  }
  return true;
}

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    const fs::path build = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
    program_ = build / "bin/gpushm-mps";
    folder_ = fs::temp_directory_path() / Concat("gpushm-mps-", getpid());
    fs::create_directory(folder_);
    driver_ = std::getenv("GPUSHM_DRIVER");
  }
  ~SupervisorTest() override {
    for (const pid_t pid : started_) {
      kill(-pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    for (const pid_t group : ended_) kill(-group, SIGKILL);
    fs::remove_all(folder_);
  }

  pid_t Start(std::vector<std::string> words) {
    words.insert(words.begin(), program_);
    words.insert(words.end(), {"--pipe-folder", folder_});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    // A group of its own, which ends as a whole. In a pod, the PID namespace does that.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, program_.c_str(), nullptr, &attributes, arguments.data(), environ),
              0);
    posix_spawnattr_destroy(&attributes);
    started_.push_back(pid);
    return pid;
  }
  pid_t StartServing() {
    return Start({"--program", driver_ + "/nvidia-cuda-mps-control", "--server-uid", "1000"});
  }
  int EndOf(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    std::erase(started_, pid);
    ended_.push_back(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int WaitUntilReady() { return EndOf(Start({"wait", "--timeout", "60"})); }

  status::MpsState State() const {
    return status::ReadMpsState(folder_).value_or(status::MpsState{});
  }
  // The children of a process. The daemon is one of gpushm-mps, and the server is one of the
  // daemon.
  static std::vector<pid_t> ChildrenOf(pid_t pid) {
    std::ifstream file(Concat("/proc/", pid, "/task/", pid, "/children"));
    return {std::istream_iterator<pid_t>(file), {}};
  }
  pid_t DaemonOf(pid_t supervisor) const {
    for (const pid_t child : ChildrenOf(supervisor)) {
      std::ifstream file(Concat("/proc/", child, "/cmdline"));
      std::string words;
      std::getline(file, words);  // Unlike an iterator, it does not throw if the child has ended.
      if (words.find(std::string("\0-f", 3)) != std::string::npos) return child;
    }
    return 0;
  }

  // Whether a child runs another program than its parent. Until it does, the parent waits for it:
  // posix_spawn() is like vfork().
  static bool RunsAnother(pid_t child, pid_t parent) {
    std::error_code error;
    const fs::path program = fs::read_symlink(Concat("/proc/", child, "/exe"), error);
    return !error && program != fs::read_symlink(Concat("/proc/", parent, "/exe"), error);
  }

  // Waits for the program that asks the daemon, and stops it; 0 if none comes.
  pid_t StopAsker(pid_t supervisor, pid_t daemon) const {
    pid_t asker = 0;
    Eventually([&] {
      for (const pid_t child : ChildrenOf(supervisor)) {
        if (child != daemon && RunsAnother(child, supervisor)) asker = child;
      }
      return asker != 0;
    });
    if (asker != 0) kill(asker, SIGSTOP);
    return asker;
  }

  std::string program_;
  std::string driver_;
  std::string folder_;
  std::vector<pid_t> started_;
  std::vector<pid_t> ended_;  // What they started may still live.
};

TEST_F(SupervisorTest, ServesAndEndsInOrder) {
  const pid_t supervisor = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  ASSERT_TRUE(Eventually([&] { return State().server_pid != 0; })) << ToJson(State());
  EXPECT_TRUE(Eventually([&] { return State().server_active; }));
  EXPECT_EQ(State().daemon_restarts, 0u);
  const pid_t daemon = DaemonOf(supervisor);
  ASSERT_NE(daemon, 0);
  const auto server = static_cast<pid_t>(State().server_pid);
  kill(supervisor, SIGTERM);
  EXPECT_EQ(EndOf(supervisor), 0);
  EXPECT_NE(kill(daemon, 0), 0);
  EXPECT_TRUE(Eventually([&] { return kill(server, 0) != 0; }));
  EXPECT_EQ(State().state, "stopping");
}

// Goal: clients of other containers count, whose PIDs the daemon does not know.
TEST_F(SupervisorTest, ClientsOfOtherContainersCount) {
  std::ofstream(folder_ + "/clients") << "0\n0\n4711\n";
  StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  EXPECT_TRUE(Eventually([&] { return State().clients == 3; })) << ToJson(State());
  std::ofstream(folder_ + "/clients") << "";
  EXPECT_TRUE(Eventually([&] { return State().clients == 0; })) << ToJson(State());
}

TEST_F(SupervisorTest, AKilledDaemonIsReplaced) {
  const pid_t supervisor = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  for (uint64_t restarts = 1; restarts <= 3; ++restarts) {
    const pid_t daemon = DaemonOf(supervisor);
    ASSERT_NE(daemon, 0);
    kill(daemon, SIGKILL);
    ASSERT_TRUE(Eventually([&] {
      return State().daemon_restarts == restarts && DaemonOf(supervisor) != 0 && State().IsReady();
    })) << ToJson(State());
  }
  ASSERT_TRUE(Eventually([&] { return State().server_pid != 0; })) << "it has a server again";
}

TEST_F(SupervisorTest, AKilledServerIsReplacedAndCounted) {
  StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  ASSERT_TRUE(Eventually([&] { return State().server_pid != 0; }));
  const auto server = static_cast<pid_t>(State().server_pid);
  kill(server, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const status::MpsState now = State();
    return now.server_restarts == 1 && now.server_pid != 0 && now.server_pid != server;
  })) << ToJson(State());
  EXPECT_EQ(State().daemon_restarts, 0u);
}

TEST_F(SupervisorTest, ADaemonThatDoesNotAnswerIsReplaced) {
  const pid_t supervisor = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  const pid_t daemon = DaemonOf(supervisor);
  std::ofstream(folder_ + "/deaf") << "";
  ASSERT_TRUE(Eventually([&] { return DaemonOf(supervisor) != daemon && kill(daemon, 0) != 0; }));
  fs::remove(folder_ + "/deaf");
  EXPECT_TRUE(Eventually([&] { return State().daemon_restarts >= 1 && State().IsReady(); }))
      << ToJson(State());
}

// Goal: the next daemon is used although a question to the former one is still asked. Method: the
// program that asks is stopped while the daemon is killed.
TEST_F(SupervisorTest, AQuestionToAFormerDaemonHoldsNothingUp) {
  const pid_t supervisor = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  const pid_t daemon = DaemonOf(supervisor);
  std::ofstream(folder_ + "/deaf") << "";
  const pid_t asker = StopAsker(supervisor, daemon);
  ASSERT_NE(asker, 0);
  fs::remove(folder_ + "/deaf");
  kill(daemon, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return State().daemon_restarts >= 1 && State().IsReady(); }))
      << ToJson(State());
}

// Goal: an answer that comes when its daemon has ended says nothing of the next one, which is not
// there yet. Method: daemons are killed until the next one starts after more than a second. The
// program that asks the last one is stopped before that one is killed, and goes on then.
TEST_F(SupervisorTest, ALateAnswerIsNotTheNextDaemons) {
  const pid_t supervisor = StartServing();
  pid_t daemon = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Eventually([&] { return (daemon = DaemonOf(supervisor)) != 0; }));
    kill(daemon, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return DaemonOf(supervisor) != daemon; }));
  }
  ASSERT_TRUE(Eventually([&] { return (daemon = DaemonOf(supervisor)) != 0; }));
  ASSERT_EQ(WaitUntilReady(), 0);
  std::ofstream(folder_ + "/deaf") << "";
  const pid_t asker = StopAsker(supervisor, daemon);
  ASSERT_NE(asker, 0);
  kill(daemon, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return State().state == "starting"; }));
  kill(asker, SIGCONT);
  ASSERT_TRUE(Eventually([&] { return kill(asker, 0) != 0; })) << "it has answered";
  fs::remove(folder_ + "/deaf");
  bool ready = false;
  while (DaemonOf(supervisor) == 0) {
    ready = ready || State().IsReady();
    poll(nullptr, 0, 2);
  }
  EXPECT_FALSE(ready);
}

// Goal: the container's own restart finds what the former one left, and counts the daemon that
// ended with it. Method: all of them are killed; then the container is told to end.
TEST_F(SupervisorTest, ANewContainerTakesOverTheFolder) {
  pid_t supervisor = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  for (const uint64_t restarts : {1u, 2u}) {
    const pid_t daemon = DaemonOf(supervisor);
    // SIGKILL reaches all of them, as at the end of the container's PID namespace.
    kill(restarts == 1 ? -supervisor : supervisor, restarts == 1 ? SIGKILL : SIGTERM);
    EndOf(supervisor);
    ASSERT_TRUE(Eventually([&] { return kill(daemon, 0) != 0; }));
    if (restarts == 1) {
      EXPECT_EQ(State().state, status::kMpsReady) << "a killed one says nothing more";
      EXPECT_EQ(EndOf(Start({"wait", "--timeout", "0"})), 1) << "but nobody believes it";
    }
    supervisor = StartServing();
    ASSERT_TRUE(Eventually([&] { return DaemonOf(supervisor) != 0; }));
    EXPECT_EQ(WaitUntilReady(), 0);
    EXPECT_EQ(State().daemon_restarts, restarts);
  }
}

// Goal: a second pod with the daemon of one claim does not take the first one's folder. Method:
// another supervisor there; when the first has ended, the next one serves.
TEST_F(SupervisorTest, AFolderHasOneDaemon) {
  const pid_t first = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  const pid_t daemon = DaemonOf(first);
  EXPECT_EQ(EndOf(StartServing()), 1);
  EXPECT_EQ(DaemonOf(first), daemon);
  EXPECT_EQ(WaitUntilReady(), 0);
  kill(first, SIGTERM);
  EXPECT_EQ(EndOf(first), 0);
  StartServing();
  EXPECT_EQ(WaitUntilReady(), 0);
}

// Goal: with a claim, pods of other users of the namespace may write in this folder. Nothing there
// holds the supervisor up or silences it, and no second daemon comes. Method: a pipe and a folder
// at the names that it writes, and the lock's file removed.
TEST_F(SupervisorTest, FilesOfOthersDoNotHoldItUp) {
  const std::string state = folder_ + "/state.json";
  ASSERT_EQ(mkfifo((state + ".new").c_str(), 0666), 0);
  const pid_t supervisor = StartServing();
  ASSERT_EQ(WaitUntilReady(), 0);
  for (const std::string& name : {state, state + ".new"}) {
    kill(supervisor, SIGSTOP);  // It writes these names itself.
    fs::remove(name);
    fs::create_directories(name + "/inner");
    kill(supervisor, SIGCONT);
    EXPECT_TRUE(Eventually([&] { return fs::is_regular_file(state); })) << name;
    EXPECT_TRUE(Eventually([&] { return !fs::is_directory(name); })) << name;
  }
  EXPECT_EQ(WaitUntilReady(), 0);
  fs::remove(folder_ + "/gpushm-mps.lock");
  EXPECT_EQ(EndOf(StartServing()), 1);
  EXPECT_NE(DaemonOf(supervisor), 0);
  kill(supervisor, SIGTERM);
  EXPECT_EQ(EndOf(supervisor), 0);
}

TEST_F(SupervisorTest, SaysWhatIsMissing) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(EndOf(Start({"--program", "/nowhere/nvidia-cuda-mps-control"})), 1);
  }
  EXPECT_EQ(State().daemon_restarts, 0u) << "a daemon that never ran does not count";
  EXPECT_EQ(EndOf(Start({"--server-uid", "none"})), 2);
  EXPECT_EQ(EndOf(Start({"wait", "--timeout", "0"})), 1) << "nobody serves this folder";
  fs::remove_all(folder_);
  EXPECT_EQ(EndOf(StartServing()), 1);
}

}  // namespace
}  // namespace gpushm::mps
