"""What happens on the node, step by step; each step relies on the earlier ones. A step records
facts for the report and raises a Failure if something is wrong."""

import json
import math
import os
import pathlib
import re
import time

from case import pod
from gpu_pods import gpu_pod, user
from plugin import ATTACH, MEMORY
from plugin_pod import CONTAINER, NAME, asked_security, plugin_pod
from processes import Failure, wait_until

GIB, MIB = 1 << 30, 1 << 20
SHARED_MIB = 256
ROOM_MIB = 2048
POOL_UNITS = 4
# Tolerance between two readings of NVML without any action of gpushm in between.
NOISE_BYTES = 8 * MIB
# A room is free within twelve seconds of its broker's end, but half a minute later after a restart
# of the plugin (docs/design/plugin.md).
RELEASE_TIMEOUT_S = 90
NO_ROOM = re.compile(r"needs \d+ GiB on one GPU, but the largest free block is \d+ GiB")
NO_SIDECAR = re.compile(r"gpushm\.io/memory")
TOO_MANY = re.compile(r"gpushm\.io/memory")


def expect(condition, what):
    if not condition:
        raise Failure(what)


class Story:

    def __init__(self, node, gpus, report, simulated):
        self._node = node
        self._gpus = gpus
        self._report = report
        self._simulated = simulated
        self._digest = ""

    def steps(self):
        return [self.plugin_registers_as_a_container, self.containers_share_real_memory,
                self.killed_broker_gives_the_data_back, self.killed_plugin_disturbs_no_pod,
                self.pod_without_sidecar_waits, self.too_big_pod_says_why,
                self.deleted_pods_leave_nothing]

    def needed(self):
        """Steps that the others need."""
        return self.steps()[:2]

    # ------------------------------------------------------------ steps

    def plugin_registers_as_a_container(self):
        """Goal: with the security context of the manifest, the plugin finds the GPUs and serves."""
        node, fact = self._node, self._report.fact
        manifest = node.files / "plugin.json"
        thing = plugin_pod(manifest, node.state / "plugin-config", self._simulated)
        start = time.monotonic()
        node.create(thing)
        wait_until(lambda: f"not registered: {node.describe()}\n{node.pod_logs(NAME)[-3000:]}", 60,
                   lambda: {MEMORY, ATTACH} <= {n for n, c in node.advertised().items() if c}, 0.1)
        fact("seconds from the static pod to devices at the kubelet", time.monotonic() - start)
        node.wait_ready(NAME)
        advertised = node.advertised()
        self._units = [math.floor((gpu["total_bytes"] - GIB) / GIB) for gpu in self._gpus.list()]
        fact("devices at the kubelet", advertised)
        fact("securityContext", asked_security(thing))
        status = pathlib.Path(f"/proc/{node.pid(NAME, CONTAINER)}/status").read_text()
        fact("its process", {name: re.search(rf"^{name}:\s+(.*)$", status, re.M)[1]
                             for name in ("Uid", "CapEff", "Seccomp", "NoNewPrivs")})
        root = node.run("ctr", "--namespace", "k8s.io", "containers", "info",
                        node.container_id(NAME, CONTAINER))
        expect(json.loads(root)["Spec"]["root"].get("readonly"), "its root file system is writable")
        expect(advertised[MEMORY] == sum(self._units),
               f"{advertised[MEMORY]} units, but the GPUs have {self._units}")
        expect(advertised[ATTACH] == 64 * len(self._units), f"{advertised[ATTACH]} tokens")

    def containers_share_real_memory(self):
        """Goal: bytes that one container loads are what another one saves; the memory is on the
        card; all see one GPU."""
        node, fact = self._node, self._report.fact
        self._baseline = self._gpus.used_bytes()
        fact("GPU memory used before, MiB", self._baseline / MIB)
        start = time.monotonic()
        node.create(gpu_pod("share", units=POOL_UNITS, users=["a", "b"], buffers={
            "weights": f"{SHARED_MIB}Mi", "room": f"{ROOM_MIB}Mi"}))
        node.wait_ready("share")
        fact("seconds from the static pod to ready", time.monotonic() - start)
        self._digest = self._shell("a", f"""
            head -c {SHARED_MIB * MIB} /dev/urandom >/tmp/in; sha256sum </tmp/in""").split()[0]
        fact("load", self._json("share", "a", "load", "/tmp/in", "weights"))
        fact("bytes", f"{SHARED_MIB} MiB, SHA-256 {self._digest}")
        self._check_data("b")
        used = self._gpus.used_bytes() - self._baseline
        fact("GPU memory used by the pod, MiB", used / MIB)
        expect(used >= (SHARED_MIB + ROOM_MIB) * MIB, f"the pod's buffers take only {used} bytes")
        brokers = {name: self._json("share", name, "stat") for name in ("a", "b")}
        fact("broker, as b sees it", brokers["b"])
        expect(brokers["b"]["simulated"] == bool(self._simulated), "the broker has the wrong driver")
        seen = {name: self._devices("share", name) for name in ("gpushm", "a", "b")}
        fact("devices in the containers", seen)
        expect(len(set(map(str, seen.values()))) == 1 and len(seen["a"]) == 1, f"GPUs: {seen}")
        expect(brokers["a"]["gpu"] == brokers["b"]["gpu"], f"GPUs of brokers: {brokers}")
        self._report.save_nvidia_smi("with the pod running")

    def killed_broker_gives_the_data_back(self):
        """Goal: the successor has the same generation and bytes, which only the plugin held
        meanwhile."""
        node, fact = self._node, self._report.fact
        before = self._json("share", "b", "stat", "weights")
        applications = self._application_ids()
        fact("seconds until the sidecar is ready again", node.kill("share", "gpushm"))
        after = self._json("share", "b", "stat", "weights")
        self._check_data("b")
        fact("generation before and after", [before["generation"], after["generation"]])
        expect(before["generation"] == after["generation"], "another generation")
        expect(self._application_ids() == applications, "application containers were restarted")

    def killed_plugin_disturbs_no_pod(self):
        """Goal: running containers continue, and a later pod gets its GPU."""
        node, fact = self._node, self._report.fact
        before, registered = node.container_ids("share"), node.registrations()
        start = time.monotonic()
        node.kill(NAME, CONTAINER)
        wait_until(lambda: f"not registered again: {node.registrations()}", 60, lambda: all(
            count > registered[name] for name, count in node.registrations().items()), 0.1)
        fact("seconds until it is registered again", time.monotonic() - start)
        expect(node.container_ids("share") == before, f"{before} became others")
        self._check_data("a")
        node.create(gpu_pod("later", users=["a"]))
        node.wait_ready("later")
        fact("a pod after it", self._json("later", "a", "stat"))

    def pod_without_sidecar_waits(self):
        """Goal: a token alone gets no GPU, and the kubelet shows the plugin's reason."""
        self._node.create(pod("alone", user("a"), volumes=[{"name": "gpushm", "emptyDir": {}}]))
        self._report.fact("message", self._node.wait_message("alone", NO_SIDECAR))
        self._node.delete("alone")

    def too_big_pod_says_why(self):
        """Goal: on several GPUs, a pod that fits into none of them but into all together waits, and
        starts when there is room. On one GPU, where the units are all that exists, the kubelet
        itself refuses a request for more."""
        if len(self._units) == 1:
            self._node.create(gpu_pod("big", units=self._units[0] + 1))
            self._report.fact("message", self._node.wait_message("big", TOO_MANY))
            self._node.delete("big")
            return
        tenants = [f"tenant{index}" for index in range(len(self._units))]
        half = self._units[0] // 2 + 1
        self._node.create(*(gpu_pod(name, units=half) for name in tenants))
        self._node.wait_ready(*tenants)
        self._node.create(gpu_pod("big", units=half))
        self._report.fact("message", self._node.wait_message("big", NO_ROOM))
        self._node.delete(tenants[-1])
        start = time.monotonic()
        self._node.wait_ready("big", seconds=RELEASE_TIMEOUT_S)
        self._report.fact("seconds from a tenant's end to ready", time.monotonic() - start)
        self._node.delete("big", *tenants[:-1])

    def deleted_pods_leave_nothing(self):
        """Goal: the memory is free at once; specs and links are removed when the ends are proven.
       """
        node, fact = self._node, self._report.fact
        start = time.monotonic()
        node.delete("share", "later")
        wait_until(lambda: f"{self._gpus.used_bytes()} bytes used, {self._baseline} before", 30,
                   lambda: self._gpus.used_bytes() <= self._baseline + NOISE_BYTES, 0.05)
        fact("seconds until the memory was free", time.monotonic() - start)
        fact("GPU memory used after, MiB", self._gpus.used_bytes() / MIB)
        wait_until(lambda: f"left: {self._left()}", RELEASE_TIMEOUT_S, lambda: not self._left(), 0.2)
        fact("seconds until no spec and no link was left", time.monotonic() - start)
        self._report.save_nvidia_smi("after the pods")

    # ------------------------------------------------------------ looking into it

    def _shell(self, container, script):
        return self._node.execute("share", container, "sh", "-ec", script)

    def _json(self, name, container, *words):
        return json.loads(self._node.execute(name, container, "gpushmctl", "-o", "json",
                                             "--no-color", *words))

    def _check_data(self, container):
        """Read by another process, which attaches the buffer by its name."""
        found = self._shell(container, """
            gpushmctl wait weights >/dev/null; gpushmctl save weights /tmp/out >/dev/null
            sha256sum </tmp/out; rm /tmp/out""").split()[0]
        expect(found == self._digest, f"{container} reads {found}, written was {self._digest}")
        self._report.fact(f"SHA-256 that {container} reads", found)

    def _devices(self, name, container):
        """The GPUs that a container has, as seen from outside."""
        folder = pathlib.Path(f"/proc/{self._node.pid(name, container)}")
        if self._simulated:
            words = (folder / "environ").read_bytes().decode().split("\0")
            return [w for w in words if w.startswith("GPUSHM_SIM_DEVICES=")]
        return sorted(n for n in os.listdir(folder / "root/dev") if re.match(r"nvidia\d", n))

    def _application_ids(self):
        return {n: v for n, v in self._node.container_ids("share").items() if n != "gpushm"}

    def _left(self):
        """Specs of bindings (those for the driver's files stay) and links."""
        specs = [p.name for p in pathlib.Path("/run/cdi").glob("*")
                 if "gpushm.io/binding-version" in p.read_text()]
        return specs + [p.name for p in pathlib.Path("/var/lib/gpushm/links").glob("*")]
