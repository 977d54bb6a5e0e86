// AdmissionReview of admission.k8s.io/v1: the API server's request and the webhook's answer, as
// bytes. If the body is not such a request, the call fails and there is no answer.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "sidecar/injector/admit.h"

namespace gpushm::injector {

enum class Endpoint { kMutate, kValidate };

// The most bytes of text in an answer, or in the reason of a failed call. All errors that are kept
// for a pod (yaml::kErrorsKept) fit.
inline constexpr size_t kMostTold = 32 * 1024;
// The most bytes of a review's uid, which is repeated in the answer. The API server's uids have 36.
inline constexpr size_t kMostUidBytes = 256;

struct Answer {
  std::string body;
  std::string outcome;  // From the Verdict.
  bool allowed = true;
  // For the log, if the pod is denied. Each is one line of printable ASCII.
  std::string pod;     // NAMESPACE/NAME, or NAMESPACE/GENERATE_NAME if the pod has no name yet.
  std::string owner;   // KIND/NAME of the object that controls it; empty if there is none.
  std::string reason;  // The same text as in the answer.
};

// One of the paths that the API server calls.
struct Call {
  Endpoint endpoint = Endpoint::kMutate;
  // What the label of the pod's namespace says; the API server chooses the path by it.
  std::optional<annotations::Allocation> of_namespace = std::nullopt;
};

// `make`: called for a pod that needs a template, unless the request is a dry run. If it is empty
// or fails, the pod is denied. Fails with kInvalidArgument if `body` is not an AdmissionReview v1
// of a Pod. Fails with kExhausted if it is nested too deeply or holds too many values. The error
// text has at most kMostTold bytes. No exception leaves this function.
Result<Answer> Review(const Admission& admission, const Call& call, std::string_view body,
                      const MakeTemplate& make = {});

}  // namespace gpushm::injector
