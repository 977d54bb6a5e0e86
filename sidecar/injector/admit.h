// What the webhook answers for a pod: it is admitted unchanged, admitted with a patch, or denied
// with reasons that name the field and a correct example.
//
// Invariants:
//   1. If a patched pod is sent again, it gets only what is missing, whatever others changed in
//      between. If nobody changed it, it gets no patch.
//   2. Nothing is removed, and no part of any container except the sidecar is replaced.
//   3. Validate admits every pod that Mutate has patched.
//
// Threads: any number at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sidecar/injector/claim.h"
#include "sidecar/injector/patch.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

struct Verdict {
  bool allowed = true;
  std::string message;                // Why the pod is denied.
  Json patch = Json::array();         // In RFC 6902 format; empty if there is nothing to change.
  std::vector<std::string> warnings;  // kubectl shows them to the user.
  // The ResourceClaimTemplate that must be in the pod's namespace before it is created.
  std::optional<ClaimTemplate> needs;
  // The value in metrics: "injected", "unchanged", "opted-out", "nothing-asked" or "not-ours". For
  // a denied pod: "annotations", "pod", "changed-by-others", "ephemeral-container" or "template".
  std::string outcome;
};

class Admission {
 public:
  // `random` returns a different number on each call.
  Admission(Settings settings, std::function<uint64_t()> random);

  // For a pod that is being created. `of_namespace`: how the pods of its namespace get their GPU
  // memory, if the namespace says it.
  Verdict Mutate(const Json& pod,
                 std::optional<annotations::Allocation> of_namespace = std::nullopt) const;
  // For the same pod after all webhooks have changed it.
  Verdict Validate(const Json& pod,
                   std::optional<annotations::Allocation> of_namespace = std::nullopt) const;
  // For a running pod that gets ephemeral containers.
  Verdict ValidateEphemeral(const Json& pod) const;

 private:
  const Settings settings_;
  const std::function<uint64_t()> random_;
};

}  // namespace gpushm::injector
