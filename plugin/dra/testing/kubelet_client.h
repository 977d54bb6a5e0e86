// The kubelet's side of the driver's sockets.
//
// Threads: any; calls run in parallel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"

namespace gpushm::plugin::dra::testing {

struct PluginInfo {
  std::string type;
  std::string name;
  std::string endpoint;
  std::vector<std::string> versions;
};

struct PreparedDevice {
  std::vector<std::string> requests;
  std::string pool;
  std::string device;
  std::vector<std::string> cdi_names;
  std::string share_id;
  friend bool operator==(const PreparedDevice&, const PreparedDevice&) = default;
};

class KubeletClient {
 public:
  // The folder plugins_registry. The client does not keep connections.
  explicit KubeletClient(std::string registry_folder)
      : registry_folder_(std::move(registry_folder)) {}

  // Waits until the plugin has its socket there. kTimeout: it has none.
  Result<PluginInfo> GetInfo(int64_t timeout_ms = 20'000) const;
  Result<void> Notify(bool registered) const;
  // Errors of the claim have the text that the plugin answered, with kInternal.
  Result<std::vector<PreparedDevice>> Prepare(const std::string& name, const std::string& uid,
                                              int64_t timeout_ms = 45'000) const;
  Result<void> Unprepare(const std::string& name, const std::string& uid,
                         int64_t timeout_ms = 45'000) const;

 private:
  std::string Calls() const;
  const std::string registry_folder_;
};

}  // namespace gpushm::plugin::dra::testing
