#include "plugin/kubelet/testing/device_manager.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpushm::plugin::kubelet::testing {
namespace {

Ids Minus(const Ids& all, const Ids& without) {
  Ids rest;
  std::set_difference(all.begin(), all.end(), without.begin(), without.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

Ids Both(const Ids& a, const Ids& b) {
  Ids common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                        std::inserter(common, common.end()));
  return common;
}

}  // namespace

void DeviceManager::SetDevices(const std::string& resource,
                               const std::map<std::string, bool>& healthy_by_id) {
  const std::lock_guard lock(mutex_);
  Devices& devices = devices_[resource];
  devices = {};
  for (const auto& [id, healthy] : healthy_by_id)
    (healthy ? devices.healthy : devices.unhealthy).insert(id);
}

void DeviceManager::MarkUnhealthy(const std::string& resource) {
  const std::lock_guard lock(mutex_);
  Devices& devices = devices_[resource];
  devices.unhealthy.merge(devices.healthy);
  devices.healthy.clear();
}

void DeviceManager::Restart() {
  const std::lock_guard lock(mutex_);
  for (auto& [resource, devices] : devices_) devices = {};
  RebuildLocked();
}

bool DeviceManager::IsKnown(const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  return devices_.contains(resource) || allocated_.contains(resource);
}

size_t DeviceManager::Capacity(const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(resource);
  return found == devices_.end() ? 0
                                 : found->second.healthy.size() + found->second.unhealthy.size();
}

size_t DeviceManager::Allocatable(const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(resource);
  return found == devices_.end() ? 0 : found->second.healthy.size();
}

std::map<std::string, Ids> DeviceManager::Healthy() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, Ids> healthy;
  for (const auto& [resource, devices] : devices_) healthy[resource] = devices.healthy;
  return healthy;
}

Result<std::optional<std::vector<std::string>>> DeviceManager::Reserve(const Holder& holder,
                                                                       const std::string& resource,
                                                                       size_t count,
                                                                       bool already_running) {
  const std::lock_guard lock(mutex_);
  const auto& held = held_[holder];
  const auto had = held.find(resource);
  const Ids before = had == held.end() ? Ids() : had->second.ids;
  if (already_running) return std::nullopt;
  const auto devices = devices_.find(resource);
  if (devices == devices_.end())
    return Fail(Code::kUnavailable, Concat("cannot allocate unregistered device ", resource));
  if (devices->second.healthy.empty())
    return Fail(Code::kUnavailable,
                Concat("no healthy devices present; cannot allocate unhealthy devices ", resource));
  if (!Minus(before, devices->second.healthy).empty())
    return Fail(Code::kUnavailable,
                Concat("previously allocated devices are no longer healthy; cannot allocate "
                       "unhealthy devices ",
                       resource));
  if (before.size() == count) return std::nullopt;

  const Ids available = Minus(devices->second.healthy, allocated_[resource]);
  if (available.size() < count)
    return Fail(Code::kExhausted,
                Concat("requested number of devices unavailable for ", resource,
                       ". Requested: ", count, ", Available: ", available.size()));
  std::vector<std::string> chosen = ShuffleLocked(available);
  chosen.resize(count);
  allocated_[resource].insert(chosen.begin(), chosen.end());
  return chosen;
}

void DeviceManager::Insert(const Holder& holder, const std::string& resource,
                           const std::vector<std::string>& ids, Answer answer) {
  const std::lock_guard lock(mutex_);
  held_[holder][resource] = {Ids(ids.begin(), ids.end()), std::move(answer)};
}

void DeviceManager::Rebuild() {
  const std::lock_guard lock(mutex_);
  RebuildLocked();
}

void DeviceManager::RebuildLocked() {
  allocated_.clear();
  for (const auto& [holder, resources] : held_) {
    for (const auto& [resource, held] : resources)
      allocated_[resource].insert(held.ids.begin(), held.ids.end());
  }
}

void DeviceManager::Update(const std::set<std::string>& active) {
  const std::lock_guard lock(mutex_);
  const auto is_gone = [&](const auto& item) { return !active.contains(item.first.uid); };
  const auto has_ids = [&](const auto& item) { return !item.second.empty() && is_gone(item); };
  if (std::none_of(held_.begin(), held_.end(), has_ids)) return;
  std::erase_if(held_, is_gone);
  RebuildLocked();  // This also forgets IDs that are reserved but not yet held.
}

std::optional<Ids> DeviceManager::IdsOf(const Holder& holder, const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(holder);
  if (found == held_.end()) return std::nullopt;
  const auto held = found->second.find(resource);
  if (held == found->second.end()) return std::nullopt;
  return held->second.ids;
}

std::map<std::string, Ids> DeviceManager::AllOf(const Holder& holder) const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, Ids> all;
  const auto found = held_.find(holder);
  if (found == held_.end()) return all;
  for (const auto& [resource, held] : found->second) all[resource] = held.ids;
  return all;
}

std::vector<Answer> DeviceManager::AnswersOf(const Holder& holder) const {
  const std::lock_guard lock(mutex_);
  std::vector<Answer> all;
  const auto found = held_.find(holder);
  if (found == held_.end()) return all;
  for (const auto& [resource, held] : found->second) all.push_back(held.answer);
  return all;
}

bool DeviceManager::IsAnyUnhealthy(const std::string& resource, const Ids& ids) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(resource);
  return found != devices_.end() && !Both(ids, found->second.unhealthy).empty();
}

std::vector<std::string> DeviceManager::Shuffle(const Ids& ids) {
  const std::lock_guard lock(mutex_);
  return ShuffleLocked(ids);
}

std::vector<std::string> DeviceManager::ShuffleLocked(const Ids& ids) {
  std::vector<std::string> order(ids.begin(), ids.end());
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

}  // namespace gpushm::plugin::kubelet::testing
