// What a pod asks of gpushm: the syntax of its annotations. One parser for the broker (environment
// or file) and the admission webhook (a pod's metadata), so that the broker accepts whatever the
// webhook accepts.
//
// Contract:
//   1. Every error of a text is reported, not only the first (up to kErrorsKept), each with its
//      place, the reason and an example that itself parses.
//   2. Nothing is ignored silently: an unknown key under gpushm.io or *.gpushm.io is an error that
//      names the nearest known one. Keys of other domains are not ours and skipped.
//   3. Bounded: kConfigBytes per text, a fixed nesting depth, no anchors, aliases or tags;
//      no exception leaves the module.
//   4. What is returned holds together: sizes within limits::kBufferBytes, writers among the
//      containers that may attach, containers among those of the pod where these are known.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "platform/base/status.h"
#include "platform/yaml/error_list.h"
#include "platform/yaml/quantity.h"

namespace gpushm::config {

enum class Access {
  kManyWriters,  // Any number of writers at the same time; they arrange themselves.
  kOneWriter,    // At most one attachment for writing at a time.
  kReadOnly,     // Nobody maps it writable; its content comes from a load.
};

// What becomes of a buffer whose writer dies while it has it attached for writing.
enum class OnWriterExit {
  kMark,  // Kept, and marked as left by a dead writer.
  kKeep,  // Kept, nothing said.
  kDrop,  // The generation is withdrawn.
};

// As written in annotations: "many-writers", "mark" ...
std::string_view AccessName(Access access);
std::string_view OnWriterExitName(OnWriterExit action);

struct BufferSpec {
  std::string name{};       // A DNS label.
  uint64_t size_bytes = 0;  // As asked, not rounded; > 0.
  uint32_t generations = 1;
  Access access = Access::kManyWriters;
  // Sorted, without duplicates. Empty: every container.
  std::vector<std::string> containers{};  // Who may attach at all.
  std::vector<std::string> writers{};     // Who may attach for writing; those of `containers`.
  OnWriterExit on_writer_exit = OnWriterExit::kMark;
  // Exactly as written: "<volume>/<path>", or an absolute path where ParseOptions allow it. Empty:
  // none.
  std::string file{};
  bool loads = false;  // Somebody will load it through the broker.

  // Its state starts as loading.
  bool StartsLoading() const { return loads || !file.empty(); }
  bool MayAttach(std::string_view container) const;
  // False for everybody where access is read-only.
  bool MayWrite(std::string_view container) const;

  // `file` taken apart, for "<volume>/<path>"; volume is empty for an absolute path.
  std::string_view FileVolume() const;
  std::string_view FilePath() const;

  friend bool operator==(const BufferSpec&, const BufferSpec&) = default;
};

// A signal: one process at a time writes it.
struct SignalSpec {
  std::string name{};  // A DNS label, and no buffer's.
  // As those of a buffer.
  std::vector<std::string> containers{};  // Who may open it at all.
  std::vector<std::string> writers{};     // Who may write it; those of `containers`.

  bool MayAttach(std::string_view container) const;

  friend bool operator==(const SignalSpec&, const SignalSpec&) = default;
};

static_assert(limits::kBufferBytes == kMostBytes,
              "a size that parses is one that a buffer may have");

// Half of what pages may take, at a page of 4 KiB each: every signal can have a successor while the
// old one is held.
inline constexpr size_t kMostSignals = limits::kAllPagesBytes / 2 / 4096;

struct SidecarResources {
  std::optional<uint64_t> cpu_millis;
  std::optional<uint64_t> memory_bytes;

  friend bool operator==(const SidecarResources&, const SidecarResources&) = default;
};

// What the annotations of one pod say.
struct PodSpec {
  std::vector<BufferSpec> buffers;  // Ordered by name.
  std::vector<SignalSpec> signals;  // The same.
  // Bytes set aside for a container's own contexts and allocations. Where the pod's containers are
  // known, each one that attaches has an entry (1 GiB unless the pod says otherwise); otherwise
  // only those that the pod names.
  std::map<std::string, uint64_t> private_bytes;
  uint64_t pool_extra_bytes = 0;  // For buffers created at run time.
  bool host_ipc = false;
  bool inject = true;  // False: the pod opts out of the webhook.
  SidecarResources sidecar;

  const BufferSpec* Find(std::string_view name) const;
  // Whether something is not for every container: a list of containers or of writers.
  bool HasAccessLists() const;
  // Whether anything here needs a sidecar.
  bool AsksForSidecar() const {
    return !buffers.empty() || !signals.empty() || pool_extra_bytes > 0 || !private_bytes.empty() ||
           host_ipc;
  }

  friend bool operator==(const PodSpec&, const PodSpec&) = default;
};

using Annotations = std::map<std::string, std::string>;

struct ParseOptions {
  // The pod's application containers. Given: every name in a list must be one of them, and
  // private_bytes gets its defaults. Not given: any valid container name will do.
  std::optional<std::vector<std::string>> containers{};
  // Others of the pod that may be named, but are not meant where nobody is.
  std::vector<std::string> more_containers{};
  // Containers of the pod that can never attach, and why: naming one is an error with that reason.
  std::map<std::string, std::string> unfit_containers{};
  // `file:` may be an absolute path (a broker run by hand; in a pod it names a volume).
  bool allow_absolute_file = false;
};

inline constexpr uint64_t kDefaultPrivateBytes = uint64_t{1} << 30;
// The annotations of a pod's metadata. Each value is text; those of buffers are a quantity or a
// YAML map, those of signals nothing or a YAML map.
Result<PodSpec> ParseAnnotations(const Annotations& annotations, const ParseOptions& options = {});
OrErrors<PodSpec> ParseAnnotationsOrErrors(const Annotations& annotations,
                                           const ParseOptions& options = {});

// The same annotations as one YAML map, from the environment variable GPUSHM_BUFFERS. Values may
// also be maps that are not in quotes. An empty text is an empty specification.
inline constexpr std::string_view kBuffersVariable = "GPUSHM_BUFFERS";
Result<PodSpec> ParseBuffersEnvironment(std::string_view text, const ParseOptions& options = {});
OrErrors<PodSpec> ParseBuffersEnvironmentOrErrors(std::string_view text,
                                                  const ParseOptions& options = {});

}  // namespace gpushm::config
