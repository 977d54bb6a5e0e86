#include "runtime/ctl/node_status.h"

#include <nlohmann/json.hpp>

namespace gpushm::ctl {
namespace {

using Json = nlohmann::json;
using Gpu = NodeStatus::Gpu;
using Pool = NodeStatus::Pool;

// All throw what ParseNodeStatus() catches, if a member is missing or of another type.
template <typename T>
T Get(const Json& object, const char* name) {
  return object.at(name).get<T>();
}

template <typename T>
std::optional<T> Known(const Json& object, const char* name) {
  const Json& value = object.at(name);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

NodeStatus::Buffer BufferOf(const Json& json) {
  NodeStatus::Buffer buffer{.name = Get<std::string>(json, "name"),
                            .state = Get<std::string>(json, "state"),
                            .allocated_bytes = Get<uint64_t>(json, "allocated_bytes"),
                            .attachments = {}};
  for (const Json& attachment : json.at("attachments")) {
    buffer.attachments.push_back(
        {.container = Get<std::string>(attachment, "container"),
         .access = Get<std::string>(attachment, "access"),
         .count = Get<uint64_t>(attachment, "count"),
         .mapped_bytes = Get<uint64_t>(attachment, "mapped_bytes"),
         .proportional_bytes = Get<uint64_t>(attachment, "proportional_bytes")});
  }
  return buffer;
}

Pool PoolOf(const Json& json) {
  Pool pool;
  const auto pod = Get<std::string>(json, "pod");
  pool.pod = pod.empty() ? Get<std::string>(json, "allocation")
                         : Concat(Get<std::string>(json, "namespace"), "/", pod);
  pool.broker = Get<std::string>(json, "broker");
  pool.size_bytes = Get<uint64_t>(json, "size_bytes");
  for (const Json& buffer : json.at("buffers")) pool.buffers.push_back(BufferOf(buffer));
  for (const Json& container : json.at("containers")) {
    pool.private_bytes += Known<uint64_t>(container, "private_bytes").value_or(0);
  }
  return pool;
}

Gpu GpuOf(const Json& json) {
  Gpu gpu{.index = Get<uint64_t>(json, "index"),
          .model = Get<std::string>(json, "model"),
          .mig_profile = Get<std::string>(json, "mig_profile"),
          .healthy = Get<bool>(json, "healthy"),
          .reason = Get<std::string>(json, "reason"),
          .total_bytes = Get<uint64_t>(json, "total_bytes"),
          .used_bytes = Known<uint64_t>(json, "used_bytes"),
          .allocatable_bytes = Get<uint64_t>(json, "allocatable_bytes"),
          .bound_bytes = Get<uint64_t>(json, "bound_bytes"),
          .buffers_bytes = Get<uint64_t>(json, "buffers_bytes"),
          .other_bytes = Known<uint64_t>(json, "other_bytes"),
          .saved_bytes = Get<uint64_t>(json, "saved_bytes"),
          .utilization = Known<double>(json, "utilization"),
          .temperature_celsius = Known<double>(json, "temperature_celsius"),
          .power_watts = Known<double>(json, "power_watts"),
          .pools = {}};
  for (const Json& pool : json.at("pools")) gpu.pools.push_back(PoolOf(pool));
  return gpu;
}

}  // namespace

Result<NodeStatus> ParseNodeStatus(std::string_view json) {
  try {
    const Json document = Json::parse(json);
    NodeStatus node{.node = Get<std::string>(document, "node"),
                    .time_unix_ms = Get<int64_t>(document, "time_unix_ms"),
                    .gpus = {}};
    for (const Json& gpu : document.at("gpus")) node.gpus.push_back(GpuOf(gpu));
    return node;
  } catch (const Json::exception& error) {
    return Fail(Code::kCorrupt, Concat("not a node's status: ", error.what()),
                "is it the plugin's port, and is gpushmctl as new as the plugin?");
  }
}

}  // namespace gpushm::ctl
