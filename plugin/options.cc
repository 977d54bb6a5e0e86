#include "plugin/options.h"

#include <memory>
#include <utility>

namespace gpushm::plugin {

ConfigFlags::ConfigFlags(CLI::App* app, Which which) {
  app->add_option("--config", file_,
                  "YAML file (docs/reference/plugin-config.md); flags override it");
  Add(app, "gpus", true, "A GPU to hand out, by UUID, index or MIG profile; may be repeated (all)",
      [](const auto& from, auto* to) { to->rules.select = from.rules.select; });
  Add(app, "unit", false, "Memory of one gpushm.io/memory; a multiple of 2Mi (1Gi)",
      [](const auto& from, auto* to) { to->rules.unit_bytes = from.rules.unit_bytes; });
  Add(app, "reserve", false, "Memory of each GPU that is not advertised, for the driver (1Gi)",
      [](const auto& from, auto* to) { to->rules.reserve_bytes = from.rules.reserve_bytes; });
  Add(app, "attach-tokens", false,
      "Number of gpushm.io/attach for each GPU: containers that can use it (64)",
      [](const auto& from, auto* to) { to->rules.tokens = from.rules.tokens; });
  if (which == Which::kInventory) return;
  Add(app, "kubelet", false, "auto, or none for a machine without Kubernetes (auto)",
      [](const auto& from, auto* to) { to->kubelet = from.kubelet; });
  Add(app, "driver-root", false,
      "The driver's root, its library folder, or NVIDIA's CDI spec (auto)",
      [](const auto& from, auto* to) { to->driver_root = from.driver_root; });
  Add(app, "host-root", false, "Path at which the host's root is mounted here",
      [](const auto& from, auto* to) { to->host_root = from.host_root; });
  Add(app, "state-folder", false, "Folder of what is mounted into containers (/var/lib/gpushm)",
      [](const auto& from, auto* to) { to->state_folder = from.state_folder; });
  Add(app, "cdi-folder", false, "Folder in which the runtime reads CDI specs (/var/run/cdi)",
      [](const auto& from, auto* to) { to->cdi_folder = from.cdi_folder; });
}

void ConfigFlags::Add(
    CLI::App* app, const std::string& key, bool list, const std::string& help,
    std::function<void(const config::PluginConfig&, config::PluginConfig*)> copy) {
  flags_.push_back(std::make_unique<Flag>(Flag{key, {}, list, std::move(copy)}));
  // The flag "--gpu" adds one entry to "gpus".
  auto* const option =
      app->add_option(key == "gpus" ? "--gpu" : "--" + key, flags_.back()->values, help);
  if (list) {
    option->expected(1)->take_all();
  } else {
    option->expected(1)->take_last();
  }
}

// The flags as a configuration file of their own, so that they are checked like one.
Result<config::PluginConfig> ConfigFlags::Parse() const {
  std::string text;
  for (const auto& flag : flags_) {
    if (flag->values.empty()) continue;
    text += flag->key + ":";
    for (const std::string& value : flag->values) {
      text += flag->list ? "\n- " + value : " " + value;
    }
    text += "\n";
  }
  return config::ParsePluginConfig(text, "the command line");
}

Result<config::PluginConfig> ConfigFlags::Read() const {
  config::PluginConfig config;
  if (!file_.empty()) {
    Result<config::PluginConfig> read = config::ReadPluginConfig(file_);
    if (!read) return read;
    config = std::move(*read);
  }
  const Result<config::PluginConfig> given = Parse();
  if (!given) return given;
  for (const auto& flag : flags_) {
    if (!flag->values.empty()) flag->copy(*given, &config);
  }
  return config;
}

}  // namespace gpushm::plugin
