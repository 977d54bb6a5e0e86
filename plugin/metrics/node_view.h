// The state of the node at one moment: GPUs, the pods' pools, buffers, and which processes map
// them. Metrics, the status page and `gpushmctl top --node` show this and nothing else.
//
// GPU memory is reported as operating systems report host memory: mapped (RSS), proportional (PSS)
// and private (USS).
//
// Mapped and proportional bytes refer to attachments: two processes that map one buffer map it
// twice. So the sum of mapped bytes less the sum of proportional bytes is what sharing saves.
//
// Invariants
//   (1) On each GPU, the proportional bytes of all containers add up exactly to the physical bytes
//       of its buffers. Bytes without attachments belong to the sidecar, offered ones to the
//       container that offered them.
//   (2) Unknown values are absent.
//   (3) However much a broker states, a pool shows a bounded number of names. The rest is summed up
//       under kOthers, a name that no container and no buffer can have, so that sums stay correct.
//   (4) A pod that has ended is not a pool: its broker has ended, and the kubelet no longer lists
//       it. What is bound and kept for it still counts as such until its end is proven
//       (docs/design/plugin.md).
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "contract/status/status.h"
#include "plugin/binding/book.h"
#include "plugin/inventory/health_tracker.h"
#include "plugin/inventory/inventory.h"
#include "plugin/keeper/link_view.h"
#include "plugin/metrics/gpu_sample.h"

namespace gpushm::plugin::metrics {

// The name that the injector gives to the sidecar container.
inline constexpr std::string_view kSidecarName = "gpushm";

// Limits for one pool; docs/reference/metrics.md says what is left out beyond them.
inline constexpr size_t kShownBuffers = 64;       // The largest.
inline constexpr size_t kShownContainers = 16;    // The first by name, and the sidecar.
inline constexpr size_t kShownAttachments = 256;  // Of one container on one buffer with one access.
inline constexpr std::string_view kOthers = "(others)";

// The names in labels and on the status page.
inline std::string AccessName(Access access) { return access == Access::kRead ? "ro" : "rw"; }

// `name` is POD/CONTAINER of a container in another pod, which shares the claim.
struct PoolContainer : status::Container {
  std::optional<protocol::CounterValues> counters{};  // Absent: it counted nothing.
};

// What a pod has on one GPU. A pod with several GPUs has one PoolView for each. What belongs to the
// pod as a whole is with its first GPU: connected processes, counters, signals, MPS.
struct PoolView {
  std::string allocation;  // "m0003"
  binding::Pod pod;        // Empty without Kubernetes.
  std::string gpu;
  uint32_t number = 0;    // Of that GPU in the pod.
  uint32_t pod_gpus = 1;  // How many the pod has.
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;
  uint64_t kept_heap_bytes = 0;  // Plugin memory that its kept state takes.
  uint64_t exhausted = 0;        // Times that it was dropped for taking too much of that memory.
  std::string_view broker;       // "connected", "away" (only its process lives) or "none".
  // Sorted by name. `state` is as registry::BufferStateName, or "unpublished" if no container sees
  // it yet.
  std::vector<status::Buffer> buffers;
  std::vector<PoolContainer> containers;  // Sorted by name; includes the sidecar.
  // Number of signals, barriers and rings, by kind, then by SyncState. Contains the kinds that
  // exist.
  std::map<sync::Kind, std::array<uint64_t, keeper::kSyncStateNames.size()>> syncs;
  std::optional<status::Mps> mps;  // If the pod asked for it.
};

struct GpuView {
  inventory::Device device;
  bool healthy = true;
  std::string reason;
  std::string taken_by;      // As in Gpu.
  std::string drained;       // Why an operator drained it; empty: it is in service.
  std::string exclusive_to;  // The pod that has it alone; empty: pods can share it.
  uint64_t allocatable_bytes = 0;
  uint64_t bound_bytes = 0;
  uint64_t buffers_bytes = 0;
  uint64_t saved_bytes = 0;  // Saved by sharing.
  uint64_t kept_bytes = 0;   // Of buffers whose broker has ended.
  std::optional<GpuSample> sample;
};

struct NodeView {
  std::vector<GpuView> gpus;    // As advertised.
  std::vector<PoolView> pools;  // Sorted by allocation and number.
};

struct NodeFacts {
  std::vector<inventory::Device> devices;
  std::vector<binding::Gpu> gpus;  // In the same order.
  uint64_t unit_bytes = 0;
  std::vector<inventory::DeviceHealth> health;
  std::map<std::string, GpuSample> samples;  // Keyed by UUID.
  std::vector<binding::Binding> bindings;
  std::set<std::string> unlisted;  // As from Book.
};

// Takes links one after the other, so that only one of them is in memory as a whole.
class NodeViewBuilder {
 public:
  // `facts` must outlive it.
  explicit NodeViewBuilder(const NodeFacts& facts);

  // Links must come sorted by name.
  void Add(const keeper::LinkView& link);
  NodeView Finish();

 private:
  void AddPool(const keeper::LinkView& link, const binding::Pod& pod, uint32_t number);
  // Whether what the link says of another pod may be shown under that pod's name: nothing else is.
  bool MayShow(const keeper::LinkView& link, const binding::Pod& pod);
  const NodeFacts& facts_;
  const std::map<std::string, binding::Binding> bindings_;  // Of memory, keyed by allocation.
  std::map<binding::Pod, std::string> pods_;  // The allocation that a pod's name belongs to.
  NodeView node_;
};

}  // namespace gpushm::plugin::metrics
