// Helpers for the tests of every folder.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpushm::testing {

// The first seed of a test with random inputs: `usual`, so that a failure can be reproduced, unless
// GPUSHM_TEST_SEED gives another one, as `./run test soak` does.
inline uint32_t TestSeed(uint32_t usual) {
  const char* const text = std::getenv("GPUSHM_TEST_SEED");
  return text != nullptr ? static_cast<uint32_t>(std::strtoul(text, nullptr, 10)) : usual;
}

// The steps 0, 1, 2 ... at which a test kills something, or its seeds: a run has each Stride()-th
// of them, from Offset() on. `./run test` has a stride of 5 and the offset from the number of the
// commit, so five commits have every step; `./run test soak` has a stride of 1. For SCOPED_TRACE:
// StrideNote().
inline int StrideVariable(const char* name, int usual) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::max(0, std::atoi(text)) : usual;
}
inline int Stride() { return std::max(1, StrideVariable("GPUSHM_TEST_STRIDE", 5)); }
inline int Offset() { return StrideVariable("GPUSHM_TEST_OFFSET", 0) % Stride(); }
inline std::string StrideNote() {
  return "again: GPUSHM_TEST_STRIDE=" + std::to_string(Stride()) +
         " GPUSHM_TEST_OFFSET=" + std::to_string(Offset());
}

// As if the file had not been written for an hour. A load waits until what nothing announces has
// not changed for some seconds.
inline void Settle(const std::string& path) {
  const timespec then{.tv_sec = time(nullptr) - 3600, .tv_nsec = 0};
  const timespec times[2] = {then, then};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
}

// A folder that is removed with the object, including its contents. Every user may read it.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "gpushm-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) return;
    path_ = pattern;
    std::filesystem::permissions(path_, std::filesystem::perms(0755));
  }
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// While it lives, this process can open `left` more descriptors and no more (RLIMIT_NOFILE).
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    const int lowest = dup(0);  // All numbers below it are in use.
    close(lowest);
    few.rlim_cur = static_cast<rlim_t>(lowest) + left;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace gpushm::testing
