#include "contract/status/status.h"
#include "platform/base/clock.h"
#include "platform/base/version.h"
#include "plugin/metrics/collector.h"

namespace gpushm::plugin::metrics {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

status::Pool Told(const PoolView& pool) {
  status::Pool told{.allocation = pool.allocation,
                    .name_space = pool.pod.name_space,
                    // Without Kubernetes, metrics use the allocation's name as the pool's name. It
                    // is shown above.
                    .pod = pool.pod.name_space.empty() ? "" : pool.pod.name,
                    .gpu_number = pool.number,
                    .pod_gpus = pool.pod_gpus,
                    .size_bytes = pool.size_bytes,
                    .allocated_bytes = pool.allocated_bytes,
                    .broker = std::string(pool.broker),
                    .mps = pool.mps};
  told.buffers.assign(pool.buffers.begin(), pool.buffers.end());
  told.containers.assign(pool.containers.begin(), pool.containers.end());
  return told;
}

status::Gpu Told(const GpuView& gpu, const NodeView& node) {
  status::Gpu told{.uuid = gpu.device.uuid,
                   .index = gpu.device.index,
                   .model = gpu.device.name,
                   .mig_profile = std::string(gpu.device.profile()),
                   .healthy = gpu.healthy,
                   .reason = gpu.reason,
                   .taken_by = gpu.taken_by,
                   .drained = gpu.drained,
                   .exclusive_to = gpu.exclusive_to,
                   .total_bytes = gpu.device.total_bytes,
                   .allocatable_bytes = gpu.allocatable_bytes,
                   .bound_bytes = gpu.bound_bytes,
                   .buffers_bytes = gpu.buffers_bytes,
                   .saved_bytes = gpu.saved_bytes,
                   .kept_bytes = gpu.kept_bytes};
  if (gpu.sample) {
    told.used_bytes = gpu.sample->used_bytes;
    told.other_bytes = gpu.sample->other_bytes;
    told.utilization = gpu.sample->utilization;
    told.temperature_celsius = gpu.sample->temperature_celsius;
    told.power_watts = gpu.sample->power_watts;
    told.sampled_unix_ms = gpu.sample->unix_ns / kNsPerMs;
  }
  for (const PoolView& pool : node.pools) {
    if (pool.gpu == gpu.device.uuid) told.pools.push_back(Told(pool));
  }
  return told;
}

}  // namespace

std::string StatusJson(const NodeView& node, const StatusFacts& facts) {
  status::Node told{.version = std::string(kVersion),
                    .node = facts.node_name,
                    .time_unix_ms = UnixNs() / kNsPerMs,
                    .started_unix_ms = facts.started_unix_ns / kNsPerMs,
                    .resources = facts.resources};
  for (const GpuView& gpu : node.gpus) told.gpus.push_back(Told(gpu, node));
  return ToJson(told);
}

}  // namespace gpushm::plugin::metrics
