"""The cost of a plugin update for a node with a steady stream of pods: how long the kubelet has no
devices, and which pods it rejects. Pods are bound to the node at once, so that the scheduler, which
sees the node every ten seconds, delays none of them. Prints a line and writes JSON.

usage: update_bench.py --state FOLDER [--updates N] [--json FILE]
"""

import argparse
import datetime
import json
import pathlib
import re
import sys
import threading
import time

from case import RESTRICTED
from cluster import Cluster
from gpu_pods import gpu_pod
from plugin import Plugin
from processes import Failure
from settings import NODE_NAME

WHERE = "update-bench"
EVERY_S = 0.25
MOST_PODS = 20  # At the same time; the node has room for 60.
STATUS_S = 10  # The kubelet's default.


def times_of(log, event):
    """When the lines of that event were written."""
    return [datetime.datetime.fromisoformat(line.split()[0])
            for line in log.splitlines() if re.search(rf" {event}( |$)", line)]


def gap_s(log):
    """From the end of the former plugin's streams, which ends those of the new one, too, to the
    next registration. None if that did not happen."""
    lost = times_of(log, "stream-lost")
    return (times_of(log, "plugin-registered")[-1] - lost[0]).total_seconds() if lost else 0.0


class Pods:
    """Makes pods until it is stopped, and counts those that the kubelet rejects."""

    def __init__(self, api):
        self._api = api
        self._stop = threading.Event()
        self.made = 0
        self.rejected = {}  # Message by name.
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(EVERY_S):
            self._api.create(gpu_pod(f"pod-{self.made}", nodeName=NODE_NAME,
                                     terminationGracePeriodSeconds=0), WHERE)
            self.made += 1
            self._look()

    def _look(self):
        there = self._api.list("Pod", WHERE)
        for thing in there:
            if thing["status"].get("phase") == "Failed":
                self.rejected[thing["metadata"]["name"]] = thing["status"].get("message", "")
        for thing in there[:max(0, len(there) - MOST_PODS)]:
            self._api.delete("Pod", thing["metadata"]["name"], WHERE, 0)

    def stop(self):
        self._stop.set()
        self._thread.join()
        time.sleep(2)  # The last pod has been admitted by then.
        self._look()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", required=True, type=pathlib.Path)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    cluster = Cluster(arguments.state)
    config = arguments.state / "etc/kubelet.yaml"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "nodeStatusUpdateFrequency": f"{STATUS_S}s"}))
    cluster.restart("kubelet")
    version = cluster.api.list("Node", None)[0]["status"]["nodeInfo"]["kubeletVersion"]
    plugin = Plugin(cluster)
    plugin.deploy()
    cluster.api.ensure_namespace(WHERE, RESTRICTED)
    pods = Pods(cluster.api)
    try:
        gaps = [gap_s(plugin.update()) for _ in range(arguments.updates)]
    finally:
        pods.stop()
    rows = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "kubelet": version, "node_status_s": STATUS_S, "updates": arguments.updates,
            "gaps_s": gaps, "pods": pods.made, "pods_every_s": EVERY_S,
            "rejected": len(pods.rejected), "messages": sorted(set(pods.rejected.values()))}
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"kubelet {version}, {arguments.updates} updates: without devices for {max(gaps):.2f} s at "
          f"most (budget 1), {sum(gaps) / len(gaps):.2f} on average; of {pods.made} pods, one each "
          f"{EVERY_S} s at most, {len(pods.rejected)} were rejected")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
