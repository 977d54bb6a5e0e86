#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/base/limits.h"
#include "sidecar/config/config.h"
#include "sidecar/config/keys.h"
#include "sidecar/config/quantity.h"
#include "sidecar/config/reader.h"
#include "sidecar/config/sizing.h"

namespace gpushm::config {
namespace {

constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};
constexpr std::array<std::string_view, 2> kFormats = {"text", "json"};
// sockaddr_un::sun_path; the folder is its beginning.
constexpr size_t kFolderBytes = 107;
constexpr size_t kUidBytes = 64;

class FileReader {
 public:
  FileReader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  OrErrors<BrokerConfig> Read();

 private:
  void Fail(const YamlNode& at, std::string_view field, std::string reason,
            std::string example = {});
  const std::string* Text(const YamlNode& node, std::string_view field);
  template <typename Enum>
  void Choice(const YamlNode& node, std::string_view field, std::span<const std::string_view> names,
              Enum& out);
  void Field(const YamlNode& key, const YamlNode& value);
  void Unknown(const YamlNode& key, std::string_view path);
  void Containers(const YamlNode& value);
  void Pool(const YamlNode& value);
  void Gpu(const YamlNode& value);
  void Folder(const YamlNode& value);
  void PodUid(const YamlNode& value);
  void HostIpc(const YamlNode& value);
  void Log(const YamlNode& value);
  void ReadPod(const YamlNode& root);
  void CheckTogether(const YamlNode& root);

  const std::string_view text_;
  const std::string_view file_;
  ErrorList errors_;
  BrokerConfig config_;
  std::optional<bool> host_ipc_;
};

const YamlNode* Find(const YamlNode& map, std::string_view name) {
  for (const auto& [key, value] : map.entries) {
    if (key.text == name) return &value;
  }
  return nullptr;
}

// `containers: [decoder, model]`, `log: {level: debug}`.
std::string BrokerExample(std::string_view field) {
  field = field.substr(0, field.find('['));
  for (const KeyInfo& info : BrokerKeys()) {
    const size_t dot = info.name.find('.');
    if (info.name != field && info.name.substr(0, dot) != field) continue;
    if (dot == std::string_view::npos) return Concat(info.name, ": ", info.example);
    return Concat(info.name.substr(0, dot), ": {", info.name.substr(dot + 1), ": ", info.example,
                  "}");
  }
  return BrokerExample("annotations");
}

void FileReader::Fail(const YamlNode& at, std::string_view field, std::string reason,
                      std::string example) {
  ConfigError error = Origin::File(file_).At(at.line, at.column);
  error.field = field;
  error.reason = std::move(reason);
  error.example = example.empty() ? BrokerExample(field) : std::move(example);
  errors_.Add(std::move(error));
}

const std::string* FileReader::Text(const YamlNode& node, std::string_view field) {
  if (node.kind == YamlNode::Kind::kScalar) return &node.text;
  Fail(node, field,
       node.kind == YamlNode::Kind::kNull ? "has no value"
                                          : Concat("is ", YamlKindName(node.kind), ", not text"));
  return nullptr;
}

template <typename Enum>
void FileReader::Choice(const YamlNode& node, std::string_view field,
                        std::span<const std::string_view> names, Enum& out) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return;
  const auto at = std::ranges::find(names, std::string_view(*text));
  if (at == names.end()) {
    return Fail(node, field,
                Concat(Quote(*text), " is unknown; the nearest is ", Nearest(*text, names)));
  }
  out = static_cast<Enum>(at - names.begin());
}

void FileReader::Unknown(const YamlNode& key, std::string_view path) {
  std::vector<std::string> known;
  for (const KeyInfo& info : BrokerKeys()) {
    const size_t dot = info.name.find('.');
    const bool inside = dot != std::string_view::npos;
    if (!path.empty() && !inside) continue;
    std::string name(path.empty() ? info.name.substr(0, dot) : info.name.substr(dot + 1));
    if (known.empty() || known.back() != name) known.push_back(std::move(name));
  }
  const std::string nearest(Nearest(key.text, known));
  Fail(key, Concat(path, key.text), Concat("unknown key; the nearest is ", nearest),
       BrokerExample(Concat(path, nearest)));
}

void FileReader::Field(const YamlNode& key, const YamlNode& value) {
  const std::string& name = key.text;
  if (name == "annotations" || name == "containers") return;  // ReadPod.
  if (name == "pool") return Pool(value);
  if (name == "gpu") return Gpu(value);
  if (name == "folder") return Folder(value);
  if (name == "pod-uid") return PodUid(value);
  if (name == "host-ipc") return HostIpc(value);
  if (name == "log") return Log(value);
  Unknown(key, "");
}

void FileReader::Containers(const YamlNode& value) {
  if (value.kind != YamlNode::Kind::kSequence || value.items.empty()) {
    return Fail(value, "containers",
                value.kind == YamlNode::Kind::kSequence
                    ? "is an empty list; leave it out for any container"
                    : Concat("is ", YamlKindName(value.kind), ", not a list"));
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < value.items.size(); ++i) {
    const YamlNode& item = value.items[i];
    const std::string path = Concat("containers[", i, "]");
    const std::string* name = Text(item, path);
    if (name == nullptr) continue;
    if (!IsDnsLabel(*name)) {
      Fail(item, path, Concat(Quote(*name), " is not a container's name"));
    } else if (std::ranges::find(names, *name) != names.end()) {
      Fail(item, path, Concat(Quote(*name), " is there twice"));
    } else if (names.size() == limits::kContainers) {
      Fail(item, path, Concat("more than ", limits::kContainers, " containers"));
      break;
    } else {
      names.push_back(*name);
    }
  }
  if (!names.empty()) config_.containers = std::move(names);
}

void FileReader::Pool(const YamlNode& value) {
  const std::string* text = Text(value, "pool");
  if (text == nullptr) return;
  const auto bytes = ParseBytes(*text);
  if (!bytes) return Fail(value, "pool", bytes.error());
  if (*bytes == 0) return Fail(value, "pool", "is zero");
  config_.pool_bytes = *bytes;
  config_.pool_given = true;
}

void FileReader::Gpu(const YamlNode& value) {
  const std::string* text = Text(value, "gpu");
  if (text == nullptr) return;
  GpuChoice gpu;
  if (text->starts_with("GPU-") || text->starts_with("MIG-")) {
    const std::string_view id = std::string_view(*text).substr(4);
    const bool clean = std::ranges::all_of(id, [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == '-';
    });
    if (!clean || id.size() != 36) {
      return Fail(value, "gpu", Concat(Quote(*text), " is not a GPU's UUID"));
    }
    gpu.uuid = *text;
  } else {
    const char* end = text->data() + text->size();
    const auto [rest, error] = std::from_chars(text->data(), end, gpu.index);
    if (error != std::errc{} || rest != end || gpu.index > 255) {
      return Fail(value, "gpu",
                  Concat(Quote(*text), " is neither a GPU's UUID nor its index (nvidia-smi -L)"));
    }
  }
  config_.gpu = std::move(gpu);
}

void FileReader::Folder(const YamlNode& value) {
  const std::string* text = Text(value, "folder");
  if (text == nullptr) return;
  if (!text->starts_with('/')) {
    return Fail(value, "folder", Concat(Quote(*text), " is not an absolute path"));
  }
  if (text->find('\n') != std::string::npos) {
    return Fail(value, "folder", Concat(Quote(*text), " has a line break"));
  }
  if (text->size() > kFolderBytes) {
    return Fail(value, "folder",
                Concat("is longer than ", kFolderBytes,
                       " bytes, the most that a socket's path "
                       "can have"));
  }
  config_.folder = *text;
}

void FileReader::PodUid(const YamlNode& value) {
  const std::string* text = Text(value, "pod-uid");
  if (text == nullptr) return;
  const bool clean = std::ranges::all_of(*text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
  if (!clean || text->empty() || text->size() > kUidBytes) {
    return Fail(value, "pod-uid",
                Concat(Quote(*text), " is not a pod's UID (letters, digits and '-', at most ",
                       kUidBytes, ")"));
  }
  config_.pod_uid = *text;
}

void FileReader::HostIpc(const YamlNode& value) {
  const std::string* text = Text(value, "host-ipc");
  if (text == nullptr) return;
  if (*text != "true" && *text != "false") {
    return Fail(value, "host-ipc", Concat(Quote(*text), " is neither true nor false"));
  }
  host_ipc_ = *text == "true";
}

void FileReader::Log(const YamlNode& value) {
  if (value.kind != YamlNode::Kind::kMap) {
    return Fail(value, "log", Concat("is ", YamlKindName(value.kind), ", not a map"));
  }
  for (const auto& [key, inner] : value.entries) {
    if (key.text == "level") {
      Choice(inner, "log.level", kLevels, config_.log.level);
    } else if (key.text == "format") {
      Choice(inner, "log.format", kFormats, config_.log.format);
    } else {
      Unknown(key, "log.");
    }
  }
}

void FileReader::ReadPod(const YamlNode& root) {
  if (const YamlNode* containers = Find(root, "containers")) Containers(*containers);
  const YamlNode* annotations = Find(root, "annotations");
  if (annotations == nullptr) return;
  if (annotations->kind != YamlNode::Kind::kMap) {
    return Fail(*annotations, "annotations",
                Concat("is ", YamlKindName(annotations->kind), ", not a map"));
  }
  const auto entries = ReadAnnotationMap(*annotations, file_, text_, errors_);
  config_.pod = ReadAnnotations(entries, {config_.containers, true}, errors_);
}

// What fits each key but not the others.
void FileReader::CheckTogether(const YamlNode& root) {
  const uint64_t needed = PoolBytes(config_.pod);
  if (!config_.pool_given) {
    config_.pool_bytes = needed;
  } else if (config_.pool_bytes < needed) {
    Fail(*Find(root, "pool"), "pool",
         Concat(FormatBytes(config_.pool_bytes), " is less than the ", FormatBytes(needed),
                " that the annotations add up to"),
         Concat("pool: ", FormatBytes(needed)));
  }
  config_.host_ipc = host_ipc_.value_or(config_.pod.host_ipc);
  const YamlNode* annotations = Find(root, "annotations");
  if (host_ipc_ && annotations != nullptr && Find(*annotations, kHostIpcKey) != nullptr &&
      *host_ipc_ != config_.pod.host_ipc) {
    Fail(*Find(root, "host-ipc"), "host-ipc", Concat("contradicts the annotation ", kHostIpcKey),
         Concat("host-ipc: ", config_.pod.host_ipc ? "true" : "false"));
  }
}

OrErrors<BrokerConfig> FileReader::Read() {
  const YamlTree tree = ParseYaml(text_);
  for (const YamlError& bad : tree.errors) {
    YamlNode at;
    at.line = bad.line;
    at.column = bad.column;
    Fail(at, "", bad.reason);
  }
  if (!tree.whole) return std::unexpected(errors_.Take());
  if (tree.root.kind == YamlNode::Kind::kMap) {
    for (const auto& [key, value] : tree.root.entries) Field(key, value);
    ReadPod(tree.root);
    CheckTogether(tree.root);
  } else if (tree.root.kind != YamlNode::Kind::kNull) {
    Fail(tree.root, "", Concat("the file is ", YamlKindName(tree.root.kind), ", not a map"));
  }
  if (!errors_.empty()) return std::unexpected(errors_.Take());
  return std::move(config_);
}

}  // namespace

OrErrors<BrokerConfig> ParseBrokerConfigOrErrors(std::string_view yaml_text,
                                                 std::string_view file_name) {
  return FileReader(yaml_text, file_name).Read();
}

Result<BrokerConfig> ParseBrokerConfig(std::string_view yaml_text, std::string_view file_name) {
  OrErrors<BrokerConfig> config = ParseBrokerConfigOrErrors(yaml_text, file_name);
  if (!config) return std::unexpected(ToStatus(config.error()));
  return *std::move(config);
}

OrErrors<PodSpec> ParseBuffersEnvironmentOrErrors(std::string_view text,
                                                  const ParseOptions& options) {
  ErrorList errors;
  const YamlTree tree = ParseYaml(text);
  const auto fail = [&](int line, int column, std::string reason) {
    ConfigError error = Origin::File(kBuffersVariable).At(line, column);
    error.reason = std::move(reason);
    error.example = AnnotationExample(Concat(kBuffersPrefix, "weights"), "", "");
    errors.Add(std::move(error));
  };
  for (const YamlError& bad : tree.errors) fail(bad.line, bad.column, bad.reason);
  PodSpec pod;
  const YamlNode& root = tree.root;
  if (root.kind == YamlNode::Kind::kMap || root.kind == YamlNode::Kind::kNull) {
    const auto entries = ReadAnnotationMap(root, kBuffersVariable, text, errors);
    pod = ReadAnnotations(entries, options, errors);
  } else {
    fail(root.line, root.column, Concat("is ", YamlKindName(root.kind), ", not a map"));
  }
  if (!errors.empty()) return std::unexpected(errors.Take());
  return pod;
}

Result<PodSpec> ParseBuffersEnvironment(std::string_view text, const ParseOptions& options) {
  OrErrors<PodSpec> pod = ParseBuffersEnvironmentOrErrors(text, options);
  if (!pod) return std::unexpected(ToStatus(pod.error()));
  return *std::move(pod);
}

}  // namespace gpushm::config
