"""A pod of two GPUs: three containers load, attach on both, and read the other GPU's bytes in place."""

import json
import subprocess
import time

from mps_pods import EACH_MIB, PROBE
from processes import Failure, wait_until
from story import MIB, NOISE_BYTES, RELEASE_TIMEOUT_S, Story, expect

NAME = "several"
TEXTS = ["first GPU's text", "other GPU's text"]
WAYS = {1: "NVLink", 2: "PCIe", 3: "a copy"}


class GpusStory(Story):

    def steps(self):
        return [self.pod_has_two_gpus] if len(self._gpus.list()) > 1 else []

    def pod_has_two_gpus(self):
        """Goal: each buffer is on its GPU, every container sees both, a GPU reads the other one's bytes
        in place, a killed broker gives both back, and nothing is left."""
        node, fact = self._node, self._report.fact
        before = self._gpus.used_bytes()
        made = json.loads((node.files / "pods" / f"{NAME}.json").read_text())
        for volume in made["spec"]["volumes"]:
            if volume["name"] == "probes":
                volume["hostPath"]["path"] = str(node.files / "probes")
        start = time.monotonic()
        node.create(made)
        node.wait_ready(NAME)
        fact("seconds from the static pod to ready", time.monotonic() - start)
        fact("requests of the sidecar", made["spec"]["initContainers"][0]["resources"]["limits"])
        seen = {name: self._devices(NAME, name) for name in ("gpushm", "a", "b", "c")}
        fact("devices in the containers", seen)
        expect(len(set(map(str, seen.values()))) == 1, f"GPUs: {seen}")
        expect(self._simulated or len(seen["a"]) == 2, f"GPUs: {seen}")
        for number, text in enumerate(TEXTS):
            self._run("a", f"printf '%s' \"{text}\" >/tmp/in; head -c {EACH_MIB * MIB - len(text)} /dev/urandom "
                      f">>/tmp/in; gpushmctl load /tmp/in weights-{number} >/dev/null; rm /tmp/in")
        used = self._gpus.used_bytes() - before
        fact("GPU memory used by the pod, MiB", used / MIB)
        expect(used >= 2 * EACH_MIB * MIB, f"the pod's buffers take only {used} bytes")
        self._check("b")
        self._check_peers("c")
        applications = {n: v for n, v in node.container_ids(NAME).items() if n != "gpushm"}
        fact("seconds until the killed sidecar is ready again", node.kill(NAME, "gpushm"))
        self._check("b")
        self._check_peers("a")
        expect({n: v for n, v in node.container_ids(NAME).items() if n != "gpushm"} == applications,
               "application containers were restarted")
        node.delete(NAME)
        start = time.monotonic()
        wait_until(lambda: f"{self._gpus.used_bytes()} bytes used, {before} before", 30,
                   lambda: self._gpus.used_bytes() <= before + NOISE_BYTES, 0.05)
        fact("seconds until the memory of both was free", time.monotonic() - start)
        wait_until(lambda: f"left: {self._left()}", RELEASE_TIMEOUT_S, lambda: not self._left(), 0.2)

    def _run(self, container, script):
        return self._node.execute(NAME, container, "sh", "-ec", script)

    def _check(self, container):
        for number, text in enumerate(TEXTS):
            found = self._run(container, f"gpushmctl save weights-{number} /tmp/out >/dev/null; "
                              f"head -c {len(text)} /tmp/out; rm /tmp/out")
            expect(found == text, f"{container} reads {found!r} in weights-{number}")

    def _check_peers(self, container):
        for number, text in enumerate(TEXTS):
            ended = subprocess.run(
                self._node.exec_words(NAME, container, PROBE, "peer", f"weights-{number}"), text=True,
                capture_output=True, timeout=60, check=False)
            lines = ended.stdout.strip().splitlines()
            if ended.returncode or not lines:
                raise Failure(f"reading weights-{number} on the other GPU: {ended.stderr}")
            said = json.loads(lines[-1])
            expect(said["text"] == text and said["device"] == number != said["reader"], f"peer: {said}")
            self._report.fact(f"how GPU {said['reader']} read weights-{number}", WAYS[said["way"]])
            self._report.fact(f"attach of {EACH_MIB} MiB for GPU {said['reader']} too, us", said["attach_us"])
            self._report.fact("copies there, GB/s", said["bytes_per_second"] / 1e9)
