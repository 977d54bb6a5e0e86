// What the webhook would make of a manifest, without a cluster: for clusters without the webhook,
// and to see what it adds.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "sidecar/injector/admit.h"

namespace gpushm::injector {

// `manifest`: a Pod as JSON, or an object with a pod template such as a Deployment. Returns it with
// the sidecars, in a List after its ResourceClaimTemplate if it needs one, and adds warnings. The
// same manifest gives the same result, so the sidecars of a template's replicas share a uid.
// kInvalidArgument: it is neither, or the pod is denied, with the reason.
Result<std::string> Inject(const Settings& settings, std::string_view manifest,
                           std::vector<std::string>* warnings);

}  // namespace gpushm::injector
