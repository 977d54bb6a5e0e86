#include "plugin/monitoring/monitoring.h"

#include <utility>
#include <vector>

#include "platform/daemon/log.h"
#include "plugin/config/listen_address.h"
#include "plugin/status_page/page.h"

namespace gpushm::plugin::monitoring {
namespace {

http::Answer Paged(std::string_view content_type, metrics::SharedAnswer::Text page) {
  if (page == nullptr) {
    return {.status = 503, .body = "the answer was not ready in time; try again\n", .headers = {}};
  }
  return {.content_type = content_type, .body = std::move(page), .headers = {}};
}

http::Answer Front() {
  return {.content_type = "text/html; charset=utf-8",
          .body =
              "<!doctype html><title>gpushm-plugin</title><h1>gpushm-plugin</h1>"
              "<p><a href=\"metrics\">metrics</a></p>\n",
          .headers = {}};
}

}  // namespace

Monitoring::Monitoring(const config::MonitoringConfig& config, const Parts& parts,
                       const inventory::Advertisement& advertisement)
    : parts_(parts),
      sampler_(
          *parts.nvml, advertisement.devices, config.sample_ms,
          {.buffers = [keeper = parts.keeper] { return keeper->BufferBytes(); },
           .processes = config.host_pids ? [keeper = parts.keeper] { return keeper->Processes(); }
                                         : std::function<keeper::NodeProcesses()>()}),
      collector_({.offer = [this] { return LastOffer(); },
                  .unit_bytes = parts.unit_bytes,
                  .book = [allocator = parts.allocator] { return allocator->TryLook(); },
                  .keeper = parts.keeper,
                  .health = parts.health,
                  .sampler = &sampler_,
                  .registration = parts.registration,
                  .counters = parts.counters,
                  .node_name = parts.node_name}) {
  offer_ = {.devices = advertisement.devices,
            .gpus = advertisement.gpus,
            .ids = {},
            .missing = advertisement.missing};
  for (const binding::Resource resource : binding::kResources) {
    offer_.ids[resource].devices = advertisement.ids[resource].size();
  }
}

Monitoring::~Monitoring() {
  // The servers stop first, because their answers read the other members.
  probes_.reset();
  metrics_.reset();
  status_.reset();
}

Result<std::unique_ptr<Monitoring>> Monitoring::Start(
    const config::MonitoringConfig& config, const Parts& parts,
    const inventory::Advertisement& advertisement) {
  std::unique_ptr<Monitoring> monitoring(new Monitoring(config, parts, advertisement));
  if (auto served = monitoring->Serve(config); !served) return std::unexpected(served.error());
  return monitoring;
}

Result<std::unique_ptr<http::Server>> Monitoring::ServeMetrics(const std::string& address) {
  http::Server::Paths paths;
  paths["/"] = [](const http::Request&) { return Front(); };
  paths["/metrics"] = [this](const http::Request&) {
    return Paged(metrics::kExpositionType, collector_.Metrics());
  };
  return ServeOn(address, std::move(paths));
}

Result<std::unique_ptr<http::Server>> Monitoring::ServeStatus(const std::string& address) {
  const auto parsed = config::ParseListenAddress(address);
  const bool local = parsed && IsLoopback(*parsed);
  http::Server::Paths paths;
  const auto add = [&](const std::string& path, const http::Server::Handler& handler) {
    paths[path] = [handler, local](const http::Request& request) {
      if (!local || http::IsLocalHost(request.host)) return handler(request);
      return http::Answer{.status = 421, .body = "use localhost as the host name\n", .headers = {}};
    };
  };
  add("/", [](const http::Request&) {
    return http::Answer{
        .content_type = "text/html; charset=utf-8",
        .body = std::string(status_page::StatusPage()),
        .headers = {{"Content-Security-Policy", std::string(status_page::StatusPageCsp())},
                    {"Referrer-Policy", "no-referrer"},
                    {"X-Frame-Options", "DENY"}}};
  });
  add("/status.json",
      [this](const http::Request&) { return Paged("application/json", collector_.StatusJson()); });
  return ServeOn(address, std::move(paths));
}

Result<void> Monitoring::Serve(const config::MonitoringConfig& config) {
  if (!config.probes_address.empty()) {
    auto server = ServeOn(
        config.probes_address,
        ProbePaths({.loops = parts_.loops,
                    .since_look_ms = [health = parts_.health] { return health->SinceLookMs(); },
                    .registration = parts_.registration,
                    .not_ready = parts_.not_ready}));
    if (!server) return std::unexpected(server.error().WithContext("probes.address"));
    probes_ = std::move(*server);
    LogInfo("probes-served", {{"address", config.probes_address}, {"port", probes_->port()}});
  }
  if (!config.metrics_address.empty()) {
    auto server = ServeMetrics(config.metrics_address);
    if (!server) return std::unexpected(server.error().WithContext("metrics.address"));
    metrics_ = std::move(*server);
    LogInfo("metrics-served", {{"address", config.metrics_address}, {"port", metrics_->port()}});
  }
  if (!config.status_address.empty()) {
    auto server = ServeStatus(config.status_address);
    if (!server) return std::unexpected(server.error().WithContext("status.address"));
    status_ = std::move(*server);
    LogInfo("status-served", {{"address", config.status_address}, {"port", status_->port()}});
  }
  return {};
}

void Monitoring::SetOffer(std::vector<binding::Gpu> gpus,
                          const std::map<binding::Resource, uint64_t>& unhealthy) {
  const std::lock_guard lock(mutex_);
  offer_.gpus = std::move(gpus);
  for (const auto& [resource, count] : unhealthy) offer_.ids[resource].unhealthy = count;
}

metrics::Offer Monitoring::LastOffer() const {
  const std::lock_guard lock(mutex_);
  return offer_;
}

}  // namespace gpushm::plugin::monitoring
