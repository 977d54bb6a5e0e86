// The kubelet's side of the driver's sockets.
//
// Threads: any; calls run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

struct Health {
  bool healthy = false;
  std::string message;
  friend bool operator==(const Health&, const Health&) = default;
};
// By "pool/device".
using HealthList = std::map<std::string, Health>;

// The kubelet's stream of NodeWatchResources. A thread of its own reads it.
class HealthWatch {
 public:
  // Opens it at that socket. `deaf`: reads nothing until Hear().
  explicit HealthWatch(const std::string& endpoint, bool deaf = false);
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;
  ~HealthWatch();  // Ends it.

  void Hear();
  HealthList Last() const;
  uint64_t lists() const;  // Received so far.
  // False: it is not so by then.
  bool WaitFor(const std::function<bool(const HealthList&)>& is_so, int64_t timeout_ms) const;
  bool WaitLists(uint64_t count, int64_t timeout_ms) const;
  // Whether the plugin has ended it, politely.
  bool WaitEnd(int64_t timeout_ms) const;

 private:
  class Stream;
  std::unique_ptr<Stream> stream_;
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
  std::unique_ptr<HealthWatch> WatchHealth(bool deaf = false) const;

 private:
  std::string Calls() const;
  const std::string registry_folder_;
};

}  // namespace gpushm::plugin::dra::testing
