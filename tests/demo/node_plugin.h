// The node's plugin as a process of the demo: one machine without Kubernetes, with one allocation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "platform/base/status.h"
#include "tests/demo/daemon_process.h"

namespace gpushm::demo {

class NodePlugin {
 public:
  struct Settings {
    std::string folder;         // The plugin's own folder, made here.
    std::string gpu;            // UUID.
    std::string driver;         // "auto", or the simulated driver's folder.
    uint64_t memory_bytes = 0;  // Size of the allocation.
    int64_t timeout_ms = 0;     // How long the start may take.
    // More lines of its configuration.
    std::string monitoring = "metrics: {address: ''}\nstatus: {address: ''}\n";
  };
  // Returns once brokers can connect. kNotFound: there is no gpushm-plugin next to this program.
  // Other errors say why the plugin does not serve.
  static Result<NodePlugin> Start(const Settings& settings);

  // The allocation's link folder, for gpushm-broker --link.
  const std::string& link_folder() const { return link_folder_; }
  const std::string& log() const { return log_; }

 private:
  NodePlugin() = default;
  std::unique_ptr<DaemonProcess> process_;
  std::string link_folder_;
  std::string log_;
};

}  // namespace gpushm::demo
