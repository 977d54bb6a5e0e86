// The names of the two resources in pod specs and for the kubelet.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plugin/binding/snapshot.h"

namespace gpushm::plugin::kubelet {

struct ResourceNames {
  std::string memory = ResourceName(Resource::kMemory);
  std::string attach = ResourceName(Resource::kAttach);

  const std::string& Of(Resource resource) const {
    return resource == Resource::kMemory ? memory : attach;
  }
  // Nothing if it is another resource.
  std::optional<Resource> Parse(std::string_view name) const {
    if (name == memory) return Resource::kMemory;
    if (name == attach) return Resource::kAttach;
    return std::nullopt;
  }
};

}  // namespace gpushm::plugin::kubelet
