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
    const std::string volume = folder_ + "/volume";
    std::filesystem::create_directory(volume);
    auto fuse = HungFuse::Mount(volume, GetParam().at, 1 << 20);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    fuse_.emplace(std::move(*fuse));
    const Variable buffers("GPUSHM_BUFFERS",
                           "buffers.gpushm.io/weights: {size: 1Mi, file: volume/file}\n");
    broker_.emplace(run(), "64Mi");
    loader_ = fork();
    if (loader_ != 0) return;
    const int said = open((folder_ + "/said").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    dup2(said, STDERR_FILENO);
    const std::string program = ProgramPath("gpushmctl");
    execl(program.c_str(), program.c_str(), "load", "--stay", "--folder", run().c_str(),
          fuse_->path().c_str(), "weights", nullptr);
    _exit(126);
  }
  void TearDown() override {
    if (fuse_) fuse_->Abort();
    if (loader_ > 0) {
      kill(loader_, SIGKILL);
      waitpid(loader_, nullptr, 0);
    }
  }
  std::string Said() const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/said").rdbuf();
    return text.str();
  }
  bool Says(const std::string& wanted) {
    return Eventually([&] { return Said().find(wanted) != std::string::npos; });
  }
  // The exit code, once it was told to end.
  int Ends() {
    kill(loader_, SIGTERM);
    int status = -1;
    EXPECT_TRUE(Eventually([&] { return waitpid(loader_, &status, WNOHANG) != 0; }));
    loader_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::optional<HungFuse> fuse_;
  std::optional<Broker> broker_;
  pid_t loader_ = 0;
};

TEST_P(LoaderTest, SaysThatItsVolumeHangsAndLoadsOnceItAnswers) {
  ASSERT_TRUE(fuse_->WaitUntilHung());
  EXPECT_TRUE(Says("no byte has moved for 10 s")) << Said();
  fuse_->Answer();
  EXPECT_TRUE(Says("has its content, 1048576 bytes")) << Said();
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
