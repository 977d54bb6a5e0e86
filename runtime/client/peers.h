// Using a buffer on other GPUs than its own: which way they get to its bytes, and the copy where
// there is none. docs/guides/peers.md
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

struct PeerOptions {
  uint64_t devices = 0;  // Bit i: ordinal i of this process.
  bool stage = false;
};

inline uint64_t BitOf(CUdevice device) { return uint64_t{1} << device; }

// What an attach does for GPUs other than the buffer's own.
struct PeerPlan {
  protocol::PeerWay way = protocol::PeerWay::kNone;  // The slowest.
  std::vector<CUdevice> mapped;                      // They get to the bytes in place.
  std::optional<CUdevice> staged;                    // It gets a copy, and nobody maps the bytes.

  uint64_t mapped_devices() const;
};

// kInvalidArgument: no such GPU. kUnsupported: one cannot get to `home`, and staging was not asked
// for; the text says why and what works.
Result<PeerPlan> PlanPeers(const CudaApi& api, std::span<const DeviceInfo> devices,
                           const DeviceInfo& home, const PeerOptions& options);

// `from`, mapped on `home`, copied over pinned host memory into new memory of `peer`. Keeps two
// copies under way, one each direction. kTimeout.
Result<DeviceMapping> StageCopy(const CudaApi& api, const DeviceMapping& from, CUdevice home,
                                CUdevice peer, const Deadline& deadline);

}  // namespace gpushm::client
