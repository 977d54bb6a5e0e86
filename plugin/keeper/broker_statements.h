// What the brokers of one allocation have stated: kept state, registry, counters and pod. Applies
// their statements and shows the result.
//
// Invariant: a descriptor that a statement does not need, or may not have, stays with its message.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/link.h"
#include "contract/registry/reader.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/descriptor.h"
#include "plugin/keeper/kept_counters.h"
#include "plugin/keeper/kept_state.h"
#include "plugin/keeper/link_view.h"

namespace gpushm::plugin::keeper {

class BrokerStatements {
 public:
  explicit BrokerStatements(MemoryKind memory) : memory_(memory) {}

  // A broker has connected, and states everything that exists until its End. If it has state, what
  // was kept of another epoch is forgotten at once: each run has its own client and lease numbers.
  void Begin(const protocol::LinkHello& hello);
  // `gpus`: how many the allocation has. kCorrupt: the statement breaks a rule. kInvalidArgument:
  // its descriptor is not what it must be. kExhausted: as KeptState::Apply.
  Result<void> Apply(protocol::LinkKind kind, protocol::Message& message, size_t gpus);
  // The broker's process has ended. What is kept stays.
  void EndBroker();
  // Forgets what is kept.
  void Forget();
  // The allocation has another holder: forgets what was counted, except for Count.
  void NewHolder();

  // States all that is kept to the plugin at the other end, as the broker would.
  Result<void> StateAllTo(int socket, const Deadline& deadline) const;

  const KeptState& kept() const { return kept_; }
  // Descriptors that are no longer kept.
  std::vector<UniqueFd> TakeDiscarded() { return kept_.TakeDiscarded(); }
  // The time that the broker took until it was ready: once for each broker.
  std::optional<double> TakeReadySeconds();
  // As LinkServer's.
  void Count(protocol::CounterValues* sum, protocol::CounterValues* ended);
  size_t CountUsers() const;
  // Adds clients to `out`, as those of that allocation.
  void AddClients(const std::string& allocation, NodeProcesses* out) const;
  bool has_mps() const { return counters_.mps().has_value(); }
  // Fills in what brokers state.
  void Show(LinkView* view);

 private:
  Result<void> TakeRegistry(protocol::Message& message);
  Result<void> TakeCounters(const protocol::Message& message);
  Result<void> CheckGeneration(const protocol::LinkGeneration& generation, int descriptor) const;
  void ShowBuffers(LinkView* view) const;

  const MemoryKind memory_;
  KeptState kept_;
  uint64_t epoch_ = 0;      // Of the broker that made the last statement; 0: nothing is kept.
  std::string broker_pod_;  // As the last broker stated it; empty: none did.
  std::shared_ptr<const registry::RegistryReader> registry_;
  KeptCounters counters_;
  protocol::CounterValues ended_counters_{};  // Of former holders; until Count.
  bool ready_told_ = false;                   // For the current broker.
  // What the broker has stated since Begin.
  bool stated_registry_ = false;
  bool stated_counters_ = false;
  bool stated_end_ = false;
};

}  // namespace gpushm::plugin::keeper
