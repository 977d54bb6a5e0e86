#include "contract/status/status.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace gpushm::status {
namespace {

using Json = nlohmann::ordered_json;

// The members of each struct, once for both directions. `io` is a Writer or a Reader.
template <typename Io, typename Value>
void Members(Io& io, Value& value) {
  using Type = std::remove_const_t<Value>;
  if constexpr (std::is_same_v<Type, Attachment>) {
    io("container", value.container);
    io("access", value.access);
    io("count", value.count);
    io("mapped_bytes", value.mapped_bytes);
    io("proportional_bytes", value.proportional_bytes);
  } else if constexpr (std::is_same_v<Type, Buffer>) {
    io("name", value.name);
    io("state", value.state);
    io("transport", value.transport);
    io("creator", value.creator);
    io("size_bytes", value.size_bytes);
    io("allocated_bytes", value.allocated_bytes);
    io("generations", value.generations);
    io("created_unix_ms", value.created_unix_ms);
    io("content_bytes", value.content_bytes);
    io("loaded_bytes", value.loaded_bytes);
    io("reason", value.reason);
    io("reason_code", value.reason_code);
    io("attachments", value.attachments);
  } else if constexpr (std::is_same_v<Type, Container>) {
    io("name", value.name);
    io("clients", value.clients);
    io("mapped_bytes", value.mapped_bytes);
    io("proportional_bytes", value.proportional_bytes);
    io("private_bytes", value.private_bytes);
    io("private_limit_bytes", value.private_limit_bytes);
  } else if constexpr (std::is_same_v<Type, Mps>) {
    io("ready", value.ready);
    io("clients", value.clients);
    io("daemon_restarts", value.daemon_restarts);
    io("server_restarts", value.server_restarts);
    io("outside_processes", value.outside_processes);
  } else if constexpr (std::is_same_v<Type, Pool>) {
    io("allocation", value.allocation);
    io("namespace", value.name_space);
    io("pod", value.pod);
    io("gpu_number", value.gpu_number);
    io("pod_gpus", value.pod_gpus);
    io("size_bytes", value.size_bytes);
    io("allocated_bytes", value.allocated_bytes);
    io("broker", value.broker);
    io("buffers", value.buffers);
    io("containers", value.containers);
    io("mps", value.mps);
  } else if constexpr (std::is_same_v<Type, Gpu>) {
    io("uuid", value.uuid);
    io("index", value.index);
    io("model", value.model);
    io("mig_profile", value.mig_profile);
    io("healthy", value.healthy);
    io("reason", value.reason);
    io("taken_by", value.taken_by);
    io("drained", value.drained);
    io("exclusive_to", value.exclusive_to);
    io("total_bytes", value.total_bytes);
    io("used_bytes", value.used_bytes);
    io("allocatable_bytes", value.allocatable_bytes);
    io("bound_bytes", value.bound_bytes);
    io("buffers_bytes", value.buffers_bytes);
    io("other_bytes", value.other_bytes);
    io("saved_bytes", value.saved_bytes);
    io("kept_bytes", value.kept_bytes);
    io("utilization", value.utilization);
    io("temperature_celsius", value.temperature_celsius);
    io("power_watts", value.power_watts);
    io("sampled_unix_ms", value.sampled_unix_ms);
    io("pools", value.pools);
  } else if constexpr (std::is_same_v<Type, Resource>) {
    io("name", value.name);
    io("registered", value.registered);
    io("devices", value.devices);
    io("unhealthy", value.unhealthy);
    io("bound", value.bound);
  } else {
    static_assert(std::is_same_v<Type, Node>);
    io("version", value.version);
    io("node", value.node);
    io("time_unix_ms", value.time_unix_ms);
    io("started_unix_ms", value.started_unix_ms);
    io("gpus", value.gpus);
    io("resources", value.resources);
  }
}

class Writer {
 public:
  template <typename Value>
  void operator()(const char* name, const Value& value) {
    json_[name] = Of(value);
  }

  template <typename Value>
  static Json Of(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::string>) {
      return value;
    } else {
      Writer inner;
      Members(inner, value);
      return std::move(inner.json_);
    }
  }
  template <typename Value>
  static Json Of(const std::optional<Value>& value) {
    return value ? Of(*value) : Json(nullptr);
  }
  template <typename Value>
  static Json Of(const std::vector<Value>& values) {
    Json list = Json::array();
    for (const Value& value : values) list.push_back(Of(value));
    return list;
  }

 private:
  Json json_ = Json::object();
};

// Throws an exception, which FromJson() catches, if a member is missing or has another type.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <typename Value>
  void operator()(const char* name, Value& value) {
    Read(json_.at(name), value);
  }

  template <typename Value>
  static void Read(const Json& json, Value& value) {
    if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
      // The library would convert any number, also one that the type cannot hold.
      const bool fits = json.is_number_unsigned()
                            ? std::in_range<Value>(json.get<uint64_t>())
                            : json.is_number_integer() && std::in_range<Value>(json.get<int64_t>());
      if (!fits)
        throw std::out_of_range("expected a whole number in range, found " +
                                json.dump().substr(0, 40));
      value = json.get<Value>();
    } else if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::string>) {
      json.get_to(value);
    } else {
      Reader inner(json);
      Members(inner, value);
    }
  }
  template <typename Value>
  static void Read(const Json& json, std::optional<Value>& value) {
    if (!json.is_null()) Read(json, value.emplace());
  }
  template <typename Value>
  static void Read(const Json& json, std::vector<Value>& values) {
    for (const Json& item : json.get_ref<const Json::array_t&>()) Read(item, values.emplace_back());
  }

 private:
  const Json& json_;
};

}  // namespace

std::string ToJson(const Node& node) {
  return Writer::Of(node).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Node> FromJson(std::string_view json) {
  try {
    Node node;
    Reader::Read(Json::parse(json), node);
    return node;
  } catch (const std::exception& error) {  // Of the JSON library, or of Reader.
    return Fail(Code::kCorrupt, Concat("not a node's status document: ", error.what()),
                "check that the address is the plugin's status port, "
                "and that gpushmctl is as new as the plugin");
  }
}

}  // namespace gpushm::status
