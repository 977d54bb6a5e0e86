// A kubelet's side of one registration: its connection to the plugin's socket.
//
// Threads: any. Run blocks until the stream ends.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "plugin/kubelet/testing/device_manager.h"

namespace gpushm::plugin::kubelet::testing {

class PluginClient {
 public:
  struct PluginOptions {
    bool pre_start = false;
  };

  PluginClient(std::string resource, std::string socket);
  ~PluginClient();

  const std::string& resource() const { return resource_; }
  const std::string& socket() const { return socket_; }
  // The texts of failures are those that Go prints for a gRPC error.
  Result<void> Dial(int64_t wait_ms);
  Result<PluginOptions> GetOptions();

  // Runs ListAndWatch until either side ends it. Messages above 4 MiB also end it, as in the
  // kubelet.
  void Run(const std::function<void(const std::map<std::string, bool>& healthy_by_id)>& on_list);
  // Closes the connection; ends Run and refuses further calls.
  void Close();
  // The kubelet makes no more calls.
  void MarkStopped();

  Result<Answer> Allocate(const std::vector<std::string>& ids);
  Result<void> PreStart(const std::vector<std::string>& ids, int64_t wait_ms);

 private:
  struct Grpc;
  // kUnavailable if it is stopped.
  Result<std::shared_ptr<Grpc>> Connection() const;

  const std::string resource_;
  const std::string socket_;
  mutable std::mutex mutex_;
  std::shared_ptr<Grpc> grpc_;  // Null if closed.
  bool stopped_ = false;
};

}  // namespace gpushm::plugin::kubelet::testing
