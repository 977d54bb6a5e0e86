"""The correct answer of each query of each panel, and of each recording rule, computed from the
load. Keys are a dashboard's uid and a panel's title; one function for each query."""

from vector import (count, largest, map_values, mean, minus, or_zero, plus, ratio, smallest, total,
                    zeros)

POD = ("namespace", "pod")
CONTAINER = (*POD, "container")
BUFFER = (*POD, "buffer")
GPU = ("instance", "gpu_uuid")


def each(name):
    return lambda v: v.each(name)


def once(function):
    """Of what a pod has once, in a dashboard that selects GPUs."""
    return lambda v: function(v.once())


def pods(v):
    return or_zero(count(count(v.each("gpushm_pool_size_bytes"), "cluster", "instance", *POD)))


def brokers_on_gpus(v):
    """The state of each pod's broker, for each of its selected GPUs."""
    connected = v.once().sum("gpushm_broker_connected", "instance", *POD)
    return {labels: connected[frozenset(pair for pair in labels if pair[0] != "gpu_uuid")]
            for labels in v.sum("gpushm_pool_size_bytes", "instance", *POD, "gpu_uuid")}


def summed(name, *by, **where):
    return lambda v: v.sum(name, *by, **where)


def rate(name, *by, **where):
    return lambda v: v.sum_rate(name, *by, **where)


def plain_rate(name):
    return lambda v: v.rate(name)


def increase(name, *by):
    if by == ("each",):
        return lambda v: v.increase(name)
    return lambda v: total(v.increase(name), *by)


def share(name, of, *by):
    return lambda v: ratio(v.sum(name, *by), v.sum(of, *by))


def number(name):
    return lambda v: or_zero(count(v.each(name)))


def number_of_zeros(name):
    return lambda v: or_zero(count(zeros(v.each(name))))


def age(name):
    return lambda v: map_values(lambda x: v.now - x, v.each(name))


def quantiles(name, *by):
    return [lambda v: v.quantile(0.5, name, *by), lambda v: v.quantile(0.99, name, *by)]


def free(v):
    return total(minus(v.each("gpushm_gpu_memory_total_bytes"),
                       v.each("gpushm_gpu_memory_used_bytes")))


BOUND = share("gpushm_gpu_memory_bound_bytes", "gpushm_gpu_memory_allocatable_bytes")
SAVED = summed("gpushm_gpu_memory_saved_by_sharing_bytes")
BUSY = [lambda v: mean(v.each("gpushm_gpu_utilization_ratio"))]
HOTTEST = [lambda v: largest(v.each("gpushm_gpu_temperature_celsius"))]
MEMORY = [summed("gpushm_gpu_memory_buffers_bytes"), summed("gpushm_gpu_memory_other_bytes"), free]

FLEET = {
    "Saved by sharing": [SAVED],
    "Bound to pods": [BOUND],
    "GPUs": [number("gpushm_gpu_info")],
    "Unhealthy GPUs": [number_of_zeros("gpushm_gpu_healthy")],
    "Buffers": [number("gpushm_buffer_ready")],
    "Attachments": [lambda v: or_zero(v.sum("gpushm_buffer_attachments"))],
    "Pods": [pods],
    "Kept for a successor": [summed("gpushm_kept_bytes")],
    "Targets down": [number_of_zeros("up")],
    "Busy": BUSY,
    "Power": [summed("gpushm_gpu_power_watts")],
    "Hottest GPU": HOTTEST,
    "GPU memory": MEMORY,
    "Saved by sharing, by node": [summed("gpushm_gpu_memory_saved_by_sharing_bytes", "instance")],
    "Bound, by node": [share("gpushm_gpu_memory_bound_bytes",
                             "gpushm_gpu_memory_allocatable_bytes", "instance")],
    "Namespaces with the most memory": [summed("gpushm_container_memory_proportional_bytes",
                                         "namespace")],
    "Utilisation, by node": [lambda v: mean(v.each("gpushm_gpu_utilization_ratio"), "instance")],
    "Closed to new pods": [summed("gpushm_gpu_taken", "instance", "by"),
                           summed("gpushm_gpu_drained", "instance")],
    "Attaches": [rate("gpushm_attaches_total"), rate("gpushm_cached_attaches_total")],
    "Buffers by transport": [lambda v: count(v.each("gpushm_buffer_info"), "transport")],
    "Versions": [lambda v: count(v.each("gpushm_build_info"), "job", "version")],
    "GPUs of the fleet": [
        summed("gpushm_gpu_info", *GPU, "gpu", "model", "mig_profile", "driver_version"),
        *(summed(f"gpushm_gpu_{name}", *GPU) for name in (
            "healthy", "memory_total_bytes", "memory_used_bytes", "memory_bound_bytes",
            "memory_buffers_bytes", "utilization_ratio", "temperature_celsius"))],
}

ONE_GPU = {
    "Health": [lambda v: smallest(v.each("gpushm_gpu_healthy"))],
    "Memory used": [share("gpushm_gpu_memory_used_bytes", "gpushm_gpu_memory_total_bytes")],
    "Bound to pods": [BOUND],
    "Busy": BUSY,
    "Temperature": HOTTEST,
    "Saved by sharing": [SAVED],
    "Physical memory": MEMORY,
    "Granted and used": [summed("gpushm_gpu_memory_allocatable_bytes"),
                         summed("gpushm_gpu_memory_bound_bytes"),
                         summed("gpushm_pool_allocated_bytes")],
    "Outside buffers": [summed("gpushm_gpu_memory_other_bytes", *GPU),
                           summed("gpushm_container_memory_private_bytes", *GPU)],
    "Kept for brokers that are gone": [each("gpushm_kept_bytes")],
    "Pods on it": [*(summed(f"gpushm_{name}", "instance", *POD, "gpu_uuid") for name in (
        "pool_size_bytes", "pool_allocated_bytes")), brokers_on_gpus],
    "Utilisation": [each("gpushm_gpu_utilization_ratio"), each("gpushm_gpu_memory_activity_ratio")],
    "Temperature over time": [each("gpushm_gpu_temperature_celsius"),
                              each("gpushm_gpu_memory_temperature_celsius")],
    "Power": [each("gpushm_gpu_power_watts"), plain_rate("gpushm_gpu_energy_joules_total"),
              each("gpushm_gpu_power_limit_watts")],
    "Clocks": [each("gpushm_gpu_sm_clock_hertz"), each("gpushm_gpu_memory_clock_hertz")],
    "PCIe": [each("gpushm_gpu_pcie_transmit_bytes_per_second"),
             each("gpushm_gpu_pcie_receive_bytes_per_second")],
    "NVLink": [plain_rate("gpushm_gpu_nvlink_transmit_bytes_total"),
               plain_rate("gpushm_gpu_nvlink_receive_bytes_total")],
    "Health over time": [each("gpushm_gpu_healthy")],
    "Clocks reduced": [each("gpushm_gpu_clocks_reduced")],
    "XIDs": [increase("gpushm_gpu_xid_errors_total", "each")],
    "ECC errors": [increase("gpushm_gpu_ecc_corrected_errors_total", "each"),
                   increase("gpushm_gpu_ecc_uncorrected_errors_total", "each")],
    "Last XIDs": [lambda v: map_values(lambda x: 1000 * x, v.sum(
        "gpushm_gpu_xid_last_timestamp_seconds", *GPU, "xid"))],
    "Age of NVML's answer": [age("gpushm_gpu_sampled_timestamp_seconds")],
}


def mean_wait(v):
    return ratio(v.sum_rate("gpushm_container_wait_seconds_total", *CONTAINER),
                 plus(v.sum_rate("gpushm_container_waits_total", *CONTAINER),
                      v.sum_rate("gpushm_container_wait_timeouts_total", *CONTAINER)))


def of_container(*names):
    return [summed(f"gpushm_container_{name}", *CONTAINER) for name in names]


def rates_of_container(*names):
    return [once(rate(f"gpushm_container_{name}_total", *CONTAINER)) for name in names]


WORKLOAD = {
    "Granted": [summed("gpushm_pool_size_bytes")],
    "Allocated": [summed("gpushm_pool_allocated_bytes")],
    "Mapped": [summed("gpushm_container_memory_mapped_bytes")],
    "Processes": [once(lambda v: or_zero(v.sum("gpushm_container_clients")))],
    "Buffers not ready": [number_of_zeros("gpushm_buffer_ready")],
    "Brokers gone": [once(number_of_zeros("gpushm_broker_connected"))],
    "Containers": [*of_container("memory_mapped_bytes", "memory_proportional_bytes",
                                 "memory_private_bytes", "memory_private_limit_bytes"),
                   once(summed("gpushm_container_clients", *CONTAINER))],
    "Proportional bytes": of_container("memory_proportional_bytes"),
    "Mapped bytes": of_container("memory_mapped_bytes"),
    "Pools": [summed(f"gpushm_pool_{name}_bytes", *POD, "gpu_uuid") for name in (
        "size", "allocated")],
    "Brokers": [once(summed("gpushm_broker_connected", *POD))],
    "MPS": [once(summed("gpushm_mps_ready", *POD))],
    "MPS clients": [once(summed(f"gpushm_mps_{name}", *POD)) for name in (
        "clients", "outside_processes")],
    "Buffers by name": [
        summed("gpushm_buffer_info", *BUFFER, "gpu_uuid", "transport", "creator", "state"),
        *(summed(f"gpushm_buffer_{name}", *BUFFER) for name in (
            "ready", "size_bytes", "content_bytes", "allocated_bytes", "generations",
            "attachments")),
        lambda v: total(age("gpushm_buffer_created_timestamp_seconds")(v), *BUFFER)],
    "Buffers without content": [
        summed("gpushm_buffer_reason", *BUFFER, "gpu_uuid", "state", "code")],
    "Size, allocated, loaded": [summed(f"gpushm_buffer_{name}_bytes", *BUFFER)
                                for name in ("size", "allocated", "loaded")],
    "Attachments": [summed("gpushm_buffer_attachments", *BUFFER, "access")],
    "Who maps what": [summed("gpushm_attachment_mapped_bytes", *CONTAINER, "buffer", "gpu_uuid",
                             "access")],
    "Signals, barriers and rings": [once(summed("gpushm_sync_objects", *POD, "kind", "state"))],
    "Attaches": rates_of_container("attaches", "detaches"),
    "Cached attaches": rates_of_container("cached_attaches"),
    "Errors": [once(rate("gpushm_container_errors_total", *CONTAINER, "code"))],
    "Mean wait": [once(mean_wait)],
    "Waits that ended at their deadline": rates_of_container("wait_timeouts"),
    "Loaded and saved": rates_of_container("loaded_bytes", "saved_bytes"),
}

CONTROL_PLANE = {
    "Plugins": [lambda v: or_zero(v.sum("up", job="gpushm-plugin"))],
    "Injector replicas": [lambda v: or_zero(v.sum("up", job="gpushm-injector"))],
    "Not registered": [number_of_zeros("gpushm_plugin_registered")],
    "Sources that fail": [number_of_zeros("gpushm_scrape_collector_success")],
    "Certificate": [lambda v: map_values(lambda x: x - v.now, smallest(
        v.each("gpushm_webhook_certificate_expiry_timestamp_seconds")))],
    "Longest uptime": [lambda v: map_values(lambda x: v.now - x, smallest(
        v.each("process_start_time_seconds")))],
    "First attaches": [increase("gpushm_attach_duration_seconds_bucket", "le")],
    "First attach, quantiles": quantiles("gpushm_attach_duration_seconds"),
    "Broker ready": quantiles("gpushm_broker_ready_duration_seconds"),
    "Failed library calls": [rate("gpushm_errors_total", "code")],
    "Bytes between files and buffers": [rate("gpushm_loaded_bytes_total"),
                                        rate("gpushm_saved_bytes_total")],
    "Attaches of all containers": [rate("gpushm_attaches_total"),
                                   rate("gpushm_cached_attaches_total"),
                                   rate("gpushm_peer_attaches_total", "method")],
    "Devices": [summed(f"gpushm_plugin_{name}", "resource")
                for name in ("devices", "bound_devices", "unhealthy_devices")],
    "Allocate": quantiles("gpushm_plugin_allocation_duration_seconds", "resource"),
    "PreStartContainer": quantiles("gpushm_plugin_prestart_duration_seconds", "resource"),
    "Calls of the kubelet": [rate("gpushm_plugin_allocations_total", "resource"),
                             rate("gpushm_plugin_prestarts_total", "resource")],
    "Calls that failed": [rate("gpushm_plugin_allocation_errors_total", "resource", "code"),
                          rate("gpushm_plugin_prestart_errors_total", "resource", "code")],
    "Registrations and failures": [increase(f"gpushm_plugin_{name}_total") for name in (
        "registrations", "pod_list_errors")],
    "Admissions": [rate("gpushm_webhook_requests_total", "endpoint", "outcome")],
    "Denied": [rate("gpushm_webhook_requests_total", "outcome", allowed="false")],
    "Admission time": [increase("gpushm_webhook_request_duration_seconds_bucket", "le")],
    "Admission time, quantiles": quantiles("gpushm_webhook_request_duration_seconds", "endpoint"),
    "Certificate files refused": [increase("gpushm_webhook_certificate_errors_total")],
    "Scrape duration": [each("scrape_duration_seconds")],
    "Samples": [each("scrape_samples_scraped")],
    "Sources of a scrape": [lambda v: largest(v.each("gpushm_scrape_collector_duration_seconds"),
                                              "collector")],
    "CPU of plugins": [plain_rate("process_cpu_seconds_total")],
    "Memory of plugins": [each("process_resident_memory_bytes")],
    "Memory for stated pods": [summed("gpushm_link_memory_bytes", *POD)],
    "Pods that stated too much": [increase("gpushm_link_exhausted_total", *POD)],
    "Foreign descriptors": [increase(f"gpushm_plugin_{name}_total", "instance") for name in (
        "foreign_descriptors", "fuse_aborts")],
    "Descriptors of plugins": [lambda v: ratio(v.each("process_open_fds"),
                                               v.each("process_max_fds"))],
}

PANELS = {"gpushm-fleet": FLEET, "gpushm-gpu": ONE_GPU, "gpushm-workload": WORKLOAD,
          "gpushm-control-plane": CONTROL_PLANE}

OWN_MISTAKES = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "DENIED", "TIMEOUT", "STALE",
                "BUSY", "LOADING"}


def attach_errors(v):
    errors = v.sum_rate("gpushm_errors_total", "cluster", code=lambda c: c not in OWN_MISTAKES)
    return ratio(errors, plus(errors, v.sum_rate("gpushm_attaches_total", "cluster")))


# Ratios and quantiles do not need the five minutes; the one plain rate is tested with promtool.
RECORDED = {
    "gpushm:memory_saved_by_sharing:bytes": summed("gpushm_gpu_memory_saved_by_sharing_bytes",
                                                   "cluster"),
    "gpushm:buffers:bytes": summed("gpushm_gpu_memory_buffers_bytes", "cluster"),
    "gpushm:gpu_memory_bound:ratio": share("gpushm_gpu_memory_bound_bytes",
                                           "gpushm_gpu_memory_allocatable_bytes", "cluster"),
    "gpushm:gpu_memory_used:ratio": share("gpushm_gpu_memory_used_bytes",
                                          "gpushm_gpu_memory_total_bytes", "cluster"),
    "gpushm:gpu_utilization:ratio": lambda v: mean(v.each("gpushm_gpu_utilization_ratio"),
                                                   "cluster"),
    "gpushm:gpu_unhealthy:count": lambda v: minus(
        count(v.each("gpushm_gpu_healthy"), "cluster"), v.sum("gpushm_gpu_healthy", "cluster")),
    "gpushm:namespace_pool_size:bytes": summed("gpushm_pool_size_bytes", "cluster", "namespace"),
    "gpushm:namespace_pool_allocated:bytes": summed("gpushm_pool_allocated_bytes", "cluster",
                                                    "namespace"),
    "gpushm:namespace_memory_proportional:bytes": summed(
        "gpushm_container_memory_proportional_bytes", "cluster", "namespace"),
    "gpushm:attach_errors:ratio_rate5m": attach_errors,
    "gpushm:attach_duration:seconds_p99_rate5m": quantiles("gpushm_attach_duration_seconds",
                                                           "cluster")[1],
    "gpushm:plugin_allocation_duration:seconds_p99_rate5m": quantiles(
        "gpushm_plugin_allocation_duration_seconds", "cluster", "resource")[1],
    "gpushm:plugin_prestart_duration:seconds_p99_rate5m": quantiles(
        "gpushm_plugin_prestart_duration_seconds", "cluster", "resource")[1],
    "gpushm:webhook_request_duration:seconds_p99_rate5m": quantiles(
        "gpushm_webhook_request_duration_seconds", "cluster", "endpoint")[1],
    "gpushm:webhook_denials:ratio_rate5m": lambda v: ratio(
        v.sum_rate("gpushm_webhook_requests_total", "cluster", allowed="false"),
        v.sum_rate("gpushm_webhook_requests_total", "cluster")),
}
