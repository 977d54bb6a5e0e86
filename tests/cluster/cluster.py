"""A real one-node Kubernetes on this computer, in namespaces of its own: nothing of it can leave
them, and killing one process ends it all.

up, down            start it; end it
ensure              start it, or bring new images into the one that runs
shell, exec WORD .. in its network, with KUBECONFIG and its programs in the PATH
kubectl WORD ...    the cluster's own
node WORD ...       on the node: its mounts, processes, /run (crictl's place; `node ctr ...`)
load FILE.tar       images, into the running cluster
status              what of it runs
stop, start, restart NAME ...
                    etcd, apiserver, controller-manager, scheduler, containerd or kubelet
reboot              the node: as by pulling its plug

Everything lies in the folder --state, logs in logs/.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from api import Api
from cgroups import make_cgroups, remove_cgroups
from processes import Failure, Process, reap, spawn, wait_until
import runtimes
import settings

HERE = pathlib.Path(__file__).resolve().parent
CONTROL_PLANE = ["etcd", "apiserver", "controller-manager", "scheduler"]
NODE = ["containerd", "kubelet"]
MACHINE_NAMESPACES = ["net", "pid"]
NODE_NAMESPACES = ["net", "pid", "mount", "ipc", "uts"]
SUITE_TIMEOUT_S = 60  # For one step of the start: ten times what it takes on two busy cores.


def parent_of(pid):
    """The PID of its parent."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_stopped(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Cluster:
    """The cluster of one state folder, whether or not it runs. Its methods are for one thread."""

    namespaces = ("machine", "node")  # Those that it starts.
    cgroups = tuple(node.cgroup for node in settings.NODES)  # Those that end with it.

    def __init__(self, state, programs=None, node=settings.FIRST_NODE):
        self.node = node
        self.state = pathlib.Path(state).resolve()
        self.source = HERE
        self.logs = self.state / "logs"
        self.driver = self.state / "driver"  # libcuda.so.1, libnvidia-ml.so.1
        self.cards = self.state / "cards"    # The simulated driver's state folder.
        self._record = self.state / "cluster.json"
        known = json.loads(self._record.read_text()) if self._record.exists() else {}
        self._processes = {name: Process(**value) for name, value in
                           known.get("processes", {}).items()}
        # A cluster that runs keeps those that it was started with.
        if programs is None or self.running(self.namespaces[0]):
            programs = known.get("programs", "/nonexistent")
        self.programs = pathlib.Path(programs)
        self.runtime = runtimes.of(self)
        self.api = Api()
        self._in_network = False

    # ------------------------------------------------------------ records

    def _remember(self, name, process):
        self._processes[name] = process
        self._write()

    def _write(self):
        part = self._record.with_suffix(".part")
        part.write_text(json.dumps({
            "programs": str(self.programs),
            "processes": {n: dataclasses.asdict(p) for n, p in self._processes.items()}}))
        part.rename(self._record)

    def running(self, name="machine"):
        process = self._processes.get(name)
        return bool(process and process.alive())

    def process(self, name):
        if not self.running(name):
            raise Failure(f"{name} is not running in {self.state}")
        return self._processes[name]

    def log(self, name):
        return self.logs / f"{name}.log"

    def see_log(self, name):
        """The path of a log and its end, for messages."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()[-5:]
        except FileNotFoundError:
            lines = []
        return "\n  ".join([f"see {self.log(name)}", *lines])

    def save_logs(self, folder):
        """For use after `end`. Pods' own logs are symbolic links to files on the node."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.logs, folder, symlinks=True, ignore_dangling_symlinks=True)

    # ------------------------------------------------------------ life

    def up(self, images, driver):
        """`images`: a folder with their archives. `driver`: a folder with the simulated driver. On
        failure, everything is ended, but the logs stay."""
        if self.running(self.namespaces[0]):
            raise Failure("a cluster is already running; ./run cluster down ends it")
        self._check_host()
        if self.state.exists():
            self.down()  # What a crash left.
        try:
            self._up(images, driver)
        except BaseException:
            self.end()
            raise

    def ensure(self, images, driver):
        """As `up`, or loads new images into the running cluster."""
        if self.running():
            self.load(images)
        else:
            self.up(images, driver)

    def _up(self, images, driver):
        self._prepare(driver)
        self._start_namespace("machine")
        self.start("etcd")
        self._spawn("apiserver")  # This takes seconds, during which the node becomes ready.
        self._start_node()
        self.start("containerd")
        self.load(images)
        for name in ("apiserver", "controller-manager", "scheduler", "kubelet"):
            self.start(name)
        self._wait_for_node()

    def down(self):
        """Ends and removes everything, whatever state it is in."""
        self.end()
        if self.state.exists():
            self._check_unmounted()
            shutil.rmtree(self.state)

    def end(self):
        """Ends everything; its folder stays."""
        for name in self.namespaces:  # Everything inside dies with them.
            if name in self._processes:
                self._processes[name].end(0)
            record = self._record_of(name)
            if record.exists():  # An `up` was killed before it could record this.
                process = Process.of(int(record.read_text()))
                if process and self._is_ours(process):
                    process.end(0)
        for name in {*self.namespaces, *CONTROL_PLANE, *NODE} & set(self._processes):
            process = self._processes.pop(name)
            wait_until(f"{name} outlives its namespace", 20, lambda p=process: not p.alive())
        reap()
        for name in self.cgroups:
            remove_cgroups(name)

    def reboot(self):
        """Kills everything on the node at once; the content of its memory (/run) is lost."""
        self._kill_node()
        self._boot_node()

    def _kill_node(self):
        self.process("node").end(0)
        for name in NODE:
            wait_until(f"{name} outlives the node", 20, lambda n=name: not self.running(n))
        remove_cgroups(self.node.cgroup)

    def _boot_node(self):
        self._start_node()
        for name in NODE:
            self.start(name)

    def power_off(self):
        """As `reboot`, but the node's pods end without a word to those whom they are connected to, and
        nobody answers at their addresses until `power_on`."""
        self._silence("--insert")
        self._kill_node()

    def power_on(self):
        self._silence("--delete")
        self._boot_node()

    def _silence(self, verb):
        """Packets of the node's pods vanish."""
        self.enter_network()
        for chain in ("INPUT", "FORWARD"):
            subprocess.run(["iptables", verb, chain, "--source", self.node.pods, "--jump", "DROP"],
                           check=True)

    def pause(self):
        """Stops the node's processes where they are; connections to them stay open."""
        for name in reversed(NODE):  # The kubelet first, so that it sees nobody stand still.
            self.process(name).kill(signal.SIGSTOP)
        self._signal_node(signal.SIGSTOP)

    def resume(self):
        self._signal_node(signal.SIGCONT)
        for name in NODE:
            # nsenter, outside of the node, has stopped with its child, and continues it.
            parent = parent_of(self.process(name).pid)

            def goes_on(pids=(parent, self.process(name).pid)):
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                return not any(is_stopped(pid) for pid in pids)

            wait_until(f"{name} does not go on", 10, goes_on)

    def _signal_node(self, number):
        """To everything that began on the node."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._is_on_node(folder):
                    os.kill(int(folder.name), number)

    def _check_host(self):
        if os.geteuid() != 0:
            raise Failure("a cluster needs root")
        for program in ("runc", "nsenter", "unshare", "ip", "iptables"):
            if not shutil.which(program):
                raise Failure(f"{program} is missing; ./run cluster up installs it")
        if not pathlib.Path("/usr/lib/cni/bridge").exists():
            raise Failure("/usr/lib/cni/bridge is missing; install containernetworking-plugins")

    def _is_ours(self, process):
        words = pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        return str(HERE / "init.py").encode() in words

    def _check_unmounted(self):
        """The mounts were the node's own; deleting the folder would empty one that is left."""
        for line in pathlib.Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(f"{self.state}/"):
                raise Failure(f"{line.split()[1]} is still mounted; unmount it and try again")

    def _prepare(self, driver):
        for folder in ("etc/cni", "var-lib/kubelet", "certificates", "records"):
            (self.state / folder).mkdir(parents=True)
        (self.logs / "pods").mkdir(parents=True, exist_ok=True)
        self._write_settings()
        self._install_driver(driver)

    def _write_settings(self):
        etc = self.state / "etc"
        (etc / "kubeconfig").write_text(settings.kubeconfig())
        (etc / "tokens.csv").write_text(f"{settings.ADMIN_TOKEN},admin,1,system:masters\n")
        (etc / "cni/10-pods.conflist").write_text(settings.network(self.node))
        self.runtime.write_settings()
        # The only registry that exists here, if one does (suite.py's --release).
        registry = etc / "registries" / settings.REGISTRY / "hosts.toml"
        registry.parent.mkdir(parents=True)
        registry.write_text(f'[host."http://{settings.REGISTRY}"]\n')
        (etc / "kubelet.yaml").write_text(settings.kubelet(
            self.node, settings.version_of(self.programs, "kubernetes"), self.runtime.socket))
        subprocess.run(["openssl", "genrsa", "-out", etc / "sa.key", "2048"], check=True,
                       capture_output=True)

    def _install_driver(self, driver):
        """The node has four simulated GPUs."""
        for folder in (self.driver, self.cards):
            folder.mkdir(parents=True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy2(pathlib.Path(driver, name), self.driver / name)
        # Like the driver itself: everybody who sees it may use it.
        self.cards.chmod(0o777)
        (self.cards / "cards.yaml").write_text(settings.cards())

    def _name_of(self, role):
        return role if role == "machine" else self.node.name

    def _record_of(self, role):
        return self.state / "records" / self._name_of(role)

    def _start_namespace(self, role, inside=None):
        record = self._record_of(role)
        record.unlink(missing_ok=True)
        flags = {"machine": ["--net", "--pid"],
                 "node": ["--mount", "--pid", "--ipc", "--uts", "--propagation", "private"]}[role]
        process = spawn(["unshare", *flags, "--fork", sys.executable, str(HERE / "init.py"),
                         self._name_of(role), str(self.state), str(self.logs)], self.log(role), inside,
                        MACHINE_NAMESPACES if inside else [])

        def ready():
            if not process.alive():
                raise Failure(f"{role} did not start: {self.see_log(role)}")
            return record.exists()

        wait_until(lambda: f"{role} is not set up: {self.see_log(role)}", 20, ready)
        self._remember(role, Process.of(int(record.read_text())))

    def _start_node(self):
        make_cgroups(self.node.cgroup)
        self._start_namespace("node", self.process("machine"))

    # ------------------------------------------------------------ its programs

    def _words(self, name):
        if name in CONTROL_PLANE:
            return getattr(settings, name.replace("-", "_"))(self.state)
        if name == "containerd":
            return self.runtime.words()
        return settings.kubelet_arguments(self.node, self.state)

    def environment(self):
        return {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}",
                "KUBECONFIG": str(self.state / "etc/kubeconfig")}

    def _spawn(self, name):
        on_node = name in NODE
        self._remember(name, spawn(
            self._words(name), self.log(name), self.process("node" if on_node else "machine"),
            NODE_NAMESPACES if on_node else MACHINE_NAMESPACES, self.environment()))

    def start(self, *names):
        """Starts what does not run, in the order of dependencies, and waits until it serves
        (without containerd, the kubelet gives up)."""
        for name in sorted(names, key=[*CONTROL_PLANE, *NODE].index):
            if not self.running(name):
                self._spawn(name)
            self._wait_for(name)

    def stop(self, *names, seconds=20):
        """Returns whether all of them ended by themselves."""
        return all([self._processes[name].end(seconds) for name in names if self.running(name)])

    def kill(self, *names):
        for name in names:
            self.process(name).end(0)

    def restart(self, *names):
        self.stop(*names)
        self.start(*names)

    def _wait_for(self, name):
        serves = {"apiserver": self.api.ready, "containerd": self._containerd_serves,
                  "kubelet": self._kubelet_serves}.get(name, lambda: True)
        if name in ("apiserver", "kubelet"):
            self.enter_network()

        def ready():
            if self.running(name):
                return serves()
            if name != "kubelet":
                raise Failure(f"{name} ended: {self.see_log(name)}")
            # It ends if containerd's CRI is not ready yet; on a real node its unit restarts it.
            self._spawn(name)
            return False

        wait_until(lambda: f"{name} does not serve: {self.see_log(name)}", SUITE_TIMEOUT_S, ready)

    def _containerd_serves(self):
        """Whether its socket accepts connections; its CRI may take another moment."""
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self.on_node(self.runtime.socket)))
                return True
            except OSError:
                return False

    def _kubelet_serves(self):
        with socket.socket() as client:
            client.settimeout(1)
            try:
                client.connect((self.node.address, 10250))
                return True
            except OSError:
                return False

    def _wait_for_node(self):
        def ready(nodes):
            node = nodes.get(self.node.name, {"spec": {}})
            conditions = {c["type"]: c["status"] for c in node.get("status", {}).get(
                "conditions", [])}
            return conditions.get("Ready") == "True" and not node["spec"].get("taints")

        self.api.wait("Node", None, ready, SUITE_TIMEOUT_S,
                      lambda _: f"the node is not ready: {self.see_log('kubelet')}")
        self.api.wait("ServiceAccount", "default", bool, SUITE_TIMEOUT_S, lambda _: (
            f"no default ServiceAccount: {self.see_log('controller-manager')}"))

    # ------------------------------------------------------------ reaching into it

    def on_node(self, path):
        """A path on the node, as this computer sees it. No part of it may be a symbolic link to an
        absolute path, as /var/run is, because that would lead to this computer's path."""
        return pathlib.Path(f"/proc/{self.process('node').pid}/root{path}")

    def process_of_container(self, container_id):
        """PID 1 of a container, whose ID is as in a pod's status."""
        pid = self.runtime.pid(container_id.rpartition("/")[2])
        if pid is not None:
            return self.process_on_node(pid)
        raise Failure(f"container {container_id} is not running")

    def process_on_node(self, pid):
        """The process that has this PID in that namespace."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                status = (folder / "status").read_text()
            except OSError:
                continue
            numbers = next((line.split()[1:] for line in status.splitlines()
                            if line.startswith("NSpid:")), [])
            # The PID on this computer, in the machine, on the node, and in the container.
            if len(numbers) >= 3 and numbers[2] == str(pid) and self._is_on_node(folder):
                return Process.of(int(numbers[0]))
        raise Failure(f"the node has no process {pid}")

    def _is_on_node(self, folder):
        """Whether the node's PID 1 is an ancestor of the process."""
        pid = int(folder.name)
        while pid > 1:
            if pid == self.process("node").pid:
                return True
            pid = parent_of(pid)
        return False

    def enter_network(self):
        """Moves the calling thread, and the processes that it starts from now on, into the
        cluster's network."""
        if self._in_network:
            return
        clone_newnet = 0x40000000
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{self.process('machine').pid}/ns/net") as namespace:
            if libc.setns(namespace.fileno(), clone_newnet) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        self._in_network = True

    def node_command(self, *words):
        return ["nsenter", "-t", str(self.process("node").pid),
                *(f"--{n}" for n in NODE_NAMESPACES), "--", *words]

    def on_node_run(self, *words, **options):
        return subprocess.run(self.node_command(*words), env=self.environment(), check=True,
                              capture_output=True, text=True, **options).stdout

    def load(self, images):
        """Loads one archive, or all archives of a folder."""
        images = pathlib.Path(images).resolve()
        for archive in sorted(images.glob("*.tar")) if images.is_dir() else [images]:
            try:
                self.runtime.load(archive)
            except subprocess.CalledProcessError as error:
                raise Failure(f"cannot import {archive}: {error.stderr}") from error

    def runc_version(self):
        """(major, minor)"""
        text = subprocess.run(["runc", "--version"], env=self.environment(), check=True,
                              capture_output=True, text=True).stdout
        return tuple(int(part) for part in text.split()[2].split(".")[:2])

    def kubectl(self, *words, **options):
        self.enter_network()
        return subprocess.run(["kubectl", *words], env=self.environment(), text=True, check=True,
                              capture_output=True, **options).stdout

    def set_cdi(self, enabled):
        """Sets whether containerd knows CDI, and restarts it."""
        self.runtime.write_settings(enabled)
        self.restart("containerd")


class SecondNode(Cluster):
    """Another node of a running cluster, with its own GPUs. Only what concerns a node works here; the
    rest is for the cluster."""

    namespaces = ("node",)
    cgroups = (settings.SECOND_NODE.cgroup,)

    def __init__(self, cluster):
        super().__init__(cluster.state / "second", cluster.programs, settings.SECOND_NODE)
        self.api = cluster.api
        self.logs = cluster.logs / self.node.name
        self._processes["machine"] = cluster.process("machine")

    def _up(self, images, driver):
        self._prepare(driver)
        self._start_node()
        self.start("containerd")
        self.load(images)
        self.start("kubelet")
        self._wait_for_node()

    def down(self):
        super().down()
        self.api.delete("Node", self.node.name)


def add_options(parser):
    parser.add_argument("--state", required=True, help="folder for all files of the cluster")
    for name, what in (("programs", "folder with kubelet, containerd, ..."),
                       ("images", "folder with image archives"),
                       ("driver", "folder with the simulated driver")):
        parser.add_argument(f"--{name}", help=f"{what}; needed to start one", type=pathlib.Path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("verb", choices=["up", "ensure", "down", "shell", "exec", "kubectl", "node",
                                         "load", "stop", "start", "restart", "reboot", "status"])
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    verb, words = arguments.verb, arguments.words
    cluster = Cluster(arguments.state, arguments.programs)
    if verb in ("shell", "exec", "kubectl"):
        cluster.enter_network()
        words = {"shell": [os.environ.get("SHELL", "bash")], "exec": words,
                 "kubectl": ["kubectl", *words]}[verb]
        environment = cluster.environment()
        os.execvpe(words[0], words, environment)
    if verb == "node":
        os.execvpe("nsenter", cluster.node_command(*(words or ["bash"])), cluster.environment())
    if verb == "status":
        for name in ["machine", *CONTROL_PLANE, "node", *NODE]:
            print(f"{name:20} {'running' if cluster.running(name) else 'not running'}")
        return
    start = time.monotonic()
    if verb in ("up", "ensure"):
        words = [arguments.images, arguments.driver]
    getattr(cluster, verb)(*words)
    print(f"cluster: {verb}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    if verb == "up":
        print("use it by:   ./run cluster kubectl get pods -A   or   ./run cluster shell\n"
              "its node:    ./run cluster node ps ax\n"
              f"its logs:    {cluster.logs}\n"
              "end it by:   ./run cluster down", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
