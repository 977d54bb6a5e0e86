"""The cluster itself: the properties on which the other cases rely."""

from api import Refused
from case import ClusterCase, container, pod, shell, statuses
from settings import NODE_NAME

SCRATCH = {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]}
MOUNTED = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}


class NodeTest(ClusterCase):

    def boot_id(self):
        return self.api.get("Node", NODE_NAME)["status"]["nodeInfo"]["bootID"]

    def test_programs_are_what_go_mod_pins(self):
        """`build` writes these files from go.mod."""
        info = self.api.get("Node", NODE_NAME)["status"]["nodeInfo"]
        runtime = info["containerRuntimeVersion"].partition("://")[2]
        for name, version in (("kubernetes", info["kubeletVersion"]),
                              (self.cluster.runtime.name, f"v{runtime.removeprefix('v')}")):
            self.assertEqual(f"{version}\n", (self.cluster.programs / f"{name}.version").read_text())

    def test_pod_runs_and_answers(self):
        self.run_pod(pod("plain", shell("main", "echo started; sleep infinity")))
        self.assertEqual(self.log("plain", "main"), "started\n")
        self.assertEqual(self.execute("plain", "main", "id", "-u"), "65532\n")

    def test_restricted_namespace_refuses_privileges(self):
        thing = pod("greedy", container("main"))
        thing["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        with self.assertRaisesRegex(Refused, "violates PodSecurity"):
            self.create(thing)

    def test_sidecar_is_ready_before_others_start(self):
        """Method: each container records its start. The sidecar's postStart hook, which waits for
        the sidecar's last action, records its end."""
        hook = "until [ -e /scratch/ready ]; do :; done; echo hook >> /scratch/order"
        self.run_pod(pod(
            "ordered", shell("first", "echo first >> /scratch/order; sleep infinity", **MOUNTED),
            initContainers=[
                shell("sidecar", "echo sidecar >> /scratch/order; >/scratch/ready; sleep infinity",
                      restartPolicy="Always", lifecycle={"postStart": {"exec": {
                          "command": ["sh", "-c", hook]}}}, **MOUNTED),
                shell("plain", "echo plain >> /scratch/order", **MOUNTED)], **SCRATCH))
        order = self.execute("ordered", "first", "cat", "/scratch/order").split()
        self.assertEqual(order, ["sidecar", "hook", "plain", "first"])

    def test_pod_survives_restarts_of_kubelet_containerd_and_control_plane(self):
        """Goal: running pods are undisturbed, and new pods start afterwards."""
        self.run_pod(pod("old", container("main")))
        before = self.container_ids("old")
        for number, names in enumerate([["kubelet"], ["containerd"], ["kubelet", "containerd"],
                                        ["apiserver", "controller-manager", "scheduler"]]):
            with self.subTest(restarted=names):
                self.cluster.kill(*names)
                self.cluster.start(*names)
                self.run_pod(pod(f"new{number}", container("main")))
                self.assertEqual(self.container_ids("old"), before)

    def test_reboot_of_the_node_restarts_pods(self):
        """Goal: `reboot` is a real reboot. Method: a pod's process, the node's /run and its boot
        ID."""
        self.run_pod(pod("main", container("main")))
        self.cluster.on_node("/run/mark").write_text("")
        boot_id = self.boot_id()
        self.cluster.reboot()
        self.assertFalse(self.cluster.on_node("/run/mark").exists())
        self.wait_pod("main", lambda p: statuses(p)["main"]["restartCount"] == 1, "not restarted")
        self.wait_ready("main")
        self.assertNotEqual(self.boot_id(), boot_id)
