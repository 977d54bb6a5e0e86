"""Pods of several GPUs, on a node with eight: two islands of four with NVLink within."""

import json
import os

from case import container, is_ready, pod
from chart_case import ChartCase, annotated
from plugin import MEMORY, NAMESPACE, UNITS, UNITS_OF_GPU
from processes import Failure, wait_until
from scrape import Page
import settings

GPUS = 8
ISLANDS = [[settings.gpu_uuid(index) for index in range(4)],
           [settings.gpu_uuid(index) for index in range(4, GPUS)]]
TEXTS = ["on the first", "on the second"]
NO_PRIVATE = {"private.gpushm.io/a": "0", "private.gpushm.io/b": "0"}


def of_gpus(name, gpus, size="4Mi", **annotations):
    """Two containers, and the buffers weights-0, weights-1, ... of that size, one on each GPU."""
    return annotated(pod(name, container("a"), container("b")), {
        **NO_PRIVATE, "gpushm.io/gpus": str(gpus),
        "buffers.gpushm.io/weights": f"{{size: {size}, gpu: each, loads: false}}",
        **{f"gpushm.io/{key}": value for key, value in annotations.items()}})


def island_of(uuids):
    return [number for number, island in enumerate(ISLANDS) if set(uuids) <= set(island)]


class SeveralGpusTest(ChartCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.provide(cls.VALUES)
        lines = "".join(
            f"- name: Simulated GPU\n  memory: {settings.GPU_GIB}Gi\n  uuid: {uuid}\n"
            f"  peers: [{', '.join(island)}]\n" for island in ISLANDS for uuid in island)
        before = (cls.cards() / "cards.yaml").read_text()
        cls.addClassCleanup(cls.read_cards, before, UNITS)
        cls.read_cards(f"gpus:\n{lines}", 2 * UNITS)

    @classmethod
    def cards(cls):
        """The folder that the chart gives the simulated driver."""
        return cls.cluster.on_node("/var/lib/gpushm/cards")

    @classmethod
    def read_cards(cls, text, units):
        """The plugin's next process sees these GPUs."""
        cls.put("cards.yaml", text)
        cls.kill_plugin()
        cls.chart.wait_allocatable(units)

    @classmethod
    def put(cls, name, text):
        """In the simulated driver's folder, by renaming, because processes read it meanwhile."""
        part = cls.cards() / f"{name}.part"
        part.write_text(text)
        os.replace(part, cls.cards() / name)

    @classmethod
    def kill_plugin(cls):
        """Returns when its successor is ready."""
        plugin = next(p for p in cls.cluster.api.list("Pod", NAMESPACE)
                      if p["metadata"]["name"].startswith("gpushm-plugin"))
        status = next(s for s in plugin["status"]["containerStatuses"] if s["name"] == "plugin")
        cls.cluster.process_of_container(status["containerID"]).kill()
        cls.cluster.api.wait(
            "Pod", NAMESPACE, lambda pods: is_ready(pods[plugin["metadata"]["name"]]) and next(
                s for s in pods[plugin["metadata"]["name"]]["status"]["containerStatuses"]
                if s["name"] == "plugin")["restartCount"] > status["restartCount"], 60,
            lambda _: "the plugin does not come back")

    def gpus_of(self, name, container_name="a"):
        told = self.execute(name, container_name, "sh", "-c", "echo $GPUSHM_SIM_DEVICES")
        return told.strip().split(",")

    def fill(self, name):
        for number, text in enumerate(TEXTS):
            self.execute(name, "a", "sh", "-ec",
                         f"printf '{text}' > /tmp/in; gpushmctl load /tmp/in weights-{number}")

    def text(self, name, number, environment=""):
        return self.execute(name, "b", "sh", "-ec", f"{environment} gpushmctl save "
                            f"weights-{number} /tmp/out >/dev/null; head -c {len(TEXTS[number])} /tmp/out")

    def reached(self, name):
        try:
            self.execute(name, "b", "true")
        except Failure:
            return False
        return True

    def assert_whole(self, name):
        for number, text in enumerate(TEXTS):
            self.assertEqual(self.text(name, number), text)

    def test_what_a_pod_has_on_two_gpus_outlives_what_serves_it(self):
        made = self.run_pod(of_gpus("two", 2, topology="nvlink"))
        limits = made["spec"]["initContainers"][0]["resources"]["limits"]
        self.assertEqual({key: limits[key] for key in limits if key.startswith("gpushm.io/")},
                         {MEMORY: "2", "gpushm.io/gpus": "2", "gpushm.io/nvlink": "1"})
        gpus = self.gpus_of("two")
        self.assertEqual(len(set(gpus)), 2)
        self.assertEqual(len(island_of(gpus)), 1, gpus)
        self.assertEqual(self.gpus_of("two", "b"), gpus)
        self.fill("two")
        self.assert_whole("two")
        mine = {"namespace": self.namespace, "pod": "two"}

        def pools():
            return {have["gpu_uuid"]: value for have, value in
                    Page(self.api, "plugin").series("gpushm_pool_allocated_bytes", **mine)}

        wait_until(lambda: f"not 4 MiB on each GPU: {pools()}", 30,
                   lambda: pools() == dict.fromkeys(gpus, 4 << 20))
        for happens in (lambda: self.restart("two", "gpushm"), self.kill_plugin,
                        lambda: self.restart("two", "gpushm"),
                        lambda: self.cluster.restart("kubelet"),
                        lambda: self.restart("two", "gpushm")):
            happens()
            # A kubelet that has just started does not know the pod yet.
            wait_until(lambda: f"two cannot be reached: {self.events_text()}", 30,
                       lambda: self.reached("two"))
            self.assert_whole("two")
            # A plugin that was killed has nothing until the broker has told it again.
            wait_until(lambda: f"the plugin does not have the buffers: {pools()}", 30,
                       lambda: pools() == dict.fromkeys(gpus, 4 << 20))
        self.restart("two", "a")
        self.assertEqual(self.gpus_of("two"), gpus)
        self.delete_pods("two")
        self.wait_bound(0)

    def test_a_pod_waits_for_a_set_and_is_told_which_is_nearest(self):
        whole = f"{UNITS_OF_GPU}Gi"
        # Takes one GPU of the first island whole.
        self.run_pod(annotated(pod("one", container("a")), {
            "private.gpushm.io/a": "0", "buffers.gpushm.io/weights": whole}))
        self.run_pod(of_gpus("island", 4, whole, topology="nvlink"))
        self.assertEqual(island_of(self.gpus_of("island")), [1])
        # The units of three GPUs are left, which is enough for the scheduler.
        self.create(of_gpus("waits", 4, "10Gi", topology="nvlink"))
        self.wait_event("waits", r"needs 10 GiB on each of 4 GPUs with NVLink; the nearest set is "
                        f"{', '.join(ISLANDS[0])}; GPU {ISLANDS[0][0]} has 0 GiB free and lacks 10 GiB")
        self.create(of_gpus("never", 5, topology="nvlink"))
        self.wait_event("never", "without NVLink between that many.*never starts here")
        self.delete_pods("never")
        # Without the condition there is a set.
        self.run_pod(of_gpus("any", 2))
        self.assertEqual(island_of(self.gpus_of("any")), [0])
        self.delete_pods("any", "one")
        self.wait_ready("waits")
        self.assertEqual(island_of(self.gpus_of("waits")), [0])

    def test_a_sick_gpu_does_not_take_the_other_ones_buffers(self):
        self.run_pod(of_gpus("two", 2))
        self.fill("two")
        gpus = self.gpus_of("two")
        self.put("faults.yaml", json.dumps({"lost": [gpus[1]]}))
        self.addCleanup(self.put, "faults.yaml", "{}\n")

        def second():
            return self.execute("two", "b", "sh", "-c", "gpushmctl save weights-1 /tmp/out 2>&1 || true")

        wait_until(lambda: f"weights-1 is still served: {second()}", 60,
                   lambda: 'the GPU of buffer "weights-1" is lost' in second())
        # CUDA refuses to start in a process that sees a lost GPU.
        self.assertEqual(self.text("two", 0, f"CUDA_VISIBLE_DEVICES={gpus[0]}"), TEXTS[0])
        self.create(of_gpus("next", 8))
        self.wait_event("next", f"GPU {gpus[1]} is unhealthy")
        self.put("faults.yaml", "{}\n")
        self.wait_ready("next", seconds=120)
        self.assertEqual(self.text("two", 0), TEXTS[0])
        self.assertEqual(self.text("two", 1), TEXTS[1])

    def test_what_cannot_be_is_denied(self):
        self.assertIn("gpushm.io/gpus", self.deny(of_gpus("many", 17)))
