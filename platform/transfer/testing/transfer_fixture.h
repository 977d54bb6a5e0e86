// Shared by the tests of transfers: a piece of GPU memory, and bytes that show where they belong.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "platform/driver/device.h"

namespace gpushm::testing {

inline std::string Content(uint64_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 11);
  return bytes;
}

inline std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Has a context, and `room_bytes` mapped for writing.
class DeviceRoomTest : public ::testing::Test {
 protected:
  explicit DeviceRoomTest(uint64_t room_bytes) : room_bytes_(room_bytes) {}

  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api) << api.error().ToString();
    api_ = *api;
    const auto devices = ListDevices(*api_);
    ASSERT_TRUE(devices) << devices.error().ToString();
    auto context = PrimaryContext::Retain(*api_, 0);
    ASSERT_TRUE(context && context->MakeCurrent());
    context_.emplace(std::move(*context));
    const auto memory = DeviceMemory::Create(*api_, 0, room_bytes_);
    ASSERT_TRUE(memory) << memory.error().ToString();
    auto mapping = DeviceMapping::Map(*api_, *memory, room_bytes_, 0, Access::kReadWrite);
    ASSERT_TRUE(mapping) << mapping.error().ToString();
    mapping_.emplace(std::move(*mapping));
  }
  void Fill(char value) {
    ASSERT_EQ(api_->cuMemsetD8(mapping_->address(), static_cast<unsigned char>(value), room_bytes_),
              CUDA_SUCCESS);
    ASSERT_EQ(api_->cuCtxSynchronize(), CUDA_SUCCESS);
  }
  std::string OnDevice(uint64_t size_bytes) {
    std::string bytes(size_bytes, '?');
    EXPECT_EQ(api_->cuMemcpyDtoH(bytes.data(), mapping_->address(), size_bytes), CUDA_SUCCESS);
    return bytes;
  }

  const uint64_t room_bytes_;
  const CudaApi* api_ = nullptr;
  std::optional<PrimaryContext> context_;
  std::optional<DeviceMapping> mapping_;
};

}  // namespace gpushm::testing
