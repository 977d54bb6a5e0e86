#include "sidecar/injector/claim.h"

#include <algorithm>
#include <cctype>

#include "contract/claim_spec.h"
#include "platform/yaml/quantity.h"
#include "sidecar/injector/digest.h"

namespace gpushm::injector {
namespace {

// Small letters, digits and dashes, as in names of objects.
std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

Json ClaimTemplate::Object() const {
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceClaimTemplate"},
          {"metadata", {{"name", name}, {"labels", {{kTemplateLabel, kTemplateMaker}}}}},
          {"spec", spec}};
}

ClaimTemplate TemplateFor(const Plan& plan) {
  const claims::ClaimWanted wanted = {
      .memory = yaml::FormatBytes(plan.GpuBytes()),
      .gpus = plan.spec.gpus,
      // The loaders and the MPS daemon have a context too.
      .containers = plan.done.containers.size() + plan.loaded.size() + (plan.mps ? 1 : 0),
      .exclusive = plan.spec.exclusive,
      .nvlink = plan.spec.nvlink,
  };
  ClaimTemplate made;
  made.spec = {{"spec", claims::ClaimSpec(wanted)}};
  const std::string gpus = wanted.gpus == 1 ? "" : Concat(wanted.gpus, "x");
  made.name = Concat("gpushm-", gpus, Lower(wanted.memory), "-",
                     HexDigits(AddToDigest(kEmptyDigest, made.spec.dump())));
  return made;
}

Json PodClaim(const Plan& plan) {
  if (!plan.spec.claim.empty()) {
    return {{"name", kClaimName}, {"resourceClaimName", plan.spec.claim}};
  }
  return {{"name", kClaimName}, {"resourceClaimTemplateName", plan.template_name}};
}

std::vector<Json> ClaimEntries(const Plan& plan, Asker asker) {
  std::vector<Json> entries;
  if (asker == Asker::kMps) return {{{"name", kClaimName}, {"request", claims::kMps}}};
  for (uint32_t gpu = 0; gpu < plan.spec.gpus; ++gpu) {
    entries.push_back(
        {{"name", kClaimName},
         {"request", asker == Asker::kBroker ? claims::BrokerRequest(gpu, plan.spec.gpus)
                                             : claims::AppRequest(gpu, plan.spec.gpus)}});
  }
  return entries;
}

}  // namespace gpushm::injector
