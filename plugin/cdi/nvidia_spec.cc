#include "plugin/cdi/nvidia_spec.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "platform/yaml/config_error.h"
#include "platform/yaml/yaml_tree.h"
#include "plugin/cdi/spec_text.h"

namespace gpushm::plugin::cdi {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKind = "nvidia.com/gpu";

// Turns scalars into strings: all that is read below are strings and one list of numbers.
Json FromYaml(const yaml::YamlNode& node) {
  switch (node.kind) {
    case yaml::YamlNode::Kind::kNull:
      return nullptr;
    case yaml::YamlNode::Kind::kScalar:
      return node.text;
    case yaml::YamlNode::Kind::kSequence: {
      Json list = Json::array();
      for (const yaml::YamlNode& item : node.items) list.push_back(FromYaml(item));
      return list;
    }
    case yaml::YamlNode::Kind::kMap: {
      Json map = Json::object();
      for (const yaml::YamlEntry& entry : node.entries) {
        map[entry.key.text] = FromYaml(entry.value);
      }
      return map;
    }
  }
  return nullptr;
}

Result<Json> Parse(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') {
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return Fail(Code::kCorrupt, "invalid JSON");
    return json;
  }
  const yaml::YamlTree tree = yaml::ParseYaml(text);
  if (!tree.errors.empty()) {
    const yaml::YamlError& error = tree.errors.front();
    return Fail(Code::kCorrupt, Concat("line ", error.line, ": ", error.reason));
  }
  return FromYaml(tree.root);
}

std::string Text(const Json& map, const char* key) {
  const auto found = map.find(key);
  return found != map.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::string> Texts(const Json& map, const char* key) {
  std::vector<std::string> texts;
  const auto found = map.find(key);
  if (found == map.end() || !found->is_array()) return texts;
  for (const Json& item : *found) {
    if (item.is_string()) texts.push_back(item.get<std::string>());
  }
  return texts;
}

// The maps in a list; nothing if the list holds anything else.
std::optional<std::vector<Json>> Maps(const Json& map, const char* key) {
  std::vector<Json> maps;
  const auto found = map.find(key);
  if (found == map.end() || found->is_null()) return maps;
  if (!found->is_array()) return {};
  for (const Json& item : *found) {
    if (!item.is_object()) return {};
    maps.push_back(item);
  }
  return maps;
}

Result<void> ReadMounts(const Json& json, Edits* edits) {
  const auto mounts = Maps(json, "mounts");
  if (!mounts) return Fail(Code::kCorrupt, "mounts: must be a list of maps");
  for (const Json& one : *mounts) {
    const std::string type = Text(one, "type");
    const std::string host_path = Text(one, "hostPath");
    if (!(type.empty() || type == "bind" || type == "none") || !host_path.starts_with('/')) {
      return Fail(Code::kUnsupported,
                  Concat("unsupported mount (type \"", type,
                         "\", must be a bind mount of an absolute path): ", host_path));
    }
    const auto options = Texts(one, "options");
    edits->mounts.push_back(
        {.host_path = host_path,
         .container_path = Text(one, "containerPath"),
         .read_only = std::find(options.begin(), options.end(), "ro") != options.end()});
  }
  return {};
}

void ReadGroups(const Json& json, Edits* edits) {
  const auto found = json.find("additionalGids");
  if (found == json.end() || !found->is_array()) return;
  for (const Json& item : *found) {
    uint32_t gid = 0;
    if (item.is_number_unsigned()) {
      gid = static_cast<uint32_t>(std::min<uint64_t>(item.get<uint64_t>(), UINT32_MAX));
    } else if (item.is_string()) {
      const auto& text = item.get_ref<const std::string&>();
      std::from_chars(text.data(), text.data() + text.size(), gid);
    }
    if (gid != 0) edits->additional_gids.push_back(gid);  // CDI ignores 0 as well.
  }
}

Result<Edits> ReadEdits(const Json& owner) {
  Edits edits;
  const auto found = owner.find("containerEdits");
  if (found == owner.end() || found->is_null()) return edits;
  const Json& json = *found;
  if (!json.is_object()) return Fail(Code::kCorrupt, "containerEdits: must be a map");
  for (const std::string& variable : Texts(json, "env")) {
    const size_t equals = variable.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return Fail(Code::kCorrupt,
                  Concat("env: ", yaml::Quote(variable), " does not have the form NAME=value"));
    }
    edits.env[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  const auto nodes = Maps(json, "deviceNodes");
  if (!nodes) return Fail(Code::kCorrupt, "deviceNodes: must be a list of maps");
  for (const Json& one : *nodes) {
    const std::string path = Text(one, "path");
    const std::string host_path = Text(one, "hostPath");
    edits.device_nodes.push_back({.host_path = host_path.empty() ? path : host_path,
                                  .container_path = path,
                                  .permissions = Text(one, "permissions")});
  }
  const auto hooks = Maps(json, "hooks");
  if (!hooks) return Fail(Code::kCorrupt, "hooks: must be a list of maps");
  for (const Json& one : *hooks) {
    edits.hooks.push_back({.name = Text(one, "hookName"),
                           .path = Text(one, "path"),
                           .args = Texts(one, "args"),
                           .env = Texts(one, "env")});
  }
  ReadGroups(json, &edits);
  if (auto read = ReadMounts(json, &edits); !read) return std::unexpected(read.error());
  // Edits that cannot be written into a spec later would make every container fail.
  if (auto valid = CheckEdits(edits); !valid) return Fail(Code::kCorrupt, valid.error().what());
  return edits;
}

}  // namespace

Result<NvidiaSpec> ParseNvidiaSpec(std::string_view text) {
  const Result<Json> json = Parse(text);
  if (!json) return std::unexpected(json.error());
  if (!json->is_object()) return Fail(Code::kCorrupt, "the spec must be a map");
  if (Text(*json, "kind") != kKind) {
    return Fail(Code::kNotFound,
                Concat("the spec has kind \"", Text(*json, "kind"), "\", not ", kKind));
  }
  NvidiaSpec spec;
  Result<Edits> common = ReadEdits(*json);
  if (!common) return std::unexpected(common.error());
  spec.common = std::move(*common);
  const auto devices = Maps(*json, "devices");
  if (!devices) return Fail(Code::kCorrupt, "devices: must be a list of maps");
  for (const Json& device : *devices) {
    Result<Edits> edits = ReadEdits(device);
    if (!edits) return std::unexpected(edits.error());
    spec.devices[Text(device, "name")] = std::move(*edits);
  }
  return spec;
}

}  // namespace gpushm::plugin::cdi
