// What the plugin reports about itself and the node: it samples the GPUs and serves metrics, probes
// and the status page.
//
// Threads: its own (GpuSampler, http::Server); they call the callbacks in Parts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "platform/daemon/http_server.h"
#include "plugin/allocation/allocator.h"
#include "plugin/config/plugin_config.h"
#include "plugin/inventory/health.h"
#include "plugin/inventory/inventory.h"
#include "plugin/keeper/keeper.h"
#include "plugin/kubelet/registration.h"
#include "plugin/metrics/collector.h"
#include "plugin/metrics/counters.h"
#include "plugin/metrics/gpu_sampler.h"
#include "plugin/monitoring/probes.h"

namespace gpushm::plugin::monitoring {

class Monitoring {
 public:
  // All must outlive it.
  struct Parts {
    const NvmlApi* nvml = nullptr;
    const allocation::Allocator* allocator = nullptr;
    keeper::Keeper* keeper = nullptr;
    const inventory::HealthMonitor* health = nullptr;
    const metrics::Counters* counters = nullptr;
    // As kubelet::Registration; empty: there is no kubelet.
    std::function<kubelet::State()> registration;
    std::function<std::string()> not_ready = {};  // As in ProbeSources.
    // The threads whose progress /healthz reports.
    std::vector<WatchedLoop> loops;
    uint64_t unit_bytes = 0;
    std::string node_name;
  };
  // kInvalidArgument, kSystem: as http::Server.
  static Result<std::unique_ptr<Monitoring>> Start(const config::MonitoringConfig& config,
                                                   const Parts& parts,
                                                   const inventory::Advertisement& advertisement);
  Monitoring(const Monitoring&) = delete;
  Monitoring& operator=(const Monitoring&) = delete;
  ~Monitoring();

  // Any thread. `gpus`: of the advertisement, as the book has them now.
  void SetOffer(std::vector<binding::Gpu> gpus,
                const std::map<binding::Resource, uint64_t>& unhealthy);

 private:
  Monitoring(const config::MonitoringConfig& config, const Parts& parts,
             const inventory::Advertisement& advertisement);
  Result<void> Serve(const config::MonitoringConfig& config);
  Result<std::unique_ptr<http::Server>> ServeMetrics(const std::string& address);
  Result<std::unique_ptr<http::Server>> ServeStatus(const std::string& address);
  metrics::Offer LastOffer() const;

  const Parts parts_;
  metrics::GpuSampler sampler_;
  mutable std::mutex mutex_;
  metrics::Offer offer_;  // Guarded by mutex_.
  metrics::Collector collector_;
  std::unique_ptr<http::Server> probes_;
  std::unique_ptr<http::Server> metrics_;
  std::unique_ptr<http::Server> status_;
};

}  // namespace gpushm::plugin::monitoring
