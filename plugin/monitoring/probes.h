// Answers the kubelet's probes, on a port and threads of their own, so that a client that reads
// metrics cannot hold up a probe.
//
//   /healthz  200 while the threads that serve the node make progress. Problems of a GPU or the
//             kubelet do not count, because a restart fixes neither.
//   /readyz   200 if /healthz is, NVML answers, and the kubelet knows the plugin. It is also 200 if
//             the plugin does not register because somebody else hands out the node's GPUs, so that
//             an update of other nodes does not wait for this one.
//
// Threads: any; Start from one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/daemon/http_server.h"
#include "plugin/kubelet/registration.h"

namespace gpushm::plugin::monitoring {

// A loop whose current task takes longer than this counts as hung.
inline constexpr int64_t kLoopHangsMs = 30'000;
// NVML counts as hung if a check of the GPUs takes longer than this.
inline constexpr int64_t kNvmlHangsMs = 60'000;

// A thread that must make progress.
struct WatchedLoop {
  std::string_view name;             // For people: "for the plugin links".
  std::function<int64_t()> busy_ms;  // As EventLoop::BusyMs.
};

// All may be called from any thread, and do not wait.
struct ProbeSources {
  std::vector<WatchedLoop> loops;
  std::function<int64_t()> since_look_ms;        // As HealthMonitor::SinceLookMs.
  std::function<kubelet::State()> registration;  // Empty: there is no kubelet.
  // Why another front end does not serve the kubelet yet; it returns an empty text if it does.
  std::function<std::string()> not_ready = {};
};

http::Answer Live(const ProbeSources& sources);
http::Answer Ready(const ProbeSources& sources);

// A server on `address`, in the configuration's format. kInvalidArgument: it is not an address.
// kSystem: as http::Server::Start.
Result<std::unique_ptr<http::Server>> ServeOn(const std::string& address,
                                              http::Server::Paths paths);

// `/healthz` and `/readyz`, for a server.
http::Server::Paths ProbePaths(ProbeSources sources);

}  // namespace gpushm::plugin::monitoring
