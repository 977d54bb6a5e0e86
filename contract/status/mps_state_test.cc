#include "contract/status/mps_state.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "platform/base/clock.h"

namespace gpushm::status {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MpsStateTest : public ::testing::Test {
 protected:
  MpsStateTest() : folder_(fs::temp_directory_path() / Concat("gpushm-mps-state-", getpid())) {
    fs::create_directory(folder_);
  }
  ~MpsStateTest() override { fs::remove_all(folder_); }

  std::string File() const { return folder_ / kMpsStateFile; }
  std::string ReadError() const {
    const auto state = ReadMpsState(folder_);
    return state ? "it was read" : state.error().ToString();
  }

  const fs::path folder_;
};

TEST_F(MpsStateTest, ComesBackAsItWas) {
  const MpsState state{.state = kMpsReady,
                       .daemon_restarts = 1,
                       .server_restarts = 2,
                       .server_pid = 77,
                       .server_active = true,
                       .clients = 3,
                       .time_unix_ms = UnixNs() / 1'000'000};
  std::ofstream(File()) << ToJson(state);
  const auto back = ReadMpsState(folder_);
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(ToJson(*back), ToJson(state));
  EXPECT_TRUE(back->IsReady());
}

// gpushm-mps was killed and does not come back.
TEST_F(MpsStateTest, AnOldFileIsNotReady) {
  MpsState state{.state = kMpsReady, .time_unix_ms = UnixNs() / 1'000'000 - 60'000};
  EXPECT_FALSE(state.IsReady());
  state.time_unix_ms += 59'000;
  EXPECT_TRUE(state.IsReady());
  state.state = "stopping";
  EXPECT_FALSE(state.IsReady());
}

TEST_F(MpsStateTest, SaysWhatIsNotValid) {
  EXPECT_EQ(ReadMpsState(folder_).error().code(), Code::kNotFound);
  std::ofstream(File()) << R"({"state":"ready"})";
  EXPECT_THAT(ReadError(), HasSubstr("daemon_restarts"));
  std::ofstream(File()) << R"({"state":"ready","daemon_restarts":-1})";
  EXPECT_THAT(ReadError(), HasSubstr("daemon_restarts is not a number between 0 and 2^53"));
}

// Goal: nothing that a container puts there holds the reader up.
TEST_F(MpsStateTest, NeitherFifoNorLinkNorDeviceBlocks) {
  ASSERT_EQ(mkfifo(File().c_str(), 0600), 0);
  EXPECT_THAT(ReadError(), HasSubstr("is not a regular file"));
  fs::remove(File());
  fs::create_symlink("/proc/self/environ", File());
  EXPECT_THAT(ReadError(), HasSubstr("Too many levels of symbolic links"));
  fs::remove(File());
  fs::create_directory(File());
  EXPECT_THAT(ReadError(), HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace gpushm::status
