// Shared by tests of the C++ headers that are compiled as C++17 as well, which the other headers of
// this folder are not: a broker on a simulated card, and a look at the memory of the GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace gpushm::integration {

class HppTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();  // Starts the broker, with a pool of 64 MiB.
  static void TearDownTestSuite();
  // For the files of the tests.
  static std::string folder();
  // Where the broker's socket is.
  static std::string run() { return folder() + "/run"; }
  // Bytes at a device address, read by the driver.
  static std::string ReadDevice(uint64_t address, uint64_t size_bytes);
};

}  // namespace gpushm::integration
