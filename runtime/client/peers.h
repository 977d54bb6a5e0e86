// Using a buffer on GPUs other than its own: how they reach its bytes, and the copy for GPUs that
// cannot. See docs/guides/peers.md.
//
// Threads: any.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contract/protocol/messages.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"

namespace gpushm::client {

inline uint64_t BitOf(CUdevice device) { return uint64_t{1} << device; }

// How an attach serves GPUs other than the buffer's own.
struct PeerPlan {
  PeerWay way = PeerWay::kNone;    // The slowest of all.
  std::vector<CUdevice> mapped;    // These access the bytes in place.
  std::optional<CUdevice> staged;  // This GPU gets a copy, and the bytes themselves are not mapped.

  uint64_t mapped_devices() const;
};

// kInvalidArgument: no such GPU. kUnsupported: a GPU cannot access `home`, and staging was not
// requested. The text gives the reason and the alternatives.
Result<PeerPlan> PlanPeers(const CudaApi& api, std::span<const DeviceInfo> devices,
                           const DeviceInfo& home, uint64_t peer_devices, bool stage);

// Copies `from`, mapped on `home`, through pinned host memory into new memory of `peer`. Two copies
// run at a time, one in each direction. kTimeout.
Result<DeviceMapping> StageCopy(const CudaApi& api, const DeviceMapping& from, CUdevice home,
                                CUdevice peer, const Deadline& deadline);

}  // namespace gpushm::client
