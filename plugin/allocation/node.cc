#include "plugin/allocation/node.h"

#include <sys/stat.h>

#include <set>

#include "contract/status/drained.h"
#include "platform/base/clock.h"
#include "platform/daemon/log.h"
#include "plugin/dra/claim.h"

namespace gpushm::plugin::allocation {
namespace {

// The kubelet creates its socket anew at each start.
uint64_t KubeletRun(const std::string& socket) {
  struct stat info{};
  if (stat(socket.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_ino) * 1'000'000'007u ^
         static_cast<uint64_t>(info.st_ctim.tv_sec) << 30 ^
         static_cast<uint64_t>(info.st_ctim.tv_nsec);
}

}  // namespace

Node::Node(Parts parts, cdi::DriverFiles driver, cdi::OwnFiles own, uint64_t unit_bytes,
           const std::vector<inventory::Device>& devices)
    : parts_(std::move(parts)),
      driver_(std::move(driver)),
      own_(std::move(own)),
      shared_(cdi::SharedEdits(driver_, own_)),
      unit_bytes_(unit_bytes) {
  for (const inventory::Device& device : devices) devices_[device.uuid] = device;
}

Result<kubelet::PodList> Node::ListPods(const Deadline& deadline) {
  if (parts_.pods == nullptr) return Fail(Code::kUnavailable, "this plugin runs without a kubelet");
  const uint64_t run = KubeletRun(parts_.pod_resources_socket);
  Result<kubelet::PodList> pods = parts_.pods->List(deadline);
  // If the kubelet restarted in between, it is unknown which of the two answered.
  if (pods && KubeletRun(parts_.pod_resources_socket) == run) pods->snapshot.kubelet_run = run;
  return pods;
}

Result<void> Node::LookAtOthers(const kubelet::PodList& pods, const Deadline& deadline) {
  if (parts_.taken == nullptr) return {};
  auto allocatable = parts_.pods->Allocatable(deadline);
  if (!allocatable) return std::unexpected(allocatable.error());
  kubelet::OtherDevices others = std::move(allocatable->others);
  // A plugin that has ended advertises nothing, but its pods keep what they have.
  for (const auto& [resource, ids] : pods.others) others[resource].insert(ids.begin(), ids.end());
  others.erase(dra::kDriverName);  // The plugin's own claims.
  const bool dra = others.erase(inventory::kDraDriver) > 0 ||
                   inventory::DraDriverServes(parts_.plugins_registry_folder);
  std::vector<inventory::Device> devices;
  for (const auto& [uuid, device] : devices_) devices.push_back(device);
  inventory::Takers seen = inventory::FindTaken(devices, others, parts_.not_gpus);
  if (dra) seen[inventory::kAnyGpu] = {"NVIDIA's driver for dynamic resource allocation", ""};
  std::set<std::string> offering;
  for (const auto& [resource, ids] : others) {
    if (!ids.empty()) offering.insert(resource);
  }
  const std::lock_guard lock(mutex_);
  parts_.taken->Observe(seen, offering, MonotonicNs() / 1'000'000);
  return {};
}

std::map<std::string, std::string> Node::Taken() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> taken;
  if (parts_.taken == nullptr) return taken;
  for (const auto& [uuid, device] : devices_) {
    const std::string by = parts_.taken->By(uuid);
    if (!by.empty()) taken[uuid] = by;
  }
  return taken;
}

std::map<std::string, std::string> Node::Drained() const {
  return status::ReadDrained(parts_.state_folder);
}

std::string Node::AllTakenBy() const {
  const std::lock_guard lock(mutex_);
  return parts_.taken == nullptr ? std::string() : parts_.taken->By(inventory::kAnyGpu);
}

std::vector<std::string> Node::CdiNames(binding::Resource resource, const std::string& name) const {
  return {std::string(cdi::kSharedCdiName), cdi::CdiName(resource, name)};
}

Result<Node::Subject> Node::SubjectOf(const binding::Binding& binding) const {
  const bool sidecar = binding.resource == binding::Resource::kMemory;
  Subject subject{.devices = {},
                  .role = sidecar ? cdi::ContainerRole::kSidecar : cdi::ContainerRole::kApplication,
                  .own = own_};
  if (sidecar) subject.own.link_folder = parts_.files->LinkFolder(binding.name());
  for (const std::string& gpu : binding.gpus) {
    const auto found = devices_.find(gpu);
    if (found == devices_.end()) {
      return Fail(Code::kDeviceLost, Concat("GPU ", gpu, " is no longer on this node"),
                  "delete the pod to have it placed again");
    }
    subject.devices.push_back(found->second);
  }
  return subject;
}

Result<void> Node::Publish(const binding::Binding& binding) {
  const Result<Subject> subject = SubjectOf(binding);
  if (!subject) return std::unexpected(subject.error());
  if (binding.resource == binding::Resource::kMemory) {
    const Result<std::string> folder = parts_.files->MakeLinkFolder(binding.name());
    if (!folder) return std::unexpected(folder.error());
    if (binding.others != claims::Others::kNone) {
      const Result<std::string> others = parts_.files->MakeOthersFolder(binding.name());
      if (!others) return std::unexpected(others.error());
    }
    if (binding.mps) {
      const Result<std::string> mps = parts_.files->MakeMpsFolder(binding.name());
      if (!mps) return std::unexpected(mps.error());
    }
    const keeper::LinkTerms terms{.gpus = binding.gpus,
                                  .pool_bytes = binding.BytesOfEach(unit_bytes_),
                                  .pod = binding.owner.pod.ToString(),
                                  .others = binding.others};
    if (auto opened = parts_.keeper->Open(binding.name(), terms); !opened) return opened;
  }
  // Written again, in case somebody emptied the folder.
  const Result<bool> shared = parts_.specs->WriteShared(shared_);
  if (!shared) return std::unexpected(shared.error());
  const Result<bool> written = WriteSpec(binding, *subject);
  if (!written) return std::unexpected(written.error());
  return {};
}

Result<bool> Node::WriteSpec(const binding::Binding& binding, const Subject& subject) {
  const Result<cdi::Edits> edits =
      cdi::BindingEdits(driver_, subject.devices, subject.role, subject.own);
  if (!edits) return std::unexpected(edits.error());
  if (!binding.IsClaim()) return parts_.specs->Write(binding, *edits);
  cdi::OwnFiles without_link = subject.own;
  without_link.link_folder.clear();
  Result<cdi::Edits> app =
      cdi::BindingEdits(driver_, subject.devices, cdi::ContainerRole::kApplication, without_link);
  if (!app) return std::unexpected(app.error());
  if (binding.others != claims::Others::kNone) {
    app->mounts.push_back({.host_path = parts_.files->OthersFolder(binding.name()),
                           .container_path = protocol::kClaimFolder});
  }
  cdi::ClaimEdits claim = {.broker = *edits, .app = *app, .mps = {}};
  if (binding.mps) {
    cdi::Mount folder{.host_path = parts_.files->MpsFolder(binding.name()),
                      .container_path = claims::kMpsFolder};
    claim.broker.mounts.push_back(folder);
    claim.app.mounts.push_back(folder);
    folder.read_only = false;
    claim.mps = *app;
    claim.mps->mounts.push_back(folder);
  }
  return parts_.specs->WriteClaim(binding, claim);
}

// Logs and leaves what it cannot remove: the next Publish under that name replaces it.
void Node::Retract(binding::Resource resource, const std::string& name) {
  const auto removed = parts_.specs->Remove(resource, name);
  if (!removed) {
    LogError("not-removed", {{"allocation", name}, {"reason", removed.error().ToString()}});
  }
  if (resource == binding::Resource::kMemory) CloseLink(name);
}

void Node::RetractClaim(const std::string& uid) {
  const auto removed = parts_.specs->RemoveClaim(uid);
  if (!removed)
    LogError("not-removed", {{"allocation", uid}, {"reason", removed.error().ToString()}});
  CloseLink(uid);
}

Result<void> Node::CheckClaimIsUnused(const std::string& uid) {
  constexpr int64_t kAnswerMs = 1000;
  const auto living = parts_.keeper->CountUsers(uid, Deadline::AfterMs(kAnswerMs));
  if (living && *living == 0) return {};
  return Fail(Code::kBusy,
              living ? Concat(*living, " processes still hold memory of claim ", uid)
                     : Concat("it is not known whether processes still hold memory of claim ", uid),
              "the kubelet tries again by itself");
}

void Node::CloseLink(const std::string& name) {
  parts_.keeper->Close(name);
  const auto folder = parts_.files->RemoveLinkFolder(name);
  if (!folder)
    LogError("not-removed", {{"allocation", name}, {"reason", folder.error().ToString()}});
}

}  // namespace gpushm::plugin::allocation
