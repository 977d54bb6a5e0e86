// AdmissionReview of admission.k8s.io/v1: the API server's question and the webhook's answer, as
// bytes. What is no such question is a failure of the call, not an answer.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "sidecar/injector/admit.h"

namespace gpushm::injector {

enum class Endpoint { kMutate, kValidate };

// The most bytes that an answer, or the reason of a failed call, has of a text that says what is
// wrong: all errors that are kept of a pod (config::kErrorsKept) fit.
inline constexpr size_t kMostTold = 32 * 1024;
// The most bytes of a review's uid, which is repeated in the answer; an API server's have 36.
inline constexpr size_t kMostUidBytes = 256;

struct Answer {
  std::string body;
  std::string outcome;  // Of the Verdict.
  bool allowed = true;
  // Of a pod that is denied, for the log: each in one line of printable ASCII.
  std::string pod;     // NAMESPACE/NAME; without a name as yet NAMESPACE/its generateName.
  std::string owner;   // KIND/NAME of what controls it; empty: nothing does.
  std::string reason;  // As in the answer.
};

// kInvalidArgument: `body` is no AdmissionReview v1 of a Pod. kExhausted: it is nested too deep, or
// holds too many values. Either says at most kMostTold bytes. No exception leaves it.
Result<Answer> Review(const Admission& admission, Endpoint endpoint, std::string_view body);

}  // namespace gpushm::injector
