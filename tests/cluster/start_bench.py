"""What gpushm adds to the start of a pod: the same pod with and without annotations, in turns, from
its creation to Ready, in the running cluster. Prints a line and writes JSON.

usage: start_bench.py --state FOLDER [--pods N] [--allocation KIND] [--json FILE]
"""

import argparse
import datetime
import json
import pathlib
import statistics
import sys
import time

from case import RESTRICTED, container, is_ready, pod
from chart import Chart
from cluster import Cluster
from dra_plugin import ClaimsChart
from processes import Failure
from scrape import Page, quantile

WHERE = "start-bench"
SAMPLE_S = 6  # More than metrics.sample-ms.
ANNOTATIONS = {"buffers.gpushm.io/weights": "64Mi", "private.gpushm.io/a": "0"}


# gpushm's own work for a start, in sequence: two containers, the sidecar and one more.
PARTS = (("injector", "gpushm_webhook_request_duration_seconds", {}),
         ("plugin", "gpushm_plugin_allocation_duration_seconds", {"resource": "gpushm.io/memory"}),
         ("plugin", "gpushm_plugin_allocation_duration_seconds", {"resource": "gpushm.io/attach"}),
         ("plugin", "gpushm_plugin_prestart_duration_seconds", {"resource": "gpushm.io/memory"}),
         ("plugin", "gpushm_plugin_prestart_duration_seconds", {"resource": "gpushm.io/attach"}),
         ("plugin", "gpushm_broker_ready_duration_seconds", {}))


def histograms(api):
    pages = {component: Page(api, component) for component in ("injector", "plugin")}
    return [(pages[component].buckets(name, **labels), pages[component].sum(f"{name}_sum", **labels),
             pages[component].sum(f"{name}_count", **labels)) for component, name, labels in PARTS]


def own_rows(before, after, pods):
    """A row for each part, for one pod: number of calls, their total time on average, and their
    total if each takes the bound that 99 of 100 keep."""
    rows = []
    for (_, name, labels), old, new in zip(PARTS, before, after, strict=True):
        calls = (new[2] - old[2]) / pods
        rows.append({"name": name, **labels, "calls": calls, "mean_s": (new[1] - old[1]) / pods,
                     "p99_at_most_s": calls * quantile(old[0], new[0], 0.99)})
    return rows


def start_s(api, name, annotations):
    """Seconds until the pod is Ready; it is deleted afterwards."""
    thing = pod(name, container("a"))
    thing["metadata"]["annotations"] = annotations
    begun = time.monotonic()
    api.create(thing, WHERE)
    api.wait("Pod", WHERE, lambda pods: name in pods and is_ready(pods[name]), 60,
             lambda pods: f"{name} is not ready: {pods}")
    took = time.monotonic() - begun
    api.delete("Pod", name, WHERE, 0)
    api.wait("Pod", WHERE, lambda pods: name not in pods, 60, lambda _: f"{name} stays")
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", required=True, type=pathlib.Path)
    parser.add_argument("--pods", type=int, default=50, help="number of pods of each kind (50)")
    parser.add_argument("--allocation", choices=("device-plugin", "dra"), default="device-plugin",
                        help="how the pods get their memory (device-plugin)")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    cluster = Cluster(arguments.state)
    dra = arguments.allocation == "dra"
    (ClaimsChart if dra else Chart)(cluster).install()
    cluster.api.ensure_namespace(WHERE, RESTRICTED)
    plain, annotated = [], []
    before = None if dra else histograms(cluster.api)  # They have no part of claims.
    for number in range(arguments.pods + 1):
        times = (start_s(cluster.api, f"plain-{number}", {}),
                 start_s(cluster.api, f"annotated-{number}", ANNOTATIONS))
        if number:  # The first one of each kind fills caches.
            plain.append(times[0])
            annotated.append(times[1])
    rows = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "pods": arguments.pods, "plain_s": plain, "annotated_s": annotated,
            "added_p50_s": statistics.median(annotated) - statistics.median(plain)}
    rows["allocation"] = arguments.allocation
    if not dra:
        # The last broker's start is reported with the next sample.
        time.sleep(SAMPLE_S)
        rows["own"] = own_rows(before, histograms(cluster.api), arguments.pods + 1)
        rows["own_mean_s"] = sum(row["mean_s"] for row in rows["own"])
        rows["own_p99_at_most_s"] = sum(row["p99_at_most_s"] for row in rows["own"])
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"to Ready, median of {arguments.pods}: plain {statistics.median(plain):.2f} s, annotated "
          f"{statistics.median(annotated):.2f} s (longest {max(annotated):.2f}); added "
          f"{rows['added_p50_s']:.2f} s, budget 1.5")
    if dra:
        return
    print("gpushm's own part of it: " + ", ".join(
        f"{row['name'].removeprefix('gpushm_').removesuffix('_duration_seconds')} "
        f"{1000 * row['mean_s']:.1f} ms" for row in rows["own"])
        + f"; {1000 * rows['own_mean_s']:.0f} ms on average, at most "
        f"{1000 * rows['own_p99_at_most_s']:.0f} at the 99th percentiles, budget 500")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
