#include "plugin/cdi/spec_text.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "platform/base/name.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDomain = "gpushm.io";
constexpr std::string_view kExtension = ".json";
constexpr std::string_view kVersionKey = "gpushm.io/binding-version";
constexpr std::string_view kIdsKey = "gpushm.io/ids";
constexpr std::string_view kGpuKey = "gpushm.io/gpu";
constexpr std::string_view kNamespaceKey = "gpushm.io/namespace";
constexpr std::string_view kPodKey = "gpushm.io/pod";
constexpr std::string_view kContainerKey = "gpushm.io/container";

constexpr size_t kMaxUuidBytes = 80;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE is 96.

std::string_view ClassName(Resource resource) {
  return resource == Resource::kMemory ? "memory" : "attach";
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// What inventory.cc makes: a letter and four digits.
bool IsDeviceId(Resource resource, std::string_view id) {
  constexpr size_t kIdBytes = 5;
  if (id.size() != kIdBytes || id[0] != (resource == Resource::kMemory ? 'm' : 'a')) return false;
  const std::string_view digits = id.substr(1);
  if (!std::all_of(digits.begin(), digits.end(), IsDigit)) return false;
  unsigned number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number < kMaxIds;
}

bool IsUuid(std::string_view uuid) {
  if (!uuid.starts_with("GPU-") && !uuid.starts_with("MIG-")) return false;
  return uuid.size() > 4 && uuid.size() <= kMaxUuidBytes &&
         std::all_of(uuid.begin(), uuid.end(), [](char c) {
           return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
         });
}

// Empty: nothing wrong.
std::string WrongWith(const Binding& binding) {
  if (binding.ids.empty()) return "no device IDs";
  for (const std::string& id : binding.ids) {
    if (!IsDeviceId(binding.resource, id)) return Concat("no device ID: \"", id, "\"");
  }
  if (!IsUuid(binding.gpu)) return Concat("no UUID of a GPU: \"", binding.gpu, "\"");
  if (binding.owner == Owner{}) return {};  // Allocated early: it has not started yet.
  if (!IsDnsLabel(binding.owner.pod.name_space)) return "no name of a namespace";
  if (!IsDnsSubdomain(binding.owner.pod.name)) return "no name of a pod";
  if (!IsDnsLabel(binding.owner.container)) return "no name of a container";
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
    if (!IsVariable(name)) return Concat("no name of a variable: \"", name, "\"");
  }
  for (const DeviceNode& node : edits.device_nodes) {
    if (!IsAbsolute(node.host_path) || !IsAbsolute(node.container_path) ||
        node.permissions.find_first_not_of("rwm") != std::string::npos) {
      return Concat("no device node: \"", node.host_path, "\"");
    }
  }
  for (const Mount& mount : edits.mounts) {
    if (!IsAbsolute(mount.host_path) || !IsAbsolute(mount.container_path)) {
      return Concat("no absolute path: \"", mount.host_path, "\"");
    }
  }
  for (const Hook& hook : edits.hooks) {
    if (std::find(std::begin(kHooks), std::end(kHooks), hook.name) == std::end(kHooks) ||
        !IsAbsolute(hook.path)) {
      return Concat("no hook: \"", hook.name, "\" ", hook.path);
    }
    for (const std::string& variable : hook.env) {
      if (variable.find('=') == 0 || variable.find('=') == std::string::npos) {
        return Concat("no variable of a hook: \"", variable, "\"");
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
  return Fail(Code::kInvalidArgument, Concat("CDI spec: ", reason));
}

Result<std::string> Encode(const std::string& kind, const Json& annotations,
                           const std::string& device, const Edits& edits) {
  if (const std::string wrong = WrongWith(edits); !wrong.empty()) return Refused(wrong);
  Json json;
  json["cdiVersion"] = edits.additional_gids.empty() ? "0.6.0" : "0.7.0";
  json["kind"] = kind;
  if (!annotations.empty()) json["annotations"] = annotations;
  json["devices"] = Json::array({{{"name", device}, {"containerEdits", ToJson(edits)}}});
  try {
    std::string text = json.dump();
    text += '\n';
    if (text.size() <= kMaxSpecBytes) return text;
    return Refused(Concat(text.size(), " bytes, more than ", kMaxSpecBytes));
  } catch (const Json::exception&) {
    return Refused("a path or value is no UTF-8");
  }
}

std::string JoinIds(const DeviceIds& ids) {
  std::string text;
  for (const std::string& id : ids) {
    if (!text.empty()) text += ',';
    text += id;
  }
  return text;
}

// Nothing when they are not in order, or one is there twice: they were never written so.
std::optional<DeviceIds> SplitIds(std::string_view text) {
  DeviceIds ids;
  for (;;) {
    const size_t comma = text.find(',');
    const std::string id(text.substr(0, comma));
    if (!ids.empty() && id <= *ids.rbegin()) return {};
    ids.insert(ids.end(), id);
    if (ids.size() > kMaxIds) return {};
    if (comma == std::string_view::npos) return ids;
    text.remove_prefix(comma + 1);
  }
}

std::unexpected<Status> Damaged(std::string_view file_name, std::string_view reason) {
  return Fail(Code::kCorrupt, Concat(file_name, ": ", reason),
              "remove the file; its container is bound again when it starts again");
}

// The texts below `annotations`; nothing when it is not a map of texts.
std::optional<std::map<std::string, std::string>> Texts(const Json& json) {
  std::map<std::string, std::string> texts;
  if (!json.is_object()) return {};
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return {};
    texts[key] = value.get<std::string>();
  }
  return texts;
}

// What CDI itself asks for, and the one device's name.
std::optional<std::string> NameOfDevice(const Json& json, std::string_view kind) {
  if (!json.is_object() || !json.contains("cdiVersion") || !json["cdiVersion"].is_string() ||
      !json.contains("kind") || json["kind"] != kind || !json.contains("devices")) {
    return {};
  }
  const Json& devices = json["devices"];
  if (!devices.is_array() || devices.size() != 1 || !devices[0].is_object() ||
      !devices[0].contains("name") || !devices[0]["name"].is_string()) {
    return {};
  }
  return devices[0]["name"].get<std::string>();
}

}  // namespace

std::string CdiKind(Resource resource) { return Concat(kDomain, "/", ClassName(resource)); }

std::string CdiName(Resource resource, const std::string& name) {
  return Concat(CdiKind(resource), "=", name);
}

std::string SpecFileName(Resource resource, const std::string& name) {
  return Concat(kDomain, "-", ClassName(resource), "-", name, kExtension);
}

bool IsSpecFileName(std::string_view file_name) {
  if (!file_name.ends_with(kExtension) || file_name.find('/') != std::string_view::npos) {
    return false;
  }
  return file_name.starts_with(Concat(kDomain, "-", ClassName(Resource::kMemory), "-")) ||
         file_name.starts_with(Concat(kDomain, "-", ClassName(Resource::kAttach), "-"));
}

Result<void> CheckEdits(const Edits& edits) {
  if (const std::string wrong = WrongWith(edits); !wrong.empty()) return Refused(wrong);
  return {};
}

Result<std::string> SpecText(const Binding& binding, const Edits& edits) {
  if (const std::string wrong = WrongWith(binding); !wrong.empty()) return Refused(wrong);
  const Json annotations = {{kVersionKey, std::to_string(kBindingVersion)},
                            {kIdsKey, JoinIds(binding.ids)},
                            {kGpuKey, binding.gpu},
                            {kNamespaceKey, binding.owner.pod.name_space},
                            {kPodKey, binding.owner.pod.name},
                            {kContainerKey, binding.owner.container}};
  return Encode(CdiKind(binding.resource), annotations, binding.name(), edits);
}

Result<std::string> SharedSpecText(const Edits& edits) {
  const std::string_view name = kSharedCdiName;
  const size_t equals = name.find('=');
  return Encode(std::string(name.substr(0, equals)), Json(), std::string(name.substr(equals + 1)),
                edits);
}

Result<Binding> ParseSpec(std::string_view file_name, std::string_view text) {
  if (!IsSpecFileName(file_name)) return Damaged(file_name, "not a name of the plugin's");
  Binding binding;
  const bool memory =
      file_name.starts_with(Concat(kDomain, "-", ClassName(Resource::kMemory), "-"));
  binding.resource = memory ? Resource::kMemory : Resource::kAttach;
  if (text.size() > kMaxSpecBytes) return Damaged(file_name, "too long");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Damaged(file_name, "no JSON");
  const auto name = NameOfDevice(json, CdiKind(binding.resource));
  if (!name) return Damaged(file_name, "no CDI spec with one device");
  if (file_name != SpecFileName(binding.resource, *name)) {
    return Damaged(file_name, "its device has another name");
  }
  const auto texts = Texts(json.value("annotations", Json()));
  if (!texts) return Damaged(file_name, "no annotations");
  const auto get = [&texts](std::string_view key) {
    const auto found = texts->find(std::string(key));
    return found == texts->end() ? std::string() : found->second;
  };
  if (get(kVersionKey) != std::to_string(kBindingVersion)) {
    return Fail(Code::kIncompatible,
                Concat(file_name, ": written as version \"", get(kVersionKey), "\", this is ",
                       kBindingVersion),
                "remove the file; its container is bound again when it starts again");
  }
  const auto ids = SplitIds(get(kIdsKey));
  if (!ids) return Damaged(file_name, "device IDs that are not in order");
  binding.ids = *ids;
  binding.gpu = get(kGpuKey);
  binding.owner = {.pod = {.name_space = get(kNamespaceKey), .name = get(kPodKey)},
                   .container = get(kContainerKey)};
  if (const std::string wrong = WrongWith(binding); !wrong.empty()) {
    return Damaged(file_name, wrong);
  }
  if (*name != binding.name()) return Damaged(file_name, "its name is not its smallest device ID");
  return binding;
}

}  // namespace gpushm::plugin
