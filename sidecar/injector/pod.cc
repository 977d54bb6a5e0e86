#include "sidecar/injector/pod.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "contract/annotations/keys.h"
#include "platform/yaml/quantity.h"

namespace gpushm::injector {
namespace {

constexpr char kSpec[] = "/spec";

const std::string* Text(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

Kind KindOf(const Json& container, bool init) {
  if (!init) return Kind::kApplication;
  const std::string* const policy = Text(container, "restartPolicy");
  return policy != nullptr && *policy == "Always" ? Kind::kNativeSidecar : Kind::kInit;
}

}  // namespace

std::vector<Container::Mount> Container::Mounts() const {
  std::vector<Mount> mounts;
  for (const Json& mount : Items(*json, Pointer("/volumeMounts"))) {
    const std::string* const volume = Text(mount, "name");
    const std::string* const path = Text(mount, "mountPath");
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
  return injector::Find(*json, Pointer("/resources") / list / resource);
}

const Json& Container::Claims() const { return Items(*json, Pointer("/resources/claims")); }

const Json* Container::Variable(std::string_view wanted) const {
  for (const Json& variable : Items(*json, Pointer("/env"))) {
    const std::string* const there = Text(variable, "name");
    if (there != nullptr && *there == wanted) return &variable;
  }
  return nullptr;
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

Result<PodView> PodView::Of(const Json& pod) {
  PodView view;
  view.json_ = &pod;
  const Json* const spec = injector::Find(pod, Pointer(kSpec));
  if (spec == nullptr || !spec->is_object()) {
    return Fail(
        Code::kInvalidArgument,
        Concat("the object is not a Pod: its kind is ",
               Shown(injector::Find(pod, Pointer("/kind"))), " and its spec is ", Shown(spec)),
        "send a Pod with a spec");
  }
  if (const Json* const annotations = injector::Find(pod, Pointer("/metadata/annotations"))) {
    if (!annotations->is_object()) {
      return Fail(Code::kInvalidArgument,
                  Concat("metadata.annotations is ", Shown(annotations), ", not a map"),
                  "write key: value for each annotation");
    }
    for (const auto& [key, value] : annotations->items()) {
      if (!value.is_string()) {
        return Fail(
            Code::kInvalidArgument,
            Concat("metadata.annotations: ", yaml::Quote(key), " is ", Shown(&value), ", not text"),
            "put the value in quotes");
      }
      view.annotations_.emplace(key, value.get<std::string>());
    }
  }
  for (const char* const list : {"initContainers", "containers"}) {
    if (auto read = view.ReadContainers(list); !read) return std::unexpected(read.error());
  }
  return view;
}

Result<void> PodView::ReadContainers(const char* list) {
  const Pointer at = Pointer(kSpec) / list;
  const Json* const items = injector::Find(*json_, at);
  if (items == nullptr) return {};
  if (!items->is_array())
    return Fail(Code::kInvalidArgument,
                Concat("spec.", list, " is ", Shown(items), ", not a list"));
  const bool init = std::string_view(list) == "initContainers";
  for (size_t i = 0; i < items->size(); ++i) {
    const Json& item = (*items)[i];
    const std::string* const name = Text(item, "name");
    if (name == nullptr) {
      return Fail(Code::kInvalidArgument, Concat("spec.", list, "[", i, "] has no name"));
    }
    containers_.push_back({*name, KindOf(item, init), at / i, &item});
  }
  return {};
}

bool PodView::Concerns() const {
  return std::ranges::any_of(annotations_,
                             [](const auto& item) { return annotations::IsOurKey(item.first); });
}

const Container* PodView::Find(std::string_view name) const {
  const auto found = std::ranges::find(containers_, name, &Container::name);
  return found == containers_.end() ? nullptr : &*found;
}

std::vector<std::string> PodView::Names(Kind kind) const {
  std::vector<std::string> names;
  for (const Container& container : containers_) {
    if (container.kind == kind && !IsOurContainer(container.name)) names.push_back(container.name);
  }
  return names;
}

std::vector<std::string> PodView::Volumes() const {
  std::vector<std::string> names;
  for (const Json& volume : Items(*json_, Pointer("/spec/volumes"))) {
    if (const std::string* const name = Text(volume, "name")) names.push_back(*name);
  }
  return names;
}

const Json* PodView::Volume(std::string_view name) const {
  for (const Json& volume : Items(*json_, Pointer("/spec/volumes"))) {
    if (const std::string* const text = Text(volume, "name"); text != nullptr && *text == name) {
      return &volume;
    }
  }
  return nullptr;
}

bool PodView::Flag(const char* name) const {
  const Json* const flag = injector::Find(*json_, Pointer(kSpec) / name);
  return flag != nullptr && flag->is_boolean() && flag->get<bool>();
}

}  // namespace gpushm::injector
