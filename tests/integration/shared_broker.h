// A broker and a simulated card for all tests of a program, because a process's driver knows one
// machine. Tests that need their own card use fixture.h.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/integration/processes.h"

namespace gpushm::integration {

class SharedBrokerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (std::filesystem::temp_directory_path() / "gpushm-one-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    setenv("GPUSHM_SIM_DIR", (folder_ + "/sim").c_str(), 1);
    std::filesystem::create_directory(run());
    broker_.emplace(run(), "64Mi");
  }
  static void TearDownTestSuite() {
    broker_.reset();
    std::error_code ignored;  // Processes that are ending remove files at the same time.
    std::filesystem::remove_all(folder_, ignored);
  }
  static std::string run() { return folder_ + "/run"; }

  static inline std::string folder_;
  static inline std::optional<Broker> broker_;
};

}  // namespace gpushm::integration
