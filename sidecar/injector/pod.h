// One pod, read once: what was sent (PodView), and with it what its annotations ask for and what
// follows from both (Pod). Checks and the patch take a Pod, and read no annotation again.
//
// Both are views: the document must outlive them.
//
// Threads: any, as long as no thread changes the document.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/annotations/annotations.h"
#include "platform/base/status.h"
#include "platform/yaml/error_list.h"
#include "sidecar/injector/claim.h"
#include "sidecar/injector/container.h"
#include "sidecar/injector/patch.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

inline constexpr char kMemoryResource[] = "gpushm.io/memory";
inline constexpr char kAttachResource[] = "gpushm.io/attach";
inline constexpr char kExclusiveResource[] = "gpushm.io/exclusive";
inline constexpr char kGpusResource[] = "gpushm.io/gpus";
// Asks for GPUs with NVLink between each two of them.
inline constexpr char kNvlinkResource[] = "gpushm.io/nvlink";

class PodView {
 public:
  // Fails with kInvalidArgument if `pod` is not a Pod.
  static Result<PodView> Of(const Json& pod);

  const Json& json() const { return *json_; }
  // Those of gpushm, without its own gpushm.io/status.
  const annotations::Annotations& annotations() const { return annotations_; }
  // gpushm.io/status; empty if the pod has none.
  const std::optional<std::string>& status() const { return status_; }
  // Whether any annotation belongs to gpushm.
  bool Concerns() const { return status_ || !annotations_.empty(); }
  // Whether the pod has gpushm.io/inject: "false". It is ignored, whatever its other annotations
  // say, so this is known before they are parsed.
  bool OptsOut() const;
  // Init containers first, in the order in which they start. Ephemeral containers are not included.
  const std::vector<Container>& containers() const { return containers_; }
  const Container* Find(std::string_view name) const;
  std::vector<std::string> Names(Kind kind) const;
  // nullptr if the pod has no volume of that name.
  const Json* Volume(std::string_view name) const;
  std::vector<std::string> Volumes() const;
  // A flag of the pod's spec; false if it is absent.
  bool Flag(const char* name) const;

 private:
  Result<void> ReadContainers(const char* list);

  const Json* json_ = nullptr;
  annotations::Annotations annotations_;
  std::optional<std::string> status_;
  std::vector<Container> containers_;
};

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

// What a container says to get its part of the pod's GPUs.
struct GpuRequest {
  // Extended resources and their numbers. With several GPUs, the broker also requests one
  // gpushm.io/gpus for each, from which the plugin learns how many they are.
  std::vector<std::pair<std::string, uint64_t>> resources;
  std::vector<Json> claims;  // Entries of resources.claims.
};

struct Pod : PodView {
  // `settings` must outlive the pod. `of_namespace`: how its pods get their GPU memory, unless they
  // say it themselves. Fails if the pod is too large, or if its annotations are wrong. Of a pod
  // that asks for nothing, only `spec` is read.
  static yaml::OrErrors<Pod> Of(PodView view, const Settings& settings,
                                std::optional<annotations::Allocation> of_namespace);

  const Settings* settings = nullptr;
  annotations::PodSpec spec{};
  // The annotations in the form in which the broker reads them from its environment.
  std::string buffers_variable{};
  std::optional<Done> earlier{};
  Done done{};  // What this call does.
  // Names of the buffers that a container of their own loads from a file.
  std::vector<std::string> loaded{};
  uint64_t memory_bytes = 0;  // GPU memory in total, of all GPUs.
  uint64_t units = 0;         // A multiple of the number of GPUs.
  std::optional<MpsPlan> mps{};
  // With Allocation::kDra, unless the pod shares a claim.
  std::optional<ClaimTemplate> claim_template{};
  bool stale = true;  // An earlier call, if any, was for other annotations.
  // Also true if the injector was upgraded in between: the pod is a copy of one from before that.
  bool redo = true;

  // Whether the annotations ask for GPU memory.
  bool Asks() const { return spec.AsksForSidecar() || !spec.claim.empty(); }
  bool UsesClaim() const { return done.allocation == annotations::Allocation::kDra; }
  // Whether another pod of its claim has the broker, so this one gets no sidecar.
  bool UsesOthers() const { return spec.UsesOthers(); }
  // Whether it is to run under MPS. It does if `mps` has a value.
  bool WantsMps() const;
  // With MPS: whether the daemon is that of the claim, and whether this pod runs a daemon.
  bool SharesMps() const { return !spec.claim.empty(); }
  bool RunsMps() const { return !SharesMps() || spec.role == annotations::ClaimRole::kMps; }
  // For whom the container gpushm-mps asks.
  Asker MpsAsker() const { return SharesMps() && RunsMps() ? Asker::kMps : Asker::kApplication; }
  bool Attaches(std::string_view container) const;
  std::vector<const Container*> Attaching() const;
  GpuRequest RequestOf(Asker asker) const;
  // The value of gpushm.io/status.
  std::string Status() const;
};

// What is wrong with a field of a pod.
yaml::ConfigError PodError(std::string field, std::string reason, std::string example);

// What checks say of a pod.
struct Findings {
  yaml::ErrorList errors;             // It is denied if there are any.
  std::vector<std::string> warnings;  // For the user.

  void Deny(std::string field, std::string reason, std::string example) {
    errors.Add(PodError(std::move(field), std::move(reason), std::move(example)));
  }
};

// `text` as it must be written for the kubelet, which expands $(NAME) and turns $$ into $.
std::string Unexpanded(std::string_view text);
// Reads the annotations back from a sidecar. Fails with kNotFound if the sidecar has none, and with
// kInvalidArgument if they cannot be read.
Result<annotations::PodSpec> ReadBuffersVariable(const Container& sidecar);

}  // namespace gpushm::injector
