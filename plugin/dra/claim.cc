#include "plugin/dra/claim.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "contract/limits.h"
#include "platform/base/name.h"
#include "platform/base/quote.h"
#include "platform/yaml/quantity.h"
#include "plugin/dra/json.h"

namespace gpushm::plugin::dra {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<std::string_view, binding::Part>, 2> kNumbered = {
    {{claims::kBroker, binding::Part::kBroker}, {claims::kApp, binding::Part::kApp}}};

std::string Text(const Json& json) {
  return json.is_string() ? json.get<std::string>() : std::string();
}

std::unexpected<Status> Invalid(const ClaimRef& ref, std::string_view reason, std::string remedy) {
  return Fail(Code::kInvalidArgument, Concat("ResourceClaim ", ref.ToString(), ": ", reason),
              std::move(remedy));
}

// "broker" and "app" stand for the first GPU. Nothing: it is neither.
bool ReadRequest(std::string_view request, ClaimDevice* device) {
  request = request.substr(0, request.find('/'));
  device->request = std::string(request);
  if (request == claims::kMps) {
    device->part = binding::Part::kMps;
    return true;
  }
  for (const auto& [name, part] : kNumbered) {
    if (!request.starts_with(name)) continue;
    std::string_view number = request.substr(name.size());
    device->part = part;
    if (number.empty()) return true;
    if (number.front() != '-' || number.size() < 2 || number.size() > 3) return false;
    number.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), device->number);
    return error == std::errc() && end == number.data() + number.size() &&
           device->number < limits::kPodGpus;
  }
  return false;
}

// The memory that the result takes of its device.
Result<uint64_t> MemoryOf(const Json& result, const ClaimRef& ref, const ClaimDevice& device) {
  const Json& memory = At(result, {"consumedCapacity", "memory"});
  if (memory.is_null()) return 0;
  const auto bytes = yaml::ParseBytes(Text(memory));
  if (!bytes) {
    return Invalid(ref,
                   Concat("consumedCapacity.memory of request ", Quote(device.request), " is ",
                          Quote(memory.dump()), ": ", bytes.error()),
                   "ask for a quantity, such as memory: 8Gi");
  }
  return *bytes;
}

Result<ClaimDevice> ReadResult(const Json& result, const ClaimRef& ref, std::string_view pool) {
  ClaimDevice device;
  const std::string request = Text(At(result, {"request"}));
  if (!ReadRequest(request, &device)) {
    return Invalid(ref,
                   Concat("request ", Quote(request), " of device class ", kDeviceClass,
                          " has an unknown name"),
                   "name requests broker and app, or broker-0, app-0, broker-1, app-1 for several "
                   "GPUs, and mps for the pod with the MPS daemon");
  }
  device.pool = Text(At(result, {"pool"}));
  device.device = Text(At(result, {"device"}));
  device.share_id = Text(At(result, {"shareID"}));
  if (device.pool != pool) {
    return Fail(Code::kUnavailable,
                Concat("ResourceClaim ", ref.ToString(), " is allocated in pool ",
                       Quote(device.pool), ", not on this node, ", pool),
                "delete the pod to have it placed again");
  }
  if (!IsDnsLabel(device.device)) {
    return Invalid(ref, Concat("invalid device name ", Quote(device.device)),
                   "delete the pod to have it placed again");
  }
  return device;
}

// What the claim says about other pods.
Result<claims::Others> OthersOf(const Json& json, const ClaimRef& ref) {
  const Json& owners = At(json, {"metadata", "ownerReferences"});
  if (owners.is_array() && std::ranges::any_of(owners, [](const Json& owner) {
        return Text(At(owner, {"kind"})) == "Pod";
      })) {
    return claims::Others::kNone;
  }
  const Json& said = At(json, {"metadata", "annotations", claims::kOthersKey});
  if (said.is_null() || said == "read") return claims::Others::kRead;
  if (said == "write") return claims::Others::kWrite;
  return Invalid(ref,
                 Concat("its annotation ", claims::kOthersKey, " is ", Quote(said.dump()),
                        ", which is neither read nor write"),
                 Concat("write ", claims::kOthersKey, ": write, or remove it for read"));
}

}  // namespace

Result<AllocatedClaim> ParseClaim(std::string_view text, const ClaimRef& ref,
                                  std::string_view pool) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Fail(Code::kCorrupt, Concat("the API server's answer for ResourceClaim ", ref.ToString(),
                                       " is not a JSON object: ", Quote(text)));
  }
  if (const std::string uid = Text(At(json, {"metadata", "uid"})); uid != ref.uid) {
    return Fail(Code::kNotFound,
                Concat("ResourceClaim ", ref.ToString(), " has UID ", Quote(uid), ", not ", ref.uid,
                       ": it was deleted and made again"),
                "delete the pod; its successor uses the new claim");
  }
  AllocatedClaim claim{.ref = ref, .pod = {}, .devices = {}, .gpus = {}};
  const Json& reserved = At(json, {"status", "reservedFor"});
  if (reserved.is_array() && !reserved.empty()) claim.pod = Text(At(reserved[0], {"name"}));
  if (!IsDnsSubdomain(claim.pod)) {
    return Fail(Code::kUnavailable,
                Concat("ResourceClaim ", ref.ToString(), " is reserved for no pod"),
                "the kubelet tries again by itself");
  }
  const Result<claims::Others> others = OthersOf(json, ref);
  if (!others) return std::unexpected(others.error());
  claim.others = *others;
  const Json& results = At(json, {"status", "allocation", "devices", "results"});
  if (!results.is_array()) {
    return Fail(Code::kUnavailable, Concat("ResourceClaim ", ref.ToString(), " is not allocated"),
                "the kubelet tries again by itself");
  }
  struct Taken {
    std::string device;
    uint64_t bytes = 0;
  };
  std::map<unsigned, Taken> brokers;
  for (const Json& result : results) {
    if (Text(At(result, {"driver"})) != kDriverName) continue;
    Result<ClaimDevice> device = ReadResult(result, ref, pool);
    if (!device) return std::unexpected(device.error());
    const Result<uint64_t> bytes = MemoryOf(result, ref, *device);
    if (!bytes) return std::unexpected(bytes.error());
    const bool broker = device->part == binding::Part::kBroker;
    if (!broker && *bytes != 0) {
      return Invalid(ref,
                     Concat("request ", Quote(device->request), " asks for ", *bytes,
                            " bytes of memory, which only a broker can hand out"),
                     "ask for all memory in the request named broker");
    }
    if (broker && !brokers.emplace(device->number, Taken{device->device, *bytes}).second) {
      return Invalid(ref, Concat("request ", Quote(device->request), " has two devices"),
                     "for several GPUs, write requests broker-0 and broker-1 with count 1 each");
    }
    claim.mps |= device->part == binding::Part::kMps;
    claim.devices.push_back(std::move(*device));
  }
  for (const auto& [number, part] : brokers) {
    if (number != claim.gpus.size()) {
      return Invalid(
          ref, Concat("there is a request broker-", number, " but no broker-", claim.gpus.size()),
          "number the requests broker-0, broker-1 and so on");
    }
    if (number > 0 && part.bytes != claim.bytes) {
      return Invalid(ref,
                     Concat("request broker-", number, " has ", part.bytes,
                            " bytes of memory, but broker-0 has ", claim.bytes),
                     "ask for the same memory of each GPU");
    }
    claim.bytes = part.bytes;
    claim.gpus.push_back(part.device);
  }
  if (claim.gpus.empty()) {
    return Invalid(ref, "no request named broker has a device of this driver",
                   Concat("add {name: broker, exactly: {deviceClassName: ", kDeviceClass,
                          ", capacity: {requests: {memory: 8Gi}}}}"));
  }
  if (claim.bytes == 0) {
    return Invalid(ref, "request broker has no memory",
                   "write capacity: {requests: {memory: 8Gi}} in it. If it does, the API server "
                   "has dropped it, because the feature gate DRAConsumableCapacity is off");
  }
  for (const ClaimDevice& device : claim.devices) {
    const bool own =
        device.part == binding::Part::kBroker ||
        (device.number < claim.gpus.size() && claim.gpus[device.number] == device.device);
    if (own) continue;
    return Invalid(ref,
                   Concat("request ", Quote(device.request), " has device ", device.device,
                          ", which no broker of the claim has"),
                   "tie the requests of each GPU: constraints: [{requests: [broker, app], "
                   "matchAttribute: gpushm.io/uuid}]");
  }
  return claim;
}

}  // namespace gpushm::plugin::dra
