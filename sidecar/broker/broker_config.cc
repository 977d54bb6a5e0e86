#include "sidecar/broker/broker_config.h"

#include <algorithm>
#include <array>

#include "contract/annotations/entries.h"
#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "platform/yaml/quantity.h"

namespace gpushm::broker {
namespace {

constexpr std::array<yaml::KeyInfo, 10> kBrokerKeys = {{
    {"annotations", "", "map", "none", "The annotations, as in a pod's metadata.",
     "{buffers.gpushm.io/weights: 8Gi}"},
    {"containers", "", "list of names", "any", "The containers that the broker serves.",
     "[decoder, model]"},
    {"pool", "", "quantity", "the sum for the annotations",
     "Bytes that the broker may allocate, on each GPU.", "16Gi"},
    {"gpu", "", "UUID or index, or a list of them", "the visible ones, if they are as many",
     "The GPU to use. With gpushm.io/gpus, a list of as many, in the order of their numbers.", "0"},
    {"folder", "", "absolute path", "/run/gpushm",
     "Folder in which the broker makes one subfolder with a socket for each container.",
     "/run/gpushm"},
    {"link", "", "absolute path or `none`", "/run/gpushm-link, if it exists",
     "Folder of the plugin's socket. "
     "The plugin names the GPU and keeps what a restarted broker needs.",
     "/run/gpushm-link"},
    {"pod-uid", "", "text", "none", "The pod's UID, for names under /dev/shm.",
     "0b8c0f6e-5c0e-4d0a-9d3c-8f6f1f3a2b11", "", yaml::kExperimental},
    {"host-ipc", "", "`true` or `false`", "false",
     "The same as gpushm.io/host-ipc. If both are given, they must agree.", "true", "",
     yaml::kExperimental},
    {"log.level", "", "`debug`, `info`, `warning` or `error`", "info",
     "The lowest level that is logged.", "debug", "", yaml::kExperimental},
    {"log.format", "", "`text` or `json`", "text", "The format of log lines.", "json", "",
     yaml::kExperimental},
}};

constexpr size_t kUidBytes = 64;

class FileReader {
 public:
  FileReader(std::string_view text, std::string_view file) : file_(text, file, BrokerKeys()) {}

  yaml::OrErrors<BrokerConfig> Read();

 private:
  void Field(const yaml::YamlNode& key, const yaml::YamlNode& value);
  void Containers(const yaml::YamlNode& value);
  void Gpus(const yaml::YamlNode& value);
  void Pool(const yaml::YamlNode& value);
  void PodUid(const yaml::YamlNode& value);
  void ReadPod(const yaml::YamlNode& root);
  void CheckTogether(const yaml::YamlNode& root);

  yaml::KeyedFile file_;
  BrokerConfig config_;
  std::optional<bool> host_ipc_;
};

void FileReader::Field(const yaml::YamlNode& key, const yaml::YamlNode& value) {
  const std::string& name = key.text;
  if (name == "annotations" || name == "containers") return;  // Read in ReadPod.
  if (name == "pool") return Pool(value);
  if (name == "pod-uid") return PodUid(value);
  if (name == "log") return file_.Log(value, config_.log);
  if (name == "gpu") {
    Gpus(value);
  } else if (name == "folder") {
    config_.folder = file_.Path(value, "folder", yaml::kSocketPathBytes).value_or(config_.folder);
  } else if (name == "link") {
    config_.link = value.text == "none"
                       ? value.text
                       : file_.Path(value, "link", yaml::kSocketPathBytes).value_or(config_.link);
  } else if (name == "host-ipc") {
    host_ipc_ = file_.Bool(value, "host-ipc");
  } else {
    file_.Unknown(key, "");
  }
}

void FileReader::Containers(const yaml::YamlNode& value) {
  auto names = file_.ContainerNames(value, "containers", "any container", limits::kContainers);
  if (!names.empty()) config_.containers = std::move(names);
}

void FileReader::Gpus(const yaml::YamlNode& value) {
  if (value.kind != yaml::YamlNode::Kind::kSequence) {
    if (auto gpu = file_.Gpu(value, "gpu")) config_.gpus = {*std::move(gpu)};
    return;
  }
  const auto* const items = file_.List(value, "gpu", "the visible GPUs");
  if (items == nullptr) return;
  for (size_t i = 0; i < items->size(); ++i) {
    if (auto gpu = file_.Gpu((*items)[i], Concat("gpu[", i, "]"))) {
      config_.gpus.push_back(*std::move(gpu));
    }
  }
}

void FileReader::Pool(const yaml::YamlNode& value) {
  const std::optional<uint64_t> bytes = file_.PositiveBytes(value, "pool");
  if (!bytes) return;
  config_.pool_bytes = *bytes;
  config_.pool_given = true;
}

void FileReader::PodUid(const yaml::YamlNode& value) {
  const std::string* text = file_.Text(value, "pod-uid");
  if (text == nullptr) return;
  const bool clean = std::ranges::all_of(*text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
  if (!clean || text->empty() || text->size() > kUidBytes) {
    return file_.Fail(
        value, "pod-uid",
        Concat(yaml::Quote(*text), " is not a valid pod UID (letters, digits and '-', at most ",
               kUidBytes, ")"));
  }
  config_.pod_uid = *text;
}

void FileReader::ReadPod(const yaml::YamlNode& root) {
  if (const yaml::YamlNode* containers = yaml::Find(root, "containers")) Containers(*containers);
  const yaml::YamlNode* annotations = yaml::Find(root, "annotations");
  if (annotations == nullptr) return;
  if (file_.Map(*annotations, "annotations") == nullptr) return;
  const auto entries =
      annotations::ReadAnnotationMap(*annotations, file_.file(), file_.text(), file_.errors());
  config_.pod = annotations::ReadAnnotations(
      entries, {.containers = config_.containers, .allow_absolute_file = true}, file_.errors());
}

// Checks rules that involve more than one key.
void FileReader::CheckTogether(const yaml::YamlNode& root) {
  const uint64_t needed = annotations::PoolBytes(config_.pod, annotations::FullestGpu(config_.pod));
  if (!config_.pool_given) {
    config_.pool_bytes = needed;
  } else if (config_.pool_bytes < needed) {
    file_.Fail(*yaml::Find(root, "pool"), "pool",
               Concat(yaml::FormatBytes(config_.pool_bytes), " is less than the ",
                      yaml::FormatBytes(needed), " that the annotations need ",
                      config_.pod.gpus == 1
                          ? "in total"
                          : Concat("in total on GPU ", annotations::FullestGpu(config_.pod))),
               Concat("pool: ", yaml::FormatBytes(needed)));
  }
  config_.host_ipc = host_ipc_.value_or(config_.pod.host_ipc);
  const yaml::YamlNode* annotations = yaml::Find(root, "annotations");
  if (host_ipc_ && annotations != nullptr &&
      yaml::Find(*annotations, annotations::kHostIpcKey) != nullptr &&
      *host_ipc_ != config_.pod.host_ipc) {
    file_.Fail(*yaml::Find(root, "host-ipc"), "host-ipc",
               Concat("contradicts the annotation ", annotations::kHostIpcKey),
               Concat("host-ipc: ", config_.pod.host_ipc ? "true" : "false"));
  }
}

yaml::OrErrors<BrokerConfig> FileReader::Read() {
  if (const yaml::YamlNode* const root = file_.Root()) {
    for (const auto& [key, value] : root->entries) Field(key, value);
    ReadPod(*root);
    CheckTogether(*root);
  }
  if (!file_.errors().empty()) return std::unexpected(file_.errors().Take());
  return std::move(config_);
}

}  // namespace

Result<void> CheckGpus(const BrokerConfig& config) {
  const size_t named = config.gpus.size();
  if (named == 0 || named == config.pod.gpus) return {};
  return Fail(Code::kInvalidArgument,
              Concat("gpu: ", named, named == 1 ? " GPU is" : " GPUs are", " named, but ",
                     annotations::kGpusKey, " is ", config.pod.gpus),
              "name as many, for example --gpu 0 --gpu 1, or leave them out");
}

std::span<const yaml::KeyInfo> BrokerKeys() { return kBrokerKeys; }

yaml::OrErrors<BrokerConfig> ParseBrokerConfigOrErrors(std::string_view yaml_text,
                                                       std::string_view file_name) {
  return FileReader(yaml_text, file_name).Read();
}

Result<BrokerConfig> ParseBrokerConfig(std::string_view yaml_text, std::string_view file_name) {
  yaml::OrErrors<BrokerConfig> config = ParseBrokerConfigOrErrors(yaml_text, file_name);
  if (!config)
    return std::unexpected(yaml::ToStatus(config.error(), "docs/reference/annotations.md"));
  return *std::move(config);
}

}  // namespace gpushm::broker
