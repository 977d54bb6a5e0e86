// What NVIDIA's own tools wrote down of this host: a CDI spec of kind nvidia.com/gpu, as
// `nvidia-ctk cdi generate` and the GPU operator make it. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "plugin/cdi/edits.h"

namespace gpushm::plugin {

// Eight GPUs with seven instances each, by index and by UUID, are 200 KB.
inline constexpr size_t kMaxNvidiaSpecBytes = size_t{4} << 20;

struct NvidiaSpec {
  Edits common;                          // For every device.
  std::map<std::string, Edits> devices;  // By name: a UUID, "0", "gpu0", "0:1", "all".
};

// YAML or JSON. kNotFound: of another kind. kCorrupt: no spec. kUnsupported: it has a mount that is
// no bind mount; leaving that out could make containers that fail in strange ways.
Result<NvidiaSpec> ParseNvidiaSpec(std::string_view text);

}  // namespace gpushm::plugin
