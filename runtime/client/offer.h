// Offering memory that the application already has.
//
// Threads: any thread may call any function.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "runtime/client/make.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Client;

// What a client has offered: for each generation, the serial of the connection (Peer).
class Offers {
 public:
  void Keep(uint64_t generation, uint64_t serial) {
    const std::lock_guard lock(mutex_);
    serials_.insert_or_assign(generation, serial);
  }
  std::optional<uint64_t> SerialOf(uint64_t generation) const {
    const std::lock_guard lock(mutex_);
    const auto found = serials_.find(generation);
    return found == serials_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> serials_;  // Under mutex_.
};

struct OfferOptions {
  MakeOptions make;
  bool allow_copy = false;
  CUstream stream = nullptr;  // Null: a copy waits for all work of the context.
};

struct OfferOutcome {
  Transport transport = Transport::kVmm;
  bool copied = false;
  uint64_t copied_bytes = 0;
  int64_t copy_ns = 0;
  uint64_t generation = 0;
  uint64_t mapped_bytes = 0;  // Of the allocations that others map.
  uint32_t allocations = 1;
};

Result<OfferOutcome> Offer(Client* client, std::string_view name, CUdeviceptr address,
                           uint64_t size_bytes, const OfferOptions& options, const Wait& wait);

struct OfferUse {
  bool published = false;
  uint32_t users = 0;
};

// Who uses what this client offered. kNotFound: it did not offer that. kOrphaned: a broker
// restarted without it, so nobody knows.
Result<OfferUse> UseOfOffer(Client* client, std::string_view name, uint64_t generation,
                            const Wait& wait);

}  // namespace gpushm::client
