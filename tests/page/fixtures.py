"""Documents as the plugin's /status.json would give them, seeded: the same in each run."""

import itertools
import random

MIB = 1 << 20
GIB = 1 << 30
NOW_MS = 1795300000000  # 2026-11-22
H200 = 143771 * MIB

# Names that a cluster would refuse, because the page must not rely on that.
HOSTILE = [
    '<img src=x onerror="window.hurt=1">', '</script><script>window.hurt=1</script>',
    '"><svg/onload=window.hurt=1>', "javascript:window.hurt=1", "\u202egnp.live\u202c",
    "{{constructor.constructor('window.hurt=1')()}}", "line\nbreak\ttab", "a" * 253,
]


def buffer(name, size, holders=(), state="ready", generations=1, loaded=None, reason=None):
    """`holders`: (container, access, count). Its bytes are divided equally and exactly."""
    users = sum(count for _, _, count in holders)
    attachments, given, seen = [], 0, 0
    for container, access, count in holders:
        seen += count
        part = size * generations * seen // users - given
        given += part
        attachments.append({"container": container, "access": access, "count": count,
                            "mapped_bytes": size * generations * count,
                            "proportional_bytes": part})
    return {"name": name, "state": state, "transport": "vmm", "creator": "", "size_bytes": size,
            "allocated_bytes": size * generations, "generations": generations,
            "created_unix_ms": NOW_MS - 3 * 3600 * 1000, "loaded_bytes": loaded,
            "reason": reason, "reason_code": reason and "NOT_FOUND",
            "attachments": attachments}


def mps(clients, **more):
    return {"ready": True, "clients": clients, "daemon_restarts": 0, "server_restarts": 0,
            "outside_processes": None} | more


def pool(allocation, namespace, pod, size, buffers, broker="connected", private=None,
         mps=None, number=0, gpus=1):
    """`number`: of that GPU among the `gpus` of the pod. Only number 0 has what the pod has once."""
    names = sorted({a["container"] for b in buffers for a in b["attachments"]})
    containers = []
    for name in names:
        mine = [a for b in buffers for a in b["attachments"] if a["container"] == name]
        containers.append({"name": name,
                           "clients": 0 if number else max(a["count"] for a in mine),
                           "mapped_bytes": sum(a["mapped_bytes"] for a in mine),
                           "proportional_bytes": sum(a["proportional_bytes"] for a in mine),
                           "private_bytes": private,
                           "private_limit_bytes": private and 2 * GIB})
    allocated = sum(b["allocated_bytes"] for b in buffers)
    shared_out = sum(c["proportional_bytes"] for c in containers)
    containers.append({"name": "gpushm", "clients": 0, "mapped_bytes": 0,
                       "proportional_bytes": allocated - shared_out, "private_bytes": None})
    return {"allocation": allocation, "namespace": namespace, "pod": pod, "gpu_number": number,
            "pod_gpus": gpus, "size_bytes": size, "allocated_bytes": allocated, "broker": broker, "buffers": buffers,
            "containers": containers, "mps": mps}


def gpu(index, pools, model="NVIDIA H200", total=H200, other=612 * MIB, **more):
    buffers = sum(p["allocated_bytes"] for p in pools)
    attachments = [a for p in pools for b in p["buffers"] for a in b["attachments"]]
    saved = sum(a["mapped_bytes"] - a["proportional_bytes"] for a in attachments)
    return {"uuid": f"GPU-{index:08x}-5eed-4000-8000-00000000{index:04x}", "index": index,
            "model": model, "mig_profile": "", "healthy": True, "reason": "",
            "taken_by": "", "drained": "", "exclusive_to": "",
            "total_bytes": total, "used_bytes": None if other is None else buffers + other,
            "allocatable_bytes": (total - GIB) // GIB * GIB,
            "bound_bytes": sum(p["size_bytes"] for p in pools), "buffers_bytes": buffers,
            "other_bytes": other, "saved_bytes": saved, "kept_bytes": 0, "utilization": 0.93,
            "temperature_celsius": 61, "power_watts": 412.4, "sampled_unix_ms": NOW_MS - 400,
            "pools": pools} | more


def document(gpus, **more):
    bound = sum(g["bound_bytes"] for g in gpus) // GIB
    pods = sum(len(g["pools"]) for g in gpus)
    sick = sum(g["allocatable_bytes"] // GIB for g in gpus if not g["healthy"])
    resources = [
        {"name": "gpushm.io/memory", "registered": True, "unhealthy": sick, "bound": bound,
         "devices": sum(g["allocatable_bytes"] // GIB for g in gpus)},
        {"name": "gpushm.io/attach", "registered": True, "unhealthy": 0, "bound": 2 * pods,
         "devices": 64 * len(gpus)}]
    return {"version": "0.1.0", "node": "node-a", "time_unix_ms": NOW_MS,
            "started_unix_ms": NOW_MS - 26 * 3600 * 1000, "gpus": gpus,
            "resources": resources} | more


def busy():
    """The content of the screenshots: sharing, a pipeline, loading, a disconnected broker, an
    unhealthy GPU."""
    chat = pool("m0000", "chat", "server-0", 48 * GIB, [
        buffer("weights", 32 * GIB, [("engine", "ro", 2), ("reranker", "ro", 1)]),
        buffer("adapters", 4 * GIB, [("engine", "rw", 1)]),
        buffer("kv-spill", 6 * GIB)], private=900 * MIB, mps=mps(3))
    video = pool("m0048", "video", "decode-7f6d9", 24 * GIB, [
        buffer("frames", 8 * GIB, [("decoder", "rw", 1), ("model", "ro", 1)]),
        buffer("masks", 3 * GIB, [("model", "rw", 1)]),
        buffer("labels", 64 * MIB, [("model", "rw", 1), ("writer", "ro", 1)])])
    train = pool("m0072", "rl", "trainer-0", 96 * GIB, [
        buffer("policy", 30 * GIB, [("trainer", "rw", 1), ("rollout", "ro", 3)], generations=2),
        buffer("replay", 20 * GIB, [("trainer", "rw", 1)])], private=2 * GIB,
        mps=mps(1, server_restarts=2, outside_processes=1))
    loading = pool("m0168", "chat", "server-1", 40 * GIB, [
        buffer("weights", 32 * GIB, state="loading", loaded=21 * GIB),
        buffer("scratch", 2 * GIB, [("engine", "rw", 1)], state="writer-died")], broker="away",
        mps=mps(0, ready=False, daemon_restarts=1))
    return document([
        gpu(0, [chat, video]), gpu(1, [train], other=5 * GIB, temperature_celsius=72),
        gpu(2, [loading], other=None, utilization=None, power_watts=None),
        gpu(3, [], healthy=False, reason="XID 79: the GPU has fallen off the bus; "
            "reset it or reboot the node", utilization=None, temperature_celsius=None,
            power_watts=None, sampled_unix_ms=None)])


def several():
    """A pod with two GPUs next to one with a single GPU, whose GPU is the other's second, and one
    with a GPU that this plugin does not advertise."""
    first = pool("m0000", "chat", "tensor-0", 48 * GIB, [
        buffer("weights-0", 32 * GIB, [("engine", "ro", 2)]),
        buffer("requests", 64 * MIB, [("engine", "rw", 1)])], mps=mps(2), number=0, gpus=2)
    second = pool("m0000", "chat", "tensor-0", 48 * GIB, [
        buffer("weights-1", 32 * GIB, [("engine", "ro", 2)]),
        buffer("kv", 8 * GIB, [("engine", "rw", 1)])], number=1, gpus=2)
    alone = pool("m0096", "chat", "server-0", 24 * GIB, [
        buffer("weights", 16 * GIB, [("engine", "ro", 1)])], mps=mps(1))
    half = pool("m0120", "rl", "trainer-0", 16 * GIB, [
        buffer("policy", 4 * GIB, [("trainer", "rw", 1)])], number=1, gpus=2)
    return document([gpu(0, [half]), gpu(2, [first]), gpu(3, [second, alone])])


def hostile():
    pools = []
    for i, name in enumerate(HOSTILE):
        buffers = [buffer(text, GIB, [(name, "rw", 1), (text + "x", "ro", 2)], state="failed",
                          reason=text)
                   for text in HOSTILE[i:] + HOSTILE[:i]]
        pools.append(pool(f"m{i:04}", name, name, 12 * GIB, buffers))
    return document([gpu(0, pools, model=HOSTILE[0], healthy=False, reason=HOSTILE[1])],
                    node=HOSTILE[2], version=HOSTILE[3])


def large(gpus=16, buffers=500, seed=1):
    """`buffers` on each of `gpus`, 20 pods each, with as many attachments as the scrape's budget
    allows."""
    rng = random.Random(seed)
    cards = []
    for index in range(gpus):
        pools = []
        for p in range(20):
            made = []
            for b in range(buffers // 20):
                holders = [(f"app-{c}", rng.choice(["ro", "rw"]), rng.randint(1, 3))
                           for c in range(rng.randint(0, 3))]
                made.append(buffer(f"buffer-{b}", rng.choice([2, 8, 64, 512]) * MIB, holders))
            pools.append(pool(f"m{index:02}{p:02}", f"team-{p % 5}", f"pod-{index}-{p}",
                              6 * GIB, made))
        cards.append(gpu(index, pools))
    return document(cards)


def changing(seed=2):
    """One document after another: pods, buffers and holders come and go."""
    rng = random.Random(seed)
    for _ in itertools.count():
        pools = [pool(f"m{p:04}", "team", f"pod-{p}", 16 * GIB, [
            buffer(f"b{b}", rng.randint(1, 900) * 2 * MIB,
                   [("app", "ro", rng.randint(1, 4))] * rng.randint(0, 1))
            for b in range(20) if rng.random() < 0.6])
                 for p in range(6) if rng.random() < 0.7]
        yield document([gpu(0, pools), gpu(1, [], taken_by="nvidia.com/gpu"),
                        gpu(2, [], drained="a fan is loud"),
                        gpu(3, [], exclusive_to="chat/server-0")])


def empty():
    return document([gpu(0, [])])


def no_gpu():
    return document([])
