#include "plugin/monitoring.h"

#include <utility>
#include <vector>

#include "plugin/config/listen_address.h"
#include "plugin/page/page.h"
#include "runtime/daemon/log.h"

namespace gpushm::plugin {
namespace {

// A look at the GPUs that takes longer: NVML hangs.
constexpr int64_t kHangsMs = 60'000;

HttpAnswer Front() {
  return {.content_type = "text/html; charset=utf-8",
          .body =
              "<!doctype html><title>gpushm-plugin</title><h1>gpushm-plugin</h1>"
              "<p><a href=\"metrics\">metrics</a></p>\n",
          .headers = {}};
}

}  // namespace

Monitoring::Monitoring(const MonitoringConfig& config, const Parts& parts,
                       const Advertisement& advertisement)
    : parts_(parts),
      sampler_(
          *parts.nvml, advertisement.devices, config.sample_ms,
          {.buffers = [keeper = parts.keeper] { return keeper->BufferBytes(); },
           .clients = config.host_pids ? [keeper = parts.keeper] { return keeper->Processes(); }
                                       : std::function<std::vector<ClientProcess>()>()}),
      collector_({.offer = [this] { return LastOffer(); },
                  .unit_bytes = parts.unit_bytes,
                  .book = [allocator = parts.allocator] { return allocator->TryLook(); },
                  .keeper = parts.keeper,
                  .health = parts.health,
                  .sampler = &sampler_,
                  .registration = parts.registration,
                  .counters = parts.counters,
                  .node_name = parts.node_name}) {
  SetOffer(advertisement, {});
}

Monitoring::~Monitoring() {
  // Before what their answers read.
  metrics_.reset();
  status_.reset();
}

Result<std::unique_ptr<Monitoring>> Monitoring::Start(const MonitoringConfig& config,
                                                      const Parts& parts,
                                                      const Advertisement& advertisement) {
  std::unique_ptr<Monitoring> monitoring(new Monitoring(config, parts, advertisement));
  if (auto served = monitoring->Serve(config); !served) return std::unexpected(served.error());
  return monitoring;
}

Result<std::unique_ptr<HttpServer>> Monitoring::ServeMetrics(const std::string& address) {
  HttpServer::Paths paths;
  paths["/"] = [](const HttpRequest&) { return Front(); };
  paths["/metrics"] = [this](const HttpRequest& request) {
    const Format format = FormatFor(request.accept);
    return HttpAnswer{
        .content_type = ContentType(format), .body = collector_.Metrics(format), .headers = {}};
  };
  paths["/healthz"] = [](const HttpRequest&) { return HttpAnswer{.body = "ok\n", .headers = {}}; };
  paths["/readyz"] = [this](const HttpRequest&) { return Ready(); };
  return HttpServer::Start(address, std::move(paths));
}

Result<std::unique_ptr<HttpServer>> Monitoring::ServeStatus(const std::string& address) {
  const auto parsed = ParseListenAddress(address);
  const bool local = parsed && IsLoopback(*parsed);
  HttpServer::Paths paths;
  const auto add = [&](const std::string& path, const HttpServer::Handler& handler) {
    paths[path] = [handler, local](const HttpRequest& request) {
      if (!local || IsLocalHost(request.host)) return handler(request);
      return HttpAnswer{.status = 421, .body = "ask for localhost\n", .headers = {}};
    };
  };
  add("/", [](const HttpRequest&) {
    return HttpAnswer{
        .content_type = "text/html; charset=utf-8",
        .body = std::string(StatusPage()),
        .headers = Concat("Content-Security-Policy: ", StatusPageCsp(),
                          "\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n")};
  });
  add("/status.json", [this](const HttpRequest&) {
    return HttpAnswer{
        .content_type = "application/json", .body = collector_.StatusJson(), .headers = {}};
  });
  return HttpServer::Start(address, std::move(paths));
}

Result<void> Monitoring::Serve(const MonitoringConfig& config) {
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

HttpAnswer Monitoring::Ready() const {
  const auto no = [](std::string why) {
    return HttpAnswer{.status = 503, .body = std::move(why) + "\n", .headers = {}};
  };
  if (parts_.health->SinceLookMs() > kHangsMs) return no("NVML hangs: a GPU is sick");
  if (parts_.registration) {
    const kubelet::State state = parts_.registration();
    for (const Resource resource : kResources) {
      if (state.Of(resource).usable()) continue;
      return no(Concat(ResourceName(resource),
                       " is not registered with the kubelet: ", state.Of(resource).last_error));
    }
  }
  return {.body = "ok\n", .headers = {}};
}

void Monitoring::SetOffer(const Advertisement& advertisement,
                          const std::map<Resource, uint64_t>& unhealthy) {
  Offer offer{.devices = advertisement.devices, .gpus = advertisement.gpus, .ids = {}};
  for (const Resource resource : kResources) {
    const auto found = unhealthy.find(resource);
    offer.ids[resource] = {.devices = advertisement.IdsOf(resource).size(),
                           .unhealthy = found == unhealthy.end() ? 0 : found->second};
  }
  sampler_.SetDevices(advertisement.devices);
  const std::lock_guard lock(mutex_);
  offer_ = std::move(offer);
}

Offer Monitoring::LastOffer() const {
  const std::lock_guard lock(mutex_);
  return offer_;
}

}  // namespace gpushm::plugin
