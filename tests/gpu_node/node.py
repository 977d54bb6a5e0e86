"""A node without a cluster: containerd and a kubelet that takes its pods from a folder. It has the
computer's namespaces for itself (main.py makes them), and nothing here leaves them."""

import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

from case import describe, is_ready, statuses
from cgroups import make_cgroups
import init
from plugin import ATTACH, MEMORY
from processes import Failure, spawn, wait_until
import settings

CGROUP = "gpushm-node"
READ_ONLY_PORT = 10255
START_TIMEOUT_S = 60
POD_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 60
_DEVICE_PLUGINS = pathlib.Path("/var/lib/kubelet/device-plugins")


class Node:
    """Its methods are for one thread."""

    def __init__(self, files, state):
        """`files`: the output of `assemble`. `state`: an empty folder for everything that is
        written."""
        self.files = files
        self.state = state
        self.logs = state / "logs"
        self.pods_folder = state / "static-pods"
        self._execs = 0

    # ------------------------------------------------------------ life

    def start(self):
        """Returns when containerd has the images and the kubelet serves."""
        for folder in ("etc/cni", "logs/pods", "var-lib/kubelet/device-plugins",
                       "var-lib/kubelet/pod-resources", "static-pods"):
            (self.state / folder).mkdir(parents=True)
        make_cgroups(CGROUP)
        init.set_up_node(settings.NODE_NAME, str(self.state), str(self.logs))
        self._set_up_network()
        self._add_libraries()
        os.environ["PATH"] = f"{self.files}/programs:{os.environ['PATH']}"
        self._snapshotter = "overlayfs" if self._has_overlay() else "native"
        self._write_settings()
        etc = self.state / "etc"
        self._containerd = spawn(["containerd", "--config", str(etc / "containerd.toml")],
                                 self.logs / "containerd.log")
        self._wait_for("containerd", self._containerd, self._containerd_serves)
        for archive in sorted(self.files.glob("images/*.tar")):
            self.run("ctr", "--namespace", "k8s.io", "images", "import", "--local", "--snapshotter",
                     self._snapshotter, str(archive))
        self._kubelet = spawn(["kubelet", "--config", str(etc / "kubelet.yaml"), "--node-ip",
                               settings.FIRST_NODE.address, "--hostname-override", settings.NODE_NAME,
                               "--v", "2"], self.logs / "kubelet.log")
        self._wait_for("kubelet", self._kubelet, self._kubelet_serves)

    def _set_up_network(self):
        """lo, with an address in addition to 127.0.0.1, which the kubelet does not accept as a
        node's. Without `ip`, which some machines lack."""
        up, set_address, set_flags = 0x1, 0x8916, 0x8914
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, set_flags, struct.pack("16sh14x", b"lo", up))
            address = struct.pack("HH4s8x", socket.AF_INET, 0,
                                  socket.inet_aton(settings.FIRST_NODE.address))
            fcntl.ioctl(control, set_address, struct.pack("16s16s", b"lo:1", address))

    def _add_libraries(self):
        """Makes runc's libseccomp known to the loader of this namespace. runc starts itself again
        without an environment, so LD_LIBRARY_PATH would not reach it."""
        cache, conf = self.state / "etc/ld.so.cache", self.state / "etc/ld.so.conf"
        conf.write_text(f"include /etc/ld.so.conf\n{self.files}/programs/lib\n")
        self.run("ldconfig", "-X", "-C", str(cache), "-f", str(conf))
        self.run("mount", "--bind", str(cache), "/etc/ld.so.cache")

    def _has_overlay(self):
        """Whether containers' file systems can be overlays here; they cannot if this one is an
        overlay."""
        folders = [self.state / "overlay" / name for name in ("lower", "upper", "work", "merged")]
        for folder in folders:
            folder.mkdir(parents=True)
        options = "lowerdir={},upperdir={},workdir={}".format(*folders)
        words = ["mount", "-t", "overlay", "-o", options, "overlay", str(folders[3])]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        self.run("umount", str(folders[3]))
        return True

    def _write_settings(self):
        etc = self.state / "etc"
        programs = self.files / "programs"
        text = settings.containerd(self.state, True, settings.version_of(programs, "containerd"))
        (etc / "containerd.toml").write_text(
            text + '[plugins."io.containerd.cri.v1.images"]\n'
            f'  snapshotter = "{self._snapshotter}"\n')
        (etc / "kubelet.yaml").write_text(json.dumps({
            **json.loads(settings.kubelet(settings.FIRST_NODE,
                                          settings.version_of(programs, "kubernetes"))),
            "cgroupRoot": f"/{CGROUP}",
            "staticPodPath": str(self.pods_folder), "fileCheckFrequency": "1s",
            "readOnlyPort": READ_ONLY_PORT, "healthzPort": 0}, indent=1))

    def _wait_for(self, name, process, serves):
        def ready():
            if not process.alive():
                raise Failure(f"{name} ended: {self.end_of_log(name)}")
            return serves()

        wait_until(lambda: f"{name} does not serve: {self.end_of_log(name)}", START_TIMEOUT_S,
                   ready)

    def _containerd_serves(self):
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect("/run/containerd/containerd.sock")
                return True
            except OSError:
                return False

    def _kubelet_serves(self):
        try:
            self.pods()
            return True
        except OSError:
            return False

    def end_of_log(self, name):
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n  ".join(lines[-15:])

    def kubelet_errors(self):
        """The last lines of the logs: only they say why a pod cannot be made."""
        lines = (self.logs / "kubelet.log").read_text(errors="replace").splitlines()
        return "\n".join(line[:1500] for line in lines if line.startswith("E"))[-3000:]

    def run(self, *words, timeout=COMMAND_TIMEOUT_S):
        """Output of a program that must succeed."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout,
                                  check=False)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{' '.join(words)}: not done in {timeout} s") from error
        if done.returncode:
            raise Failure(f"{' '.join(words)}: exit status {done.returncode}: "
                          f"{done.stdout}{done.stderr}")
        return done.stdout

    # ------------------------------------------------------------ pods

    def create(self, *pods):
        """As static pods, in the node's network, which saves a network for pods."""
        for pod in pods:
            pod["spec"]["hostNetwork"] = True
            part = self.state / "pod.part"
            part.write_text(json.dumps(pod))
            part.rename(self.pods_folder / f"{pod['metadata']['name']}.json")

    def delete(self, *names):
        """Returns when the kubelet has ended them."""
        for name in names:
            (self.pods_folder / f"{name}.json").unlink(missing_ok=True)
        self.wait_pods(lambda pods: not set(names) & set(pods), f"{', '.join(names)} does not end")

    def _get(self, path):
        connection = http.client.HTTPConnection(settings.FIRST_NODE.address, READ_ONLY_PORT, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def pods(self):
        """{name as it was created: pod}"""
        suffix = f"-{settings.NODE_NAME}"  # The kubelet adds it to a static pod's name.
        return {p["metadata"]["name"].removesuffix(suffix): p
                for p in json.loads(self._get("/pods"))["items"] or []}

    def wait_pods(self, condition, what, seconds=POD_TIMEOUT_S):
        """Returns the value of `condition` of {name: pod}."""
        return wait_until(lambda: f"{what}: {self.describe()}", seconds,
                          lambda: condition(self.pods()), 0.1)

    def wait_ready(self, *names, seconds=POD_TIMEOUT_S):
        return self.wait_pods(
            lambda pods: all(n in pods and is_ready(pods[n]) for n in names) and pods,
            f"{', '.join(names)} not ready", seconds)

    def wait_message(self, name, pattern, seconds=POD_TIMEOUT_S):
        """The kubelet's message about a waiting container, or about the pod, that matches."""
        def found(pods):
            return next((m for m in messages(pods.get(name, {})) if pattern.search(m)), None)

        return self.wait_pods(found, f"nothing about {name} says {pattern.pattern!r}", seconds)

    def describe(self):
        return "\n  ".join(describe(pod) for pod in self.pods().values()) or "no pods"

    def container_ids(self, name):
        return {n: (s.get("containerID"), s["restartCount"])
                for n, s in statuses(self.pods()[name]).items()}

    def container_id(self, pod, container):
        return statuses(self.pods()[pod])[container]["containerID"].rpartition("/")[2]

    def exec_words(self, pod, container, *words):
        """The command that runs a program in a container."""
        self._execs += 1
        return ["ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id", f"exec{self._execs}",
                self.container_id(pod, container), *words]

    def execute(self, pod, container, *words, timeout=COMMAND_TIMEOUT_S):
        """Output of a program in a container; it must succeed."""
        return self.run(*self.exec_words(pod, container, *words), timeout=timeout)

    def pid(self, pod, container):
        name = self.container_id(pod, container)
        for line in self.run("ctr", "--namespace", "k8s.io", "tasks", "ls").splitlines():
            if line.startswith(name):
                return int(line.split()[1])
        raise Failure(f"{pod}/{container} is not running")

    def kill(self, pod, container):
        """Kills it as a crash would; returns when the kubelet has started it again."""
        before = statuses(self.pods()[pod])[container]["restartCount"]
        start = time.monotonic()
        os.kill(self.pid(pod, container), signal.SIGKILL)
        self.wait_pods(lambda pods: statuses(pods[pod])[container]["restartCount"] > before
                       and is_ready(pods[pod]), f"{pod}/{container} does not come back")
        return time.monotonic() - start

    def pod_logs(self, name=""):
        """Logs of the containers, also former ones, of pods whose name contains `name`."""
        return "".join(f"{path.relative_to(self.logs)}\n{path.read_text(errors='replace')}"
                       for path in sorted(self.logs.glob(f"pods/*{name}*/*/*.log")))

    def save_pod_logs(self, path, name=""):
        path.write_text(f"{self.describe()}\n{self.pod_logs(name)}")

    # ------------------------------------------------------------ device plugins

    def registrations(self):
        """How often each resource was registered since the kubelet's start."""
        counts = dict.fromkeys((MEMORY, ATTACH), 0)
        for line in self._get("/metrics").splitlines():
            for name in counts:
                if line.startswith(f'kubelet_device_plugin_registration_total{{resource_name='
                                   f'"{name}"}}'):
                    counts[name] = int(float(line.split()[-1]))
        return counts

    def advertised(self):
        """{resource: number of devices} from the kubelet's checkpoint, which it writes once it can
        allocate them. A registration alone is not enough: a static pod that is admitted before the
        list arrives fails permanently."""
        try:
            data = json.loads((_DEVICE_PLUGINS / "kubelet_internal_checkpoint").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {name: len(ids or []) for name, ids in
                (data["Data"]["RegisteredDevices"] or {}).items()}


def messages(pod):
    status = pod.get("status", {})
    yield f"{status.get('reason', '')}: {status.get('message', '')}"
    for container in statuses(pod).values():
        for state in container.get("state", {}).values():
            yield f"{state.get('reason', '')}: {state.get('message', '')}"
