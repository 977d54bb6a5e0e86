// The CUDA driver and the GPUs as this process sees them, loaded and listed at the first use.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/device.h"

namespace gpushm::client {

class Driver {
 public:
  // Empty: where the dynamic loader finds libcuda.so.1.
  explicit Driver(std::string folder) : folder_(std::move(folder)) {}

  Result<const CudaApi*> Api();
  // By ordinal.
  Result<std::vector<DeviceInfo>> Devices();
  Result<DeviceInfo> Find(const GpuUuid& uuid);

  // The speed of the interconnect, as a transfer measured it before; 0: none did.
  enum class Direction { kLoad, kSave };
  uint64_t LinkOf(const GpuUuid& gpu, Direction direction) const;
  void KeepLink(const GpuUuid& gpu, Direction direction, uint64_t bytes_per_second);

 private:
  struct Link {
    GpuUuid gpu;
    Direction direction;
    uint64_t bytes_per_second;
  };

  const std::string folder_;
  mutable std::mutex mutex_;
  // All of these are guarded by mutex_.
  const CudaApi* api_ = nullptr;
  std::vector<DeviceInfo> devices_;
  std::vector<Link> links_;
};

}  // namespace gpushm::client
