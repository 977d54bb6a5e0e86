// Collects what the plugin knows at one moment, and presents it: to Prometheus, and as JSON to the
// status page and gpushmctl.
//
// A scrape reads what other parts hold ready. It calls neither the driver nor the kubelet, and does
// not wait for a decision in progress.
//
// The class is thread-safe; one call at a time does the work.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "contract/status/status.h"
#include "platform/base/clock.h"
#include "plugin/inventory/health.h"
#include "plugin/keeper/keeper.h"
#include "plugin/kubelet/registration.h"
#include "plugin/metrics/counters.h"
#include "plugin/metrics/exposition.h"
#include "plugin/metrics/gpu_sampler.h"
#include "plugin/metrics/node_view.h"
#include "plugin/metrics/shared_answer.h"

namespace gpushm::plugin::metrics {

// What the plugin advertises to the kubelet.
struct Offer {
  struct Ids {
    uint64_t devices = 0;
    uint64_t unhealthy = 0;
  };
  std::vector<inventory::Device> devices;
  std::vector<binding::Gpu> gpus;  // In the same order.
  std::map<binding::Resource, Ids> ids;
  std::vector<std::string> missing;  // As in Advertisement.
};

class Collector {
 public:
  // All must outlive it, and may be called from any thread. Null or an empty function: not
  // available.
  struct Sources {
    std::function<Offer()> offer;
    uint64_t unit_bytes = 0;
    // Nothing while a decision is in progress.
    std::function<std::optional<binding::BookView>()> book;
    keeper::Keeper* keeper = nullptr;
    const inventory::HealthMonitor* health = nullptr;
    const GpuSampler* sampler = nullptr;
    std::function<kubelet::State()> registration;
    const Counters* counters = nullptr;
    std::string node_name;
  };
  static constexpr int64_t kPatienceMs = 8000;
  // Limit for the links' thread, which answers within milliseconds unless it hangs.
  static constexpr int64_t kLinksMs = 4000;

  explicit Collector(Sources sources) : sources_(std::move(sources)) {}

  // The answers for /metrics and for status.json (one JSON object: docs/reference/status.md).
  // Simultaneous callers share one (shared_answer.h). Null: it took longer than kPatienceMs.
  SharedAnswer::Text Metrics() { return metrics_.Get(Deadline::AfterMs(kPatienceMs)); }
  SharedAnswer::Text StatusJson() { return status_.Get(Deadline::AfterMs(kPatienceMs)); }

 private:
  struct Collected {  // A source: whether it answered, and how fast.
    std::string_view name;
    bool success = true;
    double seconds = 0;
  };
  std::string MakeMetrics();
  std::string MakeStatusJson();
  NodeView Gather(const Offer& offer, std::vector<Collected>* collected);
  std::map<binding::Resource, uint64_t> Bound() const;
  void WritePlugin(const Offer& offer, Exposition* out);

  const Sources sources_;
  const int64_t started_unix_ns_ = UnixNs();
  std::mutex mutex_;                       // Guards the members below.
  std::optional<binding::BookView> book_;  // As last read.
  protocol::CounterValues counted_{};      // As last read.
  size_t last_bytes_ = 0;
  SharedAnswer metrics_{[this] { return MakeMetrics(); }};
  SharedAnswer status_{[this] { return MakeStatusJson(); }};
};

// ---- the parts, all pure

void WriteGpus(const NodeView& node, const std::string& driver_version,
               const std::vector<inventory::XidCount>& xids, Exposition* out);
void WritePools(const NodeView& node, Exposition* out);
void WriteNode(const NodeView& node, const protocol::CounterValues& counted, Exposition* out);
// Writes process_*; false if /proc does not have the values.
bool WriteProcess(Exposition* out);

struct StatusFacts {
  std::string node_name;
  int64_t started_unix_ns = 0;
  std::vector<status::Resource> resources;
};
// docs/reference/status.md.
std::string StatusJson(const NodeView& node, const StatusFacts& facts);

}  // namespace gpushm::plugin::metrics
