// What the library's tests share: a folder, the simulated driver, descriptors counted.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/client/fake_broker.h"
#include "runtime/include/gpushm/gpushm.h"

namespace gpushm::client {

inline constexpr int64_t kPatienceMs = 20'000;  // For what must happen.

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpushm-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Open descriptors of this process.
inline size_t CountDescriptors() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

inline GpuUuid SomeGpu() {
  GpuUuid uuid;
  uuid.bytes[0] = 9;
  return uuid;
}

template <typename T>
T Sized() {
  T value;
  GPUSHM_INIT(&value);
  return value;
}

// A client of the fake broker in `folder`; null if it cannot be opened.
inline gpushm_client* OpenClient(const std::string& folder, int64_t timeout_ms = kPatienceMs) {
  auto options = Sized<gpushm_open_options>();
  options.folder = folder.c_str();
  options.timeout_ms = timeout_ms;
  gpushm_client* client = nullptr;
  EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_OK) << gpushm_last_error()->text;
  return client;
}

struct ClientCloser {
  void operator()(gpushm_client* client) const { gpushm_close(client); }
};
using ClientOwner = std::unique_ptr<gpushm_client, ClientCloser>;

}  // namespace gpushm::client
