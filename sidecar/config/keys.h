// The table of every key of the configuration: the one place from which unknown-key suggestions,
// the examples in error messages and docs/annotations.md come.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/name.h"
#include "platform/base/nearest.h"

namespace gpushm::config {

struct KeyInfo {
  std::string_view name;      // "buffers.gpushm.io/", "size", "log.level"
  std::string_view variable;  // What follows a name that ends in '/': "<name>"; otherwise empty.
  std::string_view type;
  std::string_view default_value;
  std::string_view meaning;
  // A correct value, as YAML. "$container" stands for a container of the pod.
  std::string_view example;
  // JSON Schema of the value, without its braces; empty: none is published.
  std::string_view schema = "";
};

// Keys of a pod's annotations; a name that ends in '/' is a family.
std::span<const KeyInfo> AnnotationKeys();
// Keys in the map of a buffer.
std::span<const KeyInfo> BufferKeys();
// Keys in the map of a signal.
std::span<const KeyInfo> SignalKeys();
// Keys of the broker's file; those of `log` as "log.level".
std::span<const KeyInfo> BrokerKeys();

inline constexpr std::string_view kBuffersPrefix = "buffers.gpushm.io/";
inline constexpr std::string_view kSignalsPrefix = "signals.gpushm.io/";
inline constexpr std::string_view kPrivatePrefix = "private.gpushm.io/";
inline constexpr std::string_view kPoolExtraKey = "gpushm.io/pool-extra";
inline constexpr std::string_view kHostIpcKey = "gpushm.io/host-ipc";
inline constexpr std::string_view kInjectKey = "gpushm.io/inject";
inline constexpr std::string_view kSidecarCpuKey = "sidecar.gpushm.io/cpu";
inline constexpr std::string_view kSidecarMemoryKey = "sidecar.gpushm.io/memory";
inline constexpr std::string_view kStatusKey = "gpushm.io/status";

// Whether an annotation's key is under a domain that ends in gpushm.io, in any case of letters:
// also buffers-gpushm.io, which is a slip and nobody's domain.
bool IsOurKey(std::string_view key);

// The known annotation nearest to `key` by edit distance; a family keeps the name after the slash
// where it is a valid one, and takes the one of the table's example otherwise.
std::string NearestAnnotation(std::string_view key);

// docs/annotations.md.
std::string AnnotationsMarkdown();
// docs/annotations.schema.json, of a pod's metadata.annotations.
std::string AnnotationsSchema();

}  // namespace gpushm::config
