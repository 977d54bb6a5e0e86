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

// From what a small pod takes to the API server's own deadline.
prometheus::Histogram::BucketBoundaries Buckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 5};
}

}  // namespace

Metrics::Metrics()
    : requests_(BuildCounter()
                    .Name("gpushm_webhook_requests_total")
                    .Help("Admission requests, by what became of them.")
                    .Register(registry_)),
      seconds_(BuildHistogram()
                   .Name("gpushm_webhook_request_duration_seconds")
                   .Help("From the whole request to the whole answer, without the network.")
                   .Register(registry_)),
      expiry_(BuildGauge()
                  .Name("gpushm_webhook_certificate_expiry_timestamp_seconds")
                  .Help("When the certificate in use expires, in seconds since 1970.")
                  .Register(registry_)
                  .Add({})),
      refused_(BuildCounter()
                   .Name("gpushm_webhook_certificate_errors_total")
                   .Help("Times that changed certificate files were refused; the old ones stay.")
                   .Register(registry_)
                   .Add({})) {
  BuildGauge()
      .Name("gpushm_build_info")
      .Help("1, with what was built as labels.")
      .Register(registry_)
      .Add({{"version", std::string(kVersion)}, {"component", "injector"}})
      .Set(1);
  for (const Endpoint endpoint : {Endpoint::kMutate, Endpoint::kValidate}) {
    seconds_.Add({{"endpoint", NameOf(endpoint)}}, Buckets());  // There before the first request.
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
