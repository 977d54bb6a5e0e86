// The names of the resources in pod specs and for the kubelet.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/binding/snapshot.h"

namespace gpushm::plugin::kubelet {

struct ResourceNames {
  std::string memory = ResourceName(Resource::kMemory);
  std::string attach = ResourceName(Resource::kAttach);
  std::string exclusive = ResourceName(Resource::kExclusive);

  const std::string& Of(Resource resource) const {
    switch (resource) {
      case Resource::kMemory:
        return memory;
      case Resource::kAttach:
        return attach;
      case Resource::kExclusive:
        break;
    }
    return exclusive;
  }
  // Nothing if it is another resource.
  std::optional<Resource> Parse(std::string_view name) const {
    const auto* const found = std::ranges::find(
        kResources, name, [this](Resource resource) { return std::string_view(Of(resource)); });
    return found == kResources.end() ? std::nullopt : std::optional(*found);
  }
};

}  // namespace gpushm::plugin::kubelet
