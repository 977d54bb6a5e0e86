// The names of the resources in pod specs and for the kubelet.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/binding/snapshot.h"

namespace gpushm::plugin::kubelet {

struct ResourceNames {
  PerResource<std::string> names = {
      {ResourceName(Resource::kMemory), ResourceName(Resource::kAttach),
       ResourceName(Resource::kExclusive), ResourceName(Resource::kGpus),
       ResourceName(Resource::kNvlink)}};

  const std::string& Of(Resource resource) const { return names[resource]; }
  // Nothing if it is another resource.
  std::optional<Resource> Parse(std::string_view name) const {
    const auto* const found = std::ranges::find(
        kResources, name, [this](Resource resource) { return std::string_view(Of(resource)); });
    return found == kResources.end() ? std::nullopt : std::optional(*found);
  }
};

}  // namespace gpushm::plugin::kubelet
