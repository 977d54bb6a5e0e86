// Turns a pod's annotations into a plan: which containers attach, how many units of GPU memory the
// pod needs, and which files are loaded. It implements the rules of
// docs/design/injector.md and every reason for which a pod is denied.
//
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/annotations/annotations.h"
#include "sidecar/injector/pod.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

// What an earlier call did, as it wrote it into gpushm.io/status. Containers that other webhooks
// add later are not in it. They get no GPU, even if the annotations changed, unless the annotations
// name them.
struct Done {
  std::string version;      // The injector's version.
  std::string image;        // The image that it gave the sidecar.
  std::string annotations;  // Digest of the annotations that it read.
  annotations::Allocation allocation = annotations::Allocation::kDevicePlugin;
  // Application containers of the pod when it was first sent.
  std::vector<std::string> applications;
  std::vector<std::string> containers;  // Containers that attach.

  // Returns nullopt if no earlier call did anything, or if the annotation has other content.
  static std::optional<Done> Of(const PodView& pod);
};

// The pod runs under MPS.
struct MpsPlan {
  std::optional<int64_t> uid;  // Empty: it serves every uid.
};

struct Plan {
  annotations::PodSpec spec;
  Done done;
  // Names of the buffers that a container of their own loads from a file.
  std::vector<std::string> loaded;
  uint64_t memory_bytes = 0;  // GPU memory in total, of all GPUs.
  uint64_t units = 0;         // A multiple of the number of GPUs.
  std::optional<MpsPlan> mps;
  // With Allocation::kDra, unless the pod shares a claim: see claim.h.
  std::string template_name;
  std::vector<std::string> warnings;  // For the user.
  bool stale = true;                  // An earlier call, if any, was for other annotations.
  // Also true if the injector was upgraded in between: the pod is a copy of one from before that.
  bool redo = true;

  bool UsesClaim() const { return done.allocation == annotations::Allocation::kDra; }
  // Whether another pod of its claim has the broker, so this one gets no sidecar.
  bool UsesOthers() const { return spec.UsesOthers(); }
  // With MPS: whether the daemon is that of the claim, and whether this pod runs a daemon.
  bool SharesMps() const { return !spec.claim.empty(); }
  bool RunsMps() const { return !SharesMps() || spec.role == annotations::ClaimRole::kMps; }
  // What each GPU gives to the pod, if it has a claim.
  uint64_t GpuBytes() const;
  // The value of gpushm.io/status.
  std::string Status() const;
};

// Whether the pod has gpushm.io/inject: "false". Such a pod is ignored, whatever its other
// annotations say.
bool OptsOut(const PodView& pod);

// `of_namespace`: how its pods get their GPU memory, unless they say it themselves. Returns nullopt
// if the pod opted out, or if nothing in its annotations requests anything.
yaml::OrErrors<std::optional<Plan>> MakePlan(
    const PodView& pod, const Settings& settings,
    std::optional<annotations::Allocation> of_namespace = std::nullopt);

}  // namespace gpushm::injector
