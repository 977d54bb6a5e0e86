// Shared by the integration tests: a folder, and with it a simulated card, for each test.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/testing.h"
#include "platform/driver/device.h"
#include "plugin/keeper/keeper.h"
#include "tests/integration/processes.h"

namespace gpushm::integration {

// An environment variable of the processes that start meanwhile.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const former = getenv(name)) former_ = former;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { former_ ? setenv(name_, former_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> former_;
};

// Whether the processes of the tests are clients of an MPS daemon.
inline bool UnderMps() {
  const char* const folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  return folder != nullptr && folder[0] != '\0';
}

class IntegrationTest : public ::testing::Test {
 protected:
  IntegrationTest() {
    setenv("GPUSHM_SIM_DIR", (folder_ + "/sim").c_str(), 1);
    std::filesystem::create_directory(folder_ + "/run");
  }

  std::string run() const { return folder_ + "/run"; }
  // Once a process has used the driver.
  bool simulated() const { return std::filesystem::exists(folder_ + "/sim"); }

  // Waits until `done` holds. A lease ends shortly after the kernel reports a death.
  template <typename Condition>
  static bool Eventually(Condition done) {
    const Deadline deadline = Deadline::AfterMs(kPatienceMs);
    while (!done()) {
      if (deadline.Passed()) return false;
      poll(nullptr, 0, 1);
    }
    return true;
  }

  const gpushm::testing::TempFolder made_;
  const std::string& folder_ = made_.path();
};

// A broker, and two processes that have carried out their commands, one after the other.
struct Pair {
  using Commands = std::vector<std::string>;
  explicit Pair(const std::string& folder, const Commands& one = {}, const Commands& other = {},
                const std::vector<std::string>& arguments = {})
      : broker(folder, "64Mi", arguments), first(folder), second(folder) {
    for (const auto& command : one) EXPECT_EQ(first.Do(command).status, GPUSHM_OK) << command;
    for (const auto& command : other) EXPECT_EQ(second.Do(command).status, GPUSHM_OK) << command;
  }
  Broker broker;
  Worker first;
  Worker second;
};

inline constexpr char kAllocation[] = "m0000";
inline constexpr char kMiBText[] = "1048576";  // In a worker's command.

// For tests with the keeper of the node's plugin, which the test starts, and one allocation.
class LinkedTest : public IntegrationTest {
 protected:
  void SetUp() override {
    mkdir(links().c_str(), 0700);
    mkdir((links() + "/" + kAllocation).c_str(), 0755);
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    const auto devices = ListDevices(**api);
    ASSERT_TRUE(devices);
    gpu_ = devices->front().uuid.ToString();
  }
  std::string links() const { return folder_ + "/links"; }
  std::vector<std::string> Linked() const { return {"--link", links() + "/" + kAllocation}; }

  // Starts the keeper again if there was one.
  void StartKeeper() {
    keeper_.reset();
    plugin::keeper::Keeper::Options options;
    options.links_folder = links();
    options.settings.memory = MemoryKind::Of(folder_ + "/sim");
    auto keeper = plugin::keeper::Keeper::Start(std::move(options));
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = std::move(*keeper);
    Open();
  }
  void Open() {
    ASSERT_TRUE(Eventually([&] {
      return keeper_->Open(kAllocation, {.gpus = {gpu_}, .pool_bytes = uint64_t{128} << 20})
          .has_value();
    }));
  }

  std::string gpu_;
  std::unique_ptr<plugin::keeper::Keeper> keeper_;
};

}  // namespace gpushm::integration
