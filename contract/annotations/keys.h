// The table of a pod's annotations. Suggestions for unknown keys, the examples in error messages
// and docs/reference/annotations.md all come from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/name.h"
#include "platform/base/nearest.h"
#include "platform/yaml/keyed_reader.h"

namespace gpushm::annotations {

// Keys of a pod's annotations. A name that ends in '/' is a family of keys.
std::span<const yaml::KeyInfo> AnnotationKeys();
// Keys in the map of a buffer.
std::span<const yaml::KeyInfo> BufferKeys();
// Keys in the map of a signal.
std::span<const yaml::KeyInfo> SignalKeys();

inline constexpr std::string_view kBuffersPrefix = "buffers.gpushm.io/";
inline constexpr std::string_view kSignalsPrefix = "signals.gpushm.io/";
inline constexpr std::string_view kPrivatePrefix = "private.gpushm.io/";
inline constexpr std::string_view kPoolExtraKey = "gpushm.io/pool-extra";
inline constexpr std::string_view kHostIpcKey = "gpushm.io/host-ipc";
inline constexpr std::string_view kCudaIpcKey = "gpushm.io/cuda-ipc";
inline constexpr std::string_view kMpsKey = "gpushm.io/mps";
inline constexpr std::string_view kMpsUidKey = "gpushm.io/mps-uid";
inline constexpr std::string_view kEnforcePrivateKey = "gpushm.io/enforce-private";
inline constexpr std::string_view kComputePrefix = "compute.gpushm.io/";
inline constexpr std::string_view kGpusKey = "gpushm.io/gpus";
inline constexpr std::string_view kTopologyKey = "gpushm.io/topology";
inline constexpr std::string_view kExclusiveKey = "gpushm.io/exclusive";
// Also the key of the namespaces' label, which the webhooks' selectors read.
inline constexpr std::string_view kAllocationKey = "gpushm.io/allocation";
inline constexpr std::string_view kClaimKey = "gpushm.io/claim";
inline constexpr std::string_view kRoleKey = "gpushm.io/role";
inline constexpr std::string_view kInjectKey = "gpushm.io/inject";
inline constexpr std::string_view kSidecarCpuKey = "sidecar.gpushm.io/cpu";
inline constexpr std::string_view kSidecarMemoryKey = "sidecar.gpushm.io/memory";
inline constexpr std::string_view kLoaderCpuKey = "loader.gpushm.io/cpu";
inline constexpr std::string_view kLoaderMemoryKey = "loader.gpushm.io/memory";
inline constexpr std::string_view kStatusKey = "gpushm.io/status";

// What gpushm.io/cuda-ipc brings: the broker puts it there, and the injector mounts it into
// containers.
inline constexpr char kCudaIpcFolder[] = "/run/gpushm-cuda-ipc";
inline constexpr char kCudaIpcLibrary[] = "libgpushm-cudaipc.so";

// Whether the domain of an annotation's key ends in gpushm.io, in upper or lower case. This
// includes buffers-gpushm.io, which is a typing mistake and nobody's real domain.
bool IsOurKey(std::string_view key);

// The known annotation nearest to `key` by edit distance. A key of a family keeps the name after
// the slash if it is valid, and otherwise gets the name from the table's example.
std::string NearestAnnotation(std::string_view key);

}  // namespace gpushm::annotations
