// Counts what happens in the plugin, as it happens. prometheus-cpp does the bucket counts.
//
// The class is thread-safe.
#pragma once

#include <prometheus/histogram.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "plugin/keeper/link_server.h"
#include "plugin/kubelet/plugin_server.h"
#include "plugin/metrics/exposition.h"

namespace gpushm::plugin::metrics {

class Counters {
 public:
  Counters();

  void Note(const kubelet::CallRecord& record);
  void BrokerReady(double seconds) { broker_ready_.Observe(seconds); }
  void PodListFailed() { ++pod_list_errors_; }
  void Foreign(keeper::ForeignStep step) {
    if (step == keeper::ForeignStep::kRefused) ++foreign_descriptors_;
    if (step == keeper::ForeignStep::kAborted) ++fuse_aborts_;
  }

  // Writes kPluginAllocations to kFuseAborts.
  void Write(Exposition* out) const;

 private:
  struct Calls {
    Calls();
    prometheus::Histogram seconds;
    std::map<Code, uint64_t> errors;
  };
  using Key = std::pair<kubelet::CallRecord::Kind, binding::Resource>;
  void WriteCalls(kubelet::CallRecord::Kind kind, Metric total, Metric errors, Metric seconds,
                  Exposition* out) const;

  mutable std::mutex mutex_;
  std::map<Key, Calls> calls_;  // Has both kinds of both resources from the start.
  prometheus::Histogram broker_ready_;
  std::atomic<uint64_t> pod_list_errors_ = 0;
  std::atomic<uint64_t> foreign_descriptors_ = 0;
  std::atomic<uint64_t> fuse_aborts_ = 0;
};

}  // namespace gpushm::plugin::metrics
