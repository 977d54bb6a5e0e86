#include "plugin/cdi/spec_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "contract/claims.h"
#include "contract/limits.h"
#include "platform/base/name.h"
#include "platform/yaml/config_error.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::cdi {
namespace {

using yaml::Quote;
using Json = nlohmann::ordered_json;

constexpr std::string_view kDomain = "gpushm.io";
constexpr std::string_view kExtension = ".json";
constexpr std::string_view kVersionKey = "gpushm.io/binding-version";
constexpr std::string_view kIdsKey = "gpushm.io/ids";
constexpr std::string_view kGpuKey = "gpushm.io/gpu";
constexpr std::string_view kNamespaceKey = "gpushm.io/namespace";
constexpr std::string_view kPodKey = "gpushm.io/pod";
constexpr std::string_view kContainerKey = "gpushm.io/container";
// Of a ResourceClaim only: the bytes that each GPU gives.
constexpr std::string_view kBytesKey = "gpushm.io/bytes";
// What other pods of the claim may do: "read" or "write"; absent if there are none.
constexpr std::string_view kOthersAnnotation = claims::kOthersKey;
constexpr std::string_view kClaimClass = "claim";

// Of memory: the other IDs of its container, if it has any. Their key is the resource's name. A
// plugin that does not know a key takes the binding as one without: shared, or without NVLink.
struct Also {
  binding::Resource resource;
  binding::DeviceIds binding::Binding::* member;
};
constexpr std::array<Also, 2> kAlso = {
    {{binding::Resource::kExclusive, &binding::Binding::exclusive},
     {binding::Resource::kNvlink, &binding::Binding::nvlink}}};

constexpr size_t kMaxUuidBytes = 80;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE is 96.

int VersionOf(const binding::Binding& binding) {
  if (binding.mps) return kClaimMpsVersion;
  return binding.gpus.size() > 1 ? kSeveralGpusVersion : kBindingVersion;
}

std::string ClaimKind() { return Concat(kDomain, "/", kClaimClass); }

std::string ClaimDevice(const std::string& uid, binding::Part part) {
  constexpr std::array<const char*, 3> kNames = {claims::kBroker, claims::kApp, claims::kMps};
  return Concat(uid, '-', kNames.at(static_cast<size_t>(part)));
}

std::string_view ClassName(binding::Resource resource) {
  return resource == binding::Resource::kMemory ? "memory" : "attach";
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The form that inventory.cc makes: a letter and four digits.
bool IsDeviceId(binding::Resource resource, std::string_view id) {
  constexpr size_t kIdBytes = 5;
  constexpr std::string_view kLetters = "maxgn";  // In the order of kResources.
  if (id.size() != kIdBytes || id[0] != kLetters.at(static_cast<size_t>(resource))) return false;
  const std::string_view digits = id.substr(1);
  if (!std::all_of(digits.begin(), digits.end(), IsDigit)) return false;
  unsigned number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number < inventory::kMaxIds;
}

bool IsUuid(std::string_view uuid) {
  if (!uuid.starts_with("GPU-") && !uuid.starts_with("MIG-")) return false;
  return uuid.size() > 4 && uuid.size() <= kMaxUuidBytes &&
         std::all_of(uuid.begin(), uuid.end(), [](char c) {
           return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
         });
}

// A UID of Kubernetes: 36 letters, digits and '-'. It becomes a part of CDI names and of paths.
bool IsUid(std::string_view uid) {
  constexpr size_t kUidBytes = 36;
  return uid.size() == kUidBytes && IsDnsLabel(uid);
}

std::string WrongWithIds(const binding::Binding& binding) {
  if (binding.IsClaim()) {
    if (binding.ids.size() == 1 && IsUid(binding.name()) &&
        binding.resource == binding::Resource::kMemory && binding.exclusive.empty()) {
      return {};
    }
    return Concat("invalid claim ", Quote(binding::CommaList(binding.ids)));
  }
  if (binding.ids.empty()) return "the binding has no device IDs";
  for (const std::string& id : binding.ids) {
    if (!IsDeviceId(binding.resource, id)) return Concat("invalid device ID ", Quote(id));
  }
  for (const auto& [resource, member] : kAlso) {
    for (const std::string& id : binding.*member) {
      if (!IsDeviceId(resource, id)) return Concat("invalid device ID ", Quote(id));
    }
  }
  return {};
}

// Why the binding is invalid; empty if it is valid.
std::string WrongWith(const binding::Binding& binding) {
  if (std::string wrong = WrongWithIds(binding); !wrong.empty()) return wrong;
  if (binding.gpus.empty() || binding.gpus.size() > limits::kPodGpus) {
    return Concat("the binding has ", binding.gpus.size(), " GPUs");
  }
  for (const std::string& gpu : binding.gpus) {
    if (!IsUuid(gpu)) return Concat("invalid GPU UUID ", Quote(gpu));
    if (std::ranges::count(binding.gpus, gpu) > 1) return Concat("GPU ", gpu, " occurs twice");
  }
  if (binding.resource == binding::Resource::kMemory && !binding.IsClaim() &&
      binding.ids.size() % binding.gpus.size() != 0) {
    return Concat(binding.ids.size(), " device IDs cannot be divided equally by ",
                  binding.gpus.size(), " GPUs");
  }
  const binding::Pod& pod = binding.owner.pod;
  if (!IsDnsLabel(pod.name_space)) {
    return Concat("invalid namespace name ", Quote(pod.name_space));
  }
  if (!IsDnsSubdomain(pod.name)) return Concat("invalid pod name ", Quote(pod.name));
  if (!binding.IsClaim() && !IsDnsLabel(binding.owner.container)) {
    return Concat("invalid container name ", Quote(binding.owner.container));
  }
  return {};
}

bool IsAbsolute(const std::string& path) {
  return path.starts_with('/') && path.find('\0') == std::string::npos;
}

bool IsVariable(std::string_view name) {
  return !name.empty() && name.find('=') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

std::string WrongWith(const Edits& edits) {
  static constexpr std::string_view kHooks[] = {
      "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"};
  for (const auto& [name, value] : edits.env) {
    if (!IsVariable(name)) return Concat("invalid environment variable name ", Quote(name));
  }
  for (const DeviceNode& node : edits.device_nodes) {
    if (!IsAbsolute(node.host_path) || !IsAbsolute(node.container_path) ||
        node.permissions.find_first_not_of("rwm") != std::string::npos) {
      return Concat("invalid device node ", Quote(node.host_path), " at ",
                    Quote(node.container_path), " with permissions ", Quote(node.permissions),
                    ": paths must be absolute, and permissions a subset of rwm");
    }
  }
  for (const Mount& mount : edits.mounts) {
    if (!IsAbsolute(mount.host_path) || !IsAbsolute(mount.container_path)) {
      return Concat("invalid mount of ", Quote(mount.host_path), " at ",
                    Quote(mount.container_path), ": both paths must be absolute");
    }
  }
  for (const Hook& hook : edits.hooks) {
    if (std::find(std::begin(kHooks), std::end(kHooks), hook.name) == std::end(kHooks) ||
        !IsAbsolute(hook.path)) {
      return Concat("invalid hook (unknown name, or path not absolute): ", Quote(hook.name), " at ",
                    Quote(hook.path));
    }
    for (const std::string& variable : hook.env) {
      if (variable.find('=') == 0 || variable.find('=') == std::string::npos) {
        return Concat("invalid hook variable ", Quote(variable), ": must have the form NAME=value");
      }
    }
  }
  return {};
}

Json ToJson(const Edits& edits) {
  Json json = Json::object();
  for (const auto& [name, value] : edits.env) json["env"].push_back(Concat(name, "=", value));
  for (const DeviceNode& node : edits.device_nodes) {
    Json one = {{"path", node.container_path}};
    if (node.host_path != node.container_path) one["hostPath"] = node.host_path;
    if (!node.permissions.empty()) one["permissions"] = node.permissions;
    json["deviceNodes"].push_back(std::move(one));
  }
  for (const Mount& mount : edits.mounts) {
    json["mounts"].push_back(
        {{"hostPath", mount.host_path},
         {"containerPath", mount.container_path},
         {"options", {mount.read_only ? "ro" : "rw", "nosuid", "nodev", "rbind", "rprivate"}}});
  }
  for (const Hook& hook : edits.hooks) {
    Json one = {{"hookName", hook.name}, {"path", hook.path}};
    if (!hook.args.empty()) one["args"] = hook.args;
    if (!hook.env.empty()) one["env"] = hook.env;
    json["hooks"].push_back(std::move(one));
  }
  if (!edits.additional_gids.empty()) json["additionalGids"] = edits.additional_gids;
  return json;
}

std::unexpected<Status> Refused(std::string_view reason) {
  return Fail(Code::kInvalidArgument, Concat("invalid CDI spec: ", reason));
}

using NamedEdits = std::vector<std::pair<std::string, Edits>>;  // By the device's name.

Result<std::string> Encode(const std::string& kind, const Json& annotations,
                           const NamedEdits& devices) {
  Json json;
  json["cdiVersion"] = "0.6.0";
  json["kind"] = kind;
  if (!annotations.empty()) json["annotations"] = annotations;
  for (const auto& [name, edits] : devices) {
    if (const std::string wrong = WrongWith(edits); !wrong.empty()) return Refused(wrong);
    if (!edits.additional_gids.empty()) json["cdiVersion"] = "0.7.0";
    json["devices"].push_back({{"name", name}, {"containerEdits", ToJson(edits)}});
  }
  try {
    std::string text = json.dump();
    text += '\n';
    if (text.size() <= kMaxSpecBytes) return text;
    return Refused(Concat(text.size(), " bytes exceed the limit of ", kMaxSpecBytes));
  } catch (const Json::exception& error) {
    constexpr size_t kMostBytes = 256;
    return Refused(
        Concat("a path or value is not valid UTF-8: ", yaml::Excerpt(error.what(), kMostBytes)));
  }
}

// Nothing if the IDs are not in order or one occurs twice: the plugin never writes such a list.
std::optional<binding::DeviceIds> SplitIds(std::string_view text) {
  binding::DeviceIds ids;
  for (;;) {
    const size_t comma = text.find(',');
    const std::string id(text.substr(0, comma));
    if (!ids.empty() && id <= *ids.rbegin()) return {};
    ids.insert(ids.end(), id);
    if (ids.size() > inventory::kMaxIds) return {};
    if (comma == std::string_view::npos) return ids;
    text.remove_prefix(comma + 1);
  }
}

std::unexpected<Status> Damaged(std::string_view file_name, std::string_view reason) {
  return Fail(Code::kCorrupt, Concat(file_name, ": ", reason),
              "remove the file; its container gets a new binding at its next start");
}

// The strings in the map `annotations`; nothing if it is not a map of strings.
std::optional<std::map<std::string, std::string>> Texts(const Json& json) {
  std::map<std::string, std::string> texts;
  if (!json.is_object()) return {};
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return {};
    texts[key] = value.get<std::string>();
  }
  return texts;
}

// Checks the fields that CDI itself requires; returns the names of the devices.
std::optional<std::vector<std::string>> NamesOfDevices(const Json& json, std::string_view kind) {
  if (!json.is_object() || !json.contains("cdiVersion") || !json["cdiVersion"].is_string() ||
      !json.contains("kind") || json["kind"] != kind || !json.contains("devices")) {
    return {};
  }
  const Json& devices = json["devices"];
  if (!devices.is_array()) return {};
  std::vector<std::string> names;
  for (const Json& device : devices) {
    if (!device.is_object() || !device.contains("name") || !device["name"].is_string()) return {};
    names.push_back(device["name"].get<std::string>());
  }
  return names;
}

}  // namespace

std::string CdiKind(binding::Resource resource) {
  return Concat(kDomain, "/", ClassName(resource));
}

std::string CdiName(binding::Resource resource, const std::string& name) {
  return Concat(CdiKind(resource), "=", name);
}

std::string ClaimCdiName(const std::string& uid, binding::Part part) {
  return Concat(ClaimKind(), "=", ClaimDevice(uid, part));
}

std::string ClaimSpecFileName(const std::string& uid) {
  return Concat(kDomain, "-", kClaimClass, "-", uid, kExtension);
}

std::string SpecFileName(binding::Resource resource, const std::string& name) {
  return Concat(kDomain, "-", ClassName(resource), "-", name, kExtension);
}

bool IsSpecFileName(std::string_view file_name) {
  if (!file_name.ends_with(kExtension) || file_name.find('/') != std::string_view::npos) {
    return false;
  }
  return file_name.starts_with(Concat(kDomain, "-", ClassName(binding::Resource::kMemory), "-")) ||
         file_name.starts_with(Concat(kDomain, "-", ClassName(binding::Resource::kAttach), "-")) ||
         file_name.starts_with(Concat(kDomain, "-", kClaimClass, "-"));
}

Result<void> CheckEdits(const Edits& edits) {
  if (const std::string wrong = WrongWith(edits); !wrong.empty()) return Refused(wrong);
  return {};
}

Result<std::string> SpecText(const binding::Binding& binding, const Edits& edits) {
  if (const std::string wrong = WrongWith(binding); !wrong.empty()) return Refused(wrong);
  Json annotations = {{kVersionKey, std::to_string(VersionOf(binding))},
                      {kIdsKey, binding::CommaList(binding.ids)},
                      {kGpuKey, binding.GpuList()},
                      {kNamespaceKey, binding.owner.pod.name_space},
                      {kPodKey, binding.owner.pod.name},
                      {kContainerKey, binding.owner.container}};
  for (const auto& [resource, member] : kAlso) {
    if (!(binding.*member).empty())
      annotations[binding::ResourceName(resource)] = binding::CommaList(binding.*member);
  }
  return Encode(CdiKind(binding.resource), annotations, {{binding.name(), edits}});
}

Result<std::string> ClaimSpecText(const binding::Binding& binding, const ClaimEdits& edits) {
  if (!binding.IsClaim() || binding.mps != edits.mps.has_value()) {
    return Refused("the binding is not a claim's, or not of a claim with these roles");
  }
  if (const std::string wrong = WrongWith(binding); !wrong.empty()) return Refused(wrong);
  Json annotations = {{kVersionKey, std::to_string(VersionOf(binding))},
                      {kBytesKey, std::to_string(binding.claim_bytes)},
                      {kGpuKey, binding.GpuList()},
                      {kNamespaceKey, binding.owner.pod.name_space},
                      {kPodKey, binding.owner.pod.name}};
  if (binding.others != claims::Others::kNone) {
    annotations[kOthersAnnotation] = binding.others == claims::Others::kWrite ? "write" : "read";
  }
  NamedEdits devices = {{ClaimDevice(binding.name(), binding::Part::kBroker), edits.broker},
                        {ClaimDevice(binding.name(), binding::Part::kApp), edits.app}};
  if (edits.mps) devices.emplace_back(ClaimDevice(binding.name(), binding::Part::kMps), *edits.mps);
  return Encode(ClaimKind(), annotations, devices);
}

Result<std::string> SharedSpecText(const Edits& edits) {
  const std::string_view name = kSharedCdiName;
  const size_t equals = name.find('=');
  return Encode(std::string(name.substr(0, equals)), Json(),
                {{std::string(name.substr(equals + 1)), edits}});
}

Result<binding::Binding> ParseSpec(std::string_view file_name, std::string_view text) {
  if (!IsSpecFileName(file_name)) return Damaged(file_name, "not a spec file name of gpushm");
  binding::Binding binding;
  const bool claim = file_name.starts_with(Concat(kDomain, "-", kClaimClass, "-"));
  const bool memory = claim || file_name.starts_with(Concat(
                                   kDomain, "-", ClassName(binding::Resource::kMemory), "-"));
  binding.resource = memory ? binding::Resource::kMemory : binding::Resource::kAttach;
  if (text.size() > kMaxSpecBytes) {
    return Damaged(file_name, Concat(text.size(), " bytes exceed the limit of ", kMaxSpecBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Damaged(file_name, Concat("invalid JSON: ", Quote(text)));
  const std::string kind = claim ? ClaimKind() : CdiKind(binding.resource);
  const auto names = NamesOfDevices(json, kind);
  if (!names || names->empty() || names->size() > (claim ? 3 : 1)) {
    return Damaged(file_name,
                   Concat("not a CDI spec of kind ", kind, " with ",
                          claim ? "two or three devices: " : "one device: ", Quote(text)));
  }
  const std::string& name = names->front();
  if (claim) {
    constexpr std::string_view kBroker = "-broker";
    binding.ids = {name.substr(0, name.size() - std::min(name.size(), kBroker.size()))};
    std::vector<std::string> expected;
    for (const binding::Part part :
         {binding::Part::kBroker, binding::Part::kApp, binding::Part::kMps}) {
      expected.push_back(ClaimDevice(binding.name(), part));
    }
    binding.mps = names->size() == expected.size();
    if (!binding.mps) expected.pop_back();
    if (file_name != ClaimSpecFileName(binding.name()) || *names != expected) {
      return Damaged(file_name, Concat("the devices' names, ", Quote(name), " and ",
                                       Quote(names->back()), ", do not match the file name"));
    }
  } else if (file_name != SpecFileName(binding.resource, name)) {
    return Damaged(file_name,
                   Concat("the device's name, ", Quote(name), ", does not match the file name"));
  }
  const auto texts = Texts(json.value("annotations", Json()));
  if (!texts) return Damaged(file_name, "annotations must be a map of strings");
  const auto get = [&texts](std::string_view key) {
    const auto found = texts->find(std::string(key));
    return found == texts->end() ? std::string() : found->second;
  };
  const std::string version = get(kVersionKey);
  if (version != std::to_string(kBindingVersion) &&
      version != std::to_string(kSeveralGpusVersion) &&
      version != std::to_string(kClaimMpsVersion)) {
    return Fail(Code::kIncompatible,
                Concat(file_name, ": unsupported binding version ", Quote(version),
                       "; this plugin supports only ", kBindingVersion, " to ", kClaimMpsVersion),
                "remove the file; its container gets a new binding at its next start");
  }
  if (claim) {
    const std::string bytes = get(kBytesKey);
    const auto [end, error] =
        std::from_chars(bytes.data(), bytes.data() + bytes.size(), binding.claim_bytes);
    if (error != std::errc() || end != bytes.data() + bytes.size() || !binding.IsClaim()) {
      return Damaged(file_name, Concat("invalid number of bytes: ", Quote(bytes)));
    }
    const std::string others = get(kOthersAnnotation);
    if (others == "read") binding.others = claims::Others::kRead;
    if (others == "write") binding.others = claims::Others::kWrite;
    if (!others.empty() && binding.others == claims::Others::kNone) {
      return Damaged(file_name, Concat("invalid rights of other pods: ", Quote(others)));
    }
  } else {
    const auto ids = SplitIds(get(kIdsKey));
    if (!ids) {
      return Damaged(file_name,
                     Concat("invalid or unsorted list of device IDs: ", Quote(get(kIdsKey))));
    }
    binding.ids = *ids;
  }
  for (const auto& [resource, member] : kAlso) {
    const std::string list = get(binding::ResourceName(resource));
    if (list.empty()) continue;
    const auto held = SplitIds(list);
    if (!held || !memory) {
      return Damaged(file_name, Concat("invalid list of device IDs of ",
                                       binding::ResourceName(resource), ": ", Quote(list)));
    }
    binding.*member = *held;
  }
  const std::string gpus = get(kGpuKey);
  for (size_t at = 0; at <= gpus.size();) {
    const size_t comma = std::min(gpus.find(',', at), gpus.size());
    binding.gpus.push_back(gpus.substr(at, comma - at));
    at = comma + 1;
  }
  binding.owner = {.pod = {.name_space = get(kNamespaceKey), .name = get(kPodKey)},
                   .container = get(kContainerKey)};
  if (const std::string wrong = WrongWith(binding); !wrong.empty()) {
    return Damaged(file_name, wrong);
  }
  if (version != std::to_string(VersionOf(binding))) {
    return Damaged(file_name, Concat("binding version ", version, " with ", binding.gpus.size(),
                                     " GPUs; it must be ", VersionOf(binding)));
  }
  if (!claim && name != binding.name()) {
    return Damaged(file_name, Concat("the device's name, ", Quote(name),
                                     ", is not the smallest device ID, ", binding.name()));
  }
  return binding;
}

}  // namespace gpushm::plugin::cdi
