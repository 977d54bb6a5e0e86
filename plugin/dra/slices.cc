#include "plugin/dra/slices.h"

#include <algorithm>
#include <limits>

#include "platform/base/name.h"
#include "platform/base/quote.h"
#include "platform/daemon/log.h"
#include "plugin/dra/claim.h"
#include "plugin/dra/devices.h"
#include "plugin/dra/json.h"

namespace gpushm::plugin::dra {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxGeneration = std::numeric_limits<int64_t>::max() - 1;
constexpr char kApi[] = "/apis/resource.k8s.io/v1/resourceslices";

void AddDropped(const Json& wanted, const Json& got, const std::string& path,
                std::vector<std::string>* dropped) {
  if (wanted.is_object()) {
    for (const auto& [key, value] : wanted.items()) {
      const std::string below = path.empty() ? key : path + "." + key;
      if (!got.is_object() || !got.contains(key)) {
        dropped->push_back(below);
      } else {
        AddDropped(value, got[key], below, dropped);
      }
    }
  } else if (wanted.is_array()) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::string below = Concat(path, "[", i, "]");
      if (!got.is_array() || i >= got.size()) {
        dropped->push_back(below);
      } else {
        AddDropped(wanted[i], got[i], below, dropped);
      }
    }
  }
}

// Whether the server leaves out what makes devices divisible.
bool IsConsumableCapacity(const std::string& path) {
  return path.ends_with(".allowMultipleAllocations") ||
         path.find(".requestPolicy") != std::string::npos;
}

// The names of GPUs come from the driver.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string SliceName(const std::string& node, size_t index) {
  constexpr size_t kMaxNodeBytes = 200;  // Of the 253 of a name.
  return Concat(node.substr(0, kMaxNodeBytes), "-", kDriverName, "-", index);
}

}  // namespace

std::vector<std::string> Dropped(const Json& wanted, const Json& got) {
  std::vector<std::string> dropped;
  AddDropped(wanted, got, "", &dropped);
  return dropped;
}

Result<Json> Slices::Ask(const std::string& method, const std::string& path, const Json& body,
                         const Deadline& deadline) const {
  const auto text = call_(method, path, body.is_null() ? std::string() : Dump(body), deadline);
  if (!text) return std::unexpected(text.error());
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return Fail(
      Code::kCorrupt,
      Concat(method, " ", path, ": the API server's answer is not a JSON object: ", Quote(*text)));
}

// By name.
Result<std::map<std::string, Json>> Slices::Mine(const Deadline& deadline) const {
  const Result<Json> list =
      Ask("GET",
          Concat(kApi, "?fieldSelector=spec.driver%3D", kDriverName, "%2Cspec.nodeName%3D", node_),
          Json(), deadline);
  if (!list) return std::unexpected(list.error());
  std::map<std::string, Json> mine;
  for (const Json& slice : At(*list, {"items"})) {
    const Json name = At(slice, {"metadata", "name"});
    // It becomes part of a path.
    if (!name.is_string() || !IsDnsSubdomain(name.get_ref<const std::string&>())) {
      return Fail(Code::kCorrupt, Concat("the API server listed a ResourceSlice without a valid ",
                                         "name: ", Quote(Dump(slice))));
    }
    mine[name.get<std::string>()] = slice;
  }
  return mine;
}

bool Slices::IsRight(const std::string& name, const Json& devices, size_t count,
                     const Json& slice) const {
  const Json spec = At(slice, {"spec"});
  const auto answered = answered_.find(name);
  if (answered == answered_.end() || answered->second.devices != devices ||
      At(answered->second.spec, {"devices"}) != At(spec, {"devices"})) {
    return false;
  }
  return At(spec, {"pool", "resourceSliceCount"}) == Json(count);
}

Result<void> Slices::DeleteSlice(const std::string& name, const Deadline& deadline) {
  answered_.erase(name);
  const auto deleted = Ask("DELETE", Concat(kApi, "/", name), Json(), deadline);
  if (deleted || deleted.error().code() == Code::kNotFound) return {};
  return std::unexpected(deleted.error());
}

Result<bool> Slices::Sync(const Json& devices, const Deadline& deadline) {
  const auto mine = Mine(deadline);
  if (!mine) return std::unexpected(mine.error());
  std::map<std::string, Json> wanted;
  for (size_t i = 0; i < devices.size() || i == 0; i += kSliceDevices) {
    Json part = Json::array();
    for (size_t j = i; j < std::min(devices.size(), i + kSliceDevices); ++j) {
      part.push_back(devices[j]);
    }
    wanted[SliceName(node_, i / kSliceDevices)] = std::move(part);
  }
  bool right = true;
  uint64_t generation = 0;
  for (const auto& [name, slice] : *mine) {
    const auto want = wanted.find(name);
    right &= want != wanted.end() && IsRight(name, want->second, wanted.size(), slice);
    const Json number = At(slice, {"spec", "pool", "generation"});
    // The API's type is int64.
    if (number.is_number_unsigned()) {
      generation = std::max(generation, std::min(number.get<uint64_t>(), kMaxGeneration));
    }
  }
  if (right && mine->size() == wanted.size()) return false;

  // The slices go when the node does. Read each time: a node that was made again has another UID.
  const Result<Json> node = Ask("GET", Concat("/api/v1/nodes/", node_), Json(), deadline);
  if (!node) return std::unexpected(node.error());
  const Json owner = {{"apiVersion", "v1"},
                      {"kind", "Node"},
                      {"name", node_},
                      {"uid", At(*node, {"metadata", "uid"})},
                      {"controller", true}};
  std::vector<std::string> dropped;
  for (const auto& [name, part] : wanted) {
    Json slice = {{"apiVersion", "resource.k8s.io/v1"},
                  {"kind", "ResourceSlice"},
                  {"metadata", {{"name", name}, {"ownerReferences", Json::array({owner})}}},
                  {"spec",
                   {{"driver", kDriverName},
                    {"nodeName", node_},
                    {"devices", part},
                    {"pool",
                     {{"name", node_},
                      {"generation", generation + 1},
                      {"resourceSliceCount", wanted.size()}}}}}};
    const auto old = mine->find(name);
    const bool exists = old != mine->end();
    if (exists) {
      slice["metadata"]["resourceVersion"] = At(old->second, {"metadata", "resourceVersion"});
    }
    const Result<Json> answer =
        Ask(exists ? "PUT" : "POST", exists ? Concat(kApi, "/", name) : std::string(kApi), slice,
            deadline);
    if (!answer) return std::unexpected(answer.error());
    const Json spec = At(*answer, {"spec"});
    answered_[name] = {part, spec};
    for (const std::string& path : Dropped({{"devices", part}}, spec)) {
      dropped.push_back(path);
    }
  }
  for (const auto& [name, slice] : *mine) {
    if (wanted.contains(name)) continue;
    if (auto deleted = DeleteSlice(name, deadline); !deleted) {
      return std::unexpected(deleted.error());
    }
  }
  if (std::ranges::any_of(dropped, IsConsumableCapacity)) {
    for (const auto& [name, part] : wanted) {
      if (auto deleted = DeleteSlice(name, deadline); !deleted) {
        return std::unexpected(deleted.error());
      }
    }
    return Fail(Code::kUnsupported,
                Concat("the API server dropped ", dropped.front(), " and ", dropped.size() - 1,
                       " more fields of the ResourceSlices of node ", node_,
                       ": its feature gate DRAConsumableCapacity is off, and without it a claim "
                       "cannot ask for a part of a GPU"),
                "use Kubernetes 1.36 or newer, turn the gate on in API server, scheduler, "
                "controller manager and kubelet, or set allocation: device-plugin");
  }
  if (!dropped.empty()) {
    LogWarning("slice-fields-dropped",
               {{"field", dropped.front()},
                {"fields", dropped.size()},
                {"reason",
                 "the API server left these fields out, because their feature gate is off; for "
                 "taints it is DRADeviceTaints, and without it new pods are sent to an unhealthy "
                 "GPU, where they wait"}});
  }
  LogInfo("slices-published", {{"pool", node_},
                               {"generation", generation + 1},
                               {"devices", devices.size()},
                               {"slices", wanted.size()}});
  return true;
}

}  // namespace gpushm::plugin::dra
