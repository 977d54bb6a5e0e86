"""Buffers and workloads, and the control plane."""

from grafana import (BAD, GOOD, OR_NONE, OURS, PLUGINS, WARN, dashboard, heatmap, of_pods, series,
                     stat, steps, table, timeline, zeros)


def workload():
    buffer = "{{namespace}}/{{pod}} {{buffer}}"
    container = "{{namespace}}/{{pod}} {{container}}"
    of_container = "sum by (namespace, pod, container)"
    pool = "{{namespace}}/{{pod}} {{gpu_uuid}}"
    of_pool = "sum by (namespace, pod, gpu_uuid)"
    of_buffer = "sum by (namespace, pod, buffer)"

    def rated(name):
        return f"{of_container} " + of_pods(f"gpushm_container_{name}_total", rate=True)

    return dashboard(
        "gpushm-workload", "gpushm / Buffers and workloads",
        "Which pod and container has which bytes, and the state of its buffers.",
        ["namespace", "pod", "gpu"], [
            stat("Granted", "The gpushm.io/memory of the pods.", "bytes",
                 "sum(gpushm_pool_size_bytes{$})"),
            stat("Allocated", "What their brokers allocated of it.", "bytes",
                 "sum(gpushm_pool_allocated_bytes{$})"),
            stat("Mapped", "The sum of each container's mappings, like RSS for host memory.",
                 "bytes", "sum(gpushm_container_memory_mapped_bytes{$})"),
            stat("Processes", "Processes connected through the library.", "none",
                 f"sum({of_pods('gpushm_container_clients')})" + OR_NONE),
            zeros("Buffers not ready", "Buffers that are loading, failed, or left by a writer "
                                       "that died.",
                  "gpushm_buffer_ready{$}", WARN),
            zeros("Brokers gone", "Pods whose broker is not connected.",
                  of_pods("gpushm_broker_connected"), BAD),
            "Who holds which bytes",
            table("Containers", "Mapped corresponds to RSS, proportional to PSS and private to "
                                "USS of host memory. Buffers that nobody has attached count for "
                                "the sidecar. A pod's GPUs are added up.", [
                      (f"{of_container} (gpushm_container_memory_mapped_bytes{{$}})", "mapped",
                       "bytes", None),
                      (f"{of_container} (gpushm_container_memory_proportional_bytes{{$}})",
                       "proportional", "bytes", None),
                      (f"{of_container} (gpushm_container_memory_private_bytes{{$}})", "private",
                       "bytes", None),
                      (f"{of_container} (gpushm_container_memory_private_limit_bytes{{$}})",
                       "private reserved", "bytes", None),
                      (f"{of_container} {of_pods('gpushm_container_clients')}", "processes",
                       "none", None)]),
            series("Proportional bytes", "They add up to the physical bytes of all buffers.",
                   "bytes", (f"{of_container} (gpushm_container_memory_proportional_bytes{{$}})",
                             container), stack=True, min=0),
            series("Mapped bytes", "Shared buffers count for each container.", "bytes",
                   (f"{of_container} (gpushm_container_memory_mapped_bytes{{$}})", container),
                   min=0),
            series("Pools", "What pods were granted on each GPU, and how much of it is allocated. "
                            "Buffers cannot take what pods reserved for their containers.",
                   "bytes",
                   (f"{of_pool} (gpushm_pool_size_bytes{{$}})", pool + " granted"),
                   (f"{of_pool} (gpushm_pool_allocated_bytes{{$}})", pool + " allocated"), min=0),
            timeline("Brokers", "While a broker is gone, its buffers are kept and attaches wait.",
                     f"sum by (namespace, pod) {of_pods('gpushm_broker_connected')}",
                     "{{namespace}}/{{pod}}", {0: ("gone", BAD), 1: ("connected", GOOD)}, height=8),
            timeline("MPS", "While a pod's MPS daemon is gone, processes start without MPS. Pods "
                            "without gpushm.io/mps have no line.",
                     f"sum by (namespace, pod) {of_pods('gpushm_mps_ready')}",
                     "{{namespace}}/{{pod}}", {0: ("gone", BAD), 1: ("ready", GOOD)}, height=8),
            series("MPS clients", "Processes that a pod's MPS server serves, and those that use "
                                  "the GPU outside of it (with metrics.hostPids).", "none",
                   (f"sum by (namespace, pod) {of_pods('gpushm_mps_clients')}",
                    "{{namespace}}/{{pod}} served"),
                   (f"sum by (namespace, pod) {of_pods('gpushm_mps_outside_processes')}",
                    "{{namespace}}/{{pod}} outside"), min=0),
            "Buffers",
            table("Buffers by name", "State, GPU, size and age of the current generation.", [
                ("sum by (namespace, pod, buffer, gpu_uuid, transport, creator, state)"
                 " (gpushm_buffer_info{$})", "", "none", None),
                (f"{of_buffer} (gpushm_buffer_ready{{$}})", "ready", "none",
                 {0: ("no", WARN), 1: ("yes", GOOD)}),
                (f"{of_buffer} (gpushm_buffer_size_bytes{{$}})", "size", "bytes", None),
                (f"{of_buffer} (gpushm_buffer_content_bytes{{$}})", "content", "bytes", None),
                (f"{of_buffer} (gpushm_buffer_allocated_bytes{{$}})", "allocated", "bytes", None),
                (f"{of_buffer} (gpushm_buffer_generations{{$}})", "generations", "none", None),
                (f"{of_buffer} (gpushm_buffer_attachments{{$}})", "attachments", "none", None),
                (f"{of_buffer} (time() - gpushm_buffer_created_timestamp_seconds{{$}})", "age",
                 "s", None)]),
            table("Buffers without content", "Only if their loader stated why. The status page and "
                                             "gpushmctl stat show its sentence.", [
                      ("sum by (namespace, pod, buffer, gpu_uuid, state, code)"
                       " (gpushm_buffer_reason{$})", "", "none", None)]),
            series("Size, allocated, loaded", "Allocated exceeds the size while several "
                                              "generations exist; loaded grows while a file is "
                                              "read.", "bytes",
                   (f"{of_buffer} (gpushm_buffer_size_bytes{{$}})", buffer + " size"),
                   (f"{of_buffer} (gpushm_buffer_allocated_bytes{{$}})", buffer + " allocated"),
                   (f"{of_buffer} (gpushm_buffer_loaded_bytes{{$}})", buffer + " loaded"), min=0),
            series("Attachments", "Attachments of a buffer in processes, for reading (ro) and for "
                                  "reading and writing (rw).",
                   "none", ("sum by (namespace, pod, buffer, access)"
                            " (gpushm_buffer_attachments{$})", buffer + " {{access}}"), min=0),
            table("Who maps what", "One row for each container, buffer and access.", [
                ("sum by (namespace, pod, container, buffer, gpu_uuid, access)"
                 " (gpushm_attachment_mapped_bytes{$})", "mapped", "bytes", None)]),
            series("Signals, barriers and rings", "By the state of their writer: unused, live or "
                                                  "ended.", "none",
                   ("sum by (namespace, pod, kind, state) " + of_pods("gpushm_sync_objects"),
                    "{{namespace}}/{{pod}} {{kind}} {{state}}"), min=0),
            "What the applications do",
            series("Attaches", "A first attach needs a message and makes a mapping; a detach ends "
                               "one.", "ops", (rated("attaches"), container + " first"),
                   (rated("detaches"), container + " detach"), min=0),
            series("Cached attaches", "Answered from a mapping that the process already has.",
                   "ops", (rated("cached_attaches"), container), min=0),
            series("Errors", "Library calls that failed, by code (docs/reference/api.md).", "ops",
                   ("sum by (namespace, pod, container, code) "
                    + of_pods("gpushm_container_errors_total", rate=True),
                    container + " {{code}}"), min=0),
            series("Mean wait", "Waits for a buffer that is not ready yet, whatever their result.",
                   "s", (f"{rated('wait_seconds')} / ({rated('waits')} + {rated('wait_timeouts')})",
                         container), min=0),
            series("Waits that ended at their deadline", "The process that should have filled the "
                                                         "buffer did not.",
                   "ops", (rated("wait_timeouts"), container), min=0),
            series("Loaded and saved", "Bytes copied between files and buffers.", "Bps",
                   (rated("loaded_bytes"), container + " loaded"),
                   (rated("saved_bytes"), container + " saved"), min=0),
        ])


def quantiles(metric, by=""):
    group = f"{by}, le" if by else "le"
    return [(f"histogram_quantile({q}, sum by ({group})"
             f" (rate({metric}_bucket{{$}}[$__rate_interval])))",
             f"{{{{{by}}}}} p{q * 100:.0f}" if by else f"p{q * 100:.0f}") for q in (0.5, 0.99)]


def rates(*metrics, by=""):
    group = f" by ({by})" if by else ""
    names = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",") if by)
    return [(f"sum{group} (rate({metric}{{$}}[$__rate_interval]))", f"{names} {what}".strip())
            for metric, what in metrics]


def control_plane():
    return dashboard(
        "gpushm-control-plane", "gpushm / Control plane",
        "Plugin, brokers and injector themselves: whether they answer, how fast, and what they "
        "refuse.",
        [], [
            stat("Plugins", "Plugins that Prometheus can scrape.", "none",
                 "sum(up{$, " + PLUGINS + "})" + OR_NONE),
            stat("Injector replicas", "Replicas that Prometheus can scrape.", "none",
                 'sum(up{$, job="gpushm-injector"})' + OR_NONE,
                 thresholds=steps(BAD, (1, WARN), (2, GOOD))),
            zeros("Not registered", "Resources that a node's kubelet does not know.",
                  "gpushm_plugin_registered{$}", BAD),
            zeros("Sources that fail", "Sources from which a plugin cannot read its metrics.",
                  "gpushm_scrape_collector_success{$}", WARN),
            stat("Certificate", "Time until the injector's certificate expires.", "s",
                 "min(gpushm_webhook_certificate_expiry_timestamp_seconds{$}) - time()",
                 thresholds=steps(BAD, (172800, WARN), (1209600, GOOD))),
            stat("Longest uptime", "Uptime of a plugin's process.", "s",
                 "time() - min(process_start_time_seconds{$, " + PLUGINS + "})"),
            "Library and brokers",
            heatmap("First attaches", "From the call to the mapped pointer, for all containers.",
                    "sum by (le) (increase(gpushm_attach_duration_seconds_bucket{$}"
                    "[$__rate_interval]))"),
            series("First attach, quantiles", "Nearly all of it is the driver's import and "
                                              "mapping.", "s",
                   *quantiles("gpushm_attach_duration_seconds")),
            series("Broker ready", "From the start of its process until it serves.", "s",
                   *quantiles("gpushm_broker_ready_duration_seconds")),
            series("Failed library calls", "For all containers, by code.", "ops",
                   *rates(("gpushm_errors_total", ""), by="code")),
            series("Bytes between files and buffers", "For all containers.", "Bps",
                   *rates(("gpushm_loaded_bytes_total", "loaded"),
                          ("gpushm_saved_bytes_total", "saved"))),
            series("Attaches of all containers", "Includes containers that have ended. nvlink, "
                                                 "pcie and staged are first attaches from a GPU "
                                                 "other than the buffer's own.", "ops",
                   *rates(("gpushm_attaches_total", "first"),
                          ("gpushm_cached_attaches_total", "cached")),
                   *rates(("gpushm_peer_attaches_total", ""), by="method")),
            "Device plugin",
            series("Devices", "IDs that are advertised, bound, and reported unhealthy "
                   "because their GPU is sick or takes no new pod.", "none",
                   ("sum by (resource) (gpushm_plugin_devices{$})", "{{resource}} advertised"),
                   ("sum by (resource) (gpushm_plugin_bound_devices{$})", "{{resource}} bound"),
                   ("sum by (resource) (gpushm_plugin_unhealthy_devices{$})",
                    "{{resource}} unhealthy"), min=0),
            series("Allocate", "Answers to the kubelet.", "s",
                   *quantiles("gpushm_plugin_allocation_duration_seconds", "resource")),
            series("PreStartContainer", "The call in which the GPU is bound; the kubelet allows "
                                        "it 30 s.", "s",
                   *quantiles("gpushm_plugin_prestart_duration_seconds", "resource")),
            series("Calls of the kubelet", "Each start of a container makes one of each call.",
                   "ops",
                   *rates(("gpushm_plugin_allocations_total", "Allocate"),
                          ("gpushm_plugin_prestarts_total", "PreStartContainer"), by="resource")),
            series("Calls that failed", "PreStartContainer with EXHAUSTED means that a pod waits "
                                        "for memory; a failed Allocate means that a pod was "
                                        "rejected permanently.", "ops",
                   *rates(("gpushm_plugin_allocation_errors_total", "Allocate"),
                          ("gpushm_plugin_prestart_errors_total", "PreStartContainer"),
                          by="resource, code"), min=0),
            series("Registrations and failures", "Registrations happen after restarts of a "
                                                "kubelet.",
                   "none", ("sum(increase(gpushm_plugin_registrations_total{$}"
                            "[$__rate_interval]))", "registrations"),
                   ("sum(increase(gpushm_plugin_pod_list_errors_total{$}[$__rate_interval]))",
                    "pod list not read"), min=0),
            "Injector",
            series("Admissions", "By outcome (docs/design/injector.md).", "ops",
                   *rates(("gpushm_webhook_requests_total", ""), by="endpoint, outcome"), min=0),
            series("Denied", "By reason. The pod's author sees the reason with a correct example.",
                   "ops",
                   ('sum by (outcome) (rate(gpushm_webhook_requests_total{$, allowed="false"}'
                    "[$__rate_interval]))", "{{outcome}}"), min=0),
            heatmap("Admission time", "From the complete request to the complete answer.",
                    "sum by (le) (increase(gpushm_webhook_request_duration_seconds_bucket{$}"
                    "[$__rate_interval]))"),
            series("Admission time, quantiles", "Without the network.", "s",
                   *quantiles("gpushm_webhook_request_duration_seconds", "endpoint")),
            series("Certificate files refused", "The previous certificate stays in use.", "none",
                   ("sum(increase(gpushm_webhook_certificate_errors_total{$}[$__rate_interval]))",
                    "refused"), min=0),
            "Monitoring itself",
            series("Scrape duration", "As Prometheus measures it.", "s",
                   ("scrape_duration_seconds{$, " + OURS + "}", "{{job}} {{instance}}"), min=0),
            series("Samples", "Series of a scrape.", "none",
                   ("scrape_samples_scraped{$, " + OURS + "}", "{{job}} {{instance}}"), min=0),
            series("Sources of a scrape", "How long each source took.", "s",
                   ("max by (collector) (gpushm_scrape_collector_duration_seconds{$})",
                    "{{collector}}"), min=0),
            series("CPU of plugins", "In CPU cores.", "percentunit",
                   ("rate(process_cpu_seconds_total{$, " + PLUGINS + "}[$__rate_interval])",
                    "{{instance}}"), min=0),
            series("Memory of plugins", "Resident.", "bytes",
                   ("process_resident_memory_bytes{$, " + PLUGINS + "}", "{{instance}}"), min=0),
            series("Memory for stated pods", "What the plugin keeps for a pod's broker; all "
                                                 "pods together may use 5/16 of its limit.",
                   "bytes",
                   ("sum by (namespace, pod) (gpushm_link_memory_bytes{$})",
                    "{{namespace}}/{{pod}}"), min=0),
            series("Pods that stated too much", "The plugin dropped their kept state.", "none",
                   ("sum by (namespace, pod) (increase(gpushm_link_exhausted_total{$}"
                    "[$__rate_interval]))", "{{namespace}}/{{pod}}"), min=0),
            series("Foreign descriptors", "Brokers that sent a file or socket instead of GPU "
                                          "memory and were refused, and FUSE file systems of pods "
                                          "that the plugin ended for this reason.",
                   "none", ("sum by (instance) (increase(gpushm_plugin_foreign_descriptors_total{$}"
                            "[$__rate_interval]))", "{{instance}} refused"),
                   ("sum by (instance) (increase(gpushm_plugin_fuse_aborts_total{$}"
                    "[$__rate_interval]))", "{{instance}} FUSE ended"), min=0),
            series("Descriptors of plugins", "Open descriptors as a share of the limit. The "
                                             "plugin keeps one for each generation of a buffer "
                                             "and for each client.", "percentunit",
                   (f"process_open_fds{{$, {PLUGINS}}} / process_max_fds{{$, {PLUGINS}}}",
                    "{{instance}}"), min=0, max=1),
        ])
