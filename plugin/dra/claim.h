// A ResourceClaim as the API server tells it: which devices of this node the scheduler gave to it.
// Pure; the text comes from the API server, but users write claims, so every value is checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/claims.h"
#include "platform/base/status.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin::dra {

using claims::kDeviceClass;
using claims::kDriverName;

// How the kubelet names a claim.
struct ClaimRef {
  std::string name_space;
  std::string name;
  std::string uid;
  std::string ToString() const { return name_space + "/" + name; }
};

// Requests are named "broker" and "app", or "broker-0", "app-0", "broker-1" ... for several GPUs.
struct ClaimDevice {
  std::string request;  // Without the name of an alternative, which follows a slash.
  binding::Part part = binding::Part::kApp;
  unsigned number = 0;  // Of the GPU, for the pod.
  std::string pool;
  std::string device;
  std::string share_id;  // Empty: none.
};

struct AllocatedClaim {
  ClaimRef ref;
  std::string pod;                   // Name of the first pod that it is reserved for.
  std::vector<ClaimDevice> devices;  // All of this driver, in the claim's order.
  std::vector<std::string> gpus;     // Device names of the brokers' requests, by their numbers.
  uint64_t bytes = 0;                // Of memory, on each of them.
  claims::Others others = claims::Others::kNone;  // kNone: Kubernetes made the claim for one pod.
  bool mps = false;                               // Has a request for the pod with the MPS daemon.
};

// 10,000 pods that a claim is reserved for take 2 MB, and Kubernetes allows 256.

// kNotFound: this is another claim with the same name. kUnavailable: it is not allocated here.
// kInvalidArgument: it can never be prepared. The error names the field and shows a correct one.
Result<AllocatedClaim> ParseClaim(std::string_view text, const ClaimRef& ref,
                                  std::string_view pool);

}  // namespace gpushm::plugin::dra
