// What the keeper shows of its links: for metrics and for people. Plain values.
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
#include "plugin/keeper/kept.h"
#include "plugin/keeper/kept_counters.h"
#include "plugin/keeper/sync_look.h"

namespace gpushm::plugin {

struct ClientView {
  std::string container;
  uint64_t client_id = 0;
  bool alive = true;  // Its process. False: the broker will end its leases, or the next one.
};

// Small: a link can have 65,536 of them.
struct LeaseView {
  uint64_t lease_id = 0;
  uint64_t generation = 0;
  uint32_t client = 0;  // Its place in LinkView::clients.
  protocol::WireAccess access{};
};

struct GenerationView {
  uint64_t generation = 0;
  uint64_t size_bytes = 0;                  // As asked for.
  std::optional<uint64_t> content_bytes{};  // Absent: nobody said it.
  uint64_t mapped_bytes = 0;                // Physical.
  protocol::Transport transport{};
  bool pooled = true;     // False: an application offered it.
  bool published = true;  // False: only its writer sees it yet.
  int64_t created_unix_ns = 0;
};

struct BufferView {
  std::string name;
  std::string creator;  // Container; empty where it is declared.
  registry::BufferState state{};
  uint64_t current = 0;  // Generation; 0: none is published yet.
  uint64_t loaded_bytes = 0;
  std::vector<GenerationView> generations;  // By number.
};

// A connected process that this process can see.
struct ClientProcess {
  uint32_t pid = 0;
  std::string allocation;
  std::string container;
  // Of the whole container, the same for each of its processes: its own allocations that are
  // buffers as well. The broker does not say which of them allocated what.
  uint64_t offered_bytes = 0;
};

struct LinkView {
  std::string name;  // Of the allocation.
  std::string gpu;   // UUID
  uint64_t pool_bytes = 0;
  bool granted = false;    // False: its pod has ended; what is left of it is on its way out.
  bool open = false;       // The broker's process lives.
  bool connected = false;  // And its socket stands.
  std::string program;     // As it calls itself; empty: there is none.
  KeptCounts kept;
  uint64_t kept_heap_bytes = 0;     // What all of that takes of the plugin's memory.
  uint64_t exhausted = 0;           // Times that it was dropped for taking too much.
  uint64_t closing = 0;             // Descriptors that are kept no more and not closed yet.
  std::vector<ClientView> clients;  // By client_id.
  std::vector<BufferView> buffers;  // By name.
  std::vector<LeaseView> leases;    // By lease_id.
  std::vector<SyncView> syncs;      // Signals, barriers and rings that are published; no order.
  // What the pod's processes counted, by container, over all brokers since the plugin knows the
  // allocation. Empty: no broker of link version 2 was there.
  std::vector<ContainerCounters> counters;
  // From its start until containers could connect; absent: it is not there, or does not tell.
  std::optional<double> broker_ready_seconds;
  // Of the broker whose process lives; null if there is none or its layout is unknown. Any thread.
  std::shared_ptr<const registry::RegistryReader> registry;
};

}  // namespace gpushm::plugin
