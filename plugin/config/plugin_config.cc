#include "plugin/config/plugin_config.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "contract/limits.h"
#include "platform/base/name.h"
#include "platform/base/unique_fd.h"
#include "platform/yaml/keyed_reader.h"
#include "plugin/config/listen_address.h"

namespace gpushm::plugin::config {
namespace {

using yaml::Find;
using yaml::KeyedFile;
using yaml::OrErrors;
using yaml::Quote;
using yaml::YamlNode;

constexpr std::array<std::string_view, 2> kTenancies = {"shared", "namespace"};
constexpr std::array<std::string_view, 2> kKubelets = {"auto", "none"};
constexpr std::array<std::string_view, 2> kAllocationsBy = {"device-plugin", "dra"};
constexpr uint64_t kGranularity = uint64_t{2} << 20;  // Of GPU memory.
constexpr size_t kMaxGpus = 256;
constexpr size_t kMaxResourceBytes = 317;  // Domain, "/" and name, by Kubernetes' limits.
constexpr size_t kMaxXids = 256;
constexpr uint32_t kMaxXid = 65'535;
// Leaves room for the sockets and folders that are made inside, within the limit of a socket's
// path.
constexpr size_t kFolderBytes = 64;
constexpr size_t kPathBytes = 1024;

bool IsDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// "1g.18gb", "1c.2g.35gb", "1g.18gb+me", "4g.48gb-me.all".
bool IsMigProfile(std::string_view text) {
  const size_t gb = text.find("gb");
  if (gb == std::string_view::npos || text.size() > 32) return false;
  const std::string_view attributes = text.substr(gb + 2);
  if (!attributes.empty() && attributes[0] != '+' && attributes[0] != '-') return false;
  if (!std::ranges::all_of(attributes, [](char c) {
        return (c >= 'a' && c <= 'z') || c == '+' || c == '-' || c == '.';
      })) {
    return false;
  }
  std::string_view rest = text.substr(0, gb);
  if (rest.size() > 3 && rest.substr(1, 2) == "c.") {
    if (!IsDigits(rest.substr(0, 1))) return false;
    rest.remove_prefix(3);
  }
  const size_t dot = rest.find("g.");
  return dot != std::string_view::npos && IsDigits(rest.substr(0, dot)) &&
         IsDigits(rest.substr(dot + 2));
}

class FileReader {
 public:
  FileReader(std::string_view text, std::string_view file) : file_(text, file, PluginKeys()) {}

  OrErrors<PluginConfig> Read();

 private:
  void Field(const YamlNode& key, const YamlNode& value);
  bool Paths(const std::string& name, const YamlNode& value);
  void Gpus(const YamlNode& value);
  void Unit(const YamlNode& value);
  void NotGpus(const YamlNode& value);
  void DriverRoot(const YamlNode& value);
  void HostRoot(const YamlNode& value);
  void FeaturesFolder(const YamlNode& value);
  void BindingRules(const YamlNode& value);
  void Allocations(const YamlNode& value);
  void Allocation(const YamlNode& item, const std::string& path);
  void Dra(const YamlNode& value);
  void Health(const YamlNode& value);
  void Metrics(const YamlNode& value);
  void AddressAlone(const YamlNode& value, std::string_view field, std::string& out);
  void Address(const YamlNode& value, std::string_view field, std::string& out);
  void XidList(const YamlNode& value, std::string_view field, std::vector<uint32_t>& out);
  void CheckDra(const YamlNode& root);
  void CheckTogether(const YamlNode& root);

  KeyedFile file_;
  PluginConfig config_;
};

void FileReader::Field(const YamlNode& key, const YamlNode& value) {
  const std::string& name = key.text;
  if (name == "gpus") return Gpus(value);
  if (name == "unit") return Unit(value);
  if (name == "not-gpus") return NotGpus(value);
  if (name == "driver-root") return DriverRoot(value);
  if (name == "host-root") return HostRoot(value);
  if (name == "features-folder") return FeaturesFolder(value);
  if (name == "binding") return BindingRules(value);
  if (name == "allocations") return Allocations(value);
  if (name == "allocation") return file_.Choice(value, name, kAllocationsBy, config_.allocation);
  if (name == "dra") return Dra(value);
  if (name == "health") return Health(value);
  if (name == "metrics") return Metrics(value);
  if (name == "status") return AddressAlone(value, name, config_.monitoring.status_address);
  if (name == "probes") return AddressAlone(value, name, config_.monitoring.probes_address);
  if (name == "log") return file_.Log(value, config_.log);
  if (name == "kubelet") return file_.Choice(value, name, kKubelets, config_.kubelet);
  inventory::Rules& rules = config_.rules;
  if (name == "reserve") {
    rules.reserve_bytes = file_.Bytes(value, name).value_or(rules.reserve_bytes);
  } else if (name == "attach-tokens") {
    rules.tokens = file_.Number(value, name, 1, inventory::kMaxIds).value_or(rules.tokens);
  } else if (name == "coexist") {
    config_.coexist = file_.Bool(value, name).value_or(false);
  } else if (!Paths(name, value)) {
    file_.Unknown(key, "");
  }
}

bool FileReader::Paths(const std::string& name, const YamlNode& value) {
  const auto read = [&](size_t most, std::string& out) {
    out = file_.Path(value, name, most).value_or(out);
    return true;
  };
  if (name == "kubelet-folder") return read(kFolderBytes, config_.kubelet_folder);
  if (name == "state-folder") return read(kFolderBytes, config_.state_folder);
  if (name == "plugins-registry-folder") {
    return read(kPathBytes, config_.plugins_registry_folder);
  }
  if (name == "plugins-folder") return read(kFolderBytes, config_.plugins_folder);
  if (name == "claims-folder") return read(kFolderBytes, config_.claims_folder);
  if (name == "cdi-folder") return read(kPathBytes, config_.cdi_folder);
  if (name == "pod-resources-socket") {
    return read(yaml::kSocketPathBytes, config_.pod_resources_socket);
  }
  return false;
}

void FileReader::Gpus(const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kScalar) {
    if (value.text == "all") return;
    return file_.Fail(value, "gpus",
                      Concat(Quote(value.text), " must be all, or a list such as [0, 1]"));
  }
  const auto* const items = file_.List(value, "gpus", "all GPUs");
  if (items == nullptr) return;
  std::vector<std::string>& select = config_.rules.select;
  for (size_t i = 0; i < items->size(); ++i) {
    const YamlNode& item = (*items)[i];
    const std::string path = Concat("gpus[", i, "]");
    std::string name;
    if (item.kind == YamlNode::Kind::kScalar && IsMigProfile(item.text)) {
      name = item.text;
    } else if (const auto gpu = file_.Gpu(item, path)) {
      name = gpu->uuid.empty() ? std::to_string(gpu->index) : gpu->uuid;
    } else {
      continue;
    }
    if (std::ranges::find(select, name) != select.end()) {
      file_.Fail(item, path, Concat(Quote(name), " is listed twice"));
    } else if (select.size() == kMaxGpus) {
      return file_.Fail(item, path, Concat("more than ", kMaxGpus, " entries"));
    } else {
      select.push_back(std::move(name));
    }
  }
}

void FileReader::NotGpus(const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kSequence && value.items.empty()) return;
  const auto* const items = file_.List(value, "not-gpus", "none");
  if (items == nullptr) return;
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string path = Concat("not-gpus[", i, "]");
    const std::string* const name = file_.Text((*items)[i], path);
    if (name == nullptr) continue;
    if (name->size() > kMaxResourceBytes || name->find('/') == std::string::npos) {
      file_.Fail((*items)[i], path, Concat(Quote(*name), " is not a resource name (domain/name)"));
    } else if (config_.not_gpus.size() == kMaxGpus) {
      return file_.Fail((*items)[i], path, Concat("more than ", kMaxGpus, " entries"));
    } else {
      config_.not_gpus.push_back(*name);
    }
  }
}

void FileReader::Unit(const YamlNode& value) {
  const std::optional<uint64_t> bytes = file_.PositiveBytes(value, "unit");
  if (!bytes) return;
  if (*bytes % kGranularity != 0) {
    return file_.Fail(
        value, "unit",
        Concat(Quote(value.text), " must be a multiple of 2Mi, the granularity of GPU memory"));
  }
  config_.rules.unit_bytes = *bytes;
}

void FileReader::DriverRoot(const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kScalar && value.text == "auto") return;
  config_.driver_root = file_.Path(value, "driver-root", kPathBytes).value_or("");
}

void FileReader::HostRoot(const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kScalar && value.text.empty()) return;
  config_.host_root = file_.Path(value, "host-root", kPathBytes).value_or("");
}

void FileReader::FeaturesFolder(const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kScalar && value.text.empty()) return;
  config_.features_folder = file_.Path(value, "features-folder", kPathBytes).value_or("");
}

void FileReader::BindingRules(const YamlNode& value) {
  const std::vector<yaml::YamlEntry>* const entries = file_.Map(value, "binding");
  if (entries == nullptr) return;
  for (const auto& [key, inner] : *entries) {
    if (key.text == "tenancy") {
      file_.Choice(inner, "binding.tenancy", kTenancies, config_.tenancy);
    } else {
      file_.Unknown(key, "binding.");
    }
  }
}

void FileReader::Allocations(const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kSequence && value.items.empty()) return;
  const auto* const items = file_.List(value, "allocations", "none");
  if (items == nullptr) return;
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string path = Concat("allocations[", i, "]");
    if (i == kMaxAllocations) {
      return file_.Fail((*items)[i], path, Concat("more than ", kMaxAllocations, " entries"));
    }
    Allocation((*items)[i], path);
  }
}

void FileReader::Allocation(const YamlNode& item, const std::string& path) {
  static constexpr std::array<std::string_view, 3> kInside = {"name", "memory", "gpu"};
  const std::vector<yaml::YamlEntry>* const entries = file_.Map(item, path);
  if (entries == nullptr) return;
  NodeAllocation allocation;
  for (const auto& [key, value] : *entries) {
    const std::string field = Concat(path, ".", key.text);
    if (key.text == "name") {
      const std::string* const name = file_.Text(value, field);
      if (name == nullptr) continue;
      if (!IsDnsLabel(*name)) {
        file_.Fail(value, field, Concat(Quote(*name), " is not a DNS label (a-z, 0-9 and '-')"));
      } else if (std::ranges::find(config_.allocations, *name, &NodeAllocation::name) !=
                 config_.allocations.end()) {
        file_.Fail(value, field, Concat(Quote(*name), " is used twice"));
      } else {
        allocation.name = *name;
      }
    } else if (key.text == "memory") {
      allocation.memory_bytes = file_.PositiveBytes(value, field).value_or(1);
    } else if (key.text == "gpu") {
      allocation.gpu = file_.Gpu(value, field);
    } else {
      file_.Fail(key, field, Concat("unknown key; the nearest is ", Nearest(key.text, kInside)));
    }
  }
  for (const std::string_view needed : {kInside[0], kInside[1]}) {
    if (Find(item, needed) == nullptr) file_.Fail(item, Concat(path, ".", needed), "is missing");
  }
  config_.allocations.push_back(std::move(allocation));
}

void FileReader::XidList(const YamlNode& value, std::string_view field,
                         std::vector<uint32_t>& out) {
  if (value.kind == YamlNode::Kind::kSequence && value.items.empty()) return;
  const auto* const items = file_.List(value, field, "none");
  if (items == nullptr) return;
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string path = Concat(field, "[", i, "]");
    const auto xid = file_.Number((*items)[i], path, 1, kMaxXid);
    if (!xid) continue;
    if (std::ranges::find(out, *xid) != out.end()) {
      file_.Fail((*items)[i], path, Concat(*xid, " is listed twice"));
    } else if (out.size() == kMaxXids) {
      return file_.Fail((*items)[i], path, Concat("more than ", kMaxXids, " entries"));
    } else {
      out.push_back(*xid);
    }
  }
}

void FileReader::Address(const YamlNode& value, std::string_view field, std::string& out) {
  if (value.kind == YamlNode::Kind::kScalar && value.text.empty()) return out.clear();
  const std::string* const text = file_.Text(value, field);
  if (text == nullptr) return;
  if (!ParseListenAddress(*text)) {
    return file_.Fail(value, field, Concat(Quote(*text), " is not of the form host:port"));
  }
  out = *text;
}

void FileReader::Metrics(const YamlNode& value) {
  const std::vector<yaml::YamlEntry>* const entries = file_.Map(value, "metrics");
  if (entries == nullptr) return;
  MonitoringConfig& monitoring = config_.monitoring;
  for (const auto& [key, inner] : *entries) {
    const std::string field = Concat("metrics.", key.text);
    if (key.text == "address") {
      Address(inner, field, monitoring.metrics_address);
    } else if (key.text == "sample-ms") {
      monitoring.sample_ms =
          file_.Number(inner, field, 100, 300'000).value_or(monitoring.sample_ms);
    } else if (key.text == "host-pids") {
      monitoring.host_pids = file_.Bool(inner, field).value_or(false);
    } else {
      file_.Unknown(key, "metrics.");
    }
  }
}

// A map whose only key is an address.
void FileReader::AddressAlone(const YamlNode& value, std::string_view field, std::string& out) {
  const std::vector<yaml::YamlEntry>* const entries = file_.Map(value, field);
  if (entries == nullptr) return;
  for (const auto& [key, inner] : *entries) {
    if (key.text == "address") {
      Address(inner, Concat(field, ".address"), out);
    } else {
      file_.Unknown(key, Concat(field, "."));
    }
  }
}

void FileReader::Health(const YamlNode& value) {
  const std::vector<yaml::YamlEntry>* const entries = file_.Map(value, "health");
  if (entries == nullptr) return;
  inventory::HealthRules& rules = config_.health;
  for (const auto& [key, inner] : *entries) {
    const std::string field = Concat("health.", key.text);
    if (key.text == "ignore-xids") {
      XidList(inner, field, rules.ignore_xids);
    } else if (key.text == "fatal-xids") {
      XidList(inner, field, rules.fatal_xids);
    } else if (key.text == "recheck-ms") {
      rules.recheck_ms = file_.Number(inner, field, 100, 60'000).value_or(rules.recheck_ms);
    } else if (key.text == "good-probes") {
      rules.good_probes = file_.Number(inner, field, 1, 100).value_or(rules.good_probes);
    } else if (key.text == "quiet-ms") {
      rules.quiet_ms = file_.Number(inner, field, 1000, 86'400'000).value_or(rules.quiet_ms);
    } else {
      file_.Unknown(key, "health.");
    }
  }
}

void FileReader::Dra(const YamlNode& value) {
  const auto* const entries = file_.Map(value, "dra");
  if (entries == nullptr) return;
  for (const auto& [key, inner] : *entries) {
    const std::string field = "dra." + key.text;
    if (key.text == "api-server") {
      const std::string* const text = file_.Text(inner, field);
      if (text == nullptr || text->empty()) continue;
      const auto address = ParseListenAddress(*text);
      if (!address || address->host.empty() || address->port == 0) {
        file_.Fail(inner, field, Concat(Quote(*text), " is not host:port"));
      } else {
        config_.api_server = *text;
      }
    } else if (key.text == "credentials-folder") {
      config_.api_credentials =
          file_.Path(inner, field, kPathBytes).value_or(config_.api_credentials);
    } else {
      file_.Unknown(key, "dra.");
    }
  }
}

// What goes with allocation: dra, and what does not.
void FileReader::CheckDra(const YamlNode& root) {
  if (config_.allocation != Allocation::kDra) {
    const PluginConfig none;
    const YamlNode* const dra = Find(root, "dra");
    if (dra != nullptr && (config_.api_server != none.api_server ||
                           config_.api_credentials != none.api_credentials)) {
      file_.Fail(*dra, "dra", "is only for allocation: dra", "allocation: dra");
    }
    return;
  }
  const YamlNode& at = *Find(root, "allocation");
  if (config_.kubelet == KubeletMode::kNone) {
    file_.Fail(at, "allocation", "dra needs a kubelet, but the file says kubelet: none",
               "kubelet: auto");
  }
  if (config_.tenancy != binding::Tenancy::kShared) {
    file_.Fail(at, "allocation",
               "with dra the scheduler chooses the GPU, and it does not know "
               "binding.tenancy: namespace; pods would wait on a GPU that they never get",
               "binding: {tenancy: shared}");
  }
}

// Checks values that are valid each, but not together.
void FileReader::CheckTogether(const YamlNode& root) {
  CheckDra(root);
  if (!config_.allocations.empty() && config_.kubelet != KubeletMode::kNone) {
    file_.Fail(*Find(root, "allocations"), "allocations",
               "is only for machines without a kubelet; with one, pods request memory",
               "kubelet: none");
  }
  for (const uint32_t xid : config_.health.fatal_xids) {
    if (std::ranges::find(config_.health.ignore_xids, xid) == config_.health.ignore_xids.end()) {
      continue;
    }
    file_.Fail(*Find(*Find(root, "health"), "fatal-xids"), "health.fatal-xids",
               Concat(xid, " is also in health.ignore-xids"));
  }
}

OrErrors<PluginConfig> FileReader::Read() {
  if (const YamlNode* const root = file_.Root()) {
    for (const auto& [key, value] : root->entries) Field(key, value);
    CheckTogether(*root);
  }
  if (!file_.errors().empty()) return std::unexpected(file_.errors().Take());
  return std::move(config_);
}

}  // namespace

OrErrors<PluginConfig> ParsePluginConfigOrErrors(std::string_view yaml_text,
                                                 std::string_view file_name) {
  return FileReader(yaml_text, file_name).Read();
}

Result<PluginConfig> ParsePluginConfig(std::string_view yaml_text, std::string_view file_name) {
  OrErrors<PluginConfig> config = ParsePluginConfigOrErrors(yaml_text, file_name);
  if (!config)
    return std::unexpected(yaml::ToStatus(config.error(), "docs/reference/plugin-config.md"));
  return *std::move(config);
}

Result<PluginConfig> ReadPluginConfig(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) {
      return Fail(Code::kNotFound, Concat("no such file: ", path),
                  "give the path of the plugin's YAML file; it may be empty");
    }
    return FailSystem(errno, Concat("open ", path));
  }
  std::string text(yaml::kConfigBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FailSystem(errno, Concat("read ", path));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  return ParsePluginConfig(text, path);
}

}  // namespace gpushm::plugin::config
