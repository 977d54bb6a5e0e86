// What the kubelet's probes are told of the plugin, on a port and threads of their own: nobody who
// reads metrics can hold up a probe.
//
//   /healthz  200 while the threads that serve the node make progress. Not what a GPU or the
//   kubelet
//             causes: a restart mends neither.
//   /readyz   the same, and NVML answers, and the kubelet knows the plugin, or is not to know it
//   because another one hands out the node's GPUs: an update of other nodes does not wait for that.
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

namespace gpushm::plugin {

// A turn of a loop that takes longer: its thread hangs.
inline constexpr int64_t kLoopHangsMs = 30'000;
// A look at the GPUs that takes longer: NVML hangs.
inline constexpr int64_t kNvmlHangsMs = 60'000;

// A thread that must go on.
struct WatchedLoop {
  std::string_view name;             // For people: "of the links".
  std::function<int64_t()> busy_ms;  // As EventLoop::BusyMs.
};

// All of it may be called from any thread, and does not wait.
struct ProbeSources {
  std::vector<WatchedLoop> loops;
  std::function<int64_t()> since_look_ms;        // As HealthMonitor::SinceLookMs.
  std::function<kubelet::State()> registration;  // Empty: there is no kubelet.
};

http::Answer Live(const ProbeSources& sources);
http::Answer Ready(const ProbeSources& sources);

// A server on `address`, as the configuration has it: kInvalidArgument: it is none. kSystem: as
// http::Server::Start.
Result<std::unique_ptr<http::Server>> ServeOn(const std::string& address,
                                              http::Server::Paths paths);

// On `address`, as in the configuration. kInvalidArgument, kSystem: as http::Server.
Result<std::unique_ptr<http::Server>> ServeProbes(const std::string& address, ProbeSources sources);

}  // namespace gpushm::plugin
