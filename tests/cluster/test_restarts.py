"""What dies, and what happens then: the rows of docs/design/architecture.md, with a real kubelet.
"""

import json
import re

from case import container, describe, is_ready, replica_set, statuses
from gpu_pods import gpu_pod, user
from plugin import TOKENS, UNITS, UNITS_OF_GPU
from settings import GPUS, gpu_uuid
from test_plugin import NO_ROOM, PluginCase

TEXT = "kept over all of it"


class RunningPodsTest(PluginCase):
    """Goal: running processes and buffers are undisturbed, and new pods start afterwards."""

    def survives(self, happens):
        self.run_pod(gpu_pod("old", users=["a", "b"]))
        self.fill("old", "data", TEXT, "a")
        before = self.container_ids("old")
        happens()
        self.plugin.wait_serving()
        self.run_pod(gpu_pod("new"))
        self.assertEqual(self.container_ids("old"), before)
        self.assertEqual(self.read("old", "data", len(TEXT), "b"), TEXT)

    def restart_with_kubelet(self, *programs, plugin=False):
        mark = self.plugin.mark()
        process = self.plugin.process()
        self.cluster.kill("kubelet", *programs)
        if plugin:
            process.end(0)
        self.cluster.start("kubelet", *programs)
        self.plugin.wait_registered(mark)

    def restart_containerd(self):
        self.cluster.kill("containerd")
        self.cluster.start("containerd")

    def test_kubelet_killed(self):
        self.survives(self.restart_with_kubelet)

    def test_containerd_killed(self):
        self.survives(self.restart_containerd)

    def test_plugin_killed(self):
        self.survives(self.plugin.kill)

    def test_plugin_replaced(self):
        self.survives(self.plugin.replace)

    def test_plugin_updated(self):
        """Goal: the next plugin is ready before the former one ends, and takes over its kept state.
        Method: the DaemonSet's own update, twice, so that each of the sockets' names is used. A
        broker that is killed afterwards finds its buffer again."""
        def happens():
            for _ in range(2):
                log = self.plugin.update()
                for event in (" standing-by ", " taking-over ", " ready "):
                    self.assertIn(event, log)
                self.run_pod(gpu_pod("between"))
                self.delete_pods("between")

        self.survives(happens)
        self.cluster.process_of_container(statuses(self.get_pod("old"))["gpushm"]["containerID"]).end(0)
        self.wait_pod("old", lambda p: statuses(p)["gpushm"]["restartCount"] == 1 and is_ready(p),
                      "sidecar not restarted")
        self.assertEqual(self.read("old", "data", len(TEXT), "b"), TEXT)

    def test_kubelet_containerd_and_plugin_killed_together(self):
        self.survives(lambda: self.restart_with_kubelet("containerd", plugin=True))


class LostPodsTest(PluginCase):
    """Goal: the kubelet permanently fails what the design says, and no more."""

    def assert_lost(self, name):
        lost = self.wait_phase(name, "Failed")
        self.assertEqual(lost["status"]["reason"], "UnexpectedAdmissionError", describe(lost))

    def test_waiting_pod_is_lost_when_kubelet_and_plugin_die(self):
        """Method: one pod runs and one waits for its room when both are killed."""
        self.run_pod(gpu_pod("running"))
        tenants = [f"tenant{number}" for number in range(GPUS)]
        self.create(*(gpu_pod(name, units=10) for name in tenants))
        self.wait_ready(*tenants)
        before = self.container_ids("running")
        self.create(gpu_pod("waiting", units=10))
        self.wait_event("waiting", NO_ROOM)
        mark, process = self.plugin.mark(), self.plugin.process()
        self.cluster.kill("kubelet")
        process.end(0)
        self.cluster.start("kubelet")
        self.plugin.wait_registered(mark)
        self.assert_lost("waiting")
        self.wait_ready("running", *tenants)
        self.assertEqual(self.container_ids("running"), before)

    def test_pod_whose_init_container_has_a_token_is_lost_with_kubelet_and_plugin(self):
        """Goal: the documented behaviour: a completed init container is admitted again at a
        kubelet's restart, and takes the pod down if no plugin is there then (k/k #138446). So the
        injector gives plain init containers no token. Method: the same pod without it stays."""
        loader = user("loader", "true")
        risky = gpu_pod("risky", users=["a", loader])
        risky["spec"]["containers"] = risky["spec"]["containers"][:1]
        risky["spec"]["initContainers"].append(loader)
        self.run_pod(risky)
        plain = gpu_pod("plain")
        plain["spec"]["initContainers"].append(container("loader", "true"))
        self.run_pod(plain)
        before = self.container_ids("plain")
        mark, process = self.plugin.mark(), self.plugin.process()
        self.cluster.kill("kubelet")
        process.end(0)
        self.cluster.start("kubelet")
        self.plugin.wait_registered(mark)
        self.assert_lost("risky")
        self.wait_ready("plain")
        self.assertEqual(self.container_ids("plain"), before)

    def test_controllers_pods_come_back_after_a_reboot_and_bare_ones_are_lost(self):
        """Goal: all memory and /run are lost; the pods of controllers come back."""
        self.create(gpu_pod("bare"), replica_set("wanted", 2, gpu_pod("wanted", units=4)))
        old = self.wait_pods(lambda pods: len(pods) == 3 and all(map(is_ready, pods.values()))
                             and set(pods), "not all are running")
        mark = self.plugin.mark()
        self.cluster.reboot()
        self.plugin.wait_registered(mark)
        self.wait_pods(lambda pods: sum(is_ready(pod) for name, pod in pods.items()
                                        if name not in old) == 2, "they do not come back")
        for name in old:
            self.assert_lost(name)


class ContainerdWithoutCdiTest(PluginCase):

    def test_nothing_starts_unbound(self):
        """Goal: a container whose devices the runtime would drop does not run without them, and the pod
        says why: containerd 2 in an event, the broker if the runtime drops them silently."""
        self.cluster.set_cdi(False)
        self.addCleanup(self.cluster.set_cdi, True)
        self.create(gpu_pod("main"))
        self.wait_pod("main", lambda p: re.search(
            r"(?i)\bcdi\b", json.dumps(statuses(p)) + self.events_text()), "says nothing of CDI")
        self.assertFalse(is_ready(self.get_pod("main")))


class HealthTest(PluginCase):

    def test_lost_gpu_is_not_offered_until_it_is_back(self):
        """Goal: new pods go elsewhere; everything is advertised again when the GPU is back."""
        self.addCleanup(self.fault, "")
        self.fault(f"lost: [{gpu_uuid(0)}]\n")
        self.plugin.wait_serving(UNITS - UNITS_OF_GPU, TOKENS * 3 // 4)
        self.run_pod(gpu_pod("elsewhere", units=UNITS_OF_GPU))
        self.assertNotEqual(self.gpu_of("elsewhere", "a"), gpu_uuid(0))
        self.fault("")
        self.plugin.wait_serving()
