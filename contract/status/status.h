// The plugin's /status.json (docs/reference/status.md): who holds which bytes on a node. The plugin
// writes it; `gpushmctl top --node`, the status page and users' scripts read it.
//
// Contract
//   1. Members may be added, never renamed or removed, and a reader ignores unknown ones. So it
//      takes a document of any later version.
//   2. What is not known is null in the document and absent here.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace gpushm::status {

struct Attachment {
  std::string container{};
  std::string access{};  // "ro" or "rw".
  uint64_t count = 0;
  uint64_t mapped_bytes = 0;
  uint64_t proportional_bytes = 0;
};

struct Buffer {
  std::string name{};
  std::string state{};
  std::string transport{};  // "vmm" or "cuipc".
  std::string creator{};    // Empty: an annotation declares it.
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;  // Of all generations.
  uint64_t generations = 0;
  int64_t created_unix_ms = 0;
  uint64_t content_bytes = 0;
  std::optional<uint64_t> loaded_bytes{};  // While it loads.
  // Why it has no content, in one sentence, and the status code's name; if its loader stated it.
  std::optional<std::string> reason{};
  std::optional<std::string> reason_code{};
  std::vector<Attachment> attachments{};
};

struct Container {
  std::string name{};
  uint64_t clients = 0;
  uint64_t mapped_bytes = 0;
  uint64_t proportional_bytes = 0;
  std::optional<uint64_t> private_bytes{};
  std::optional<uint64_t> private_limit_bytes{};  // What its pod reserved for that.
};

// The MPS of a pod that asked for it.
struct Mps {
  bool ready = false;
  uint64_t clients = 0;
  uint64_t daemon_restarts = 0;  // In the life of the pod, as server_restarts.
  uint64_t server_restarts = 0;
  std::optional<uint64_t> outside_processes{};  // Of its containers that use the GPU without it.
};

// What a pod has on one GPU. What it has once is with its GPU 0: `clients` of its containers, and
// its MPS.
struct Pool {
  std::string allocation{};
  std::string name_space{};  // "namespace" and "pod" are empty without Kubernetes.
  std::string pod{};
  uint64_t gpu_number = 0;  // Of this GPU in the pod.
  uint64_t pod_gpus = 1;    // How many the pod has.
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;
  std::string broker{};  // "connected", "away" or "none".
  std::vector<Buffer> buffers{};
  std::vector<Container> containers{};
  std::optional<Mps> mps{};
};

struct Gpu {
  std::string uuid{};
  uint64_t index = 0;
  std::string model{};
  std::string mig_profile{};  // Empty: a whole GPU.
  bool healthy = false;
  std::string reason{};    // Empty while it is healthy.
  std::string taken_by{};  // Who else hands it out; empty: nobody.
  std::string drained{};   // Why an operator drained it; empty: it is in service.
  // The pod that has it alone, as NAMESPACE/POD; empty: pods can share it.
  std::string exclusive_to{};
  uint64_t total_bytes = 0;
  std::optional<uint64_t> used_bytes{};
  uint64_t allocatable_bytes = 0;
  uint64_t bound_bytes = 0;
  uint64_t buffers_bytes = 0;
  std::optional<uint64_t> other_bytes{};
  uint64_t saved_bytes = 0;
  uint64_t kept_bytes = 0;
  std::optional<double> utilization{};  // 0 to 1.
  std::optional<double> temperature_celsius{};
  std::optional<double> power_watts{};
  std::optional<int64_t> sampled_unix_ms{};
  std::vector<Pool> pools{};
};

struct Resource {
  std::string name{};
  bool registered = false;
  uint64_t devices = 0;
  uint64_t unhealthy = 0;
  uint64_t bound = 0;
};

struct Node {
  std::string version{};
  std::string node{};
  int64_t time_unix_ms = 0;
  int64_t started_unix_ms = 0;
  std::vector<Gpu> gpus{};
  std::vector<Resource> resources{};
};

// One line of JSON with a line feed. Bytes that are not UTF-8 are replaced: a GPU's name is what
// its driver says.
std::string ToJson(const Node& node);

// kCorrupt, with the member that is missing or of another type.
Result<Node> FromJson(std::string_view json);

}  // namespace gpushm::status
