// What the webhook answers for a pod: admitted as it is, admitted with a patch, or denied with
// reasons that name the field and a correct example.
//
// Invariants:
//   1. A pod that was patched and comes again, whatever others did to it in between, gets only what
//      is missing; one that nobody touched gets no patch.
//   2. Nothing is removed, and nothing of a container but the sidecar is replaced.
//   3. What Mutate admits with a patch, Validate admits after it.
//
// Threads: any, at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sidecar/injector/patch.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

struct Verdict {
  bool allowed = true;
  std::string message;                // Why not.
  Json patch = Json::array();         // Of RFC 6902; empty: none.
  std::vector<std::string> warnings;  // kubectl shows them.
  // In metrics: "injected", "unchanged", "opted-out", "nothing-asked", "not-ours"; denied:
  // "annotations", "pod", "changed-by-others", "ephemeral-container".
  std::string outcome;
};

class Admission {
 public:
  // `random`: any number, another each time.
  Admission(Settings settings, std::function<uint64_t()> random);

  // A pod that is being created.
  Verdict Mutate(const Json& pod) const;
  // The same after everybody changed it.
  Verdict Validate(const Json& pod) const;
  // A running pod that gets ephemeral containers.
  Verdict ValidateEphemeral(const Json& pod) const;

 private:
  const Settings settings_;
  const std::function<uint64_t()> random_;
};

}  // namespace gpushm::injector
