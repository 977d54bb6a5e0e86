// The webhook's Prometheus metrics. Names, units and labels are in docs/design/injector.md.
//
// Threads: any.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "sidecar/injector/review.h"

namespace gpushm::injector {

class Metrics {
 public:
  Metrics();

  void Answered(Endpoint endpoint, const Answer& answer, double seconds);
  // Counts a call that got no answer, because it was not a valid call or there was no room for it.
  void Failed(Endpoint endpoint);
  void SetCertificateExpiry(int64_t seconds);
  void CertificateRefused();

  // In Prometheus' text format, version 0.0.4.
  std::string Text() const;

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& seconds_;
  prometheus::Gauge& expiry_;
  prometheus::Counter& refused_;
};

}  // namespace gpushm::injector
