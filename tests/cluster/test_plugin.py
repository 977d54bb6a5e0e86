"""The device plugin with a real kubelet: what is advertised, what pods get, and how they wait."""

import json
import re
import subprocess
import time

from case import ClusterCase, container, describe_all, is_ready, pod, replica_set, statuses
from gpu_pods import gpu_pod, user
from plugin import ATTACH, EXCLUSIVE, MEMORY, NAMESPACE, TOKENS, UNITS, UNITS_OF_GPU, Plugin
from settings import GPUS, NODE_NAME, gpu_uuid

NO_SIDECAR = (r"no container of pod \S+/alone requests gpushm\.io/memory: "
              r"gpushm\.io/attach needs a sidecar")
NO_ROOM = r"needs \d+ GiB on one GPU, but the largest free block is (\d+) GiB"
# From a pod's deletion to its room, where it takes two to five seconds from the broker's end
# (docs/design/plugin.md): busy cores take their time. Below Book::kProofMs.
ROOM_IS_BACK_S = 25


class PluginCase(ClusterCase):
    """With the plugin of this build in the cluster."""

    plugin = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plugin = cls.served_by(Plugin, cls.deploy)

    @classmethod
    def deploy(cls):
        plugin = Plugin(cls.cluster)
        plugin.deploy()
        return plugin

    def gpu_of(self, pod_name, container_name):
        """UUID of the GPU of the broker that this container reaches."""
        state = json.loads(self.execute(pod_name, container_name, "gpushmctl", "stat", "-o",
                                        "json"))
        return state["gpu"]

    def fill(self, name, buffer, text, container_name="a"):
        self.execute(name, container_name, "sh", "-c",
                     f"printf %s '{text}' > /tmp/in && gpushmctl load /tmp/in {buffer}")

    def read(self, name, buffer, length, container_name="a"):
        return self.execute(name, container_name, "sh", "-c", (
            f"gpushmctl save {buffer} /tmp/out >/dev/null && head -c {length} /tmp/out"))


    def start_other_plugin(self, resource, *ids):
        """A foreign device plugin, until the case ends."""
        other = subprocess.Popen(
            self.cluster.node_command(str(self.programs / "gpushm-other-plugin"), resource, *ids),
            env=self.cluster.environment(), stderr=subprocess.DEVNULL)
        def wait_for(count):
            self.api.wait("Node", None, lambda nodes: nodes[NODE_NAME]["status"]["allocatable"].get(
                resource, "0") == str(count), 60, lambda _: f"not {count} of {resource}")

        self.addCleanup(wait_for, 0)
        self.addCleanup(other.wait, 20)
        self.addCleanup(other.terminate)
        wait_for(max(len(ids), 1))


class DiskTest(PluginCase):
    """The disk of the plugin's folder hangs: pods that need no GPU start, and everything works
    again when the disk is back."""

    IMAGE_MIB = 64

    def node(self, *words):
        subprocess.run(self.cluster.node_command(*words), env=self.cluster.environment(),
                       check=True, capture_output=True, timeout=60)

    def test_pods_without_gpus_start_while_a_decision_hangs(self):
        """Method: a separate file system is frozen, as by a snapshot. A pod's start then hangs in
        the plugin. The next pod that requests memory is rejected after five seconds, during which
        the kubelet admits no other pod."""
        self.plugin.wait_released()  # What earlier cases left would be released onto the frozen disk.
        folder = self.cluster.on_node("/var/lib/gpushm")
        disk = self.cluster.state / "frozen.img"
        with open(disk, "wb") as file:
            file.truncate(self.IMAGE_MIB << 20)
        subprocess.run(["mkfs.ext4", "-q", str(disk)], check=True)
        self.addCleanup(disk.unlink)
        self.node("mount", "-o", "loop", str(disk), "/var/lib/gpushm")
        self.addCleanup(self.plugin.replace)
        self.addCleanup(self.node, "umount", "--lazy", "/var/lib/gpushm")
        self.plugin.replace()
        self.assertTrue((folder / "links").is_dir())
        self.node("fsfreeze", "--freeze", "/var/lib/gpushm")
        try:
            self.create(gpu_pod("hangs"))
            self.wait_event("hangs", "already present on machine")
            self.plugin.wait_hanging()  # Its sidecar's PreStartContainer is at the disk.
            self.create(gpu_pod("rejected"))
            self.run_pod(pod("plain", container("a")))
            rejected = self.wait_phase("rejected", "Failed")
            self.assertRegex(rejected["status"]["message"],
                             "no decision within 5000 ms about .*: "
                             "the plugin is still deciding .* disk")
        finally:
            self.node("fsfreeze", "--unfreeze", "/var/lib/gpushm")
        self.wait_ready("hangs")
        self.run_pod(gpu_pod("next"))
        self.delete_pods("hangs", "next", "rejected")
        self.plugin.wait_released()


class NeighbourTest(PluginCase):
    """Another plugin allocates GPUs of the node: no GPU is allocated twice."""

    UNITS = UNITS - UNITS_OF_GPU
    TOKENS = TOKENS - TOKENS // GPUS

    def setUp(self):
        super().setUp()
        self.addCleanup(self.forget)

    def forget(self):
        """An observation counts for five minutes, also across restarts."""
        self.plugin.replace(units=self.UNITS, tokens=self.TOKENS)
        subprocess.run(self.cluster.node_command("rm", "-f", "/var/lib/gpushm/taken.json"),
                       env=self.cluster.environment(), check=True)
        self.plugin.kill()
        self.plugin.wait_serving()

    def test_gpu_that_another_plugin_begins_to_offer_takes_nobody_new(self):
        """Method: a pod runs. Then the other plugin comes and offers the GPU of that pod, which has
        room for more."""
        self.run_pod(gpu_pod("there", units=10))
        gpu = self.gpu_of("there", "a")
        self.start_other_plugin("nvidia.com/gpu", gpu)
        self.run_pod(gpu_pod("next", units=5))  # Best fit: on the other pod's GPU.
        self.assertNotEqual(self.gpu_of("next", "a"), gpu)
        self.plugin.wait_serving(units=UNITS - (UNITS_OF_GPU - 10), tokens=TOKENS - (
            TOKENS // GPUS - 1))
        self.fill("there", "data", "stays")
        self.assertEqual(self.read("there", "data", 5), "stays")
        self.delete_pods("there", "next", grace_seconds=0)
        self.plugin.wait_released()


class ConfigurationTest(PluginCase):

    def test_gpu_that_is_not_there_costs_the_others_nothing(self):
        """Method: a list of UUIDs, one of which belongs to no GPU, as after an exchange."""
        self.addCleanup(self.plugin.configure, "")
        known = ", ".join(gpu_uuid(number) for number in range(GPUS - 1))
        self.plugin.configure(
            f"gpus: [{known}, GPU-00000000-0000-4000-8000-000000000000]\n",
            units=UNITS - UNITS_OF_GPU, tokens=TOKENS - TOKENS // GPUS)
        self.assertIn("gpu-not-here gpu=GPU-00000000-0000-4000-8000-000000000000",
                      self.plugin.log())
        self.run_pod(gpu_pod("runs"))


class WhoseGpuTest(PluginCase):

    def gpus(self, *words):
        """What `gpushmctl gpu` says in the plugin's pod: {UUID: GPU}."""
        said = self.execute(self.plugin.pod()["metadata"]["name"], "plugin", "gpushmctl", "-o", "json",
                            "gpu", *words, namespace=NAMESPACE)
        return {gpu["gpu"]: gpu for gpu in json.loads(said)}

    def test_a_drained_gpu_takes_nobody_new_until_it_is_put_back(self):
        """Goal: its pods stay, others go elsewhere, and a plugin that starts meanwhile knows."""
        self.run_pod(gpu_pod("there", units=2))
        drained = self.gpu_of("there", "a")
        self.addCleanup(self.gpus, "undrain", drained)
        said = self.gpus("drain", drained, "--reason", "a fan is loud")[drained]
        self.assertEqual([holder["pod"] for holder in said["holders"]], ["there"])
        left = {"units": UNITS - UNITS_OF_GPU + 2, "tokens": TOKENS - TOKENS // GPUS + 1}
        self.plugin.wait_serving(**left)
        self.run_pod(gpu_pod("new"))
        self.assertNotEqual(self.gpu_of("new", "a"), drained)
        self.plugin.kill()
        self.plugin.wait_serving(**left)
        self.assertEqual({uuid: gpu["drained"] for uuid, gpu in self.gpus("ls").items() if gpu["drained"]},
                         {drained: "a fan is loud"})
        self.gpus("undrain", drained)
        self.plugin.wait_serving()


class AdvertisingTest(PluginCase):

    def test_allocatable_is_what_the_gpus_have(self):
        have = self.api.get("Node", NODE_NAME)["status"]["allocatable"]
        self.assertEqual((have[MEMORY], have[ATTACH], have[EXCLUSIVE]),
                         (str(UNITS), str(TOKENS), str(GPUS)))


class SharingTest(PluginCase):

    def test_containers_of_a_restricted_pod_share_a_buffer_by_name(self):
        """Method: one container writes, through the driver, what the other reads. Both and the
        sidecar report the GPU that they see."""
        self.run_pod(gpu_pod("pair", buffers={"weights": "4Mi"}, users=["a", "b"]))
        self.fill("pair", "weights", "hello from a", "a")
        self.assertEqual(self.read("pair", "weights", len("hello from a"), "b"), "hello from a")
        self.assertEqual(self.gpu_of("pair", "a"), self.gpu_of("pair", "b"))

    def test_pods_in_parallel_get_a_gpu_each(self):
        """Goal: no room is allocated twice. Method: each pod needs all of a GPU."""
        names = [f"whole{number}" for number in range(GPUS)]
        self.create(*(gpu_pod(name, units=UNITS_OF_GPU) for name in names))
        self.wait_ready(*names)
        self.assertEqual({self.gpu_of(name, "a") for name in names},
                         {gpu_uuid(index) for index in range(GPUS)})

    def test_successor_of_the_same_name_inherits_nothing(self):
        """Goal: a StatefulSet's next pod, with the same name and maybe the same IDs, finds zeros.
        Method: repeated, so that some successors do get IDs of their predecessor."""
        for _ in range(4):
            self.run_pod(gpu_pod("set-0", units=UNITS_OF_GPU, buffers={"data": "4Mi"}))
            self.assertEqual(self.read("set-0", "data", 6).strip("\0"), "")
            self.fill("set-0", "data", "secret")
            self.assertEqual(self.read("set-0", "data", 6), "secret")
            self.delete_pods("set-0", grace_seconds=0)

    def test_fifty_pods_in_a_row_leave_nothing(self):
        """Method: ten rounds of five pods; checks specs, links and the plugin's descriptors."""
        self.run_pod(gpu_pod("warm"))
        self.delete_pods("warm")
        self.plugin.wait_released()
        descriptors = self.plugin.descriptors()
        for _ in range(10):
            names = [f"pod{number}" for number in range(5)]
            self.create(*(gpu_pod(name, units=7) for name in names))
            self.wait_ready(*names)
            # More if the ends of former pods are not proven yet.
            self.assertGreaterEqual(len(self.plugin.links()), len(names))
            self.assertGreaterEqual(len(self.plugin.specs()), 2 * len(names))
            self.delete_pods(*names, grace_seconds=0)
        self.plugin.wait_released()
        self.assertLessEqual(self.plugin.descriptors(), descriptors + 2)

    def test_room_of_a_deleted_pod_is_back_within_seconds(self):
        """Goal: an end is proven by two observations 2 s apart, not by 30 s of absence, if this run
        of the kubelet had listed the pod. The test does not distinguish whether the first
        observation came with the broker's end or within the ten seconds of the regular ones."""
        self.plugin.wait_released()  # Left by earlier cases.
        self.run_pod(gpu_pod("ends"))
        deleted = time.monotonic()
        self.delete_pods("ends")
        self.plugin.wait_released()
        self.assertLess(time.monotonic() - deleted, ROOM_IS_BACK_S)


class WaitingTest(PluginCase):

    def occupy(self):
        """A pod on each GPU that leaves less than half of it free."""
        names = [f"tenant{number}" for number in range(GPUS)]
        self.create(*(gpu_pod(name, units=10) for name in names))
        self.wait_ready(*names)
        return names

    def test_pod_that_does_not_fit_waits_and_starts_when_there_is_room(self):
        """Goal: the pod gives the reason and does not fail permanently. Method: 20 units are free,
        5 on each GPU."""
        tenants = self.occupy()
        self.create(gpu_pod("late", units=10))
        self.assertRegex(self.wait_event("late", NO_ROOM), "free block is 5 GiB")
        self.assertEqual(self.get_pod("late")["status"]["phase"], "Pending")
        self.delete_pods(tenants[0])
        self.wait_ready("late", seconds=90)

    def test_replica_set_that_does_not_fit_makes_no_storm_of_pods(self):
        """Method: the same pods, by name, from the first event until both run."""
        tenants = self.occupy()
        self.create(replica_set("late", 2, gpu_pod("late", units=10)))

        def both_wait(pods):
            late = {n: p for n, p in pods.items() if n.startswith("late")}
            states = [statuses(p).get("gpushm", {}).get("state", {}) for p in late.values()]
            waiting = [s for s in states if "waiting" in s and s["waiting"].get("message")]
            return len(waiting) == 2 and set(late)

        late = self.wait_pods(both_wait, "the replicas do not wait")
        self.delete_pods(*tenants[:2])

        def both_run(pods):
            self.assertEqual({n for n in pods if n.startswith("late")}, late, describe_all(pods))
            return all(is_ready(pods[n]) for n in late)

        self.wait_pods(both_run, "the replicas do not start", seconds=120)

    def test_pod_that_is_larger_than_any_gpu_is_told_that_it_never_starts(self):
        """The scheduler sends it here, because the node has the units, although no GPU has them."""
        self.create(gpu_pod("large", units=UNITS_OF_GPU + 1))
        self.wait_event("large", f"the largest GPU of this node has {UNITS_OF_GPU} GiB in all: it "
                                 "never starts here")

    def test_pod_with_the_longest_name_of_one_part_runs(self):
        """A pod's name is a DNS subdomain: 253 characters, without a rule for the length of a part.
        The kubelet makes a folder of namespace, name and UID for its logs, which may have at most
        255."""
        name = "n" * (255 - len(self.namespace) - len("__") - 36)
        self.run_pod(gpu_pod(name))
        self.fill(name, "data", "long")
        self.assertEqual(self.read(name, "data", 4), "long")

    def test_pod_that_no_node_can_hold_is_not_scheduled(self):
        self.create(gpu_pod("giant", units=UNITS + 1))
        self.wait_event("giant", f"Insufficient {MEMORY}")


class UnusualPodsTest(PluginCase):

    def test_container_without_a_sidecar_does_not_start(self):
        """Goal: an attach token alone gets no GPU, and event and status say what is missing."""
        self.create(pod("alone", user("a"), volumes=[{"name": "gpushm", "emptyDir": {}}]))
        self.wait_event("alone", NO_SIDECAR)

        def waits(pod_object):
            state = statuses(pod_object).get("a", {}).get("state", {})
            return re.search(NO_SIDECAR, state.get("waiting", {}).get("message", ""))

        self.wait_pod("alone", waits, "does not say for what its container waits")
        status = statuses(self.get_pod("alone"))["a"]
        self.assertEqual((status.get("containerID", ""), status["restartCount"]), ("", 0), status)

    def test_what_ends_a_sidecar_is_in_its_pods_status(self):
        """Method: its buffer is larger than its request."""
        self.create(gpu_pod("short", units=1, buffers={"data": "2Gi"}))

        def says_why(pod_object):
            sidecar = statuses(pod_object).get("gpushm", {})
            ends = [sidecar.get(key, {}).get("terminated", {}) for key in ("state", "lastState")]
            return any("the pod was given 1073741824" in end.get("message", "") for end in ends)

        self.wait_pod("short", says_why, "its sidecar's status does not say why it ended")

    def test_container_that_also_asks_nvidias_plugin_does_not_start(self):
        """Goal: no pod gets two GPUs by accident, and the event gives the reason. Method: another
        plugin allocates nvidia.com/gpu, as NVIDIA's does, here of a GPU that is not gpushm's."""
        resource = "nvidia.com/gpu"
        self.start_other_plugin(resource)
        greedy = user("a")
        greedy["resources"]["limits"][resource] = "1"
        self.create(gpu_pod("greedy", users=[greedy, "b"]))
        self.wait_event("greedy", "requests both nvidia.com/gpu and gpushm.io/attach")
        self.assertFalse(is_ready(self.get_pod("greedy")))

    def test_container_without_resources_sees_no_gpu(self):
        self.run_pod(gpu_pod("mixed", users=["a", {**container("bystander"), "volumeMounts": [
            {"name": "gpushm", "mountPath": "/run/gpushm", "subPath": "a", "readOnly": True}]}]))
        listing = self.execute("mixed", "bystander", "sh", "-c",
                               "ls /usr/bin/gpushmctl /usr/lib/*/libcuda.so.1 2>/dev/null || true")
        self.assertEqual(listing, "")
