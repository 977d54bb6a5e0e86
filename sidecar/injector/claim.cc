#include "sidecar/injector/claim.h"

#include <algorithm>
#include <cctype>

#include "contract/annotations/sizing.h"
#include "contract/claim_spec.h"
#include "platform/yaml/quantity.h"
#include "sidecar/injector/digest.h"
#include "sidecar/injector/pod.h"

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

ClaimTemplate TemplateFor(const Pod& pod) {
  constexpr uint64_t kStep =
      annotations::kGranularityBytes;  // Of the capacity `memory` of devices.
  const uint64_t bytes = annotations::RoundUp(annotations::GpuBytes(pod.spec), kStep);
  const claims::ClaimWanted wanted = {
      .memory = yaml::FormatBytes(std::max(bytes, kStep)),
      .gpus = pod.spec.gpus,
      // The loaders and the MPS daemon have a context too.
      .containers = pod.done.containers.size() + pod.loaded.size() + (pod.mps ? 1 : 0),
      .exclusive = pod.spec.exclusive,
      .nvlink = pod.spec.nvlink,
  };
  ClaimTemplate made;
  made.spec = {{"spec", claims::ClaimSpec(wanted)}};
  const std::string gpus = wanted.gpus == 1 ? "" : Concat(wanted.gpus, "x");
  made.name = Concat("gpushm-", gpus, Lower(wanted.memory), "-",
                     HexDigits(AddToDigest(kEmptyDigest, made.spec.dump())));
  return made;
}

Json PodClaim(const Pod& pod) {
  if (!pod.spec.claim.empty()) {
    return {{"name", kClaimName}, {"resourceClaimName", pod.spec.claim}};
  }
  return {{"name", kClaimName}, {"resourceClaimTemplateName", pod.claim_template->name}};
}

std::vector<Json> ClaimEntries(const Pod& pod, Asker asker) {
  std::vector<Json> entries;
  if (asker == Asker::kMps) return {{{"name", kClaimName}, {"request", claims::kMps}}};
  for (uint32_t gpu = 0; gpu < pod.spec.gpus; ++gpu) {
    entries.push_back(
        {{"name", kClaimName},
         {"request", asker == Asker::kBroker ? claims::BrokerRequest(gpu, pod.spec.gpus)
                                             : claims::AppRequest(gpu, pod.spec.gpus)}});
  }
  return entries;
}

}  // namespace gpushm::injector
