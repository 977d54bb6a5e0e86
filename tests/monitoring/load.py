"""A seeded load: the samples of three nodes and two injectors, with exactly known values.

Counters grow evenly, so the answer of a query at any time follows from the seed.
"""

import random
from dataclasses import dataclass, field

GIB = 1 << 30
MIB = 1 << 20
BUCKETS = (2.5e-05, 0.0001, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 1)
WEBHOOK_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 5)
CODES = ("NOT_FOUND", "TIMEOUT", "DRIVER")
SIDECAR = "gpushm"


@dataclass
class Sample:
    job: str
    instance: str
    name: str
    labels: dict
    value: float
    rate: float = 0.0  # Growth in a second.

    def at(self, seconds):
        return self.value + self.rate * seconds


@dataclass
class Load:
    seed: int
    start: float  # Unix time of the samples' values.
    samples: list = field(default_factory=list)

    def add(self, target, name, value, rate=0.0, /, **labels):
        self.samples.append(Sample(*target, name, labels, value, rate))

    def histogram(self, target, name, bounds, rates, /, **labels):
        """rates: for each bucket; the last bucket is above all bounds."""
        total = 0.0
        for bound, rate in zip((*bounds, "+Inf"), rates, strict=True):
            total += rate
            self.add(target, name + "_bucket", 1000 * total, total, **labels, le=str(bound))
        self.add(target, name + "_count", 1000 * total, total, **labels)
        self.add(target, name + "_sum", 10 * total, total / 100, **labels)

    def find(self, name, **labels):
        return [s for s in self.samples
                if s.name == name and labels.items() <= {**s.labels, "node": s.instance}.items()]


def whole(rng, low, high):
    return float(rng.randint(low, high))


def make(seed, start):
    rng = random.Random(seed)
    load = Load(seed, start)
    for node, gpus in (("node-a", 2), ("node-b", 1), ("node-c", 1)):
        plugin(load, rng, ("gpushm-plugin", node), gpus)
    for replica in ("injector-0", "injector-1"):
        injector(load, rng, ("gpushm-injector", replica))
    return load


def plugin(load, rng, target, gpus):
    bound = 0
    pair = []  # A pod with the node's first two GPUs.
    for index in range(gpus):
        bound += gpu(load, rng, target, index, pair if gpus > 1 else None)
    for name in ("attaches", "cached_attaches", "loaded_bytes", "saved_bytes"):
        load.add(target, f"gpushm_{name}_total", whole(rng, 1, 9999), whole(rng, 10, 99))
    for code in CODES:
        load.add(target, "gpushm_errors_total", 10.0, 0.125 if code == "DRIVER" else 2.0,
                 code=code)
    for name in ("attach_duration_seconds", "broker_ready_duration_seconds"):
        load.histogram(target, f"gpushm_{name}", BUCKETS, spread(rng, BUCKETS))
    for resource, devices, used in (("gpushm.io/memory", 79 * gpus, bound),
                                    ("gpushm.io/attach", 64 * gpus, 5)):
        kubelet(load, rng, target, resource, devices, used)
    load.add(target, "gpushm_plugin_pod_list_errors_total", 3.0)
    load.add(target, "gpushm_plugin_missing_gpus", 0.0, gpu="7")
    load.add(target, "gpushm_plugin_foreign_descriptors_total", 2.0)
    load.add(target, "gpushm_plugin_fuse_aborts_total", 1.0)
    for collector in ("nvml", "links", "bindings", "process"):
        load.add(target, "gpushm_scrape_collector_success", 1.0, collector=collector)
        load.add(target, "gpushm_scrape_collector_duration_seconds", rng.random() / 100,
                 collector=collector)
    load.add(target, "gpushm_build_info", 1.0, version="0.1.0", compiler="GCC 12.2")
    load.add(target, "process_cpu_seconds_total", 100.0, 0.03125)
    for name, value in (("resident_memory_bytes", 20 * MIB), ("virtual_memory_bytes", 900 * MIB),
                        ("start_time_seconds", load.start - 86400), ("open_fds", 90),
                        ("max_fds", 65536)):
        load.add(target, f"process_{name}", float(value))


def kubelet(load, rng, target, resource, devices, used):
    def add(name, value, rate=0.0, **labels):
        load.add(target, f"gpushm_plugin_{name}", value, rate, resource=resource, **labels)
    add("registered", 1.0)
    add("registrations_total", 2.0)
    add("devices", float(devices))
    add("unhealthy_devices", 0.0)
    add("bound_devices", float(used))
    add("allocations_total", 50.0, 0.5)
    add("allocation_errors_total", 0.0, code="INVALID_ARGUMENT")
    add("prestarts_total", 60.0, 0.75)
    add("prestart_errors_total", 9.0, 0.25, code="UNAVAILABLE")
    add("prestart_errors_total", 0.0, code="UNSUPPORTED")
    for name in ("allocation", "prestart"):
        load.histogram(target, f"gpushm_plugin_{name}_duration_seconds", BUCKETS,
                       spread(rng, BUCKETS), resource=resource)


def spread(rng, bounds):
    """Most in the middle, none in the slowest bucket."""
    return [whole(rng, 1, 8) for _ in bounds[:-2]] + [0.0, 0.0, 0.0]


def gpu(load, rng, target, index, pair=None):
    """Returns the number of bound units. `pair`: the GPUs so far of the pod that has several."""
    uuid = f"GPU-{target[1]}-{index}"

    def add(name, value, rate=0.0, **labels):
        load.add(target, f"gpushm_gpu_{name}", value, rate, gpu_uuid=uuid, **labels)
    bound = buffers = saved = 0
    for number in range(rng.randint(1, 3)):
        pod = Pod(load, rng, target, uuid, f"{target[1]}-{index}-{number}")
        bound, buffers, saved = bound + pod.size, buffers + pod.allocated, saved + pod.saved
    if pair is not None:
        pod = Pod(load, rng, target, uuid, f"{target[1]}-pair", pair)
        pair.append(pod)
        bound, buffers, saved = bound + pod.size, buffers + pod.allocated, saved + pod.saved
    other = whole(rng, 700, 1000) * MIB
    add("info", 1.0, gpu=str(index), model="NVIDIA H200", pci_bus_id=f"0000:{index:02x}:00.0",
        driver_version="580.159.04", mig_profile="")
    add("healthy", 1.0)
    add("taken", 0.0, by="nvidia.com/gpu")
    add("drained", 0.0)
    add("memory_total_bytes", 80.0 * GIB)
    add("memory_used_bytes", buffers + other)
    add("memory_allocatable_bytes", 79.0 * GIB)
    add("memory_bound_bytes", float(bound))
    add("memory_buffers_bytes", float(buffers))
    add("memory_other_bytes", other)
    add("memory_saved_by_sharing_bytes", float(saved))
    load.add(target, "gpushm_kept_bytes", 0.0, gpu_uuid=uuid)
    add("utilization_ratio", 0.94 if index else 0.85)
    add("memory_activity_ratio", rng.random())
    add("temperature_celsius", whole(rng, 40, 70))
    if index == 0:  # The driver does not report everything for every GPU.
        add("memory_temperature_celsius", whole(rng, 50, 80))
        add("nvlink_transmit_bytes_total", 1e12, 5e8)
        add("nvlink_receive_bytes_total", 2e12, 4e8)
    add("power_watts", whole(rng, 100, 600))
    add("power_limit_watts", 700.0)
    add("energy_joules_total", 1e9, whole(rng, 100, 600))
    add("sm_clock_hertz", 1.98e9)
    add("memory_clock_hertz", 3.2e9)
    add("pcie_transmit_bytes_per_second", whole(rng, 0, 10**9))
    add("pcie_receive_bytes_per_second", whole(rng, 0, 10**9))
    for reason in ("power_cap", "hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal",
                   "sync_boost"):
        add("clocks_reduced", float(reason == "power_cap"), reason=reason)
    add("ecc_corrected_errors_total", 7.0, 0.5)
    add("ecc_uncorrected_errors_total", 1.0)
    add("xid_errors_total", 2.0, xid="31")
    add("xid_last_timestamp_seconds", load.start - 7200, xid="31")
    add("sampled_timestamp_seconds", load.start, 1.0)
    return bound // GIB


class Pod:
    """What a pod has on a GPU: its buffers, each attached by some containers; buffers without
    attachments belong to the sidecar. `others`: the same of its GPUs before. What it has once is
    with the first."""

    def __init__(self, load, rng, target, uuid, name, others=()):
        self.load, self.rng, self.target = load, rng, target
        self.first = not others
        namespace = (rng.choice(("chat", "vision", "train")) if self.first
                     else others[0].labels["namespace"])
        self.labels = {"namespace": namespace, "pod": name, "gpu_uuid": uuid}
        self.allocated = self.saved = 0
        self.mapped, self.proportional, self.clients = {SIDECAR: 0.0}, {SIDECAR: 0.0}, {SIDECAR: 0}
        for container in ("engine", "server")[:rng.randint(1, 2)]:
            self.mapped[container] = self.proportional[container] = 0.0
            self.clients[container] = rng.randint(1, 3) if self.first else 0
        for buffer in ("weights", "kv-cache", "frames")[:rng.randint(1, 3)]:
            self.buffer(buffer + (f"-{len(others)}" if name.endswith("-pair") else ""))
        self.size = (self.allocated // GIB + 2) * GIB
        self.add("pool_size_bytes", float(self.size))
        self.add("pool_allocated_bytes", float(self.allocated))
        if self.first:
            self.once()
        for container in self.mapped:
            self.container(container)

    def once(self):
        rng = self.rng
        self.add("broker_connected", 1.0)
        self.add("mps_ready", 1.0)
        self.add("mps_clients", float(rng.randint(0, 40)))
        for counter in ("daemon", "server"):
            self.add(f"mps_{counter}_restarts_total", float(rng.randint(0, 3)))
        self.add("mps_outside_processes", 0.0)
        self.add("link_memory_bytes", float(rng.randint(1, 900) * 1024))
        self.add("link_exhausted_total", 0.0)
        for kind, state in (("signal", "live"), ("queue", "unused")):
            self.add("sync_objects", float(rng.randint(0, 5)), kind=kind, state=state)

    def add(self, name, value, rate=0.0, **labels):
        self.load.add(self.target, f"gpushm_{name}", value, rate, **self.labels, **labels)

    def buffer(self, name):
        rng, of = self.rng, {"buffer": name}
        size = rng.randint(1, 2000) * MIB
        allocated = size + size % (2 * MIB)
        generations = rng.randint(1, 2)
        holders = {c: rng.randint(0, 2) for c in self.mapped if c != SIDECAR}
        held = sum(holders.values())
        physical = allocated * generations
        for container, count in holders.items():
            if not count:
                continue
            access = rng.choice(("ro", "rw"))
            self.mapped[container] += allocated
            self.proportional[container] += physical * count / held
            self.add("attachment_mapped_bytes", float(allocated), container=container,
                     access=access, **of)
        if not held:
            self.proportional[SIDECAR] += physical
        self.allocated += physical
        self.saved += allocated * max(0, held - 1)
        for access, count in (("ro", held), ("rw", 0)):
            self.add("buffer_attachments", float(count), access=access, **of)
        self.add("buffer_info", 1.0, transport="vmm", creator="", state="ready", **of)
        self.add("buffer_ready", 1.0, **of)
        self.add("buffer_size_bytes", float(size), **of)
        self.add("buffer_content_bytes", float(size), **of)
        self.add("buffer_allocated_bytes", float(physical), **of)
        self.add("buffer_generations", float(generations), **of)
        self.add("buffer_created_timestamp_seconds", self.load.start - rng.randint(60, 9000), **of)
        if name.startswith("weights"):
            self.add("buffer_loaded_bytes", float(size), **of)
            self.add("buffer_reason", 1.0, state=rng.choice(("loading", "failed")),
                     code=rng.choice(("NOT_FOUND", "INVALID_ARGUMENT")), **of)

    def container(self, name):
        rng, of = self.rng, {"container": name}
        self.add("container_memory_mapped_bytes", self.mapped[name], **of)
        self.add("container_memory_proportional_bytes", self.proportional[name], **of)
        self.add("container_clients", float(self.clients[name]), **of)
        if name == SIDECAR:
            return
        self.add("container_memory_private_bytes", whole(rng, 1, 600) * MIB, **of)
        self.add("container_memory_private_limit_bytes", float(GIB), **of)
        if not self.first:
            return
        for counter in ("attaches", "cached_attaches", "detaches", "waits", "wait_seconds",
                        "wait_timeouts", "loaded_bytes", "saved_bytes"):
            self.add(f"container_{counter}_total", whole(rng, 1, 9999), whole(rng, 1, 99), **of)
        for code in CODES:
            self.add("container_errors_total", 5.0, whole(rng, 1, 9), code=code, **of)


def injector(load, rng, target):
    for endpoint in ("mutate", "validate"):
        for outcome, allowed in (("injected", "true"), ("unchanged", "true"),
                                 ("annotations", "false")):
            load.add(target, "gpushm_webhook_requests_total", 50.0,
                     0.0078125 if allowed == "false" else whole(rng, 1, 5), endpoint=endpoint,
                     allowed=allowed, outcome=outcome)
        load.histogram(target, "gpushm_webhook_request_duration_seconds", WEBHOOK_BUCKETS,
                       spread(rng, WEBHOOK_BUCKETS), endpoint=endpoint)
    load.add(target, "gpushm_webhook_certificate_expiry_timestamp_seconds",
             load.start + 300 * 86400)
    load.add(target, "gpushm_webhook_certificate_errors_total", 0.0)
    load.add(target, "gpushm_build_info", 1.0, version="0.1.0", component="injector")


def sicken(load):
    """The same load with every fault for which there is an alert, on node-a and in the injector."""
    def change(name, value, rate=0.0, **labels):
        found = load.find(name, **labels)
        assert found, name
        for sample in found:
            sample.value, sample.rate = value, rate
    a = {"node": "node-a"}
    first, second = {"gpu_uuid": "GPU-node-a-0"}, {"gpu_uuid": "GPU-node-a-1"}
    change("gpushm_scrape_collector_success", 0.0, collector="nvml", **a)
    change("gpushm_plugin_registered", 0.0, resource="gpushm.io/memory", **a)
    change("gpushm_plugin_pod_list_errors_total", 3.0, 1.0, **a)
    change("gpushm_plugin_allocation_errors_total", 0.0, 1.0, **a)
    change("gpushm_plugin_missing_gpus", 1.0, **a)
    change("gpushm_gpu_taken", 1.0, **second)
    change("gpushm_gpu_drained", 1.0, **second)
    change("gpushm_plugin_foreign_descriptors_total", 2.0, 1.0, **a)
    change("gpushm_plugin_fuse_aborts_total", 1.0, 1.0, **a)
    change("process_open_fds", 60000.0, **a)
    change("gpushm_gpu_healthy", 0.0, **first)
    change("gpushm_gpu_xid_errors_total", 2.0, 1.0, **first)
    change("gpushm_gpu_xid_last_timestamp_seconds", load.start, **first)
    change("gpushm_gpu_ecc_uncorrected_errors_total", 1.0, 1.0, **first)
    change("gpushm_gpu_temperature_celsius", 91.0, **first)
    change("gpushm_gpu_clocks_reduced", 1.0, reason="hw_thermal", **first)
    change("gpushm_gpu_utilization_ratio", 0.0625, **first)
    change("gpushm_gpu_utilization_ratio", 1.0, **second)
    change("gpushm_gpu_memory_bound_bytes", 78.0 * GIB)
    change("gpushm_gpu_memory_bound_bytes", 75.0 * GIB, **second)
    change("gpushm_gpu_memory_used_bytes", 79.0 * GIB, **second)
    change("gpushm_gpu_memory_other_bytes", 2.0 * GIB, 1.0 * MIB, **second)
    change("gpushm_broker_connected", 0.0, **first)
    change("gpushm_mps_ready", 0.0, **first)
    change("gpushm_mps_clients", 47.0, **second)
    change("gpushm_mps_daemon_restarts_total", 1.0, 1.0, **first)
    change("gpushm_mps_outside_processes", 2.0, **second)
    change("gpushm_container_memory_private_limit_bytes", float(MIB), **second)
    change("gpushm_link_exhausted_total", 1.0, 1.0, **first)
    change("gpushm_kept_bytes", 5.0 * GIB, **first)
    change("gpushm_buffer_ready", 0.0, **first)
    change("gpushm_plugin_prestart_errors_total", 1.0, 1.0, code="UNSUPPORTED", **a)
    for sample in load.find("gpushm_plugin_prestart_errors_total", code="UNAVAILABLE", **a):
        sample.labels["code"] = "EXHAUSTED"
        sample.rate = 2.0
    change("gpushm_errors_total", 10.0, 50.0, code="DRIVER")
    for sample in load.find("gpushm_buffer_info", **second):
        sample.labels["transport"] = "cuipc"
    for sample in load.find("gpushm_webhook_requests_total", outcome="unchanged"):
        sample.labels.update(outcome="changed-by-others", allowed="false")
        sample.value, sample.rate = 0.0, 3.0
    change("gpushm_webhook_requests_total", 50.0, 9.0, outcome="annotations")
    for sample in load.find("gpushm_webhook_request_duration_seconds_bucket"):
        if sample.labels["le"] in ("5", "+Inf"):
            sample.value, sample.rate = sample.value * 9, sample.rate * 9
    change("gpushm_webhook_certificate_expiry_timestamp_seconds", load.start + 3 * 86400)
    change("gpushm_webhook_certificate_errors_total", 0.0, 0.25)
    return load
