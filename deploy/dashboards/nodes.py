"""The fleet, and a GPU with its node."""

from grafana import (BAD, GOOD, OR_NONE, OURS, WARN, dashboard, mapping, series, stat, steps, table,
                     timeline, zeros)

HEALTH = {0: ("unhealthy", BAD), 1: ("healthy", GOOD)}


def fleet():
    return dashboard(
        "gpushm-fleet", "gpushm / Fleet",
        "How much GPU memory the clusters have, which pods have it, and how much sharing saves.",
        [], [
            stat("Saved by sharing",
                 "Additional memory that the buffers would need if each attachment had its own "
                 "copy.",
                 "bytes", "sum(gpushm_gpu_memory_saved_by_sharing_bytes{$})"),
            stat("Bound to pods", "Share of all advertised GPU memory. At 90 % new pods will soon "
                                  "wait.",
                 "percentunit", "sum(gpushm_gpu_memory_bound_bytes{$})"
                 " / sum(gpushm_gpu_memory_allocatable_bytes{$})", min=0, max=1,
                 thresholds=steps(GOOD, (0.8, WARN), (0.9, BAD))),
            stat("GPUs", "GPUs and MIG instances that gpushm advertises.", "none",
                 "count(gpushm_gpu_info{$})" + OR_NONE),
            zeros("Unhealthy GPUs", "GPUs that accept no new pods.", "gpushm_gpu_healthy{$}", BAD),
            stat("Buffers", "Named buffers of all pods.", "none",
                 "count(gpushm_buffer_ready{$})" + OR_NONE),
            stat("Attachments", "Attachments of buffers in processes.", "none",
                 "sum(gpushm_buffer_attachments{$})" + OR_NONE),
            stat("Pods", "Pods that were granted GPU memory.", "none",
                 "count(count by (cluster, instance, namespace, pod) (gpushm_pool_size_bytes{$}))"
                 + OR_NONE),
            stat("Kept for a successor",
                 "Buffers whose broker is gone; the plugin keeps them until a new broker starts.",
                 "bytes",
                 "sum(gpushm_kept_bytes{$})", thresholds=steps(GOOD, (1, WARN))),
            zeros("Targets down", "Plugins and injectors that Prometheus cannot scrape.",
                  "up{$, " + OURS + "}", BAD),
            stat("Busy", "Mean of NVML's utilisation over all GPUs.", "percentunit",
                 "avg(gpushm_gpu_utilization_ratio{$})", min=0, max=1),
            stat("Power", "Sum over all GPUs.", "watt", "sum(gpushm_gpu_power_watts{$})"),
            stat("Hottest GPU", "Temperature of the chip.", "celsius",
                 "max(gpushm_gpu_temperature_celsius{$})",
                 thresholds=steps(GOOD, (80, WARN), (85, BAD))),
            series("GPU memory",
                   "Physical memory: buffers, each counted once; other used memory; free memory.",
                   "bytes", ("sum(gpushm_gpu_memory_buffers_bytes{$})", "buffers"),
                   ("sum(gpushm_gpu_memory_other_bytes{$})", "other"),
                   ("sum(gpushm_gpu_memory_total_bytes{$} - gpushm_gpu_memory_used_bytes{$})",
                    "free"), stack=True, min=0),
            series("Saved by sharing, by node", "Memory saved because several processes share one "
                                                "copy.",
                   "bytes", ("sum by (instance) (gpushm_gpu_memory_saved_by_sharing_bytes{$})",
                             "{{instance}}"), stack=True, min=0),
            series("Bound, by node", "Share of what the node advertises.", "percentunit",
                   ("sum by (instance) (gpushm_gpu_memory_bound_bytes{$})"
                    " / sum by (instance) (gpushm_gpu_memory_allocatable_bytes{$})",
                    "{{instance}}"), min=0, max=1, thresholds=steps(GOOD, (0.9, BAD))),
            series("Namespaces with the most memory",
                   "Proportional bytes: each buffer is divided among the containers that map it.",
                   "bytes",
                   ("topk(10, sum by (namespace) (gpushm_container_memory_proportional_bytes{$}))",
                    "{{namespace}}"), stack=True, min=0),
            series("Utilisation, by node", "At 80 to 95 % a GPU is worth its price and still has "
                                           "headroom.", "percentunit",
                   ("avg by (instance) (gpushm_gpu_utilization_ratio{$})", "{{instance}}"),
                   min=0, max=1, thresholds=steps(WARN, (0.8, GOOD), (0.95, WARN))),
            series("Closed to new pods", "GPUs that another plugin allocates, such as NVIDIA's device "
                                         "plugin, and GPUs that an operator drained; gpushm binds "
                                         "no new pods to them.",
                   "none",
                   ("sum by (instance, by) (gpushm_gpu_taken{$})", "{{instance}} {{by}}"),
                   ("sum by (instance) (gpushm_gpu_drained{$})", "{{instance}} drained"), min=0),
            series("Attaches", "A first attach needs a message and a mapping, a cached one needs "
                               "neither.",
                   "ops", ("sum(rate(gpushm_attaches_total{$}[$__rate_interval]))", "first"),
                   ("sum(rate(gpushm_cached_attaches_total{$}[$__rate_interval]))", "cached")),
            series("Buffers by transport",
                   "vmm works between all containers; cuipc is only for offered memory.", "none",
                   ("count by (transport) (gpushm_buffer_info{$})", "{{transport}}"), min=0),
            series("Versions", "Programs by version. There are two versions only while one "
                               "replaces the other.", "none",
                   ("count by (job, version) (gpushm_build_info{$})",
                                      "{{job}} {{version}}"), stack=True, min=0),
            table("GPUs of the fleet", "One row for each GPU or MIG instance.", [
                ("sum by (instance, gpu_uuid, gpu, model, mig_profile, driver_version)"
                 " (gpushm_gpu_info{$})", "", "none", None),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_healthy{$})", "health", "none", HEALTH),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_memory_total_bytes{$})", "total",
                 "bytes", None),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_memory_used_bytes{$})", "used", "bytes",
                 None),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_memory_bound_bytes{$})", "bound",
                 "bytes", None),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_memory_buffers_bytes{$})", "buffers",
                 "bytes", None),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_utilization_ratio{$})", "busy",
                 "percentunit", None),
                ("sum by (instance, gpu_uuid) (gpushm_gpu_temperature_celsius{$})", "temperature",
                 "celsius", None),
            ]),
        ])


def gpu():
    by_gpu = "{{instance}} {{gpu_uuid}}"
    return dashboard(
        "gpushm-gpu", "gpushm / GPU and node",
        "One GPU, or the GPUs of one node: memory, load and health.", ["gpu"], [
            stat("Health", "The worst of the selected GPUs; docs/reference/xids.md says when a "
                           "GPU is unhealthy.", "none", "min(gpushm_gpu_healthy{$})",
                 thresholds=steps(BAD, (1, GOOD)),
                 mappings=mapping(HEALTH)),
            stat("Memory used", "By any process, including the driver.", "percentunit",
                 "sum(gpushm_gpu_memory_used_bytes{$}) / sum(gpushm_gpu_memory_total_bytes{$})",
                 min=0, max=1, thresholds=steps(GOOD, (0.8, WARN), (0.9, BAD))),
            stat("Bound to pods", "Share of the advertised memory, whether the pods use it or "
                                  "not.",
                 "percentunit", "sum(gpushm_gpu_memory_bound_bytes{$})"
                 " / sum(gpushm_gpu_memory_allocatable_bytes{$})", min=0, max=1),
            stat("Busy", "Share of NVML's last sample period in which a kernel ran.", "percentunit",
                 "avg(gpushm_gpu_utilization_ratio{$})", min=0, max=1),
            stat("Temperature", "Temperature of the hottest chip.", "celsius",
                 "max(gpushm_gpu_temperature_celsius{$})",
                 thresholds=steps(GOOD, (80, WARN), (85, BAD))),
            stat("Saved by sharing", "Compared with a copy for each process.", "bytes",
                 "sum(gpushm_gpu_memory_saved_by_sharing_bytes{$})"),
            "Memory",
            series("Physical memory",
                   "Buffers, each counted once; other used memory, including contexts and private "
                   "memory; free memory.", "bytes",
                   ("sum(gpushm_gpu_memory_buffers_bytes{$})", "buffers"),
                   ("sum(gpushm_gpu_memory_other_bytes{$})", "other"),
                   ("sum(gpushm_gpu_memory_total_bytes{$} - gpushm_gpu_memory_used_bytes{$})",
                    "free"), stack=True, min=0),
            series("Granted and used", "What pods may have, what they were granted, and what "
                                       "their brokers allocated.", "bytes",
                   ("sum(gpushm_gpu_memory_allocatable_bytes{$})", "allocatable"),
                   ("sum(gpushm_gpu_memory_bound_bytes{$})", "bound"),
                   ("sum(gpushm_pool_allocated_bytes{$})", "allocated"), min=0),
            series("Outside buffers", "Other is all memory outside buffers. Private is what "
                                         "NVML shows for containers' processes; it exists only "
                                         "with metrics.hostPids.", "bytes",
                   ("sum by (instance, gpu_uuid) (gpushm_gpu_memory_other_bytes{$})",
                    by_gpu + " other"),
                   ("sum by (instance, gpu_uuid) (gpushm_container_memory_private_bytes{$})",
                    by_gpu + " private"), min=0),
            series("Kept for brokers that are gone", "It is freed when their brokers have started "
                                                     "again, or when the pod ends.",
                   "bytes", ("gpushm_kept_bytes{$}", by_gpu), min=0),
            table("Pods on it", "Their pools on it, and whether their brokers are connected.", [
                ("sum by (instance, namespace, pod, gpu_uuid) (gpushm_pool_size_bytes{$})",
                 "granted", "bytes", None),
                ("sum by (instance, namespace, pod, gpu_uuid) (gpushm_pool_allocated_bytes{$})",
                 "allocated", "bytes", None),
                ("sum by (instance, namespace, pod, gpu_uuid) (0 * gpushm_pool_size_bytes{$} + on"
                 " (cluster, instance, namespace, pod) group_left ()"
                 " max by (cluster, instance, namespace, pod) (gpushm_broker_connected{@}))",
                 "broker", "none", {0: ("gone", WARN), 1: ("connected", GOOD)}),
            ]),
            "Load",
            series("Utilisation", "Share of time in which a kernel ran, and in which memory was "
                                  "accessed.",
                   "percentunit", ("gpushm_gpu_utilization_ratio{$}", by_gpu + " busy"),
                   ("gpushm_gpu_memory_activity_ratio{$}", by_gpu + " memory"), min=0, max=1),
            series("Temperature over time", "Temperature of the chip and of its memory.", "celsius",
                   ("gpushm_gpu_temperature_celsius{$}", by_gpu + " chip"),
                   ("gpushm_gpu_memory_temperature_celsius{$}", by_gpu + " memory"),
                   thresholds=steps(GOOD, (85, BAD))),
            series("Power", "The current power, the power by the energy counter (which misses no "
                            "peak), and the limit.",
                   "watt", ("gpushm_gpu_power_watts{$}", by_gpu + " now"),
                   ("rate(gpushm_gpu_energy_joules_total{$}[$__rate_interval])",
                    by_gpu + " by energy"),
                   ("gpushm_gpu_power_limit_watts{$}", by_gpu + " limit"), min=0),
            series("Clocks", "Clocks of multiprocessors and memory.", "hertz",
                   ("gpushm_gpu_sm_clock_hertz{$}", by_gpu + " SM"),
                   ("gpushm_gpu_memory_clock_hertz{$}", by_gpu + " memory"), min=0),
            series("PCIe", "Measured over NVML's 20 ms.", "Bps",
                   ("gpushm_gpu_pcie_transmit_bytes_per_second{$}", by_gpu + " from the GPU"),
                   ("gpushm_gpu_pcie_receive_bytes_per_second{$}", by_gpu + " to the GPU"), min=0),
            series("NVLink", "Payload over all interconnect links.", "Bps",
                   ("rate(gpushm_gpu_nvlink_transmit_bytes_total{$}[$__rate_interval])",
                    by_gpu + " from the GPU"),
                   ("rate(gpushm_gpu_nvlink_receive_bytes_total{$}[$__rate_interval])",
                    by_gpu + " to the GPU"), min=0),
            "Health",
            timeline("Health over time", "An unhealthy GPU accepts no new pods.",
                     "gpushm_gpu_healthy{$}",
                     by_gpu, HEALTH),
            timeline("Clocks reduced", "The reasons for reduced clocks. power_cap is normal on "
                                         "a busy GPU.",
                     "gpushm_gpu_clocks_reduced{$}", by_gpu + " {{reason}}",
                     {0: ("no", GOOD), 1: ("yes", WARN)}),
            series("XIDs", "Errors that the driver reported, by number.", "none",
                   ("increase(gpushm_gpu_xid_errors_total{$}[$__rate_interval])",
                    by_gpu + " XID {{xid}}"), min=0),
            series("ECC errors", "Errors of device memory.", "none",
                   ("increase(gpushm_gpu_ecc_corrected_errors_total{$}[$__rate_interval])",
                    by_gpu + " corrected"),
                   ("increase(gpushm_gpu_ecc_uncorrected_errors_total{$}[$__rate_interval])",
                    by_gpu + " not corrected"), min=0),
            table("Last XIDs", "docs/reference/xids.md explains each XID.", [
                ("sum by (instance, gpu_uuid, xid) (gpushm_gpu_xid_last_timestamp_seconds{$})"
                 " * 1000", "last", "dateTimeAsIso", None)], width=12, height=8),
            series("Age of NVML's answer",
                   "Absent after three missed answers: NVML hangs, as with an unhealthy GPU.", "s",
                   ("time() - gpushm_gpu_sampled_timestamp_seconds{$}", by_gpu), min=0),
        ])
