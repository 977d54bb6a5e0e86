// The names of the resources in pod specs and for the kubelet.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/binding/snapshot.h"

namespace gpushm::plugin::kubelet {

struct ResourceNames {
  binding::PerResource<std::string> names = {{binding::ResourceName(binding::Resource::kMemory),
                                              binding::ResourceName(binding::Resource::kAttach),
                                              binding::ResourceName(binding::Resource::kExclusive),
                                              binding::ResourceName(binding::Resource::kGpus),
                                              binding::ResourceName(binding::Resource::kNvlink)}};

  const std::string& Of(binding::Resource resource) const { return names[resource]; }
  // Nothing if it is another resource.
  std::optional<binding::Resource> Parse(std::string_view name) const {
    const auto* const found = std::ranges::find(
        binding::kResources, name,
        [this](binding::Resource resource) { return std::string_view(Of(resource)); });
    return found == binding::kResources.end() ? std::nullopt : std::optional(*found);
  }
};

}  // namespace gpushm::plugin::kubelet
