// What a ResourceClaim, or a template for one, says about devices (docs/design/dra.md): a request
// for the broker and one for the other containers, of each GPU.
//
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace gpushm::claims {

struct ClaimWanted {
  // Of each GPU: a quantity as Kubernetes writes it, such as 8Gi; a multiple of 2Mi, at least one.
  std::string memory = {};
  uint32_t gpus = 1;        // Different ones, of one node.
  uint64_t containers = 1;  // That attach; at least one.
  bool exclusive = false;   // Nobody else gets any part of these GPUs.
  bool nvlink = false;      // There is NVLink between each two of them.
  bool mps = false;         // One pod of those that share the claim runs an MPS daemon for all.
};

// The names of the requests for GPU number `gpu` of `gpus`.
std::string BrokerRequest(uint32_t gpu, uint32_t gpus);
std::string AppRequest(uint32_t gpu, uint32_t gpus);

// The claim's `spec`.
nlohmann::json ClaimSpec(const ClaimWanted& wanted);

}  // namespace gpushm::claims
