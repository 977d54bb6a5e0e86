// The plugin's /status.json (docs/reference/status.md): who holds which bytes on this node. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/ctl/views.h"

namespace gpushm::ctl {

// What is shown here; members of the document that nothing shows are not read.
struct NodeStatus {
  struct Attachment {
    std::string container;
    std::string access;
    uint64_t count = 0;
    uint64_t mapped_bytes = 0;
    uint64_t proportional_bytes = 0;
  };
  struct Buffer {
    std::string name;
    std::string state;
    uint64_t allocated_bytes = 0;
    std::vector<Attachment> attachments;
  };
  struct Pool {
    std::string pod;  // "namespace/pod"; without Kubernetes the allocation.
    std::string broker;
    uint64_t size_bytes = 0;
    uint64_t private_bytes = 0;  // As far as it is known.
    std::vector<Buffer> buffers;
  };
  struct Gpu {
    uint64_t index = 0;
    std::string model;
    std::string mig_profile;
    bool healthy = false;
    std::string reason;
    uint64_t total_bytes = 0;
    std::optional<uint64_t> used_bytes;
    uint64_t allocatable_bytes = 0;
    uint64_t bound_bytes = 0;
    uint64_t buffers_bytes = 0;
    std::optional<uint64_t> other_bytes;
    uint64_t saved_bytes = 0;
    std::optional<double> utilization;
    std::optional<double> temperature_celsius;
    std::optional<double> power_watts;
    std::vector<Pool> pools;
  };
  std::string node;
  int64_t time_unix_ms = 0;
  std::vector<Gpu> gpus;
};

// CORRUPT, with what is missing, for a document that is not one of these.
Result<NodeStatus> ParseNodeStatus(std::string_view json);

struct NodeStyle {
  Style style;
  bool unicode = false;
  int columns = 80;
  int rows = 0;  // Lines at most; 0: no limit.
};
// A bar for each GPU, then a line for each holder of each buffer.
std::string NodeText(const NodeStatus& node, const NodeStyle& style);

}  // namespace gpushm::ctl
