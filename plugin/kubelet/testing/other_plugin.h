// Another vendor's device plugin, for a resource such as "nvidia.com/gpu".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugin/kubelet/registration.h"

namespace gpushm::plugin::kubelet::testing {

class OtherPlugin : public Handler {
 public:
  // `folder`: the kubelet's.
  OtherPlugin(const std::string& folder, const std::string& resource,
              const std::vector<std::string>& ids = {kForeignGpu}) {
    Registration::Options options;
    options.folder = folder;
    for (const binding::Resource unused : binding::kResources) {
      const std::string number = std::to_string(static_cast<int>(unused));
      options.sockets[unused] = "other-unused-" + number;
      options.names.names[unused] = "unused.example.com/unused-" + number;
    }
    options.sockets[binding::Resource::kMemory] = "other";
    options.names.names[binding::Resource::kMemory] = resource;
    auto started = Registration::Start(std::move(options), this);
    if (!started) return;
    registration_ = std::move(*started);
    std::vector<Advertised> devices;
    for (const std::string& id : ids) devices.push_back({id, true});
    registration_->SetDevices(binding::Resource::kMemory, std::move(devices));
  }
  // A GPU of another node.
  static constexpr char kForeignGpu[] = "GPU-ffffffff-0000-0000-0000-000000000001";

  bool serves() const { return registration_ != nullptr; }

  Result<std::vector<std::string>> Allocate(binding::Resource, const binding::DeviceIds&) override {
    return std::vector<std::string>();
  }
  Result<void> PreStart(binding::Resource, const binding::DeviceIds&) override { return {}; }

 private:
  std::unique_ptr<Registration> registration_;
};

}  // namespace gpushm::plugin::kubelet::testing
