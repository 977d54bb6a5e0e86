// A broker and a simulated card for all tests of a program, because a process's driver knows one
// machine. Tests that need their own card use fixture.h.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "platform/base/testing.h"
#include "tests/integration/processes.h"

namespace gpushm::integration {

class SharedBrokerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_.emplace();
    folder_ = made_->path();
    setenv("GPUSHM_SIM_DIR", (folder_ + "/sim").c_str(), 1);
    std::filesystem::create_directory(run());
    broker_.emplace(run(), "64Mi");
  }
  static void TearDownTestSuite() {
    broker_.reset();
    made_.reset();
  }
  static std::string run() { return folder_ + "/run"; }

  static inline std::optional<gpushm::testing::TempFolder> made_;
  static inline std::string folder_;
  static inline std::optional<Broker> broker_;
};

}  // namespace gpushm::integration
