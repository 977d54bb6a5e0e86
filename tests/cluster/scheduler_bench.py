"""How fast the real scheduler places pods on many nodes with 8 GPUs each, and how many it places
wrongly, in the running cluster: by the sum of free units, by the label gpushm.io/largest-free, and
by claims. The nodes have no kubelet: they are objects with resources, labels and ResourceSlices, so
pods are bound and never start, and labels stay as they are: of the label only the cost is seen.
Prints a line for each and writes JSON.

usage: scheduler_bench.py --state FOLDER [--nodes N] [--pods N] [--json FILE]
"""

import argparse
import datetime
import json
import pathlib
import random
import sys
import time

from api import Refused
from cluster import Cluster
from processes import Failure

WHERE = "scheduler-bench"
NODE = "bench-node"
GPUS, UNITS = 8, 79
SIZES = [4, 8, 12, 16, 24, 32, 48, 64]
CLASS, DRIVER = "memory.gpushm.io", "gpushm.io"
KINDS = ("sum", "label", "dra")


def node(number):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": f"{NODE}-{number}", "labels": {"bench": "true", "gpushm.io/largest-free": str(UNITS)}}}


def status():
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "500", "gpushm.io/memory": str(GPUS * UNITS)}
    return {"status": {"capacity": amounts, "allocatable": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]}}


def slice_of(name):
    devices = [{"name": f"gpu-{gpu}", "allowMultipleAllocations": True,
                "attributes": {"uuid": {"string": f"{name}-{gpu}"}},
                "capacity": {"memory": {"value": f"{UNITS}Gi", "requestPolicy": {
                    "default": "0", "validRange": {"min": "0", "step": "2Mi"}}}}}
               for gpu in range(GPUS)]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-slice"},
            "spec": {"driver": DRIVER, "nodeName": name, "devices": devices,
                     "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}}


def device_class():
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}}


def template(units):
    exactly = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": f"{units}Gi"}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": f"units-{units}"}, "spec": {"spec": {"devices": {
                "requests": [{"name": "broker", "exactly": exactly},
                             {"name": "app", "exactly": {"deviceClassName": CLASS}}],
                "constraints": [{"requests": ["broker", "app"],
                                 "matchAttribute": f"{DRIVER}/uuid"}]}}}}


def pod(kind, number, units):
    container = {"name": "a", "image": "none", "resources": {}}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"bench": "true"}, "terminationGracePeriodSeconds": 0}
    if kind == "dra":
        spec["resourceClaims"] = [{"name": "gpushm", "resourceClaimTemplateName": f"units-{units}"}]
        container["resources"]["claims"] = [{"name": "gpushm", "request": "broker"}]
    else:
        container["resources"]["limits"] = {"gpushm.io/memory": str(units)}
    if kind == "label":
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "gpushm.io/largest-free", "operator": "Gt", "values": [str(units - 1)]}]}]}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{kind}-{number}",
                                                              "annotations": {"units": str(units)}},
            "spec": spec}


def wrong(pods):
    """Pods for which no GPU of their node has room, if the node's plugin takes them as they come and
    puts each on the fullest GPU with room."""
    free, count = {}, 0
    for one in sorted(pods, key=lambda p: next(c["lastTransitionTime"] for c in p["status"]["conditions"]
                                               if c["type"] == "PodScheduled")):
        units = int(one["metadata"]["annotations"]["units"])
        gpus = free.setdefault(one["spec"]["nodeName"], [UNITS] * GPUS)
        fits = [g for g in range(GPUS) if gpus[g] >= units]
        if fits:
            gpus[min(fits, key=lambda g: gpus[g])] -= units
        else:
            count += 1
    return count


def measure(api, kind, sizes):
    begun = time.monotonic()
    for number, units in enumerate(sizes):
        api.create(pod(kind, number, units), WHERE)
    created_s = time.monotonic() - begun
    last, since = -1, time.monotonic()
    while True:
        pods = api.list("Pod", WHERE)
        bound = [p for p in pods if p["spec"].get("nodeName")]
        if len(bound) != last:
            last, since = len(bound), time.monotonic()
        # What is not placed for a while has no place.
        if len(bound) == len(sizes) or time.monotonic() - since > 20:
            break
        time.sleep(0.5)
    row = {"kind": kind, "pods": len(sizes), "placed": len(bound), "waiting": len(sizes) - len(bound),
           "wrong": 0 if kind == "dra" else wrong(bound), "created_s": created_s,
           "placed_s": since - begun, "placed_per_s": len(bound) / (since - begun)}
    for one in pods:
        api.delete("Pod", one["metadata"]["name"], WHERE, 0)
    api.wait("Pod", WHERE, lambda left: not left, 120, lambda left: f"{len(left)} pods stay")
    api.wait("ResourceClaim", WHERE, lambda left: not left, 120, lambda left: f"{len(left)} claims stay")
    print(f"{kind}: {row['placed']} of {row['pods']} pods placed, {row['wrong']} of them wrongly, "
          f"{row['placed_per_s']:.1f} each second", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", required=True, type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=1000, help="number of nodes (1000)")
    parser.add_argument("--pods", type=int, default=1000, help="number of pods of each kind (1000)")
    parser.add_argument("--fill", type=float, default=0.0,
                        help="as many pods as fill this part of all units, instead of --pods")
    parser.add_argument("--json", type=pathlib.Path, help="where the numbers go")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.state)
    cluster.enter_network()
    api = cluster.api
    version = api.call("GET", "/version")["gitVersion"]
    names = [f"{NODE}-{n}" for n in range(arguments.nodes)]
    api.ensure_namespace(WHERE, {})
    rng = random.Random(24)
    sizes = [rng.choice(SIZES) for _ in range(arguments.pods)]
    if arguments.fill:
        sizes, most = [], arguments.fill * arguments.nodes * GPUS * UNITS
        while sum(sizes) < most:
            sizes.append(rng.choice(SIZES))
    rows = []
    try:
        try:
            api.create(device_class())
        except Refused as refused:
            if refused.status != 409:
                raise
        for number, name in enumerate(names):
            api.create(node(number))
            api.call("PATCH", f"/api/v1/nodes/{name}/status", status(),
                     "application/merge-patch+json")
            api.create(slice_of(name))
        for units in SIZES:
            api.create(template(units), WHERE)
        rows = [measure(api, kind, sizes) for kind in KINDS]
    finally:
        api.delete("Namespace", WHERE)
        for name in names:
            api.delete("ResourceSlice", f"{name}-slice")
            api.delete("Node", name)
    if arguments.json:
        arguments.json.write_text(json.dumps(
            {"date": datetime.date.today().isoformat(), "kubernetes": version,
             "nodes": arguments.nodes, "gpus_per_node": GPUS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scheduler bench: {failure}")
