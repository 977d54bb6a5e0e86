// Goal: no text crashes the parser or makes it throw, and what parses keeps the header's promises.
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

#include "platform/base/name.h"
#include "plugin/config/plugin_config.h"

namespace gpushm::plugin::config {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Check(const PluginConfig& config) {
  Require(config.rules.unit_bytes > 0 && config.rules.unit_bytes % (2u << 20) == 0);
  Require(config.rules.tokens >= 1 && config.rules.tokens <= inventory::kMaxIds);
  const std::set<std::string> gpus(config.rules.select.begin(), config.rules.select.end());
  Require(gpus.size() == config.rules.select.size() && !gpus.contains(""));
  for (const std::string* folder : {&config.kubelet_folder, &config.pod_resources_socket,
                                    &config.cdi_folder, &config.state_folder}) {
    Require(folder->starts_with('/') && folder->find('\n') == std::string::npos);
  }
  Require(config.driver_root.empty() || config.driver_root.starts_with('/'));
  Require(config.host_root.empty() || config.host_root.starts_with('/'));
  Require(config.allocations.empty() || config.kubelet == KubeletMode::kNone);
  const bool dra = config.allocation == Allocation::kDra;
  Require(!dra || config.kubelet == KubeletMode::kAuto);
  Require(dra || config.api_server.empty());
  Require(config.allocations.size() <= kMaxAllocations);
  std::set<std::string> names;
  for (const NodeAllocation& one : config.allocations) {
    Require(IsDnsLabel(one.name) && one.memory_bytes > 0 && names.insert(one.name).second);
  }
  Require(config.health.recheck_ms >= 100 && config.health.good_probes >= 1);
}

}  // namespace
}  // namespace gpushm::plugin::config

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::plugin::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = ParsePluginConfigOrErrors(text, "plugin.yaml");
  if (config) {
    Check(*config);
    return 0;
  }
  Require(!config.error().empty() && config.error().size() <= gpushm::yaml::kErrorsKept + 1);
  for (const gpushm::yaml::ConfigError& error : config.error()) {
    Require(!error.reason.empty() && error.line >= 0 && error.column >= 0);
    Require(error.ToString().find('\n') == std::string::npos);
  }
  return 0;
}
