// The demo as its users start it, with whatever driver it finds: what it prints, above all about
// the broker that is killed.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "platform/base/status.h"
#include "platform/base/testing.h"

namespace gpushm::demo {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kLimitSeconds = 150;  // None of the demo's own deadlines is longer.

class DemoTest : public ::testing::Test {
 protected:
  DemoTest() {
    setenv("GPUSHM_SIM_DIR", (folder_ / "gpu").c_str(), 1);
    std::ofstream model(folder_ / "model", std::ios::binary);
    for (uint64_t word = 1; word < 400'000; ++word) {
      const uint64_t mixed = word * 0x9e3779b97f4a7c15u;
      model.write(reinterpret_cast<const char*>(&mixed), sizeof mixed);
    }
  }

  static fs::path Programs() {
    return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin";
  }
  // A copy of the programs that the demo needs.
  fs::path CopyPrograms() const {
    const fs::path programs = folder_ / "build" / "bin";
    fs::create_directories(programs);
    for (const char* const program : {"gpushm-demo", "gpushm-broker"}) {
      fs::copy(Programs() / program, programs);
    }
    fs::create_directory_symlink(Programs().parent_path() / "driver-sim",
                                 programs.parent_path() / "driver-sim");
    return programs;
  }
  // Writes both of its outputs to said_; returns its exit status.
  int Run(const fs::path& programs, const std::string& arguments) {
    const std::string log = folder_ / "said";
    const std::string command =
        Concat("timeout -k 5 ", kLimitSeconds, " '", (programs / "gpushm-demo").string(),
               "' --file '", (folder_ / "model").string(), "' ", arguments, " >'", log, "' 2>&1");
    const int status = std::system(command.c_str());
    std::ifstream in(log);
    said_.assign(std::istreambuf_iterator<char>(in), {});
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool Forbidden() const { return said_.find("namespaces: ") != std::string::npos; }

  const gpushm::testing::TempFolder made_;
  const fs::path folder_ = made_.path();
  std::string said_;
};

TEST_F(DemoTest, AKilledBrokerComesBackWithTheSameBytes) {
  const int status = Run(Programs(), "--servers 2");
  if (Forbidden()) GTEST_SKIP() << "this system forbids namespaces";
  ASSERT_EQ(status, 0) << said_;
  EXPECT_THAT(said_, HasSubstr("broker killed and restarted: same bytes, same generation, "
                               "3 leases back, "));
  EXPECT_THAT(said_, ContainsRegex("server-3 +now "));
  EXPECT_THAT(said_, Not(HasSubstr("SKIPPED")));
  EXPECT_THAT(said_, HasSubstr("All checks passed."));
}

// Method: a folder with only the demo and the broker.
TEST_F(DemoTest, WithoutAPluginItSaysWhatItLeavesOut) {
  const int status = Run(CopyPrograms(), "--servers 1");
  if (Forbidden()) GTEST_SKIP() << "this system forbids namespaces";
  ASSERT_EQ(status, 0) << said_;
  EXPECT_THAT(said_, HasSubstr("SKIPPED: no plugin runs, so the broker is not killed"));
  EXPECT_THAT(said_, HasSubstr("no gpushm-plugin in"));
  EXPECT_THAT(said_, HasSubstr("server-1 is back"));
  EXPECT_THAT(said_, HasSubstr("All checks passed."));
}

// Goal: a plugin that ends immediately is not an error of the demo; the demo reports it with the
// reason. Method: a program in the plugin's place that refuses to run.
TEST_F(DemoTest, APluginThatCannotStartIsSaidWithItsReason) {
  const fs::path programs = CopyPrograms();
  const fs::path plugin = programs / "gpushm-plugin";
  std::ofstream(plugin) << "#!/bin/sh\necho 'not permitted here' >&2\nexit 1\n";
  fs::permissions(plugin, fs::perms(0755));
  const int status = Run(programs, "--servers 1");
  if (Forbidden()) GTEST_SKIP() << "this system forbids namespaces";
  ASSERT_EQ(status, 0) << said_;
  EXPECT_THAT(said_, HasSubstr("SKIPPED: no plugin runs"));
  EXPECT_THAT(said_, HasSubstr("the plugin ended: not permitted here"));
  EXPECT_THAT(said_, HasSubstr("All checks passed."));
}

}  // namespace
}  // namespace gpushm::demo
