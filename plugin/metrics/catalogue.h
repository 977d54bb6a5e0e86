// Every metric that the plugin exports: the only place for its name, type, labels and meaning.
// docs/reference/metrics.md is made from it, and the exposition accepts nothing that is not in it.
//
// Rules (prometheus.io/docs/practices/naming, and docs/design/observability.md): base units; ratios
// from 0 to 1; a counter ends in _total; no name contains a type or an abbreviated unit. Labels
// name what was declared (pods, containers, buffers), never PIDs, handles or lease numbers. So what
// a pod's author wrote bounds the number of series.
//
// Threads: constants.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::plugin::metrics {

enum class MetricType : uint8_t { kGauge, kCounter, kHistogram };
std::string_view TypeName(MetricType type);

// In the order of the exposition and of the documentation.
enum class Metric : uint8_t {
  // The GPU.
  kGpuInfo,
  kGpuHealthy,
  kGpuMemoryTotal,
  kGpuMemoryUsed,
  kGpuMemoryAllocatable,
  kGpuMemoryBound,
  kGpuMemoryBuffers,
  kGpuMemoryOther,
  kGpuUtilization,
  kGpuMemoryActivity,
  kGpuTemperature,
  kGpuMemoryTemperature,
  kGpuPower,
  kGpuPowerLimit,
  kGpuEnergy,
  kGpuSmClock,
  kGpuMemoryClock,
  kGpuPcieTransmit,
  kGpuPcieReceive,
  kGpuNvlinkTransmit,
  kGpuNvlinkReceive,
  kGpuClocksReduced,
  kGpuEccCorrected,
  kGpuEccUncorrected,
  kGpuXidErrors,
  kGpuXidLast,
  kGpuTaken,
  kGpuDrained,
  kGpuSampled,
  // A pod's pool and buffers.
  kPoolSize,
  kPoolAllocated,
  kBrokerConnected,
  kLinkMemory,
  kLinkExhausted,
  kMpsReady,
  kMpsClients,
  kMpsDaemonRestarts,
  kMpsServerRestarts,
  kMpsOutside,
  kSyncObjects,
  kBufferInfo,
  kBufferReady,
  kBufferSize,
  kBufferContent,
  kBufferAllocated,
  kBufferLoaded,
  kBufferReason,
  kBufferGenerations,
  kBufferCreated,
  kBufferAttachments,
  kAttachmentMapped,
  // Containers.
  kContainerMapped,
  kContainerProportional,
  kContainerPrivate,
  kContainerPrivateLimit,
  kContainerClients,
  kContainerAttaches,
  kContainerCachedAttaches,
  kContainerDetaches,
  kContainerErrors,
  kContainerWaits,
  kContainerWaitSeconds,
  kContainerWaitTimeouts,
  kContainerLoaded,
  kContainerSaved,
  // Sums over the node, which remain when a pod ends.
  kAttaches,
  kCachedAttaches,
  kPeerAttaches,
  kErrors,
  kLoaded,
  kSaved,
  kAttachDuration,
  kSavedBySharing,
  kKept,
  // The plugin.
  kPluginRegistered,
  kPluginRegistrations,
  kPluginDevices,
  kPluginUnhealthyDevices,
  kPluginBoundDevices,
  kMissingGpus,
  kPluginAllocations,
  kPluginAllocationErrors,
  kPluginAllocationDuration,
  kPluginPreStarts,
  kPluginPreStartErrors,
  kPluginPreStartDuration,
  kBrokerReadyDuration,
  kPodListErrors,
  kForeignDescriptors,
  kFuseAborts,
  kCollectorSuccess,
  kCollectorDuration,
  kBuildInfo,
  // The process, with the names that every client library uses.
  kProcessCpu,
  kProcessResident,
  kProcessVirtual,
  kProcessStart,
  kProcessFds,
  kProcessMaxFds,
  kCount,
};

struct MetricInfo {
  Metric metric{};
  std::string_view name;  // For a counter, including _total.
  MetricType type{};
  std::string_view labels;    // Separated by spaces, in the order of the exposition.
  std::string_view help;      // Sentences, including where the value comes from.
  bool experimental = false;  // docs/reference/compatibility.md promises the others.
};
inline constexpr bool kExperimental = true;

// Indexed by Metric.
std::span<const MetricInfo> Metrics();
inline const MetricInfo& InfoOf(Metric metric) { return Metrics()[static_cast<size_t>(metric)]; }

}  // namespace gpushm::plugin::metrics
