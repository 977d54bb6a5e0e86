#include "plugin/monitoring/probes.h"

#include <utility>

#include "plugin/config/listen_address.h"

namespace gpushm::plugin::monitoring {
namespace {

http::Answer No(std::string why) {
  return {.status = 503, .body = std::move(why) + "\n", .headers = {}};
}

}  // namespace

Result<std::unique_ptr<http::Server>> ServeOn(const std::string& address,
                                              http::Server::Paths paths) {
  const auto parsed = config::ParseListenAddress(address);
  if (!parsed) {
    return Fail(Code::kInvalidArgument, Concat("\"", address, "\" is not an address to listen on"),
                "use a port, with an address of this machine if not all are meant: 127.0.0.1:9401");
  }
  return http::Server::Start({.host = std::string(parsed->host), .port = parsed->port},
                             std::move(paths));
}

http::Answer Live(const ProbeSources& sources) {
  for (const WatchedLoop& loop : sources.loops) {
    const int64_t busy_ms = loop.busy_ms();
    if (busy_ms <= kLoopHangsMs) continue;
    return No(Concat("the thread ", loop.name, " hangs: its current task has taken ",
                     busy_ms / 1000, " s"));
  }
  return {.body = "ok\n", .headers = {}};
}

http::Answer Ready(const ProbeSources& sources) {
  if (http::Answer live = Live(sources); live.status != 200) return live;
  if (sources.since_look_ms() > kNvmlHangsMs)
    return No("NVML hangs, probably because a GPU is unhealthy");
  if (sources.registration) {
    const kubelet::State state = sources.registration();
    if (!state.withheld.empty()) return {.body = "ok\n", .headers = {}};
    for (const binding::Resource resource : binding::kResources) {
      if (state.Of(resource).usable()) continue;
      return No(Concat(binding::ResourceName(resource),
                       " is not registered with the kubelet: ", state.Of(resource).last_error));
    }
  }
  if (sources.not_ready) {
    if (const std::string why = sources.not_ready(); !why.empty()) return No(why);
  }
  return {.body = "ok\n", .headers = {}};
}

http::Server::Paths ProbePaths(ProbeSources sources) {
  const auto shared = std::make_shared<const ProbeSources>(std::move(sources));
  http::Server::Paths paths;
  paths["/healthz"] = [shared](const http::Request&) { return Live(*shared); };
  paths["/readyz"] = [shared](const http::Request&) { return Ready(*shared); };
  return paths;
}

}  // namespace gpushm::plugin::monitoring
