"""The label gpushm.io/largest-free: what the plugin tells Node Feature Discovery (NFD), and what
the scheduler and the kubelet make of it. Nfd stands in for NFD: it reads the plugin's own file by
NFD's rules, when a case tells it to."""

import calendar
import contextlib
import time

from case import container, is_ready, pod
from chart_case import ChartCase, annotated
from plugin import MEMORY, UNITS, UNITS_OF_GPU
from processes import wait_until
from settings import GPUS, NODE_NAME

# NFD's own is below /etc, which the node shares with this computer.
FOLDER = "/var/lib/node-feature-discovery/features.d"
LABEL = "gpushm.io/largest-free"
HALF = UNITS_OF_GPU // 2 + 1  # Two such pods do not fit on one GPU.
REST = UNITS_OF_GPU - HALF
DEAD_S = 180  # When the file of a plugin that writes no more has expired.
ELSEWHERE = "elsewhere"


def of_units(name, units=HALF):
    return annotated(pod(name, container("a")), {
        "private.gpushm.io/a": "0", "buffers.gpushm.io/weights": f"{units}Gi"})


class Nfd:
    """What the local source of nfd-worker reads, set on the node as nfd-master does."""

    def __init__(self, cluster):
        self._cluster = cluster

    def read(self, later_s=0):
        """{label: value} of the files that have not expired `later_s` from now."""
        labels = {}
        for file in sorted(self._cluster.on_node(FOLDER).glob("[!.]*")):
            expires = None
            for line in file.read_text().splitlines() if file.is_file() else []:
                directive, _, value = line.partition("=")
                if directive == "# +expiry-time":
                    expires = calendar.timegm(time.strptime(value, "%Y-%m-%dT%H:%M:%SZ"))
                elif not line.startswith("#") and (not expires or expires > time.time() + later_s):
                    labels[directive] = value
        return labels

    def wait_read(self, largest):
        # After a restart of the kubelet, the plugin believes the end of pods only after 30 s.
        wait_until(lambda: f"the file does not say {largest}: {self.read()}", 90,
                   lambda: self.read().get(LABEL) == str(largest), 0.2)

    def pass_by(self, later_s=0):
        """One pass of NFD: labels that are in no file go."""
        have = self._cluster.api.get("Node", NODE_NAME)["metadata"]["labels"]
        gone = {key: None for key in have if key.startswith(LABEL)}
        self._cluster.api.patch("Node", NODE_NAME, {
            "metadata": {"labels": {**gone, **self.read(later_s)}}})

    def tell(self, largest):
        self.wait_read(largest)
        self.pass_by()


class LargestFreeTest(ChartCase):

    VALUES = {"plugin.featuresFolder": FOLDER}

    def setUp(self):
        super().setUp()
        self.nfd = Nfd(self.cluster)
        self.addCleanup(self.forget)

    def forget(self):
        """Room comes back with the pods' end, which a case does not wait for."""
        have = self.api.get("Node", NODE_NAME)["metadata"]["labels"]
        self.api.patch("Node", NODE_NAME, {"metadata": {"labels": {
            key: None for key in have if key.startswith(LABEL)}}})

    def half_full(self):
        """One pod on each GPU; the sum of what is left would be enough for another one."""
        self.nfd.tell(UNITS_OF_GPU)
        names = [f"p{number}" for number in range(GPUS)]
        self.create(*map(of_units, names))
        self.wait_ready(*names)
        self.nfd.tell(REST)
        self.assertGreaterEqual(REST * GPUS, HALF)
        return names

    def bounce_kubelet(self):
        self.cluster.kill("kubelet")
        self.cluster.start("kubelet")

    @contextlib.contextmanager
    def another_node(self):
        """With as many units, no label and no kubelet: pods are bound to it and do not start."""
        size = {"cpu": "8", "memory": "64Gi", "pods": "100", MEMORY: str(UNITS),
                "gpushm.io/attach": "100"}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": ELSEWHERE}})
        try:
            self.api.call("PATCH", f"/api/v1/nodes/{ELSEWHERE}/status", {"status": {
                "capacity": size, "allocatable": size,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Test",
                                "lastHeartbeatTime": time.strftime("%Y-%m-%dT%H:%M:%SZ",
                                                                   time.gmtime())}]}},
                "application/merge-patch+json")
            self.api.wait("Node", None, lambda nodes: not nodes[ELSEWHERE]["spec"].get("taints"),
                          30, lambda nodes: f"tainted: {nodes[ELSEWHERE]['spec']}")
            yield
        finally:
            self.api.delete("Node", ELSEWHERE)

    def test_a_node_without_room_comes_last_and_a_full_one_still_takes_pods(self):
        names = self.half_full()
        with self.another_node():
            self.create(of_units("late"))
            late = self.wait_pod("late", lambda p: p["spec"].get("nodeName"), "not bound")
            self.assertEqual(late["spec"]["nodeName"], ELSEWHERE,
                             "the sum of either node is enough, and only one has room")
            self.delete_pods("late", grace_seconds=0)
        # No other node is left: the pod waits on this one, and starts when a GPU has room.
        self.create(of_units("later"))
        self.wait_event("later", f"the largest free block is {REST} GiB")
        self.delete_pods(names[0])
        self.wait_ready("later")

    def test_a_burst_within_one_interval_waits_on_the_node_and_nothing_fails(self):
        """Method: the label is not set again while the pods are made, so it says that each GPU is
        empty. The scheduler's sum has room for more pods than there are GPUs."""
        self.nfd.tell(UNITS_OF_GPU)
        names = [f"p{number}" for number in range(GPUS + 1)]
        self.create(*map(of_units, names))

        def one_for_each_gpu(pods):
            started = [name for name in names if name in pods and is_ready(pods[name])]
            return started if len(started) == GPUS else None

        ready = self.wait_pods(one_for_each_gpu, "not one for each GPU")
        waits, = set(names) - set(ready)
        self.wait_event(waits, f"the largest free block is {REST} GiB")
        self.delete_pods(ready[0])
        self.wait_ready(waits)

    def test_the_label_of_a_dead_plugin_expires(self):
        self.half_full()
        self.assertEqual(self.nfd.read(DEAD_S), {})

    def test_a_kubelet_that_restarts_leaves_pods_alone_whatever_the_label_says(self):
        names = self.half_full()
        before = {name: self.container_ids(name) for name in names}
        self.bounce_kubelet()
        self.chart.wait_allocatable()
        self.run_pod(of_units("new", 1))
        self.assertEqual({name: self.container_ids(name) for name in names}, before)
