// Writes ResourceClaimTemplates for pods that need one.
//
// Limits: no request begins, and no answer is read on, after kTemplateMs. A server that is slow at
// each step of a connection can take a few times as long; the API server then denies the pod
// itself.
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
