// Goal: a volume that does not answer holds up nobody but the child that reads it: the process that
// stays says so, ends when it is told to, and loads once the volume answers. Method: gpushmctl load
// --stay on a FUSE file system whose daemon stops responding at each request that a load makes.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "platform/daemon/testing/hung_fuse.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using ::testing::HasSubstr;

struct Hang {
  const char* name;
  HangAt at;
};
void PrintTo(const Hang& hang, std::ostream* out) { *out << hang.name; }
constexpr Hang kHangs[] = {
    {"Lookup", HangAt::kLookup}, {"Read", HangAt::kRead}, {"Flush", HangAt::kFlush}};

class LoaderTest : public IntegrationTest, public ::testing::WithParamInterface<Hang> {
 protected:
  void SetUp() override {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    std::filesystem::create_directory(volume_);
    Serve();
    const Variable buffers("GPUSHM_BUFFERS",
                           "buffers.gpushm.io/weights: {size: 1Mi, file: volume/file}\n");
    broker_.emplace(run(), "64Mi");
    loader_ = Start({"load", "--stay", fuse_->path(), "weights"}, "said");
  }
  void Serve() {
    auto fuse = HungFuse::Mount(volume_, GetParam().at, 1 << 20);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    fuse_.emplace(std::move(*fuse));
  }
  // gpushmctl; its standard error is the file of that name.
  pid_t Start(std::vector<std::string> words, const std::string& errors) const {
    words.insert(words.begin(), {ProgramPath("gpushmctl"), "--folder", run()});
    const pid_t child = fork();
    if (child != 0) return child;
    dup2(open((folder_ + "/" + errors).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600),
         STDERR_FILENO);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(126);
  }
  void TearDown() override {
    if (fuse_) fuse_->Abort();
    if (loader_ > 0) {
      kill(loader_, SIGKILL);
      waitpid(loader_, nullptr, 0);
    }
  }
  std::string Said(const std::string& file = "said") const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + file).rdbuf();
    return text.str();
  }
  bool Says(const std::string& wanted) {
    return Eventually([&] { return Said().find(wanted) != std::string::npos; });
  }
  // The exit code of a process that ends by itself.
  int ExitOf(pid_t process) {
    int status = -1;
    EXPECT_TRUE(Eventually([&] { return waitpid(process, &status, WNOHANG) != 0; }));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // That of the loader, once it was told to end.
  int Ends() {
    kill(loader_, SIGTERM);
    return ExitOf(std::exchange(loader_, 0));
  }

  const std::string volume_ = folder_ + "/volume";
  std::optional<HungFuse> fuse_;
  std::optional<Broker> broker_;
  pid_t loader_ = 0;
};

TEST_P(LoaderTest, SaysThatItsVolumeHangsAndLoadsOnceItAnswers) {
  ASSERT_TRUE(fuse_->WaitUntilHung());
  EXPECT_TRUE(Says("no byte has moved for 10 s")) << Said();
  EXPECT_TRUE(Eventually([&] {  // Others are told, too.
    ExitOf(Start({"save", "weights", "/dev/null"}, "save"));
    return Said("save").find("no byte has moved for 10 s") != std::string::npos;
  })) << Said("save");
  fuse_->Answer();
  EXPECT_TRUE(Says("has its content, 1048576 bytes")) << Said();
  EXPECT_EQ(Ends(), 0);
}

// Method: the server dies in the middle, and its successor mounts the volume again.
TEST_P(LoaderTest, AServerThatDiesIsNoFailureToWhoWaitsForTheContent) {
  ASSERT_TRUE(fuse_->WaitUntilHung());
  const pid_t waits = Start({"--timeout", "20s", "wait", "weights"}, "waits");
  fuse_->KillDaemon();
  EXPECT_TRUE(Eventually([&] {  // A close does not care for its answer.
    const std::string said = Said();
    return said.find("not connected") != said.npos || said.find("has its content") != said.npos;
  })) << Said();
  fuse_.reset();
  Serve();
  fuse_->Answer();
  EXPECT_EQ(ExitOf(waits), 0) << Said("waits") << Said();
  EXPECT_EQ(Ends(), 0);
}

TEST_P(LoaderTest, EndsWhenItIsToldToWhateverHangs) {
  ASSERT_TRUE(fuse_->WaitUntilHung());
  EXPECT_EQ(Ends(), 0);
}

INSTANTIATE_TEST_SUITE_P(, LoaderTest, ::testing::ValuesIn(kHangs),
                         [](const auto& hang) { return hang.param.name; });

}  // namespace
}  // namespace gpushm::integration
