#include "plugin/binding/snapshot.h"

#include <algorithm>

namespace gpushm::plugin::binding {

void Snapshot::Add(const Owner& owner, Resource resource, const DeviceIds& ids) {
  DeviceIds& held = held_[owner][resource];
  for (const std::string& id : ids) {
    if (held.insert(id).second) owners_[{resource, id}].push_back(owner);
  }
}

std::vector<Owner> Snapshot::OwnersOf(Resource resource, const DeviceIds& ids) const {
  std::vector<Owner> all;
  for (const std::string& id : ids) {
    const auto found = owners_.find({resource, id});
    if (found == owners_.end()) continue;
    for (const Owner& owner : found->second) {
      if (std::find(all.begin(), all.end(), owner) == all.end()) all.push_back(owner);
    }
  }
  return all;
}

const DeviceIds& Snapshot::IdsOf(const Owner& owner, Resource resource) const {
  static const DeviceIds none;
  const auto held = held_.find(owner);
  if (held == held_.end()) return none;
  const auto ids = held->second.find(resource);
  return ids == held->second.end() ? none : ids->second;
}

std::vector<Owner> Snapshot::OwnersIn(const Pod& pod, Resource resource) const {
  std::vector<Owner> owners;
  for (auto held = held_.lower_bound({pod, ""}); held != held_.end() && held->first.pod == pod;
       ++held) {
    if (held->second.contains(resource)) owners.push_back(held->first);
  }
  return owners;
}

}  // namespace gpushm::plugin::binding
