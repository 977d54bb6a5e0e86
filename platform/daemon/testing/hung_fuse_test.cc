#include "platform/daemon/testing/hung_fuse.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "platform/base/testing.h"

namespace gpushm::testing {
namespace {

constexpr std::chrono::seconds kPatience{20};

// Makes a call that hangs. `file` is open if the daemon hangs only after that.
struct Case {
  const char* name;
  HangAt at;
  std::function<int(const std::string& path, int file)> call;
};

void PrintTo(const Case& hang, std::ostream* out) { *out << hang.name; }

int OpenFile(const std::string& path) { return open(path.c_str(), O_RDONLY | O_CLOEXEC); }

const Case kCases[] = {
    {"Lookup", HangAt::kLookup,
     [](const std::string& path, int) { return UniqueFd(OpenFile(path)).get(); }},
    {"Getattr", HangAt::kGetattr,
     [](const std::string& path, int) {
       struct stat info{};
       return stat(path.c_str(), &info);
     }},
    {"Open", HangAt::kOpen,
     [](const std::string& path, int) { return UniqueFd(OpenFile(path)).get(); }},
    {"Read", HangAt::kRead,
     [](const std::string& path, int) {
       char byte = 0;
       const UniqueFd file(OpenFile(path));
       return static_cast<int>(pread(file.get(), &byte, 1, 0));
     }},
    {"Flush", HangAt::kFlush, [](const std::string& path, int) { return close(OpenFile(path)); }},
    {"AllOnceOpen", HangAt::kAllOnceOpen,
     [](const std::string&, int file) {
       struct stat info{};
       return fstat(file, &info);
     }},
};

class HungFuseTest : public ::testing::TestWithParam<Case> {
 protected:
  // The call hangs, and returns once `end_hang` was called.
  void Expect(const std::function<void(HungFuse&)>& end_hang, bool succeeds) {
    if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
    std::future<int> call;  // Its destructor waits for the call, when the connection is gone.
    const TempFolder folder;
    Result<HungFuse> fuse = HungFuse::Mount(folder.path(), GetParam().at);
    ASSERT_TRUE(fuse) << fuse.error().ToString();
    int file = -1;
    if (GetParam().at == HangAt::kAllOnceOpen) {
      const Result<int> opened = fuse->Open(O_RDWR);
      ASSERT_TRUE(opened) << opened.error().ToString();
      file = *opened;
    }
    call = std::async(std::launch::async, [path = fuse->path(), file] {
      return GetParam().call(path, file) < 0 ? errno : 0;
    });
    EXPECT_TRUE(fuse->WaitUntilHung());
    EXPECT_NE(call.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    end_hang(*fuse);
    ASSERT_EQ(call.wait_for(kPatience), std::future_status::ready);
    if (succeeds) {
      EXPECT_EQ(call.get(), 0);
    } else {
      EXPECT_NE(call.get(), 0);
    }
  }
};

TEST_P(HungFuseTest, HangsUntilTheDaemonAnswers) {
  Expect([](HungFuse& fuse) { fuse.Answer(); }, true);
}

TEST_P(HungFuseTest, HangsUntilTheConnectionIsAborted) {
  Expect([](HungFuse& fuse) { fuse.Abort(); }, false);
}

INSTANTIATE_TEST_SUITE_P(, HungFuseTest, ::testing::ValuesIn(kCases),
                         [](const auto& hang) { return hang.param.name; });

}  // namespace
}  // namespace gpushm::testing
