// What a pod says that gets its GPU memory by a ResourceClaim (docs/design/dra.md), and the
// ResourceClaimTemplate from which Kubernetes makes that claim. The template is in the pod's
// namespace and named after its content, so that equal pods share one.
//
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "sidecar/injector/patch.h"

namespace gpushm::injector {

struct Pod;  // sidecar/injector/pod.h

// The entry of the pod's resourceClaims. Nothing else in a pod may have this name.
inline constexpr char kClaimName[] = "gpushm";
// The label of the templates that the injector makes.
inline constexpr char kTemplateLabel[] = "gpushm.io/made-by";
inline constexpr char kTemplateMaker[] = "injector";

struct ClaimTemplate {
  std::string name;
  Json spec;  // Of the ResourceClaimTemplate.

  Json Object() const;
};

// For a pod with Allocation::kDra. GPU memory is in bytes, not in units.
ClaimTemplate TemplateFor(const Pod& pod);

// The pod's claim: the one that it shares, or one made from its template.
Json PodClaim(const Pod& pod);

// Who asks for the claim's devices: the broker gets the memory, the others only the GPUs.
// kMps: the daemon for all pods that share a claim.
enum class Asker { kBroker, kApplication, kMps };

// The entries of a container's resources.claims, one for each GPU.
std::vector<Json> ClaimEntries(const Pod& pod, Asker asker);

// Makes a template, or finds that the namespace has it. Called before a pod that names it is
// answered, so that Kubernetes can make the pod's claim at once.
using MakeTemplate =
    std::function<Result<void>(const std::string& name_space, const ClaimTemplate& wanted)>;

}  // namespace gpushm::injector
