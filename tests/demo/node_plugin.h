// The node's plugin as a process of the demo: one machine without Kubernetes, one allocation.
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
    std::string folder;         // Its own; made here.
    std::string gpu;            // UUID.
    std::string driver;         // "auto", or the simulated driver's folder.
    uint64_t memory_bytes = 0;  // Of the allocation.
    int64_t timeout_ms = 0;     // For its start.
    // More of its configuration, whole lines.
    std::string monitoring = "metrics: {address: ''}\nstatus: {address: ''}\n";
  };
  // Returns when brokers can connect. kNotFound: no gpushm-plugin beside this program. Else why it
  // does not serve.
  static Result<NodePlugin> Start(const Settings& settings);

  // Of the allocation, for gpushm-broker --link.
  const std::string& link_folder() const { return link_folder_; }
  const std::string& log() const { return log_; }

 private:
  NodePlugin() = default;
  std::unique_ptr<DaemonProcess> process_;
  std::string link_folder_;
  std::string log_;
};

}  // namespace gpushm::demo
