// Which container holds which device IDs, as the kubelet's podresources reported at one moment.
// Pure.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpushm::plugin::binding {

// Extended resources. The last three say what the memory must be like. Only the sidecar requests
// them, and they bind nothing by themselves.
enum class Resource {
  kMemory,     // Units of GPU memory.
  kAttach,     // Permission to use the pod's GPUs.
  kExclusive,  // GPUs that no other pod gets.
  kGpus,       // Number of GPUs, if the pod has several.
  kNvlink,     // NVLink between all of them.
};
inline constexpr std::array kResources = {Resource::kMemory, Resource::kAttach,
                                          Resource::kExclusive, Resource::kGpus, Resource::kNvlink};

// One value for each resource, in the order of kResources.
template <typename Value>
class PerResource : public std::array<Value, kResources.size()> {
 public:
  using Base = std::array<Value, kResources.size()>;
  using Base::operator[];
  Value& operator[](Resource resource) { return Base::operator[](static_cast<size_t>(resource)); }
  const Value& operator[](Resource resource) const {
    return Base::operator[](static_cast<size_t>(resource));
  }
};

constexpr bool BindsNothing(Resource resource) {
  return resource != Resource::kMemory && resource != Resource::kAttach;
}

// The name in pod specs and for the kubelet.
inline std::string ResourceName(Resource resource) {
  static constexpr PerResource<const char*> kNames = {{"gpushm.io/memory", "gpushm.io/attach",
                                                       "gpushm.io/exclusive", "gpushm.io/gpus",
                                                       "gpushm.io/nvlink"}};
  return kNames[resource];
}

using DeviceIds = std::set<std::string>;

// IDs or UUIDs, separated by commas.
std::string CommaList(const auto& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  return list;
}

struct Pod {
  std::string name_space;
  std::string name;
  auto operator<=>(const Pod&) const = default;
  std::string ToString() const { return name_space + "/" + name; }
};

struct Owner {
  Pod pod;
  std::string container;
  auto operator<=>(const Owner&) const = default;
  std::string ToString() const {
    return container.empty() ? pod.ToString() : pod.ToString() + ", container " + container;
  }
};

class Snapshot {
 public:
  // Identifies the run of the kubelet that reported it: a different number after each restart. 0:
  // unknown.
  uint64_t kubelet_run = 0;

  // Podresources splits a container's IDs over several entries; this joins them.
  void Add(const Owner& owner, Resource resource, const DeviceIds& ids);

  // A container that also holds a GPU of another plugin, such as "nvidia.com/gpu".
  void AddOtherGpu(const Owner& owner, const std::string& resource) {
    other_gpus_[owner] = resource;
  }
  // The name of that resource; empty if it holds none.
  std::string OtherGpuOf(const Owner& owner) const {
    const auto found = other_gpus_.find(owner);
    return found == other_gpus_.end() ? std::string() : found->second;
  }

  // The containers that hold any of the IDs. More than one means that the kubelet lost a
  // reservation.
  std::vector<Owner> OwnersOf(Resource resource, const DeviceIds& ids) const;
  // The IDs that a container holds; empty if none.
  const DeviceIds& IdsOf(const Owner& owner, Resource resource) const;
  // The containers of a pod that hold IDs of the resource, sorted by name.
  std::vector<Owner> OwnersIn(const Pod& pod, Resource resource) const;

 private:
  std::map<Owner, std::map<Resource, DeviceIds>> held_;
  std::map<Owner, std::string> other_gpus_;
  std::map<std::pair<Resource, std::string>, std::vector<Owner>> owners_;  // Keyed by ID.
};

}  // namespace gpushm::plugin::binding
