#include "plugin/metrics/counters.h"

#include <array>
#include <string>

namespace gpushm::plugin::metrics {
namespace {

using Kind = kubelet::CallRecord::Kind;

// Allocate takes 0.1 ms, PreStartContainer 2 ms (docs/benchmarks); the kubelet gives the latter 30
// s.
const prometheus::Histogram::BucketBoundaries kCallSeconds = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10};
// A broker is ready after 10 to 50 ms, or with a cold driver after 300 ms.
const prometheus::Histogram::BucketBoundaries kReadySeconds = {0.01, 0.025, 0.05, 0.1, 0.25,
                                                               0.5,  1,     2.5,  10};
constexpr std::array kKinds = {Kind::kAllocate, Kind::kPreStart};
// Exported from the start, because increase() misses the first event of a series. Lack of room and
// a former owner's end are what pods usually wait for.
constexpr std::array kExpected = {Code::kExhausted, Code::kBusy, Code::kUnavailable,
                                  Code::kDeviceLost};

}  // namespace

Counters::Calls::Calls() : seconds(kCallSeconds) {
  for (const Code code : kExpected) errors[code] = 0;
}

Counters::Counters() : broker_ready_(kReadySeconds) {
  for (const Kind kind : kKinds) {
    for (const binding::Resource resource : binding::kResources) calls_[{kind, resource}];
  }
}

void Counters::Note(const kubelet::CallRecord& record) {
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_.at({record.kind, record.resource});
  calls.seconds.Observe(static_cast<double>(record.ns) * 1e-9);
  if (record.error) ++calls.errors[*record.error];
}

void Counters::WriteCalls(Kind kind, Metric total, Metric errors, Metric seconds,
                          Exposition* out) const {
  std::array<prometheus::ClientMetric::Histogram, binding::kResources.size()> histograms;
  for (size_t i = 0; i < binding::kResources.size(); ++i) {
    histograms[i] = calls_.at({kind, binding::kResources[i]}).seconds.Collect().histogram;
    out->Add(total, {binding::ResourceName(binding::kResources[i])}, histograms[i].sample_count);
  }
  for (const binding::Resource resource : binding::kResources) {
    for (const auto& [code, count] : calls_.at({kind, resource}).errors) {
      out->Add(errors, {binding::ResourceName(resource), CodeName(code)}, count);
    }
  }
  for (size_t i = 0; i < binding::kResources.size(); ++i) {
    out->Add(seconds, {binding::ResourceName(binding::kResources[i])}, histograms[i]);
  }
}

void Counters::Write(Exposition* out) const {
  const std::lock_guard lock(mutex_);
  WriteCalls(Kind::kAllocate, Metric::kPluginAllocations, Metric::kPluginAllocationErrors,
             Metric::kPluginAllocationDuration, out);
  WriteCalls(Kind::kPreStart, Metric::kPluginPreStarts, Metric::kPluginPreStartErrors,
             Metric::kPluginPreStartDuration, out);
  out->Add(Metric::kBrokerReadyDuration, {}, broker_ready_.Collect().histogram);
  out->Add(Metric::kPodListErrors, {}, pod_list_errors_.load());
  out->Add(Metric::kForeignDescriptors, {}, foreign_descriptors_.load());
  out->Add(Metric::kFuseAborts, {}, fuse_aborts_.load());
}

}  // namespace gpushm::plugin::metrics
