// What the plugin decides about one allocation, and tells its broker.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "contract/claims.h"

namespace gpushm::plugin::keeper {

using claims::Others;

struct LinkTerms {
  // UUIDs, "GPU-..." or "MIG-...", in the order of their numbers; at least one.
  std::vector<std::string> gpus;
  uint64_t pool_bytes = 0;  // On each of them.
  std::string pod = {};     // "namespace/name", for the log; empty: unknown.
  // If not kNone, the caller has made the folder of their socket.
  Others others = Others::kNone;
  friend bool operator==(const LinkTerms&, const LinkTerms&) = default;
};

struct GpuHealth {
  bool lost = false;
  std::string reason;
};
// Those that are unhealthy, by UUID.
using SickGpus = std::map<std::string, GpuHealth>;

// One of LinkTerms::gpus.
struct LinkedGpu {
  std::array<uint8_t, 16> uuid{};
  GpuHealth health;
};

}  // namespace gpushm::plugin::keeper
