#include "plugin/metrics/catalogue.h"

#include <algorithm>
#include <iterator>

#include "platform/base/status.h"

namespace gpushm::plugin::metrics {
namespace {

using enum Metric;
using enum MetricType;

constexpr std::string_view kNone = "";
constexpr std::string_view kGpu = "gpu_uuid";
constexpr std::string_view kPod = "namespace pod gpu_uuid";
constexpr std::string_view kBuffer = "namespace pod buffer gpu_uuid";
constexpr std::string_view kContainer = "namespace pod container gpu_uuid";
constexpr std::string_view kResource = "resource";

constexpr MetricInfo kMetrics[] = {
    {kGpuInfo, "gpushm_gpu_info", kGauge,
     "gpu_uuid gpu model pci_bus_id driver_version mig_profile",
     "1 for each GPU or MIG instance that the plugin advertises; join it on gpu_uuid. gpu is the "
     "index that nvidia-smi shows, mig_profile is empty for a whole GPU."},
    {kGpuHealthy, "gpushm_gpu_healthy", kGauge, kGpu,
     "1 if new containers can be bound to the GPU, 0 after an XID or a failed "
     "check (docs/reference/xids.md)."},
    {kGpuMemoryTotal, "gpushm_gpu_memory_total_bytes", kGauge, kGpu,
     "Memory of the GPU, as NVML reports it."},
    {kGpuMemoryUsed, "gpushm_gpu_memory_used_bytes", kGauge, kGpu,
     "Used memory of the GPU, including the driver's, as NVML reports it."},
    {kGpuMemoryAllocatable, "gpushm_gpu_memory_allocatable_bytes", kGauge, kGpu,
     "Memory of the GPU that the plugin advertises: all of it less the reserve, in whole units. "
     "For a GPU that another plugin hands out, only the part that is bound."},
    {kGpuMemoryBound, "gpushm_gpu_memory_bound_bytes", kGauge, kGpu,
     "Part of the advertised memory that is bound to pods, whether they use it or not."},
    {kGpuMemoryBuffers, "gpushm_gpu_memory_buffers_bytes", kGauge, kGpu,
     "Physical bytes of all buffers on the GPU, including offered ones; each buffer counts once, "
     "however many processes attach it."},
    {kGpuMemoryOther, "gpushm_gpu_memory_other_bytes", kGauge, kGpu,
     "Used bytes by NVML less all buffers, both read at the same moment. It contains contexts, "
     "private memory of applications, the driver's memory, memory of other programs, and copies of "
     "descriptors that a process kept."},
    {kGpuUtilization, "gpushm_gpu_utilization_ratio", kGauge, kGpu,
     "Part of NVML's last sample period in which a kernel ran."},
    {kGpuMemoryActivity, "gpushm_gpu_memory_activity_ratio", kGauge, kGpu,
     "Part of NVML's last sample period in which device memory was read or written.",
     kExperimental},
    {kGpuTemperature, "gpushm_gpu_temperature_celsius", kGauge, kGpu, "Temperature of the chip."},
    {kGpuMemoryTemperature, "gpushm_gpu_memory_temperature_celsius", kGauge, kGpu,
     "Temperature of the device memory.", kExperimental},
    {kGpuPower, "gpushm_gpu_power_watts", kGauge, kGpu, "Power that the GPU draws.", kExperimental},
    {kGpuPowerLimit, "gpushm_gpu_power_limit_watts", kGauge, kGpu,
     "Power above which the driver slows the GPU down.", kExperimental},
    {kGpuEnergy, "gpushm_gpu_energy_joules_total", kCounter, kGpu,
     "Energy since the driver was loaded.", kExperimental},
    {kGpuSmClock, "gpushm_gpu_sm_clock_hertz", kGauge, kGpu, "Clock of the multiprocessors.",
     kExperimental},
    {kGpuMemoryClock, "gpushm_gpu_memory_clock_hertz", kGauge, kGpu, "Clock of the device memory.",
     kExperimental},
    {kGpuPcieTransmit, "gpushm_gpu_pcie_transmit_bytes_per_second", kGauge, kGpu,
     "Bytes per second from the GPU over PCIe, measured by NVML over 20 ms.", kExperimental},
    {kGpuPcieReceive, "gpushm_gpu_pcie_receive_bytes_per_second", kGauge, kGpu,
     "Bytes per second to the GPU over PCIe, measured by NVML over 20 ms.", kExperimental},
    {kGpuNvlinkTransmit, "gpushm_gpu_nvlink_transmit_bytes_total", kCounter, kGpu,
     "Payload bytes from the GPU over all its NVLinks.", kExperimental},
    {kGpuNvlinkReceive, "gpushm_gpu_nvlink_receive_bytes_total", kCounter, kGpu,
     "Payload bytes to the GPU over all its NVLinks.", kExperimental},
    {kGpuClocksReduced, "gpushm_gpu_clocks_reduced", kGauge, "gpu_uuid reason",
     "1 while this reason reduces the clocks. reason is power_cap, hw_slowdown, hw_thermal, "
     "hw_power_brake, sw_thermal or sync_boost (NVML's clocks event reasons)."},
    {kGpuEccCorrected, "gpushm_gpu_ecc_corrected_errors_total", kCounter, kGpu,
     "Memory errors that ECC corrected since the driver was loaded.", kExperimental},
    {kGpuEccUncorrected, "gpushm_gpu_ecc_uncorrected_errors_total", kCounter, kGpu,
     "Memory errors that ECC could not correct since the driver was loaded."},
    {kGpuXidErrors, "gpushm_gpu_xid_errors_total", kCounter, "gpu_uuid xid",
     "XIDs that NVML reported since the plugin started (docs/reference/xids.md).", kExperimental},
    {kGpuXidLast, "gpushm_gpu_xid_last_timestamp_seconds", kGauge, "gpu_uuid xid",
     "When this XID last occurred. Unlike increase() of the count, it also shows the first event "
     "of a series."},
    {kGpuTaken, "gpushm_gpu_taken", kGauge, "gpu_uuid by",
     "1 for each GPU that somebody else hands out; by says who, such as nvidia.com/gpu. This "
     "plugin binds no new pod to it (docs/guides/operations.md)."},
    {kGpuDrained, "gpushm_gpu_drained", kGauge, kGpu,
     "1 while an operator has the GPU drained (gpushmctl gpu drain), else 0. The plugin binds no new "
     "pod to a drained GPU."},
    {kGpuSampled, "gpushm_gpu_sampled_timestamp_seconds", kGauge, kGpu,
     "When NVML last answered for the GPU. The plugin reads NVML every metrics.sample-ms; a scrape "
     "never does, because an unhealthy GPU would hold it up."},

    {kPoolSize, "gpushm_pool_size_bytes", kGauge, kPod,
     "GPU memory that the pod was granted on this GPU by its gpushm.io/memory. It contains what the "
     "pod reserved for its containers, loads and MPS, which buffers cannot take."},
    {kPoolAllocated, "gpushm_pool_allocated_bytes", kGauge, kPod,
     "Part of the pool on this GPU that the pod's broker has allocated."},
    {kBrokerConnected, "gpushm_broker_connected", kGauge, kPod,
     "1 while the pod's broker is connected to the plugin."},
    {kLinkMemory, "gpushm_link_memory_bytes", kGauge, kPod,
     "Host memory of the plugin that the pod's kept state takes: each buffer, generation, "
     "attachment and process that the pod's broker states."},
    {kLinkExhausted, "gpushm_link_exhausted_total", kCounter, kPod,
     "Times that the plugin dropped all kept state of the pod, because it exceeded its share of "
     "the plugin's memory or a pod's limits. The plugin's log says which (link-broken)."},
    {kMpsReady, "gpushm_mps_ready", kGauge, kPod,
     "1 while the MPS daemon of a pod with gpushm.io/mps serves clients. While it is 0, a process "
     "that initialises CUDA runs without MPS."},
    {kMpsClients, "gpushm_mps_clients", kGauge, kPod,
     "Processes that the pod's MPS server serves. It takes 48 at most on each GPU."},
    {kMpsDaemonRestarts, "gpushm_mps_daemon_restarts_total", kCounter, kPod,
     "Times that the pod's MPS daemon ended or hung, and was started again. Its clients failed."},
    {kMpsServerRestarts, "gpushm_mps_server_restarts_total", kCounter, kPod,
     "Times that the MPS server ended alone and was started again. Its clients failed."},
    {kMpsOutside, "gpushm_mps_outside_processes", kGauge, kPod,
     "Processes of the pod's containers, without the sidecar's, that use the GPU without its MPS. "
     "They take turns with the others. Only if NVML shows these processes to the "
     "plugin (metrics.host-pids)."},
    {kSyncObjects, "gpushm_sync_objects", kGauge, "namespace pod gpu_uuid kind state",
     "Signals, barriers, rings and queues of the pod, by kind. state is that of the writer: unused "
     "(nobody has written yet), live or ended (a successor makes the next generation). A barrier "
     "is ended once a participant has ended. All states of each kind that the pod has "
     "are exported.",
     kExperimental},
    {kBufferInfo, "gpushm_buffer_info", kGauge,
     "namespace pod buffer gpu_uuid transport creator state",
     "1 for each buffer. transport is vmm or cuipc. creator is the container that made it at run "
     "time, or empty if an annotation declares it. state is unpublished, loading, ready, "
     "writer-died or failed."},
    {kBufferReady, "gpushm_buffer_ready", kGauge, kBuffer,
     "1 if the buffer's current generation is published and complete.", kExperimental},
    {kBufferSize, "gpushm_buffer_size_bytes", kGauge, kBuffer,
     "Requested size of the current generation."},
    {kBufferContent, "gpushm_buffer_content_bytes", kGauge, kBuffer,
     "Bytes of the current generation that are content: what was loaded into it, or what its "
     "writer stated. The whole size if neither is known.",
     kExperimental},
    {kBufferAllocated, "gpushm_buffer_allocated_bytes", kGauge, kBuffer,
     "Physical bytes of all generations of the buffer, rounded to the GPU's granularity.",
     kExperimental},
    {kBufferLoaded, "gpushm_buffer_loaded_bytes", kGauge, kBuffer,
     "Bytes of its file that are in the buffer. Only for buffers that are loaded from a file.",
     kExperimental},
    {kBufferReason, "gpushm_buffer_reason", kGauge, "namespace pod buffer gpu_uuid state code",
     "1 while the buffer has no content and its loader has stated why: state loading (the load "
     "waits) or failed. code is gpushm's status code of the reason, such as NOT_FOUND for a file "
     "that does not exist. The status page and gpushmctl stat show the sentence.",
     kExperimental},
    {kBufferGenerations, "gpushm_buffer_generations", kGauge, kBuffer,
     "Generations that exist: the current one, and each other one that is not published yet or "
     "that a process still holds.",
     kExperimental},
    {kBufferCreated, "gpushm_buffer_created_timestamp_seconds", kGauge, kBuffer,
     "When the current generation was made; changes with each replace.", kExperimental},
    {kBufferAttachments, "gpushm_buffer_attachments", kGauge,
     "namespace pod buffer gpu_uuid access", "Attachments of all generations; access is ro or rw."},
    {kAttachmentMapped, "gpushm_attachment_mapped_bytes", kGauge,
     "namespace pod container buffer gpu_uuid access",
     "Bytes of the buffer that the container's processes map, each attachment counted.",
     kExperimental},

    {kContainerMapped, "gpushm_container_memory_mapped_bytes", kGauge, kContainer,
     "Bytes of all buffers that the container's processes map, each attachment counted: the "
     "equivalent of RSS for host memory.",
     kExperimental},
    {kContainerProportional, "gpushm_container_memory_proportional_bytes", kGauge, kContainer,
     "The container's share of the buffers: each buffer's physical bytes divided by its "
     "attachments, the equivalent of PSS for host memory. Bytes without attachments count for the "
     "sidecar, or for the container that offered them. The sum over a GPU "
     "is gpushm_gpu_memory_buffers_bytes."},
    {kContainerPrivate, "gpushm_container_memory_private_bytes", kGauge, kContainer,
     "GPU memory of the container's processes that is not a buffer, including contexts: the "
     "equivalent of USS for host memory. Only if NVML shows these processes to the "
     "plugin (metrics.host-pids)."},
    {kContainerPrivateLimit, "gpushm_container_memory_private_limit_bytes", kGauge, kContainer,
     "Memory that the pod reserved for the container's own contexts and allocations, by "
     "private.gpushm.io/<container> or by default. With gpushm.io/enforce-private, each process may "
     "use this and what the container may attach."},
    {kContainerClients, "gpushm_container_clients", kGauge, kContainer,
     "Processes of the container that are connected through the library.", kExperimental},
    {kContainerAttaches, "gpushm_container_attaches_total", kCounter, kContainer,
     "First attaches of a buffer in a process: each is one message to the broker and one mapping.",
     kExperimental},
    {kContainerCachedAttaches, "gpushm_container_cached_attaches_total", kCounter, kContainer,
     "Attaches that the library answered from a mapping that the process already held.",
     kExperimental},
    {kContainerDetaches, "gpushm_container_detaches_total", kCounter, kContainer,
     "Detaches that ended a mapping.", kExperimental},
    {kContainerErrors, "gpushm_container_errors_total", kCounter,
     "namespace pod container gpu_uuid code", "Library calls that failed, by gpushm's status code.",
     kExperimental},
    {kContainerWaits, "gpushm_container_waits_total", kCounter, kContainer,
     "Waits for a buffer that succeeded.", kExperimental},
    {kContainerWaitSeconds, "gpushm_container_wait_seconds_total", kCounter, kContainer,
     "Time spent in waits, whatever their result.", kExperimental},
    {kContainerWaitTimeouts, "gpushm_container_wait_timeouts_total", kCounter, kContainer,
     "Waits that ended at their deadline.", kExperimental},
    {kContainerLoaded, "gpushm_container_loaded_bytes_total", kCounter, kContainer,
     "Bytes that the container loaded from files into buffers.", kExperimental},
    {kContainerSaved, "gpushm_container_saved_bytes_total", kCounter, kContainer,
     "Bytes that the container saved from buffers to files.", kExperimental},

    {kAttaches, "gpushm_attaches_total", kCounter, kNone,
     "First attaches of all containers since the plugin started, including ended pods."},
    {kCachedAttaches, "gpushm_cached_attaches_total", kCounter, kNone,
     "Cached attaches of all containers since the plugin started, including ended pods.",
     kExperimental},
    {kPeerAttaches, "gpushm_peer_attaches_total", kCounter, "method",
     "First attaches for another GPU than the buffer's own, including ended pods. method is nvlink, "
     "pcie or staged (a copy through host memory)."},
    {kErrors, "gpushm_errors_total", kCounter, "code",
     "Failed library calls of all containers since the plugin started, including ended pods."},
    {kLoaded, "gpushm_loaded_bytes_total", kCounter, kNone,
     "Bytes loaded from files into buffers since the plugin started, including ended pods.",
     kExperimental},
    {kSaved, "gpushm_saved_bytes_total", kCounter, kNone,
     "Bytes saved from buffers to files since the plugin started, including ended pods.",
     kExperimental},
    {kAttachDuration, "gpushm_attach_duration_seconds", kHistogram, kNone,
     "Duration of first attaches of all containers, from the call to the mapped pointer."},
    {kSavedBySharing, "gpushm_gpu_memory_saved_by_sharing_bytes", kGauge, kGpu,
     "Additional memory that the buffers would take if each attachment had its own copy."},
    {kKept, "gpushm_kept_bytes", kGauge, kGpu,
     "Bytes of buffers whose broker has ended and whose descriptors the plugin keeps for its "
     "successor. Those of a pod that has ended count only here, until its end is proven.",
     kExperimental},

    {kPluginRegistered, "gpushm_plugin_registered", kGauge, kResource,
     "1 while the kubelet knows the plugin and reads its list of device IDs."},
    {kPluginRegistrations, "gpushm_plugin_registrations_total", kCounter, kResource,
     "Registrations that the kubelet accepted.", kExperimental},
    {kPluginDevices, "gpushm_plugin_devices", kGauge, kResource,
     "Advertised device IDs: units of memory, or permissions to attach.", kExperimental},
    {kPluginUnhealthyDevices, "gpushm_plugin_unhealthy_devices", kGauge, kResource,
     "Advertised device IDs that are reported unhealthy, so that the scheduler does not count with "
     "them: their GPU is unhealthy or takes no new pod. Of gpushm.io/exclusive also those of GPUs "
     "that pods share.",
     kExperimental},
    {kPluginBoundDevices, "gpushm_plugin_bound_devices", kGauge, kResource,
     "Advertised device IDs that are bound to containers.", kExperimental},
    {kMissingGpus, "gpushm_plugin_missing_gpus", kGauge, "gpu",
     "1 for each GPU or MIG profile that the configuration names under gpus and this node does not "
     "have. The others are handed out."},
    {kPluginAllocations, "gpushm_plugin_allocations_total", kCounter, kResource,
     "Allocate calls of the kubelet, one for each container.", kExperimental},
    {kPluginAllocationErrors, "gpushm_plugin_allocation_errors_total", kCounter, "resource code",
     "Allocate calls that failed, by gpushm's status code."},
    {kPluginAllocationDuration, "gpushm_plugin_allocation_duration_seconds", kHistogram, kResource,
     "Duration of Allocate calls, from the request to the answer."},
    {kPluginPreStarts, "gpushm_plugin_prestarts_total", kCounter, kResource,
     "PreStartContainer calls of the kubelet: at each start of a container, and repeated after "
     "a failure.",
     kExperimental},
    {kPluginPreStartErrors, "gpushm_plugin_prestart_errors_total", kCounter, "resource code",
     "PreStartContainer calls that failed, by gpushm's status code. EXHAUSTED is a pod that waits "
     "for room. UNSUPPORTED is a pod that needs larger GPUs, or more of them, than the node has, "
     "and never starts there."},
    {kPluginPreStartDuration, "gpushm_plugin_prestart_duration_seconds", kHistogram, kResource,
     "Duration of PreStartContainer calls, from the request to the answer."},
    {kBrokerReadyDuration, "gpushm_broker_ready_duration_seconds", kHistogram, kNone,
     "Start-up time of brokers, from the start of the process until it served.", kExperimental},
    {kPodListErrors, "gpushm_plugin_pod_list_errors_total", kCounter, kNone,
     "Reads of the kubelet's list of pods that failed."},
    {kForeignDescriptors, "gpushm_plugin_foreign_descriptors_total", kCounter, kNone,
     "Messages to the plugin with a file or socket in place of GPU memory, a memfd or a pidfd. The "
     "plugin refuses the process that sent it; the log event foreign-descriptor names the pod."},
    {kFuseAborts, "gpushm_plugin_fuse_aborts_total", kCounter, kNone,
     "FUSE file systems of pods that the plugin aborted because their daemon held up the closing "
     "of such a descriptor. The log event close-held-up names the pod."},
    {kCollectorSuccess, "gpushm_scrape_collector_success", kGauge, "collector",
     "1 if this source answered for this scrape: nvml, bindings (which container holds which "
     "device IDs) or links (what brokers state)."},
    {kCollectorDuration, "gpushm_scrape_collector_duration_seconds", kGauge, "collector",
     "How long this source took.", kExperimental},
    {kBuildInfo, "gpushm_build_info", kGauge, "version compiler",
     "1; the labels are the plugin's version and compiler."},

    {kProcessCpu, "process_cpu_seconds_total", kCounter, kNone, "CPU time of the plugin."},
    {kProcessResident, "process_resident_memory_bytes", kGauge, kNone,
     "Resident memory of the plugin."},
    {kProcessVirtual, "process_virtual_memory_bytes", kGauge, kNone,
     "Virtual memory of the plugin."},
    {kProcessStart, "process_start_time_seconds", kGauge, kNone,
     "When the plugin started, in seconds since 1970."},
    {kProcessFds, "process_open_fds", kGauge, kNone, "Open file descriptors of the plugin."},
    {kProcessMaxFds, "process_max_fds", kGauge, kNone,
     "Largest number of file descriptors that the plugin may open."},
};

consteval bool InOrder() {
  if (std::size(kMetrics) != static_cast<size_t>(Metric::kCount)) return false;
  for (size_t i = 0; i < std::size(kMetrics); ++i) {
    if (kMetrics[i].metric != static_cast<Metric>(i)) return false;
  }
  return true;
}
static_assert(InOrder());

}  // namespace

std::string_view TypeName(MetricType type) {
  switch (type) {
    case kGauge:
      return "gauge";
    case kCounter:
      return "counter";
    case kHistogram:
      return "histogram";
  }
  return "";
}

std::span<const MetricInfo> Metrics() { return kMetrics; }

}  // namespace gpushm::plugin::metrics
