// One of the broker's GPUs. It makes memory without ever making a context, and returns the memory's
// descriptor.
//
// Threads: Open and Allocate only on a driver's worker, because they may hang if the GPU is
// unhealthy.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/descriptor.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "sidecar/broker/broker_config.h"

namespace gpushm::broker {

class Gpu {
 public:
  // The pod's `count` GPUs, in the order of their numbers: `choices` of those that this process
  // sees. Without choices this process must see exactly as many, and their order is CUDA's.
  static Result<std::vector<Gpu>> Open(const std::string& driver_folder,
                                       std::span<const yaml::GpuChoice> choices, uint32_t count);

  // Memory of `mapped_bytes`, as the descriptor that keeps it. It is exported here once, because
  // exporting costs 0.6 to 1.2 ms in a process without a context. Every attach sends this
  // descriptor.
  Result<UniqueFd> Allocate(uint64_t mapped_bytes) const;

  const DeviceInfo& info() const { return info_; }
  const CudaApi& api() const { return *api_; }
  bool simulated() const { return api_->simulated(); }
  // How its memory appears to a process that gets a descriptor.
  const MemoryKind& memory_kind() const { return memory_kind_; }

 private:
  Gpu(const CudaApi& api, DeviceInfo info);

  const CudaApi* api_;
  DeviceInfo info_;
  MemoryKind memory_kind_;
};

}  // namespace gpushm::broker
