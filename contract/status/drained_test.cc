// Goal: what gpushmctl writes is what the plugin reads, and nothing else in the folder counts or
// holds the reader up.
#include "contract/status/drained.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace gpushm::status {
namespace {

namespace fs = std::filesystem;

const std::string kOne = "GPU-6d8c1a2e-0000-4000-8000-000000000001";
const std::string kTwo = "MIG-6d8c1a2e-0000-4000-8000-000000000002";
using Drained = std::map<std::string, std::string>;

class DrainedTest : public ::testing::Test {
 protected:
  DrainedTest() : folder_(fs::temp_directory_path() / Concat("gpushm-drained-", getpid())) {
    fs::create_directory(folder_);
  }
  ~DrainedTest() override { fs::remove_all(folder_); }
  std::string folder_;
};

TEST_F(DrainedTest, IsReadAsWritten) {
  EXPECT_EQ(ReadDrained(folder_), Drained{});
  ASSERT_TRUE(Drain(folder_, kOne, "row remapping pending"));
  ASSERT_TRUE(Drain(folder_, kTwo, ""));
  EXPECT_EQ(ReadDrained(folder_), (Drained{{kOne, "row remapping pending"}, {kTwo, kNoReason}}));
  ASSERT_TRUE(Drain(folder_, kOne, "another reason"));
  ASSERT_TRUE(Undrain(folder_, kTwo));
  EXPECT_EQ(ReadDrained(folder_), (Drained{{kOne, "another reason"}}));
  EXPECT_EQ(Undrain(folder_, kTwo).error().code(), Code::kNotFound);
}

TEST_F(DrainedTest, RefusesWhatIsNoUuidOrNoLine) {
  for (const std::string gpu : {"0", "GPU-../../x", "GPU-a/b", "", "gpu-1"}) {
    EXPECT_EQ(Drain(folder_, gpu, "").error().code(), Code::kInvalidArgument) << gpu;
    EXPECT_EQ(Undrain(folder_, gpu).error().code(), Code::kInvalidArgument) << gpu;
  }
  EXPECT_EQ(Drain(folder_, kOne, "two\nlines").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Drain(folder_, kOne, std::string(257, 'x')).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadDrained(folder_), Drained{});
}

TEST_F(DrainedTest, PassesOverWhatIsNoSuchFile) {
  const std::string drained = folder_ + "/drained/";
  fs::create_directory(drained);
  std::ofstream(drained + "README") << "for people";
  std::ofstream(drained + "." + kOne) << "half written";
  fs::create_directory(drained + "GPU-folder");
  fs::create_symlink("/etc/hostname", drained + "GPU-link");
  ASSERT_EQ(mkfifo((drained + "GPU-pipe").c_str(), 0600), 0);
  std::ofstream(drained + kOne) << "by \x1b[31mhand\nand a second line";
  std::ofstream(drained + kTwo) << std::string(100'000, 'x');
  EXPECT_EQ(ReadDrained(folder_),
            (Drained{{kOne, "by [31mhand"}, {kTwo, std::string(kMostReasonBytes, 'x')}}));
}

}  // namespace
}  // namespace gpushm::status
