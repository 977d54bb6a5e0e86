#include "plugin/metrics/collector.h"

#include <utility>

#include "platform/base/clock.h"
#include "platform/base/version.h"

namespace gpushm::plugin::metrics {
namespace {

#ifdef __clang__
constexpr std::string_view kCompiler = "clang " __clang_version__;
#else
constexpr std::string_view kCompiler = "gcc " __VERSION__;
#endif

}  // namespace

NodeView Collector::Gather(const Offer& offer, std::vector<Collected>* collected) {
  const auto timed = [&](std::string_view name, auto read) {
    const int64_t start_ns = MonotonicNs();
    const bool success = read();
    collected->push_back({name, success, static_cast<double>(MonotonicNs() - start_ns) * 1e-9});
  };
  NodeFacts facts;
  facts.devices = offer.devices;
  facts.gpus = offer.gpus;
  facts.unit_bytes = sources_.unit_bytes;
  timed("nvml", [&] {
    if (sources_.health != nullptr) facts.health = sources_.health->Look();
    if (sources_.sampler != nullptr) facts.samples = sources_.sampler->Look();
    // A GPU that is unhealthy has its own metric.
    size_t healthy = 0;
    for (const inventory::DeviceHealth& health : facts.health) healthy += health.healthy ? 1 : 0;
    return facts.samples.size() >= healthy;
  });
  timed("bindings", [&] {
    if (auto book = sources_.book()) book_ = std::move(book);
    if (!book_) return false;
    facts.bindings = book_->bindings;
    facts.unlisted = book_->unlisted;
    return true;
  });
  NodeViewBuilder builder(facts);
  timed("links", [&] {
    return sources_.keeper->EachLink(Deadline::AfterMs(kLinksMs),
                                     [&](const keeper::LinkView& link) { builder.Add(link); });
  });
  return builder.Finish();
}

std::map<binding::Resource, uint64_t> Collector::Bound() const {
  std::map<binding::Resource, uint64_t> bound;
  for (const binding::Resource resource : binding::kResources) bound[resource] = 0;
  if (!book_) return bound;
  for (const binding::Binding& binding : book_->bindings) {
    bound[binding.resource] += binding.ids.size();
    bound[binding::Resource::kExclusive] += binding.exclusive.size();
    bound[binding::Resource::kNvlink] += binding.nvlink.size();
    if (binding.resource == binding::Resource::kMemory && binding.gpus.size() > 1) {
      bound[binding::Resource::kGpus] += binding.gpus.size();
    }
  }
  return bound;
}

void Collector::WritePlugin(const Offer& offer, Exposition* out) {
  if (sources_.registration) {
    const kubelet::State state = sources_.registration();
    for (const binding::Resource resource : binding::kResources) {
      out->Add(Metric::kPluginRegistered, {binding::ResourceName(resource)},
               uint64_t{state.Of(resource).usable()});
    }
    for (const binding::Resource resource : binding::kResources) {
      out->Add(Metric::kPluginRegistrations, {binding::ResourceName(resource)},
               state.Of(resource).registrations);
    }
  }
  for (const auto& [resource, ids] : offer.ids) {
    out->Add(Metric::kPluginDevices, {binding::ResourceName(resource)}, ids.devices);
  }
  for (const auto& [resource, ids] : offer.ids) {
    out->Add(Metric::kPluginUnhealthyDevices, {binding::ResourceName(resource)}, ids.unhealthy);
  }
  for (const auto& [resource, count] : Bound()) {
    out->Add(Metric::kPluginBoundDevices, {binding::ResourceName(resource)}, count);
  }
  for (const std::string& missing : offer.missing) {
    out->Add(Metric::kMissingGpus, {missing}, uint64_t{1});
  }
  sources_.counters->Write(out);
}

std::string Collector::MakeMetrics() {
  const std::lock_guard lock(mutex_);
  std::vector<Collected> collected;
  const Offer offer = sources_.offer();
  const NodeView node = Gather(offer, &collected);
  Exposition out(last_bytes_ + last_bytes_ / 8);
  WriteGpus(
      node, sources_.sampler != nullptr ? sources_.sampler->driver_version() : "",
      sources_.health != nullptr ? sources_.health->xids() : std::vector<inventory::XidCount>(),
      &out);
  WritePools(node, &out);
  // Before the counters are written: this call reports brokers that became ready to them.
  if (const auto counted = sources_.keeper->Count(Deadline::AfterMs(kLinksMs))) counted_ = *counted;
  WriteNode(node, counted_, &out);
  WritePlugin(offer, &out);
  for (const Collected& one : collected) {
    out.Add(Metric::kCollectorSuccess, {one.name}, uint64_t{one.success});
  }
  for (const Collected& one : collected) {
    out.Add(Metric::kCollectorDuration, {one.name}, one.seconds);
  }
  out.Add(Metric::kBuildInfo, {kVersion, kCompiler}, uint64_t{1});
  WriteProcess(&out);
  std::string page = out.Finish();
  last_bytes_ = page.size();
  return page;
}

std::string Collector::MakeStatusJson() {
  const std::lock_guard lock(mutex_);
  std::vector<Collected> collected;
  const Offer offer = sources_.offer();
  const NodeView node = Gather(offer, &collected);
  StatusFacts facts{
      .node_name = sources_.node_name, .started_unix_ns = started_unix_ns_, .resources = {}};
  if (!sources_.registration) return metrics::StatusJson(node, facts);
  const std::map<binding::Resource, uint64_t> bound = Bound();
  const kubelet::State state = sources_.registration();
  for (const auto& [resource, ids] : offer.ids) {
    facts.resources.push_back({.name = binding::ResourceName(resource),
                               .registered = state.Of(resource).usable(),
                               .devices = ids.devices,
                               .unhealthy = ids.unhealthy,
                               .bound = bound.at(resource)});
  }
  return metrics::StatusJson(node, facts);
}

}  // namespace gpushm::plugin::metrics
