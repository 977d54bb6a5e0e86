#include "plugin/node.h"

#include "runtime/daemon/log.h"

namespace gpushm::plugin {

Node::Node(Parts parts, DriverFiles driver, OwnFiles own, uint64_t unit_bytes)
    : parts_(parts), driver_(std::move(driver)), own_(std::move(own)), unit_bytes_(unit_bytes) {}

void Node::SetDevices(const std::vector<Device>& devices) {
  const std::lock_guard lock(mutex_);
  for (const Device& device : devices) devices_[device.uuid] = device;
}

Result<kubelet::PodList> Node::ListPods(const Deadline& deadline) {
  if (parts_.pods == nullptr) return Fail(Code::kUnavailable, "this plugin serves no kubelet");
  return parts_.pods->List(deadline);
}

std::string Node::CdiName(Resource resource, const std::string& name) const {
  return plugin::CdiName(resource, name);
}

Result<Edits> Node::EditsOf(const Binding& binding) const {
  Device device;
  {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(binding.gpu);
    if (found == devices_.end()) {
      return Fail(Code::kDeviceLost, Concat("GPU ", binding.gpu, " is not on this node any more"),
                  "delete the pod to have it placed anew");
    }
    device = found->second;
  }
  const bool sidecar = binding.resource == Resource::kMemory;
  OwnFiles own = own_;
  if (sidecar) own.link_folder = parts_.files->LinkFolder(binding.name());
  return EditsFor(driver_, device, sidecar ? ContainerRole::kSidecar : ContainerRole::kApplication,
                  own);
}

Result<void> Node::Publish(const Binding& binding) {
  const Result<Edits> edits = EditsOf(binding);
  if (!edits) return std::unexpected(edits.error());
  if (binding.resource == Resource::kMemory) {
    const Result<std::string> folder = parts_.files->MakeLinkFolder(binding.name());
    if (!folder) return std::unexpected(folder.error());
    const LinkGrant grant{.gpu = binding.gpu, .pool_bytes = binding.ids.size() * unit_bytes_};
    if (auto opened = parts_.keeper->Open(binding.name(), grant); !opened) return opened;
  }
  const Result<bool> written = parts_.specs->Write(binding, *edits);
  if (!written) return std::unexpected(written.error());
  return {};
}

// What cannot be removed is said and left: the next Publish under that name replaces it.
void Node::Retract(Resource resource, const std::string& name) {
  const auto removed = parts_.specs->Remove(resource, name);
  if (!removed) {
    LogError("not-removed", {{"name", name}, {"reason", removed.error().ToString()}});
  }
  if (resource != Resource::kMemory) return;
  parts_.keeper->Close(name);
  const auto folder = parts_.files->RemoveLinkFolder(name);
  if (!folder) LogError("not-removed", {{"name", name}, {"reason", folder.error().ToString()}});
}

}  // namespace gpushm::plugin
