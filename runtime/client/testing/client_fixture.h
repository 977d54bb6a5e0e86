// Shared by the library's tests: a folder, the simulated driver, and a count of descriptors.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/client/testing/fake_broker.h"
#include "runtime/include/gpushm/gpushm.h"

namespace gpushm::client {

inline constexpr int64_t kPatienceMs = 20'000;  // How long a required event may take.

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpushm-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The number of open descriptors of this process.
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

// A client and its broker, for tests that need no GPU.
class ConnectionTest : public ::testing::Test {
 protected:
  void Start(uint64_t epoch = 1) {
    broker_.reset();
    broker_ = std::make_unique<FakeBroker>(folder_.path(), epoch, SomeGpu());
  }
  void Open() { client_.reset(OpenClient(folder_.path())); }

  gpushm_status BrokerInfo() {
    auto info = Sized<gpushm_broker_info>();
    return gpushm_broker_get_info(client_.get(), &info);
  }

  TemporaryFolder folder_;
  std::unique_ptr<FakeBroker> broker_;
  ClientOwner client_;
};

// A client, its broker, and the GPU.
class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api) << api.error().ToString();
    api_ = *api;
    const auto devices = ListDevices(*api_);
    ASSERT_TRUE(devices) << devices.error().ToString();
    gpu_ = devices->front().uuid;
    api_->cuCtxSetCurrent(nullptr);
    Start(1);
  }
  void Start(uint64_t epoch, const std::map<uint64_t, FakeLease>& inherited = {}) {
    broker_.reset();
    broker_ = std::make_unique<FakeBroker>(folder_.path(), epoch, gpu_, inherited);
  }
  void Open() { client_.reset(OpenClient(folder_.path())); }

  gpushm_attachment* Attach(const char* name, uint32_t access = GPUSHM_ACCESS_READ,
                            int64_t timeout_ms = kPatienceMs) {
    auto options = Sized<gpushm_attach_options>();
    options.access = access;
    options.timeout_ms = timeout_ms;
    gpushm_attachment* attachment = nullptr;
    status_ = gpushm_attach(client_.get(), name, &options, &attachment);
    return attachment;
  }
  // A context for tests that need one; the library itself makes none.
  PrimaryContext MakeContext() {
    auto context = PrimaryContext::Retain(*api_, 0);
    EXPECT_TRUE(context && context->MakeCurrent());
    return std::move(*context);
  }

  TemporaryFolder folder_;
  const CudaApi* api_ = nullptr;
  GpuUuid gpu_;
  gpushm_status status_ = GPUSHM_OK;
  std::unique_ptr<FakeBroker> broker_;
  ClientOwner client_;
};

}  // namespace gpushm::client
