#include "sidecar/injector/metrics.h"

#include <prometheus/text_serializer.h>

#include "platform/base/version.h"

namespace gpushm::injector {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

const char* NameOf(Endpoint endpoint) {
  return endpoint == Endpoint::kMutate ? "mutate" : "validate";
}

// From the time of a small pod to the API server's own deadline.
prometheus::Histogram::BucketBoundaries Buckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 5};
}

}  // namespace

Metrics::Metrics()
    : requests_(BuildCounter()
                    .Name("gpushm_webhook_requests_total")
                    .Help("Admission requests, by outcome.")
                    .Register(registry_)),
      seconds_(BuildHistogram()
                   .Name("gpushm_webhook_request_duration_seconds")
                   .Help("From the complete request to the complete answer, without the network.")
                   .Register(registry_)),
      expiry_(BuildGauge()
                  .Name("gpushm_webhook_certificate_expiry_timestamp_seconds")
                  .Help("When the certificate in use expires, in seconds since 1970.")
                  .Register(registry_)
                  .Add({})),
      refused_(BuildCounter()
                   .Name("gpushm_webhook_certificate_errors_total")
                   .Help("Times that changed certificate files were refused; "
                         "the previous ones stay in use.")
                   .Register(registry_)
                   .Add({})) {
  BuildGauge()
      .Name("gpushm_build_info")
      .Help("Always 1; the labels show the version and the component.")
      .Register(registry_)
      .Add({{"version", std::string(kVersion)}, {"component", "injector"}})
      .Set(1);
  for (const Endpoint endpoint : {Endpoint::kMutate, Endpoint::kValidate}) {
    // So that it exists before the first request.
    seconds_.Add({{"endpoint", NameOf(endpoint)}}, Buckets());
  }
}

void Metrics::Answered(Endpoint endpoint, const Answer& answer, double seconds) {
  const std::string name = NameOf(endpoint);
  requests_
      .Add({{"endpoint", name},
            {"allowed", answer.allowed ? "true" : "false"},
            {"outcome", answer.outcome}})
      .Increment();
  seconds_.Add({{"endpoint", name}}, Buckets()).Observe(seconds);
}

void Metrics::Failed(Endpoint endpoint) {
  requests_.Add({{"endpoint", NameOf(endpoint)}, {"allowed", "false"}, {"outcome", "bad-request"}})
      .Increment();
}

void Metrics::SetCertificateExpiry(int64_t seconds) { expiry_.Set(static_cast<double>(seconds)); }
void Metrics::CertificateRefused() { refused_.Increment(); }

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace gpushm::injector
