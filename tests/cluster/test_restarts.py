"""What dies, and then: the rows of docs/architecture.md on what happens, under a real kubelet."""

from case import is_ready, replica_set, statuses
from gpu_pods import gpu_pod
from plugin import TOKENS, UNITS, UNITS_OF_GPU
from settings import gpu_uuid
from test_plugin import PluginCase

TEXT = "kept over all of it"


class RunningPodsTest(PluginCase):
    """Goal: processes that run are undisturbed, buffers too, and new pods start afterwards."""

    def survives(self, happens):
        self.run_pod(gpu_pod("old", users=["a", "b"]))
        self.fill("old", "data", TEXT, "a")
        before = self.container_ids("old")
        happens()
        self.plugin.wait_serving()
        self.run_pod(gpu_pod("new"))
        self.assertEqual(self.container_ids("old"), before)
        self.assertEqual(self.read("old", "data", len(TEXT), "b"), TEXT)

    def test_kubelet_killed(self):
        def happens():
            self.cluster.kill("kubelet")
            self.cluster.start("kubelet")

        self.survives(happens)

    def test_containerd_killed(self):
        def happens():
            self.cluster.kill("containerd")
            self.cluster.start("containerd")

        self.survives(happens)

    def test_plugin_killed(self):
        self.survives(self.plugin.kill)

    def test_plugin_replaced(self):
        self.survives(self.plugin.replace)

    def test_kubelet_containerd_and_plugin_killed_together(self):
        def happens():
            process = self.plugin.process()
            self.cluster.kill("kubelet", "containerd")
            process.end(0)
            self.cluster.start("containerd", "kubelet")

        self.survives(happens)


class BrokerTest(PluginCase):

    def test_killed_broker_finds_its_buffers_again(self):
        """Method: killed from outside; what was written before is read after it."""
        self.run_pod(gpu_pod("pair", users=["a", "b"]))
        self.fill("pair", "data", TEXT, "a")
        identity = statuses(self.get_pod("pair"))["gpushm"]["containerID"]
        self.cluster.process_of_container(identity).end(0)
        self.wait_pod("pair", lambda p: statuses(p)["gpushm"]["restartCount"] == 1 and is_ready(p),
                      "sidecar not restarted")
        self.assertEqual(self.read("pair", "data", len(TEXT), "b"), TEXT)


class RebootTest(PluginCase):

    def test_controllers_pods_come_back_after_a_reboot(self):
        """Goal: /run and all memory lost, the pods that somebody wants are there again."""
        self.create(replica_set("wanted", 2, gpu_pod("wanted", units=4)))
        self.wait_pods(lambda pods: sum(map(is_ready, pods.values())) == 2, "not both run")
        self.cluster.reboot()
        self.plugin.wait_serving()
        self.wait_pods(lambda pods: sum(
            is_ready(p) and p["status"]["phase"] == "Running" for p in pods.values()) >= 2
            and self.plugin.specs(), "they do not come back", seconds=120)


class ContainerdWithoutCdiTest(PluginCase):

    def test_nothing_starts_unbound(self):
        """Goal: a container whose devices the runtime would drop does not run without them."""
        self.cluster.set_cdi(False)
        self.addCleanup(self.cluster.set_cdi, True)
        self.create(gpu_pod("main"))
        self.wait_event("main", "(?i)cdi")
        self.assertFalse(is_ready(self.get_pod("main")))


class HealthTest(PluginCase):

    def fault(self, text):
        part = self.cluster.cards / "faults.part"
        part.write_text(text)
        part.rename(self.cluster.cards / "faults.yaml")

    def test_lost_gpu_is_not_offered_until_it_is_back(self):
        """Goal: new pods go elsewhere; all is offered again when the GPU is there."""
        self.addCleanup(self.fault, "")
        self.fault(f"lost: [{gpu_uuid(0)}]\n")
        self.plugin.wait_serving(UNITS - UNITS_OF_GPU, TOKENS * 3 // 4)
        self.run_pod(gpu_pod("elsewhere", units=UNITS_OF_GPU))
        self.assertNotEqual(self.gpu_of("elsewhere", "a"), gpu_uuid(0))
        self.fault("")
        self.plugin.wait_serving()
