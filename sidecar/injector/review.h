// AdmissionReview of admission.k8s.io/v1: the API server's question and the webhook's answer, as
// bytes. What is no such question is a failure of the call, not an answer.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "sidecar/injector/admit.h"

namespace gpushm::injector {

enum class Endpoint { kMutate, kValidate };

struct Answer {
  std::string body;
  std::string outcome;  // Of the Verdict.
  bool allowed = true;
};

// kInvalidArgument: `body` is no AdmissionReview v1 of a Pod. No exception leaves it.
Result<Answer> Review(const Admission& admission, Endpoint endpoint, std::string_view body);

}  // namespace gpushm::injector
