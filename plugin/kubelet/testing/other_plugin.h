// Somebody else's device plugin: one device of a resource, such as "nvidia.com/gpu".
#pragma once

#include <memory>
#include <string>

#include "plugin/kubelet/registration.h"

namespace gpushm::plugin::kubelet::testing {

class OtherPlugin : public Handler {
 public:
  // `folder`: the kubelet's.
  OtherPlugin(const std::string& folder, const std::string& resource) {
    Registration::Options options;
    options.folder = folder;
    options.memory_socket = "other.sock";
    options.attach_socket = "other-unused.sock";
    options.names = {.memory = resource, .attach = "unused.example.com/unused"};
    auto started = Registration::Start(std::move(options), this);
    if (!started) return;
    registration_ = std::move(*started);
    registration_->SetDevices(Resource::kMemory, {{"GPU-0", true}});
  }
  bool serves() const { return registration_ != nullptr; }

  Result<Grant> Allocate(Resource, const DeviceIds&) override { return Grant{}; }
  Result<void> PreStart(Resource, const DeviceIds&) override { return {}; }
  DeviceIds Prefer(Resource, const DeviceIds&, const DeviceIds&, size_t) override { return {}; }

 private:
  std::unique_ptr<Registration> registration_;
};

}  // namespace gpushm::plugin::kubelet::testing
