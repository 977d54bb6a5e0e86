// What the node looks like at one moment: GPUs, pods' pools, buffers, who maps them. Metrics, the
// status page and `gpushmctl top --node` show this and nothing else.
//
// GPU memory is told as operating systems tell host memory: mapped (RSS), proportional (PSS) and
// private (USS).
//
// Mapped and proportional bytes are of attachments: two processes that map one buffer map it twice.
// So the mapped bytes of all less their proportional ones are what sharing saves.
//
// Invariants
//   (1) Over each GPU, the proportional bytes of all containers sum up exactly to the physical
//       bytes of its buffers. Bytes that nobody has attached belong to the sidecar, offered ones to
//       the container that offered them.
//   (2) What is not known is absent.
//   (3) However much a broker states, a pool shows a bounded number of names. What is beyond that
//   is
//       summed up under kOthers, which no container and no buffer can be called, so that sums stay
//       what they are.
//   (4) A pod that has ended is no pool: its broker is gone, and the kubelet lists it no more. What
//       is bound and kept for it counts as such until its end is proven (docs/design/plugin.md).
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/binding/book.h"
#include "plugin/inventory/health_book.h"
#include "plugin/inventory/inventory.h"
#include "plugin/keeper/link_view.h"
#include "plugin/metrics/gpu_sample.h"

namespace gpushm::plugin {

// How the sidecar's container is called by the injector.
inline constexpr std::string_view kSidecarName = "gpushm";

// Of one pool; docs/reference/metrics.md has what is left out of what beyond it.
inline constexpr size_t kShownBuffers = 64;       // The largest.
inline constexpr size_t kShownContainers = 16;    // The first by name, and the sidecar.
inline constexpr size_t kShownAttachments = 256;  // Of a container on a buffer with one access.
inline constexpr std::string_view kOthers = "(others)";

// As labels and the status page say it.
inline std::string_view AccessName(protocol::WireAccess access) {
  return access == protocol::WireAccess::kRead ? "ro" : "rw";
}

struct AttachmentsView {  // Of one container on one buffer, with one access.
  std::string container;
  protocol::WireAccess access{};
  uint64_t count = 0;               // Attachments.
  uint64_t mapped_bytes = 0;        // Each attachment is a mapping.
  uint64_t proportional_bytes = 0;  // The container's share, of these attachments.
};

struct PoolBuffer {
  std::string name;
  std::string creator;
  std::string_view state;  // As registry::BufferStateName; "unpublished" where nobody sees it yet.
  std::string_view transport;
  uint64_t size_bytes = 0;       // Of the current generation.
  uint64_t content_bytes = 0;    // Of it; what was loaded so far while it loads.
  uint64_t allocated_bytes = 0;  // Of all generations.
  uint64_t generations = 0;
  int64_t created_unix_ns = 0;  // Of the current generation.
  std::optional<uint64_t> loaded_bytes;
  std::vector<AttachmentsView> attachments;  // By container and access.
};

struct PoolContainer {
  std::string name;
  uint64_t clients = 0;
  uint64_t mapped_bytes = 0;
  uint64_t proportional_bytes = 0;
  std::optional<uint64_t> private_bytes;
  std::optional<protocol::CounterValues> counters;  // Absent: it counted nothing.
};

struct PoolView {
  std::string allocation;  // "m0003"
  Pod pod;                 // Empty where there is no Kubernetes.
  std::string gpu;
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;
  uint64_t kept_heap_bytes = 0;           // What the plugin keeps of it takes of its own memory.
  uint64_t exhausted = 0;                 // Times that it was dropped for taking too much of that.
  std::string_view broker;                // "connected"; "away": its process lives; "none".
  std::vector<PoolBuffer> buffers;        // By name.
  std::vector<PoolContainer> containers;  // By name; the sidecar is one.
  // How many signals, barriers and rings: by kind, then by SyncState. Kinds that there are.
  std::map<signal::Kind, std::array<uint64_t, kSyncStateNames.size()>> syncs;
};

struct GpuView {
  Device device;
  bool healthy = true;
  std::string reason;
  std::string taken_by;  // As of Gpu.
  uint64_t allocatable_bytes = 0;
  uint64_t bound_bytes = 0;
  uint64_t buffers_bytes = 0;
  uint64_t saved_bytes = 0;  // By sharing.
  uint64_t kept_bytes = 0;   // Their broker is gone.
  std::optional<GpuSample> sample;
};

struct NodeView {
  std::vector<GpuView> gpus;    // As advertised.
  std::vector<PoolView> pools;  // By allocation.
};

struct NodeFacts {
  std::vector<Device> devices;
  std::vector<Gpu> gpus;  // In the same order.
  uint64_t unit_bytes = 0;
  std::vector<DeviceHealth> health;
  std::map<std::string, GpuSample> samples;  // By UUID.
  std::vector<Binding> bindings;
  std::set<std::string> unlisted;  // As of Book.
};

// Takes links one after the other, so that only one of them is there as a whole.
class NodeViewBuilder {
 public:
  // `facts` outlives it.
  explicit NodeViewBuilder(const NodeFacts& facts);

  // By name.
  void Add(const LinkView& link);
  NodeView Finish();

 private:
  const NodeFacts& facts_;
  const std::map<std::string, Pod> owners_;  // By allocation.
  NodeView node_;
};

}  // namespace gpushm::plugin
