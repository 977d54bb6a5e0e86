"""A node with hostile pods serves every other pod as if they did not exist (tests/hostile)."""

import subprocess

import scrape
from case import container, pod
from gpu_pods import gpu_pod
from plugin import MEMORY
from processes import wait_until
from settings import image
from test_plugin import PluginCase

ROUNDS = 3
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
TEXT = "unharmed"


class HostilePodsTest(PluginCase):

    def attacker(self, kind, place, address):
        """A pod that attacks. It is privileged, because only root can mount a FUSE file system in a
        container. Anybody who was given such a file could send what it sends."""
        words = ["/hostile/gpushm-hostile", kind, address]
        program = {"name": "hostile", "hostPath": {"path": str(self.programs)}}
        mounts = [{"name": "hostile", "mountPath": "/hostile", "readOnly": True},
                  {"name": "tmp", "mountPath": "/tmp"}]
        extra = {"image": image("sidecar"), "securityContext": {"privileged": True, "runAsUser": 0}}
        tmp = {"name": "tmp", "emptyDir": {}}
        name = f"hostile-{kind}"
        if place == "sidecar":
            return pod(name, container("gpushm", *words, volumeMounts=mounts, resources={
                "limits": {MEMORY: "1"}}, **extra), volumes=[program, tmp], securityContext={})
        thing = gpu_pod(name, users=["a"], buffers={"weights": "4Mi"}, securityContext={})
        attacker = thing["spec"]["containers"][0]
        attacker.update(extra, command=words)
        attacker["volumeMounts"] += mounts
        thing["spec"]["volumes"] += [program, tmp]
        return thing

    def use(self, name):
        self.fill(name, "data", TEXT)
        self.assertEqual(self.read(name, "data", len(TEXT)), TEXT)

    def test_other_pods_do_not_notice(self):
        """Method: all kinds at once. Meanwhile pods come, use their buffers and end, and then the
        plugin is replaced."""
        self.plugin.wait_released()  # Left by earlier cases.
        self.run_pod(gpu_pod("old"))
        self.use("old")
        hostile = self.make_namespace("hostile", PRIVILEGED)
        address = self.plugin.pod()["status"]["podIP"]
        kinds = [line.split() for line in subprocess.run(
            [self.programs / "gpushm-hostile", "--list"], check=True, capture_output=True,
            text=True).stdout.splitlines()]
        self.assertGreaterEqual(len(kinds), 10)
        for kind, place in kinds:
            self.api.create(self.attacker(kind, place, address), hostile)
        self.api.wait("Pod", hostile, lambda pods: len(pods) == len(kinds) and all(
            p["status"].get("phase") == "Running" for p in pods.values()), 90,
                      lambda pods: "hostile pods are not running: " + self.events_text(hostile))
        wait_until(lambda: f"no FUSE file system was ended: {self.plugin.log()[-2000:]}", 60,
                   lambda: "close-held-up" in self.plugin.log(), 0.5)
        self.assertIn("aborted=true", self.plugin.log())
        plugin = self.plugin.pod()["status"]["containerStatuses"][0]
        for number in range(ROUNDS):
            name = f"good{number}"
            self.run_pod(gpu_pod(name))
            self.use(name)
            self.use("old")
            page = scrape.Page(self.api, "plugin")
            self.assertTrue(page.series("gpushm_buffer_info", pod=name), "it is not scraped")
            self.assertTrue(page.series("gpushm_plugin_foreign_descriptors_total"))
            self.delete_pods(name)
        now = self.plugin.pod()["status"]["containerStatuses"][0]
        self.assertEqual(now["containerID"], plugin["containerID"], "the plugin was restarted")
        self.plugin.replace()
        self.use("old")
        self.run_pod(gpu_pod("next"))
        self.use("next")
        self.delete_pods(*(f"hostile-{kind}" for kind, _ in kinds), namespace=hostile)
        self.delete_pods("old", "next")
        self.plugin.wait_released()  # Its memory is free again.
