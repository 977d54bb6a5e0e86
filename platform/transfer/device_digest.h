// Digests of what a GPU's memory has (docs/design/digest.md). A kernel makes them at the speed of
// the memory. The processor makes those of small contents, and all of them where the driver takes
// no kernel.
//
// Threads: one uses it, and its current context.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"

namespace gpushm {

struct DeviceRange {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
};

class DeviceDigest {
 public:
  // Below this, the processor makes them.
  static constexpr uint64_t kKernelBytes = uint64_t{32} << 20;

  // For about that many bytes. If they are for the kernel, loads it into the context that is
  // current now: the bytes need not be there yet.
  DeviceDigest(const CudaApi& api, uint64_t bytes);
  DeviceDigest(const DeviceDigest&) = delete;
  DeviceDigest& operator=(const DeviceDigest&) = delete;
  ~DeviceDigest();

  // One for each range. All work that writes to them must have ended.
  Result<std::vector<Digest>> Of(std::span<const DeviceRange> ranges);
  // Whether the kernel made the last ones.
  bool by_kernel() const { return by_kernel_; }

 private:
  Result<std::vector<DigestSums>> ByKernel(std::span<const DeviceRange> ranges);
  Result<std::vector<DigestSums>> ByProcessor(std::span<const DeviceRange> ranges);

  const CudaApi& api_;
  CUmodule module_ = nullptr;  // Null: the processor makes them.
  CUfunction kernel_ = nullptr;
  bool by_kernel_ = false;
};

}  // namespace gpushm
