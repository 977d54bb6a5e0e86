// Writes ResourceClaimTemplates for pods that need one.
//
// Limits: each call takes at most kTemplateMs, less than an API server waits for a webhook.
//
// Threads: any number at the same time.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "platform/kubernetes/api_client.h"
#include "sidecar/injector/claim.h"

namespace gpushm::injector {

inline constexpr int64_t kTemplateMs = 3000;

class Templates {
 public:
  explicit Templates(kubernetes::ApiAddress api) : client_(std::move(api)) {}

  // Returns when the namespace has the template. kAlreadyExists: it has another one with its name.
  // kUnsupported: the API server has no such objects. Otherwise as ApiClient::Call.
  Result<void> Make(const std::string& name_space, const ClaimTemplate& wanted) const;

 private:
  const kubernetes::ApiClient client_;
};

}  // namespace gpushm::injector
