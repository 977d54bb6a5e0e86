// Keeps this node's ResourceSlices at the API server as the plugin wants them.
//
// All devices are in one pool, named as the node. The server may change what it was given: it
// spells quantities its own way, adds defaults, and leaves out fields whose feature gate is off.
// So what it answered is kept, and is written again only if it differs from that later, because
// somebody changed or deleted it; the kubelet deletes all slices when it starts. Without the gate
// DRAConsumableCapacity each claim would get a whole GPU without an amount of memory. Then there
// are no slices, and `problem` says why.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::plugin::dra {

// As ApiClient::Call.
using CallApi =
    std::function<Result<std::string>(const std::string& method, const std::string& path,
                                      const std::string& body, const Deadline& deadline)>;

// The paths of what `wanted` has and `got` lacks, such as "spec.devices[0].taints". Values are not
// compared.
std::vector<std::string> Dropped(const nlohmann::json& wanted, const nlohmann::json& got);

class Slices {
 public:
  Slices(std::string node, CallApi call) : node_(std::move(node)), call_(std::move(call)) {}

  // Makes the slices hold these devices (DevicesOf). Several requests; each ends by the deadline.
  // True: something was written. Errors are the API's; try again later.
  // kUnsupported: the API server drops a field that the plugin cannot do without; its slices are
  // deleted again.
  Result<bool> Sync(const nlohmann::json& devices, const Deadline& deadline);

 private:
  struct Answered {
    nlohmann::json devices;  // What was wanted.
    nlohmann::json spec;     // What the server made of it.
  };
  Result<nlohmann::json> Ask(const std::string& method, const std::string& path,
                             const nlohmann::json& body, const Deadline& deadline) const;
  Result<std::map<std::string, nlohmann::json>> Mine(const Deadline& deadline) const;
  bool IsRight(const std::string& name, const nlohmann::json& devices, size_t count,
               const nlohmann::json& slice) const;
  Result<void> DeleteSlice(const std::string& name, const Deadline& deadline);

  const std::string node_;
  const CallApi call_;
  std::map<std::string, Answered> answered_;  // By name.
};

}  // namespace gpushm::plugin::dra
