#include <algorithm>

#include "contract/limits.h"
#include "sidecar/config/config.h"
#include "sidecar/config/keyed_file.h"
#include "sidecar/config/keys.h"
#include "sidecar/config/quantity.h"
#include "sidecar/config/reader.h"
#include "sidecar/config/sizing.h"

namespace gpushm::config {
namespace {

constexpr size_t kUidBytes = 64;

class FileReader {
 public:
  FileReader(std::string_view text, std::string_view file) : file_(text, file, BrokerKeys()) {}

  OrErrors<BrokerConfig> Read();

 private:
  void Field(const YamlNode& key, const YamlNode& value);
  void Containers(const YamlNode& value);
  void Pool(const YamlNode& value);
  void PodUid(const YamlNode& value);
  void ReadPod(const YamlNode& root);
  void CheckTogether(const YamlNode& root);

  KeyedFile file_;
  BrokerConfig config_;
  std::optional<bool> host_ipc_;
};

void FileReader::Field(const YamlNode& key, const YamlNode& value) {
  const std::string& name = key.text;
  if (name == "annotations" || name == "containers") return;  // ReadPod.
  if (name == "pool") return Pool(value);
  if (name == "pod-uid") return PodUid(value);
  if (name == "log") return file_.Log(value, config_.log);
  if (name == "gpu") {
    config_.gpu = file_.Gpu(value, "gpu");
  } else if (name == "folder") {
    config_.folder = file_.Path(value, "folder", kSocketPathBytes).value_or(config_.folder);
  } else if (name == "link") {
    config_.link = value.text == "none"
                       ? value.text
                       : file_.Path(value, "link", kSocketPathBytes).value_or(config_.link);
  } else if (name == "host-ipc") {
    host_ipc_ = file_.Bool(value, "host-ipc");
  } else {
    file_.Unknown(key, "");
  }
}

void FileReader::Containers(const YamlNode& value) {
  const auto* const items = file_.List(value, "containers", "any container");
  if (items == nullptr) return;
  std::vector<std::string> names;
  for (size_t i = 0; i < items->size(); ++i) {
    const YamlNode& item = (*items)[i];
    const std::string path = Concat("containers[", i, "]");
    const std::string* name = file_.Text(item, path);
    if (name == nullptr) continue;
    if (!IsDnsLabel(*name)) {
      file_.Fail(item, path, Concat(Quote(*name), " is not a container's name"));
    } else if (std::ranges::find(names, *name) != names.end()) {
      file_.Fail(item, path, Concat(Quote(*name), " is there twice"));
    } else if (names.size() == limits::kContainers) {
      file_.Fail(item, path, Concat("more than ", limits::kContainers, " containers"));
      break;
    } else {
      names.push_back(*name);
    }
  }
  if (!names.empty()) config_.containers = std::move(names);
}

void FileReader::Pool(const YamlNode& value) {
  const std::optional<uint64_t> bytes = file_.Bytes(value, "pool");
  if (!bytes) return;
  if (*bytes == 0) return file_.Fail(value, "pool", "is zero");
  config_.pool_bytes = *bytes;
  config_.pool_given = true;
}

void FileReader::PodUid(const YamlNode& value) {
  const std::string* text = file_.Text(value, "pod-uid");
  if (text == nullptr) return;
  const bool clean = std::ranges::all_of(*text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
  if (!clean || text->empty() || text->size() > kUidBytes) {
    return file_.Fail(value, "pod-uid",
                      Concat(Quote(*text), " is not a pod's UID (letters, digits and '-', at most ",
                             kUidBytes, ")"));
  }
  config_.pod_uid = *text;
}

void FileReader::ReadPod(const YamlNode& root) {
  if (const YamlNode* containers = Find(root, "containers")) Containers(*containers);
  const YamlNode* annotations = Find(root, "annotations");
  if (annotations == nullptr) return;
  if (annotations->kind != YamlNode::Kind::kMap) {
    return file_.Fail(*annotations, "annotations",
                      Concat("is ", YamlKindName(annotations->kind), ", not a map"));
  }
  const auto entries = ReadAnnotationMap(*annotations, file_.file(), file_.text(), file_.errors());
  config_.pod = ReadAnnotations(
      entries, {.containers = config_.containers, .allow_absolute_file = true}, file_.errors());
}

// What fits each key but not the others.
void FileReader::CheckTogether(const YamlNode& root) {
  const uint64_t needed = PoolBytes(config_.pod);
  if (!config_.pool_given) {
    config_.pool_bytes = needed;
  } else if (config_.pool_bytes < needed) {
    file_.Fail(*Find(root, "pool"), "pool",
               Concat(FormatBytes(config_.pool_bytes), " is less than the ", FormatBytes(needed),
                      " that the annotations add up to"),
               Concat("pool: ", FormatBytes(needed)));
  }
  config_.host_ipc = host_ipc_.value_or(config_.pod.host_ipc);
  const YamlNode* annotations = Find(root, "annotations");
  if (host_ipc_ && annotations != nullptr && Find(*annotations, kHostIpcKey) != nullptr &&
      *host_ipc_ != config_.pod.host_ipc) {
    file_.Fail(*Find(root, "host-ipc"), "host-ipc",
               Concat("contradicts the annotation ", kHostIpcKey),
               Concat("host-ipc: ", config_.pod.host_ipc ? "true" : "false"));
  }
}

OrErrors<BrokerConfig> FileReader::Read() {
  if (const YamlNode* const root = file_.Root()) {
    for (const auto& [key, value] : root->entries) Field(key, value);
    ReadPod(*root);
    CheckTogether(*root);
  }
  if (!file_.errors().empty()) return std::unexpected(file_.errors().Take());
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
