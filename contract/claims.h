// The names that ResourceClaims of gpushm use (docs/design/dra.md). The injector writes them, the
// plugin reads them.
#pragma once

#include <cstdint>

namespace gpushm::claims {

inline constexpr char kDriverName[] = "gpushm.io";
inline constexpr char kDeviceClass[] = "memory.gpushm.io";

// The part of a claim that a request stands for.
enum class Part { kBroker, kApp, kMps };

// Requests for one GPU. For several they are "broker-0", "app-0", "broker-1" ...
inline constexpr char kBroker[] = "broker";  // Gets the memory.
inline constexpr char kApp[] = "app";        // Only attaches.
// For one pod, once in a claim: runs the MPS daemon that serves all pods of the claim.
inline constexpr char kMps[] = "mps";
// Where every container of such a claim finds the daemon's folder; only that pod may write there.
inline constexpr char kMpsFolder[] = "/run/gpushm-mps";

// What the containers of other pods that name the claim may do with the buffers of the pod that has
// the broker. It is an annotation of a claim that a user wrote: "read" (the default) or "write".
enum class Others {
  kNone,  // Kubernetes made the claim for one pod.
  kRead,
  kWrite,
};
inline constexpr char kOthersKey[] = "gpushm.io/others";

// The capacity `share` of a GPU: each request takes 1 if it does not say more, so one that takes
// all has the GPU alone. Far more than a GPU can have claims.
inline constexpr uint64_t kShares = 1'000'000;

}  // namespace gpushm::claims
