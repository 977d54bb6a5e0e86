// What the keeper shows of its links, for metrics and for people. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/protocol/messages.h"
#include "contract/registry/reader.h"
#include "contract/registry/record.h"
#include "contract/status/status.h"
#include "plugin/keeper/kept_counters.h"
#include "plugin/keeper/kept_state.h"
#include "plugin/keeper/sync_look.h"

namespace gpushm::plugin::keeper {

struct ClientView {
  // With the pod before it, "POD/CONTAINER", if it is another pod that shares the claim. That name
  // is what the client says.
  std::string container;
  uint64_t client_id = 0;
  // False: the process has ended; the broker or its successor will end its leases.
  bool alive = true;
};

// Small: a link can have 65,536 of them.
struct LeaseView {
  uint64_t lease_id = 0;
  uint64_t generation = 0;
  uint32_t client = 0;  // Index into LinkView::clients.
  Access access{};
};

struct GenerationView {
  uint64_t generation = 0;
  uint64_t size_bytes = 0;                  // As requested.
  std::optional<uint64_t> content_bytes{};  // Absent: nobody stated it.
  uint64_t mapped_bytes = 0;                // Physical.
  protocol::Transport transport{};
  bool pooled = true;     // False: an application offered it.
  uint32_t gpu = 0;       // Number of its GPU.
  bool published = true;  // False: only its writer sees it so far.
  int64_t created_unix_ns = 0;
};

struct BufferView {
  std::string name;
  std::string creator;  // Container; empty if the buffer is declared.
  registry::BufferState state{};
  uint64_t current = 0;  // Generation; 0: none is published.
  uint64_t loaded_bytes = 0;
  std::vector<GenerationView> generations;  // Sorted by number.
};

// A connected process that is visible to this process.
struct ClientProcess {
  uint32_t pid = 0;
  std::string allocation;
  std::string container;
  // Of the whole container, so the same for each of its processes: its own allocations that are
  // buffers as well. The broker does not state which process made them.
  uint64_t offered_bytes = 0;
};

// A pod with MPS whose broker's process is visible to this process.
struct MpsPod {
  std::string allocation;
  uint32_t broker_pid = 0;
};

// Those of the node that are visible to this process.
struct NodeProcesses {
  std::vector<ClientProcess> clients;
  std::vector<MpsPod> mps_pods;
};

struct GpuOfLink {
  std::string uuid;
  GpuBytes bytes;  // Of the buffers on it.
};

struct LinkView {
  std::string name;             // Name of the allocation.
  std::vector<GpuOfLink> gpus;  // In the order of their numbers.
  uint64_t pool_bytes = 0;      // On each of them.
  bool allocated = false;       // False: its pod has ended, and the rest of it is being removed.
  bool open = false;            // The broker's process lives.
  bool connected = false;       // It is also connected.
  std::string program;          // The name that the broker states; empty: no broker.
  std::string broker_pod{};     // The pod of the last broker, as it stated; empty: unknown.
  KeptCounts kept{};
  uint64_t kept_heap_bytes = 0;       // Plugin memory that all of it takes.
  uint64_t exhausted = 0;             // Times that it was dropped for taking too much.
  uint64_t closing = 0;               // Descriptors that are no longer kept and not closed yet.
  std::vector<ClientView> clients{};  // Sorted by client_id.
  std::vector<BufferView> buffers{};  // Sorted by name.
  std::vector<LeaseView> leases{};    // Sorted by lease_id.
  std::vector<SyncView> syncs{};      // Published signals, barriers and rings; in no order.
  // What the pod's processes counted, by container, over all brokers since the plugin knows the
  // allocation.
  std::vector<ContainerCounters> counters{};
  // From the broker's start until containers could connect. Absent: no broker, or it does not state
  // it.
  std::optional<double> broker_ready_seconds{};
  std::optional<status::Mps> mps{};  // Of its pod, if it asked for MPS.
  // Registry of the running broker. Null if there is none or its layout is unknown. Any thread.
  std::shared_ptr<const registry::RegistryReader> registry{};
};

}  // namespace gpushm::plugin::keeper
