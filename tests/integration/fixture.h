// What the integration tests share: a folder, and with it a simulated card, for each test.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/integration/processes.h"

namespace gpushm::integration {

class IntegrationTest : public testing::Test {
 protected:
  IntegrationTest() {
    std::string name = (std::filesystem::temp_directory_path() / "gpushm-it-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    setenv("GPUSHM_SIM_DIR", (folder_ + "/sim").c_str(), 1);
    std::filesystem::create_directory(folder_ + "/run");
  }
  ~IntegrationTest() override { std::filesystem::remove_all(folder_); }

  std::string run() const { return folder_ + "/run"; }

  // Until `done` holds; a lease ends when the kernel says so, shortly after.
  template <typename Condition>
  static bool Eventually(Condition done) {
    const Deadline deadline = Deadline::AfterMs(kPatienceMs);
    while (!done()) {
      if (deadline.Passed()) return false;
      poll(nullptr, 0, 1);
    }
    return true;
  }

  std::string folder_;
};

}  // namespace gpushm::integration
