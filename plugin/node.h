// What the allocator's decisions do on this node: specs, links, files. The only place that knows
// all of cdi and keeper.
//
// Threads: SetDevices and SetDriver before or beside any call; the Effects as the Allocator calls
// them, one at a time.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/allocator.h"
#include "plugin/cdi/driver_files.h"
#include "plugin/cdi/host_files.h"
#include "plugin/cdi/spec_store.h"
#include "plugin/inventory/inventory.h"
#include "plugin/keeper/keeper.h"
#include "plugin/kubelet/pod_resources.h"
#include "plugin/taken.h"

namespace gpushm::plugin {

class Node final : public Effects {
 public:
  // All outlive it. `pods` null: without a kubelet.
  struct Parts {
    kubelet::PodResources* pods = nullptr;
    std::string pod_resources_socket;  // Tells a kubelet's restart.
    SpecStore* specs = nullptr;
    bool cdi = true;  // The runtime reads the specs.
    HostFiles* files = nullptr;
    Keeper* keeper = nullptr;
    // How other plugins' devices are told from GPUs; null: GPUs may be theirs as well (coexist).
    TakenBook* taken = nullptr;
    std::vector<std::string> not_gpus;
    std::string plugins_registry_folder;
  };
  // `own`: library and tools on the host, without a link folder.
  Node(Parts parts, DriverFiles driver, OwnFiles own, uint64_t unit_bytes);

  void SetDevices(const std::vector<Device>& devices);
  // Why no GPU of this node is handed out; empty: it is not so.
  std::string AllTakenBy() const;

  Result<kubelet::PodList> ListPods(const Deadline& deadline) override;
  Result<void> LookAtOthers(const kubelet::PodList& pods, const Deadline& deadline) override;
  std::map<std::string, std::string> Taken() const override;
  std::vector<std::string> CdiNames(Resource resource, const std::string& name) const override;
  Result<Edits> EditsOf(const Binding& binding) const override;
  Result<void> Publish(const Binding& binding) override;
  void Retract(Resource resource, const std::string& name) override;

 private:
  struct Subject {
    Device device;
    ContainerRole role{};
    OwnFiles own;
  };
  Result<Subject> SubjectOf(const Binding& binding) const;

  const Parts parts_;
  const DriverFiles driver_;
  const OwnFiles own_;
  const Edits shared_;  // What all containers get.
  const uint64_t unit_bytes_;
  mutable std::mutex mutex_;               // Guards devices_ and parts_.taken.
  std::map<std::string, Device> devices_;  // By UUID.
};

}  // namespace gpushm::plugin
