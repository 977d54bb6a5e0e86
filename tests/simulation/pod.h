// The system under test: a pod's broker, the plugin's end of its link, clients, and whoever kills
// them. All the classes are the product's; only what stand_ins.cc and driver.cc name is replaced.
//
// Invariants, checked after each turn of the broker, when a broker has started, and at rest (when
// everybody has done all that was to do):
//   (1) A client keeps each lease that it was granted: with the same generation and rights, through
//       any number of brokers and plugins, until it gives it back or its process ends. Not what a
//       broker had not stated yet (a plugin that does not read, or has just started), when it is
//       killed before it could.
//   (2) No GPU has more memory in use than its pool. No memory has two writers where one is
//       allowed.
//   (3) A generation's number means one piece of memory, over all brokers of the pod, whatever the
//       clock says. A lease is granted once.
//   (4) A successor knows what its predecessor knew when it was killed at rest.
//   (5) At rest, the plugin keeps exactly what the broker has.
//   (6) Each request is answered before a minute of virtual time has passed, with success or with a
//       reason that a client can cause. Each broker starts.
//   (7) At rest, the cells of those who are gone, or whom the broker does not know, have ended and
//       release their waiters. Those of the others never have.
//   (8) At the end, when all clients are gone: no lease, no client, and no descriptor is left, in
//       the broker or in the plugin, except what the remaining buffers need. Then whatever the pod
//       declares can be attached for writing.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/keeper/link_server.h"
#include "sidecar/broker/broker.h"
#include "tests/simulation/client.h"
#include "tests/simulation/world.h"

namespace gpushm::simulation {

class Pod : private World::Watcher {
 public:
  // In the current folder, which must be empty.
  Pod(World* world, uint64_t turns);

  // Runs the whole life of the pod; World::failure() has the result.
  void Live();

  // What happened in it, to see that seeds are not too tame.
  struct Tally {
    uint64_t grants = 0;
    uint64_t brokers_killed = 0;
    uint64_t killed_in_callback = 0;  // Of these.
    uint64_t killed_in_start = 0;
    uint64_t plugins_killed = 0;
    uint64_t clients_killed = 0;
    uint64_t leases_restored = 0;
    uint64_t successors_compared = 0;
    uint64_t cells_ended = 0;  // Seen at rest, by those who died.
    uint64_t requests_failed = 0;
  };
  static constexpr size_t kTallies = sizeof(Tally) / sizeof(uint64_t);
  const Tally& tally() const { return tally_; }
  void CountGrant() { ++tally_.grants; }
  void CountFailure() { ++tally_.requests_failed; }

  // ---- for clients
  bool paused() const { return paused_; }
  bool over() const { return over_; }
  int NextClientNumber() { return ++last_client_; }
  std::string SocketOf(const std::string& container) const;
  std::array<uint8_t, 16> gpu_bytes() const;
  uint64_t CurrentOf(const std::string& name) const;
  // Memory that a client got under this number; -1: no descriptor came.
  void OnGeneration(uint64_t generation, int memory);
  void OnCell(Client* client, uint64_t lease, sync::Cell* cell);
  // Whether leases that this broker granted may be lost.
  bool IsForgiven(uint64_t epoch) const {
    return epoch <= forgiven_up_to_ || forgiven_.contains(epoch);
  }

 private:
  // How rough this world is; 0: never.
  struct Mood {
    uint64_t broker_dies_one_in = 0;
    uint64_t plugin_dies_one_in = 0;
    uint64_t client_dies_one_in = 0;
    uint64_t link_breaks_one_in = 0;
    uint64_t message_is_last_one_in = 0;
    uint64_t freezes_one_in = 0;
    uint64_t gpu_changes_one_in = 0;
  };
  struct OwnedCell {
    const Client* client = nullptr;
    uint64_t lease = 0;
    sync::Cell* cell = nullptr;
    uint64_t owners = 0;  // Of the cell, with this one.
    uint64_t generation = 0;
    bool sure = true;  // As Held::sure.
  };

  void OnLog(Process& process, std::string_view event) override;

  void StartPlugin();
  void StartBroker();
  void BrokerMain();
  void PluginMain();
  void AddClient();
  void BeRough();
  void KillDoomed();
  void KillBroker();
  void KillPlugin();
  void KillClient();
  void BreakLink();
  bool alive(const Process* process) const { return process != nullptr && !process->ended; }
  // What was not stated to the plugin may be lost now: all, or what this broker granted.
  void Forgive(bool all);

  void Rest();
  void End();
  void CheckBroker();
  void CheckSuccessor();
  void CheckAtRest();
  void CheckCells(bool at_rest);
  void CheckKept();
  void CheckDescriptors();
  // Whether the process of that client lives. After a loss that was forgiven, a broker may also
  // know it by a number that it no longer uses, with a lease that it has given back.
  bool Lives(uint64_t client) const;
  bool IsBrokerReady() const { return alive(broker_process_) && broker_ != nullptr; }

  World* const world_;
  const uint64_t turns_;
  Mood mood_;
  std::string config_;
  bool paused_ = false;
  bool over_ = false;
  int last_client_ = 0;

  Process* plugin_process_ = nullptr;
  plugin::keeper::LinkServer* plugin_ = nullptr;
  Process* broker_process_ = nullptr;
  broker::Broker* broker_ = nullptr;  // Of broker_process_, once it is ready.
  broker::Broker* former_ = nullptr;  // Killed at rest, and all of it was stated.
  bool checks_successor_ = false;
  bool plugin_is_first_ = false;  // The plugin has lived as long as the broker.
  bool link_is_up_ = false;
  uint64_t epoch_ = 0;
  int brokers_ = 0;
  int plugins_ = 0;
  int64_t broker_due_ns_ = 0;
  int64_t plugin_due_ns_ = 0;
  bool gpu_lost_ = false;

  std::vector<std::unique_ptr<Client>> clients_;
  std::map<uint64_t, uint64_t> memory_of_;  // The file of each generation.
  std::vector<OwnedCell> cells_;
  Tally tally_;
  uint64_t forgiven_up_to_ = 0;
  std::set<uint64_t> forgiven_;
};

}  // namespace gpushm::simulation
