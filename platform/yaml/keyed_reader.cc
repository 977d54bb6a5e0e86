#include "platform/yaml/keyed_reader.h"

#include <array>
#include <charconv>

#include "platform/base/name.h"
#include "platform/yaml/quantity.h"

namespace gpushm::yaml {
namespace {

constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};
constexpr std::array<std::string_view, 2> kFormats = {"text", "json"};
constexpr uint32_t kGpuIndices = 256;

}  // namespace

const YamlNode* Find(const YamlNode& map, std::string_view name) {
  for (const auto& [key, value] : map.entries) {
    if (key.text == name) return &value;
  }
  return nullptr;
}

std::string JoinNames(std::span<const std::string_view> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

const YamlNode* KeyedFile::Root() {
  tree_ = ParseYaml(text_);
  for (const YamlError& bad : tree_.errors) {
    YamlNode at;
    at.line = bad.line;
    at.column = bad.column;
    Fail(at, "", bad.reason);
  }
  if (!tree_.whole || tree_.root.kind == YamlNode::Kind::kNull) return nullptr;
  if (tree_.root.kind == YamlNode::Kind::kMap) return &tree_.root;
  Fail(tree_.root, "", Concat("the file is ", YamlKindName(tree_.root.kind), ", not a map"));
  return nullptr;
}

// `containers: [decoder, model]`, `log: {level: debug}`.
std::string KeyedFile::Example(std::string_view field) const {
  field = field.substr(0, field.find('['));
  for (const KeyInfo& info : keys_) {
    const size_t dot = info.name.find('.');
    if (info.name != field && info.name.substr(0, dot) != field) continue;
    if (dot == std::string_view::npos) return Concat(info.name, ": ", info.example);
    return Concat(info.name.substr(0, dot), ": {", info.name.substr(dot + 1), ": ", info.example,
                  "}");
  }
  return Concat(keys_[0].name, ": ", keys_[0].example);
}

void KeyedFile::Report(const YamlNode& at, std::string_view field, std::string reason,
                       std::string example) {
  ConfigError error = Origin::File(file_).At(at.line, at.column);
  error.field = field;
  error.reason = std::move(reason);
  error.example = example.empty() ? Example(field) : std::move(example);
  errors_.Add(std::move(error));
}

void KeyedFile::UnknownKey(const YamlNode& key, std::string_view path) {
  std::vector<std::string> known;
  for (const KeyInfo& info : keys_) {
    if (!info.name.starts_with(path)) continue;
    const std::string_view inner = info.name.substr(path.size());
    std::string name(inner.substr(0, inner.find('.')));
    if (known.empty() || known.back() != name) known.push_back(std::move(name));
  }
  const std::string nearest(Nearest(key.text, known));
  Fail(key, Concat(path, key.text), Concat("unknown key; the nearest is ", nearest),
       Example(Concat(path, nearest)));
}

const std::string* FieldReader::Text(const YamlNode& node, std::string_view field) {
  if (node.kind == YamlNode::Kind::kScalar) return &node.text;
  Fail(node, field,
       node.kind == YamlNode::Kind::kNull ? "has no value"
                                          : Concat("is ", YamlKindName(node.kind), ", not text"));
  return nullptr;
}

std::optional<bool> FieldReader::Bool(const YamlNode& node, std::string_view field) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return std::nullopt;
  if (*text == "true" || *text == "false") return *text == "true";
  Fail(node, field, Concat(Quote(*text), " is neither true nor false"));
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::Bytes(const YamlNode& node, std::string_view field) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return std::nullopt;
  const auto bytes = ParseBytes(*text);
  if (bytes) return *bytes;
  Fail(node, field, bytes.error());
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::PositiveBytes(const YamlNode& node, std::string_view field) {
  const std::optional<uint64_t> bytes = Bytes(node, field);
  if (bytes != 0) return bytes;
  Fail(node, field, Concat(Quote(node.text), " is zero; must be greater than zero"));
  return std::nullopt;
}

std::optional<uint32_t> FieldReader::Number(const YamlNode& node, std::string_view field,
                                            uint32_t least, uint32_t most) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return std::nullopt;
  uint32_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error == std::errc{} && rest == end && number >= least && number <= most) return number;
  Fail(node, field, Concat(Quote(*text), " is not a number from ", least, " to ", most));
  return std::nullopt;
}

std::expected<GpuChoice, std::string> ParseGpu(std::string_view text) {
  GpuChoice gpu;
  if (text.starts_with("GPU-") || text.starts_with("MIG-")) {
    const std::string_view id = text.substr(4);
    const bool clean = std::ranges::all_of(id, [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == '-';
    });
    if (!clean || id.size() != 36) {
      return std::unexpected(
          Concat(Quote(text), " is not a valid GPU UUID (nvidia-smi -L shows the UUIDs)"));
    }
    gpu.uuid = text;
    return gpu;
  }
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, gpu.index);
  if (error != std::errc{} || rest != end || gpu.index >= kGpuIndices) {
    return std::unexpected(
        Concat(Quote(text), " is neither a GPU's UUID nor its index (nvidia-smi -L shows both)"));
  }
  return gpu;
}

std::optional<GpuChoice> FieldReader::Gpu(const YamlNode& node, std::string_view field) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return std::nullopt;
  auto gpu = ParseGpu(*text);
  if (gpu) return *std::move(gpu);
  Fail(node, field, std::move(gpu.error()));
  return std::nullopt;
}

std::optional<std::string> FieldReader::Path(const YamlNode& node, std::string_view field,
                                             size_t most_bytes) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return std::nullopt;
  const std::string inside = *text + "/";
  if (!text->starts_with('/')) {
    Fail(node, field, Concat(Quote(*text), " is not an absolute path"));
  } else if (text->find('\n') != std::string::npos) {
    Fail(node, field, Concat(Quote(*text), " contains a line break"));
  } else if (inside.find("/../") != std::string::npos) {
    Fail(node, field, Concat(Quote(*text), " contains \"..\""));
  } else if (text->size() > most_bytes) {
    Fail(node, field,
         Concat(Quote(*text), " has ", text->size(), " bytes; must have at most ", most_bytes,
                most_bytes <= kSocketPathBytes ? ", so that the path of a Unix socket fits" : ""));
  } else {
    return *text;
  }
  return std::nullopt;
}

const std::vector<YamlNode>* FieldReader::List(const YamlNode& node, std::string_view field,
                                               std::string_view all) {
  if (node.kind == YamlNode::Kind::kSequence && !node.items.empty()) return &node.items;
  Fail(node, field,
       node.kind == YamlNode::Kind::kSequence ? Concat("is an empty list; leave it out for ", all)
       : node.kind == YamlNode::Kind::kNull
           ? "has no value"
           : Concat("is ", YamlKindName(node.kind), ", not a list"));
  return nullptr;
}

std::vector<std::string> FieldReader::ContainerNames(
    const YamlNode& node, std::string_view field, std::string_view all, size_t most,
    const std::function<Refusal(const std::string& name)>& refusal) {
  std::vector<std::string> names;
  const std::vector<YamlNode>* const items = List(node, field, all);
  if (items == nullptr) return names;
  for (size_t i = 0; i < items->size(); ++i) {
    const YamlNode& item = (*items)[i];
    const std::string path = Concat(field, "[", i, "]");
    if (i == most) {
      Fail(item, path, Concat("more than ", most, " containers"));
      break;
    }
    const std::string* const name = Text(item, path);
    if (name == nullptr) continue;
    if (!IsDnsLabel(*name)) {
      Fail(item, path, Concat(Quote(*name), " is not a valid container name"));
    } else if (std::ranges::find(names, *name) != names.end()) {
      Fail(item, path, Concat(Quote(*name), " is listed twice"));
    } else if (Refusal why = refusal ? refusal(*name) : Refusal{}; !why.reason.empty()) {
      Fail(item, path, std::move(why.reason), std::move(why.example));
    } else {
      names.push_back(*name);
    }
  }
  return names;
}

const std::vector<YamlEntry>* FieldReader::Map(const YamlNode& node, std::string_view field) {
  if (node.kind == YamlNode::Kind::kMap) return &node.entries;
  Fail(node, field, Concat("is ", YamlKindName(node.kind), ", not a map"));
  return nullptr;
}

void FieldReader::Log(const YamlNode& node, LogConfig& out) {
  const std::vector<YamlEntry>* const entries = Map(node, "log");
  if (entries == nullptr) return;
  for (const auto& [key, inner] : *entries) {
    if (key.text == "level") {
      Choice(inner, "log.level", kLevels, out.level);
    } else if (key.text == "format") {
      Choice(inner, "log.format", kFormats, out.format);
    } else {
      UnknownKey(key, "log.");
    }
  }
}

}  // namespace gpushm::yaml
