// gpushm-plugin's command line: the keys of its configuration file as flags, which override the
// file.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "plugin/config/plugin_config.h"

namespace gpushm::plugin {

class ConfigFlags {
 public:
  // Declares the flags: those that describe the inventory, or all.
  enum class Which { kInventory, kAll };
  ConfigFlags(CLI::App* app, Which which);
  ConfigFlags(const ConfigFlags&) = delete;  // The app holds pointers into it.
  ConfigFlags& operator=(const ConfigFlags&) = delete;

  // After parsing: the file, if one was given, overridden by the flags. Errors of a flag are those
  // of its key in a file.
  Result<config::PluginConfig> Read() const;

 private:
  struct Flag {
    std::string key;  // Of the file.
    std::vector<std::string> values;
    bool list = false;
    std::function<void(const config::PluginConfig& from, config::PluginConfig* to)> copy;
  };
  void Add(CLI::App* app, const std::string& key, bool list, const std::string& help,
           std::function<void(const config::PluginConfig&, config::PluginConfig*)> copy);
  Result<config::PluginConfig> Parse() const;

  std::string file_;
  std::vector<std::unique_ptr<Flag>> flags_;
};

}  // namespace gpushm::plugin
