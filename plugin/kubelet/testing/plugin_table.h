// The plugins that a scripted kubelet knows: registrations, their streams, and what happens to the
// devices when a stream ends, in the order in which kubelets do these things.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/status.h"
#include "plugin/kubelet/testing/device_manager.h"
#include "plugin/kubelet/testing/plugin_client.h"

namespace gpushm::plugin::kubelet::testing {

class PluginTable {
 public:
  struct Options {
    bool known_by_resource_alone = false;
    int64_t notice_ms = 0;
    int64_t dial_ms = 10'000;
  };
  struct Endpoint {
    std::shared_ptr<PluginClient> client;  // Null: read from the checkpoint, not registered.
    PluginClient::PluginOptions options;
  };

  PluginTable(Options options, DeviceManager* manager) : options_(options), manager_(manager) {}
  ~PluginTable() { CloseAll(); }

  // What Register does: connects, requests the options, and starts a stream.
  Result<void> Connect(const std::string& resource, const std::string& socket);
  std::optional<Endpoint> Find(const std::string& resource) const;
  // The process ends: all connections close, and nothing reacts to that.
  void CloseAll();
  // A new process read the checkpoint.
  void Restart();

  void LoseStreams(int count);
  void DropStream(const std::string& resource);
  // Treats the resource as stopped, although its stream is open.
  void Forget(const std::string& resource);

  uint64_t registrations(const std::string& resource) const;
  uint64_t streams(const std::string& resource) const;
  // Waits for a change of devices or registrations.
  bool WaitFor(const std::function<bool()>& reached, const Deadline& deadline);

 private:
  struct Counts {
    uint64_t registrations = 0;
    uint64_t streams = 0;
  };
  void Run(const std::shared_ptr<PluginClient>& client);
  std::shared_ptr<PluginClient> Find(const std::string& resource, const std::string& socket) const;
  void Remove(const std::string& resource, const std::string& socket);
  void Disconnect(const std::shared_ptr<PluginClient>& client);
  void Changed();

  const Options options_;
  DeviceManager* const manager_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t changes_ = 0;
  bool closing_ = false;
  int lost_streams_ = 0;
  std::map<std::string, std::vector<std::shared_ptr<PluginClient>>> clients_;  // Keyed by resource.
  std::map<std::string, Endpoint> endpoints_;  // Keyed by resource; the endpoint that is called.
  // Keyed by resource and socket, if plugins are not identified by their resource alone.
  std::map<std::string, std::map<std::string, Endpoint>> connected_;
  std::map<std::string, Counts> counts_;
  std::vector<std::shared_ptr<PluginClient>> running_;  // Those whose streams were started.
  std::list<std::thread> threads_;
};

}  // namespace gpushm::plugin::kubelet::testing
