// What a pod requests from gpushm: the syntax of its annotations. The broker (environment or file)
// and the admission webhook (a pod's metadata) use the same parser, so the broker accepts whatever
// the webhook accepts.
//
// Contract:
//   1. Every error of a text is reported, not only the first (up to kErrorsKept). Each has its
//      place, the reason and an example that itself parses.
//   2. Nothing is ignored silently. An unknown key under gpushm.io or *.gpushm.io is an error that
//      names the nearest known key. Keys of other domains are skipped.
//   3. Work is bounded: kConfigBytes per text, a fixed nesting depth, no anchors, aliases or tags.
//      No exception leaves the module.
//   4. The result is consistent: sizes are within limits::kBufferBytes, each buffer is on one GPU
//      of the pod (`gpu: each` has become a buffer for each GPU), writers are among the containers
//      that may attach, and containers are among those of the pod where these are known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "contract/types.h"
#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "platform/yaml/error_list.h"
#include "platform/yaml/quantity.h"

namespace gpushm::annotations {

using gpushm::OnWriterExit;

// Who may map a buffer writable.
enum class WriteRule {
  kManyWriters,  // Any number of writers at the same time; they coordinate themselves.
  kOneWriter,    // At most one attachment for writing at a time.
  kReadOnly,     // Nobody maps it writable but the loader of its file, once.
};

// As written in annotations: "many-writers", "mark" ...
std::string_view WriteRuleName(WriteRule rule);
std::string_view OnWriterExitName(OnWriterExit action);

struct BufferSpec {
  std::string name{};       // A DNS label.
  uint64_t size_bytes = 0;  // As requested, not rounded; > 0.
  uint32_t generations = 1;
  WriteRule access = WriteRule::kManyWriters;
  // Sorted, without duplicates. An empty list means every container.
  std::vector<std::string> containers{};  // Containers that may attach.
  // Containers that may attach for writing; a subset of `containers`.
  std::vector<std::string> writers{};
  OnWriterExit on_writer_exit = OnWriterExit::kMark;
  // Exactly as written: "<volume>/<path>", or an absolute path where ParseOptions allow it. Empty
  // if the buffer has no file.
  std::string file{};
  uint64_t file_bytes = 0;  // That it must have; 0: any number.
  Digest digest{};          // That its content must have; empty: any.
  bool loads = false;       // A client will load it.
  uint32_t gpu = 0;         // The number of its GPU among those of the pod.

  // Whether its initial state is "loading".
  bool StartsLoading() const { return loads || !file.empty(); }
  bool MayAttach(std::string_view container) const;
  // False for every container if access is read-only.
  bool MayWrite(std::string_view container) const;

  // The two parts of `file` if it is "<volume>/<path>". The volume is empty for an absolute path.
  std::string_view FileVolume() const;
  std::string_view FilePath() const;

  friend bool operator==(const BufferSpec&, const BufferSpec&) = default;
};

// The container that loads the `file:` of that buffer: gpushm-load-NAME. Kubernetes allows 63
// characters, so the end of a name above 51 becomes a hash of the name.
inline constexpr std::string_view kLoaderPrefix = "gpushm-load-";
std::string LoaderOf(std::string_view buffer);

// A signal, which one process at a time writes.
struct SignalSpec {
  std::string name{};  // A DNS label that no buffer has.
  // The same rules as for a buffer's lists.
  std::vector<std::string> containers{};  // Containers that may open it.
  std::vector<std::string> writers{};     // Containers that may write it; a subset of `containers`.

  bool MayAttach(std::string_view container) const;

  friend bool operator==(const SignalSpec&, const SignalSpec&) = default;
};

static_assert(limits::kBufferBytes == yaml::kMostBytes,
              "a size that parses is one that a buffer may have");

// Half of what sync pages may take, at 4 KiB per page, so that every signal can have a successor
// while the old one is held.
inline constexpr size_t kMostSignals = limits::kAllPagesBytes / 2 / 4096;

// How a pod gets its GPU memory.
enum class Allocation {
  kDevicePlugin,  // As extended resources, from nodes whose plugin has `allocation: device-plugin`.
  kDra,           // By a ResourceClaim, from nodes whose plugin has `allocation: dra`.
};

// As written in annotations: "device-plugin" or "dra".
std::string_view AllocationName(Allocation allocation);

// How the containers of a pod share their GPU's time: by an MPS server of the pod, or in turns.
struct MpsSpec {
  std::optional<bool> wanted{};   // Empty: what the cluster's operator decided.
  std::optional<uint32_t> uid{};  // Of the containers, if their images decide it.
  bool any_uid = false;           // They may have different ones.
  bool enforce_private = false;   // Each process is limited to its container's memory.
  std::map<std::string, uint32_t> compute_percent{};  // Of the multiprocessors, by container.

  friend bool operator==(const MpsSpec&, const MpsSpec&) = default;
};

// Request and limit of a container that the injector adds; empty: what the cluster's operator
// decided.
struct ContainerResources {
  std::optional<uint64_t> cpu_millis;
  std::optional<uint64_t> memory_bytes;

  friend bool operator==(const ContainerResources&, const ContainerResources&) = default;
};

// What a pod is for the others that share its claim.
enum class ClaimRole {
  kUser,
  kOwner,  // It declares the claim's buffers.
  kMps,    // A user that also runs the MPS daemon of all of them.
};

// What the annotations of one pod say.
struct PodSpec {
  std::vector<BufferSpec> buffers;  // Ordered by name.
  std::vector<SignalSpec> signals;  // Ordered by name.
  // Bytes reserved on each GPU for a container's own contexts and allocations. If the pod's
  // containers are known, each one that attaches has an entry (1 GiB unless the pod says
  // otherwise). If not, only the containers that the pod names have one.
  std::map<std::string, uint64_t> private_bytes;
  uint64_t pool_extra_bytes = 0;  // On each GPU, for buffers created at run time.
  bool host_ipc = false;
  bool inject = true;                      // False: the pod opts out of the webhook.
  bool cuda_ipc = false;                   // Whether CUDA IPC is to work between the containers.
  bool exclusive = false;                  // Whether the pod has its GPUs alone.
  uint32_t gpus = 1;                       // Number of GPUs.
  std::optional<Allocation> allocation{};  // Empty: what the namespace or the operator decided.
  std::string claim;  // The ResourceClaim that it shares with other pods; empty: none.
  ClaimRole role = ClaimRole::kUser;
  bool nvlink = false;  // Whether there must be NVLink between each two of them.
  MpsSpec mps;
  ContainerResources sidecar;
  ContainerResources loader;  // Of each that loads a file.

  const BufferSpec* Find(std::string_view name) const;
  // Whether any buffer or signal is restricted by a list of containers or of writers.
  bool HasAccessLists() const;
  // Whether it uses what another pod of its claim declares.
  bool UsesOthers() const { return !claim.empty() && role != ClaimRole::kOwner; }
  // Whether the pod needs a sidecar.
  bool AsksForSidecar() const {
    return !buffers.empty() || !signals.empty() || pool_extra_bytes > 0 || !private_bytes.empty() ||
           host_ipc || role == ClaimRole::kOwner;
  }

  friend bool operator==(const PodSpec&, const PodSpec&) = default;
};

using Annotations = std::map<std::string, std::string>;

struct ParseOptions {
  // The pod's application containers. If given, every name in a list must be one of them, and
  // private_bytes gets its defaults. If not, any valid container name is accepted.
  std::optional<std::vector<std::string>> containers{};
  // Other containers of the pod, which may be named but are not included by default.
  std::vector<std::string> more_containers{};
  // Containers of the pod that can never attach, each with the reason. Naming one is an error that
  // gives this reason.
  std::map<std::string, std::string> unfit_containers{};
  // Whether `file:` may be an absolute path (for a broker that is run by hand; in a pod it starts
  // with a volume).
  bool allow_absolute_file = false;
};

inline constexpr uint64_t kDefaultPrivateBytes = uint64_t{1} << 30;
// The annotations of a pod's metadata. Each value is text: for a buffer a quantity or a YAML map,
// for a signal nothing or a YAML map.
Result<PodSpec> ParseAnnotations(const Annotations& annotations, const ParseOptions& options = {});
yaml::OrErrors<PodSpec> ParseAnnotationsOrErrors(const Annotations& annotations,
                                                 const ParseOptions& options = {});

// The same annotations as one YAML map, from the environment variable GPUSHM_BUFFERS. Values may
// also be maps without quotes. An empty text is an empty specification.
inline constexpr std::string_view kBuffersVariable = "GPUSHM_BUFFERS";
Result<PodSpec> ParseBuffersEnvironment(std::string_view text, const ParseOptions& options = {});
yaml::OrErrors<PodSpec> ParseBuffersEnvironmentOrErrors(std::string_view text,
                                                        const ParseOptions& options = {});

}  // namespace gpushm::annotations
