// What NVIDIA's own tools wrote about this host: a CDI spec of kind nvidia.com/gpu, made by
// `nvidia-ctk cdi generate` or the GPU operator. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "plugin/cdi/edits.h"

namespace gpushm::plugin::cdi {

// Eight GPUs with seven instances each, listed by index and by UUID, take 200 KB.
inline constexpr size_t kMaxNvidiaSpecBytes = size_t{4} << 20;

struct NvidiaSpec {
  Edits common;                          // For every device.
  std::map<std::string, Edits> devices;  // By name: a UUID, "0", "gpu0", "0:1", "all".
};

// Reads YAML or JSON. kNotFound: the spec has another kind. kCorrupt: it is not a spec.
// kUnsupported: it has a mount that is not a bind mount; without that mount, containers could fail
// in obscure ways.
Result<NvidiaSpec> ParseNvidiaSpec(std::string_view text);

}  // namespace gpushm::plugin::cdi
