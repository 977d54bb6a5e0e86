"""What gpushm adds to the start of a pod: the same one with and without annotations, in turns,
from its creation to Ready, in the running cluster. Prints a line and writes JSON.

usage: start_bench.py --state FOLDER [--pods N] [--json FILE]
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
from processes import Failure

WHERE = "start-bench"
ANNOTATIONS = {"buffers.gpushm.io/weights": "64Mi", "private.gpushm.io/a": "0"}


def start_s(api, name, annotations):
    """Seconds until it is Ready; it is gone afterwards."""
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
    parser.add_argument("--pods", type=int, default=20, help="of each kind (20)")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    cluster = Cluster(arguments.state)
    Chart(cluster).install()
    cluster.api.ensure_namespace(WHERE, RESTRICTED)
    plain, annotated = [], []
    for number in range(arguments.pods + 1):
        times = (start_s(cluster.api, f"plain-{number}", {}),
                 start_s(cluster.api, f"annotated-{number}", ANNOTATIONS))
        if number:  # The first of each warms caches.
            plain.append(times[0])
            annotated.append(times[1])
    rows = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "pods": arguments.pods, "plain_s": plain, "annotated_s": annotated,
            "added_p50_s": statistics.median(annotated) - statistics.median(plain)}
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"to Ready, median of {arguments.pods}: plain {statistics.median(plain):.2f} s, annotated "
          f"{statistics.median(annotated):.2f} s (longest {max(annotated):.2f}); added "
          f"{rows['added_p50_s']:.2f} s, budget 1.5")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
