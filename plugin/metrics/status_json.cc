#include <nlohmann/json.hpp>

#include "platform/base/clock.h"
#include "platform/base/version.h"
#include "plugin/metrics/collector.h"

namespace gpushm::plugin {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kNsPerMs = 1'000'000;

template <typename Value>
Json OrNull(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json BufferJson(const PoolBuffer& buffer) {
  Json attachments = Json::array();
  for (const AttachmentsView& view : buffer.attachments) {
    attachments.push_back({{"container", view.container},
                           {"access", AccessName(view.access)},
                           {"count", view.count},
                           {"mapped_bytes", view.mapped_bytes},
                           {"proportional_bytes", view.proportional_bytes}});
  }
  return {{"name", buffer.name},
          {"state", buffer.state},
          {"transport", buffer.transport},
          {"creator", buffer.creator},
          {"size_bytes", buffer.size_bytes},
          {"allocated_bytes", buffer.allocated_bytes},
          {"generations", buffer.generations},
          {"created_unix_ms", buffer.created_unix_ns / kNsPerMs},
          {"content_bytes", buffer.content_bytes},
          {"loaded_bytes", OrNull(buffer.loaded_bytes)},
          {"attachments", std::move(attachments)}};
}

Json PoolJson(const PoolView& pool) {
  Json buffers = Json::array();
  for (const PoolBuffer& buffer : pool.buffers) buffers.push_back(BufferJson(buffer));
  Json containers = Json::array();
  for (const PoolContainer& container : pool.containers) {
    containers.push_back({{"name", container.name},
                          {"clients", container.clients},
                          {"mapped_bytes", container.mapped_bytes},
                          {"proportional_bytes", container.proportional_bytes},
                          {"private_bytes", OrNull(container.private_bytes)}});
  }
  return {{"allocation", pool.allocation},
          {"namespace", pool.pod.name_space},
          // Without Kubernetes metrics call the pool by its allocation's name; here that is told.
          {"pod", pool.pod.name_space.empty() ? "" : pool.pod.name},
          {"size_bytes", pool.size_bytes},
          {"allocated_bytes", pool.allocated_bytes},
          {"broker", pool.broker},
          {"buffers", std::move(buffers)},
          {"containers", std::move(containers)}};
}

Json GpuJson(const GpuView& gpu, const NodeView& node) {
  const GpuSample none;
  const GpuSample& sample = gpu.sample ? *gpu.sample : none;
  Json pools = Json::array();
  for (const PoolView& pool : node.pools) {
    if (pool.gpu == gpu.device.uuid) pools.push_back(PoolJson(pool));
  }
  return {{"uuid", gpu.device.uuid},
          {"index", gpu.device.index},
          {"model", gpu.device.name},
          {"mig_profile", gpu.device.profile()},
          {"healthy", gpu.healthy},
          {"reason", gpu.reason},
          {"taken_by", gpu.taken_by},
          {"total_bytes", gpu.device.total_bytes},
          {"used_bytes", OrNull(sample.used_bytes)},
          {"allocatable_bytes", gpu.allocatable_bytes},
          {"bound_bytes", gpu.bound_bytes},
          {"buffers_bytes", gpu.buffers_bytes},
          {"other_bytes", OrNull(sample.other_bytes)},
          {"saved_bytes", gpu.saved_bytes},
          {"kept_bytes", gpu.kept_bytes},
          {"utilization", OrNull(sample.utilization)},
          {"temperature_celsius", OrNull(sample.temperature_celsius)},
          {"power_watts", OrNull(sample.power_watts)},
          {"sampled_unix_ms", gpu.sample ? Json(sample.unix_ns / kNsPerMs) : Json(nullptr)},
          {"pools", std::move(pools)}};
}

}  // namespace

std::string StatusJson(const NodeView& node, const StatusFacts& facts) {
  Json gpus = Json::array();
  for (const GpuView& gpu : node.gpus) gpus.push_back(GpuJson(gpu, node));
  Json resources = Json::array();
  for (const StatusFacts::ResourceFacts& resource : facts.resources) {
    resources.push_back({{"name", resource.name},
                         {"registered", resource.registered},
                         {"devices", resource.devices},
                         {"unhealthy", resource.unhealthy},
                         {"bound", resource.bound}});
  }
  const Json status = {{"version", kVersion},
                       {"node", facts.node_name},
                       {"time_unix_ms", UnixNs() / kNsPerMs},
                       {"started_unix_ms", facts.started_unix_ns / kNsPerMs},
                       {"gpus", std::move(gpus)},
                       {"resources", std::move(resources)}};
  // Names of GPUs are the driver's bytes.
  return status.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gpushm::plugin
