// Carries out the allocator's decisions on this node: specs, links, files. The only code that knows
// all of cdi and keeper.
//
// Threads: the Effects as the Allocator calls them, one at a time; AllTakenBy any.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/allocation/allocator.h"
#include "plugin/cdi/driver_files.h"
#include "plugin/cdi/host_files.h"
#include "plugin/cdi/spec_store.h"
#include "plugin/inventory/inventory.h"
#include "plugin/inventory/taken.h"
#include "plugin/keeper/keeper.h"
#include "plugin/kubelet/pod_resources.h"

namespace gpushm::plugin::allocation {

class Node final : public Effects {
 public:
  // All must outlive it. `pods` null: there is no kubelet.
  struct Parts {
    kubelet::PodResources* pods = nullptr;
    std::string pod_resources_socket;  // Shows when the kubelet restarts.
    cdi::SpecStore* specs = nullptr;   // Null: there is no kubelet.
    cdi::HostFiles* files = nullptr;
    keeper::Keeper* keeper = nullptr;
    // Distinguishes other plugins' devices from GPUs; null: other plugins may hand out GPUs too
    // (coexist).
    inventory::TakenGpus* taken = nullptr;
    std::vector<std::string> not_gpus;
    std::string plugins_registry_folder;
    std::string state_folder;
  };
  // `own`: the library and tools on the host, without a link folder. `devices`: all of the node.
  Node(Parts parts, cdi::DriverFiles driver, cdi::OwnFiles own, uint64_t unit_bytes,
       const std::vector<inventory::Device>& devices);

  // Who may hand out any GPU of this node, so that this plugin hands out none; empty: nobody.
  std::string AllTakenBy() const;

  Result<kubelet::PodList> ListPods(const Deadline& deadline) override;
  Result<void> LookAtOthers(const kubelet::PodList& pods, const Deadline& deadline) override;
  std::map<std::string, std::string> Taken() const override;
  std::map<std::string, std::string> Drained() const override;
  std::vector<std::string> CdiNames(binding::Resource resource,
                                    const std::string& name) const override;
  Result<void> Publish(const binding::Binding& binding) override;
  void Retract(binding::Resource resource, const std::string& name) override;
  void RetractClaim(const std::string& uid) override;
  Result<void> CheckClaimIsUnused(const std::string& uid) override;

 private:
  struct Subject {
    std::vector<inventory::Device> devices;
    cdi::ContainerRole role{};
    cdi::OwnFiles own;
  };
  Result<Subject> SubjectOf(const binding::Binding& binding) const;
  Result<bool> WriteSpec(const binding::Binding& binding, const Subject& subject);
  void CloseLink(const std::string& name);

  const Parts parts_;
  const cdi::DriverFiles driver_;
  const cdi::OwnFiles own_;
  const cdi::Edits shared_;  // What all containers get.
  const uint64_t unit_bytes_;
  std::map<std::string, inventory::Device> devices_;  // Keyed by UUID.
  mutable std::mutex mutex_;                          // Guards parts_.taken.
};

}  // namespace gpushm::plugin::allocation
