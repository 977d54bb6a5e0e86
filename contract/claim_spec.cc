#include "contract/claim_spec.h"

#include "contract/claims.h"
#include "platform/base/status.h"

namespace gpushm::claims {
namespace {

using Json = nlohmann::json;

std::string Numbered(const char* role, uint32_t gpu, uint32_t gpus) {
  return gpus == 1 ? role : Concat(role, "-", gpu);
}

Json Request(const std::string& name, const Json& capacity) {
  return {{"name", name},
          {"exactly", {{"deviceClassName", kDeviceClass}, {"capacity", {{"requests", capacity}}}}}};
}

std::string Attribute(const char* name) { return Concat(kDriverName, "/", name); }

}  // namespace

std::string BrokerRequest(uint32_t gpu, uint32_t gpus) { return Numbered(kBroker, gpu, gpus); }

std::string AppRequest(uint32_t gpu, uint32_t gpus) { return Numbered(kApp, gpu, gpus); }

Json ClaimSpec(const ClaimWanted& wanted) {
  Json requests = Json::array();
  Json constraints = Json::array();
  Json brokers = Json::array();
  for (uint32_t gpu = 0; gpu < wanted.gpus; ++gpu) {
    const std::string broker = BrokerRequest(gpu, wanted.gpus);
    const std::string app = AppRequest(gpu, wanted.gpus);
    Json of_broker = {{"memory", wanted.memory}};
    // Together with the one share of each other request it is all of the GPU, so nobody else gets
    // any of it.
    const uint64_t others = wanted.mps && gpu == 0 ? 2 : 1;
    if (wanted.exclusive) of_broker["share"] = std::to_string(kShares - others);
    requests.push_back(Request(broker, of_broker));
    requests.push_back(Request(app, {{"attach", std::to_string(wanted.containers)}}));
    Json same = Json::array({broker, app});
    if (wanted.mps && gpu == 0) {
      requests.push_back(Request(kMps, {{"attach", "1"}}));
      same.push_back(kMps);
    }
    constraints.push_back({{"requests", same}, {"matchAttribute", Attribute("uuid")}});
    brokers.push_back(broker);
  }
  if (wanted.gpus > 1) {
    // A device that several requests may have could otherwise come twice.
    constraints.push_back({{"requests", brokers}, {"distinctAttribute", Attribute("uuid")}});
  }
  if (wanted.nvlink) {
    constraints.push_back({{"requests", brokers}, {"matchAttribute", Attribute("nvlinkDomain")}});
  }
  return {{"devices", {{"requests", requests}, {"constraints", constraints}}}};
}

}  // namespace gpushm::claims
