#include "sidecar/injector/container.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "platform/yaml/quantity.h"

namespace gpushm::injector {

std::string Container::Field() const {
  return Concat(kind == Kind::kApplication ? "spec.containers" : "spec.initContainers", "[",
                at.back(), "] (", name, ")");
}

std::vector<Container::Mount> Container::Mounts() const {
  std::vector<Mount> mounts;
  for (const Json& mount : Items(*json, Pointer("/volumeMounts"))) {
    const std::string* const volume = TextOf(mount, "name");
    const std::string* const path = TextOf(mount, "mountPath");
    if (volume == nullptr || path == nullptr) continue;
    // The kubelet treats a path without a leading '/' as if it had one.
    std::string normal = std::filesystem::path("/" + *path).lexically_normal();
    while (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
    mounts.push_back({*volume, std::move(normal), &mount});
  }
  return mounts;
}

bool Container::Mount::Is(const Json& wanted) const {
  return !json->contains("subPathExpr") &&
         std::ranges::all_of(wanted.items(), [&](const auto& item) {
           return json->contains(item.key()) && (*json)[item.key()] == item.value();
         });
}

bool Container::Mounts(const Json& wanted) const {
  return std::ranges::any_of(Mounts(), [&](const Mount& mount) { return mount.Is(wanted); });
}

const Json* Container::Resource(const char* list, const std::string& resource) const {
  return Find(*json, Pointer("/resources") / list / resource);
}

const Json& Container::Claims() const { return Items(*json, Pointer("/resources/claims")); }

const Json* Container::Variable(std::string_view wanted) const {
  for (const Json& variable : Items(*json, Pointer("/env"))) {
    const std::string* const there = TextOf(variable, "name");
    if (there != nullptr && *there == wanted) return &variable;
  }
  return nullptr;
}

const std::string* TextOf(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

bool IsNumber(const Json* quantity, uint64_t number) {
  if (quantity == nullptr) return false;
  if (!quantity->is_string()) return *quantity == number;
  return yaml::ParseBytes(quantity->get_ref<const std::string&>()) == number;
}

std::string Shown(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_string()) return yaml::Quote(value->get_ref<const std::string&>());
  if (value->is_object()) return "a map";
  if (value->is_array()) return "a list";
  return value->dump();  // A number, a boolean or null: short.
}

}  // namespace gpushm::injector
