"""What a `file:` loads is whole or not there, and comes in the end, whatever happens to its volume, its
loader and its pod."""

import base64
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct

from case import container, is_ready, pod, replica_set, shell, statuses
from chart_case import SMALL, ChartCase, annotated
from processes import Process, wait_until
from settings import image

HERE = pathlib.Path(__file__).resolve().parent
MOUNT = {"name": "models", "mountPath": "/models"}
SIZE = 8 << 20
WAIT_S = 60
NOT_YET = "exit 9: "  # LOADING
# Each different answer once, in /tmp/seen.
READ = """
trap exit TERM
while :; do
  for name in $NAMES; do
    if gpushmctl save $name /tmp/out >/dev/null 2>/tmp/why
    then echo "$name content $(sha256sum </tmp/out | head -c 64)"
    else echo "$name exit $?: $(head -n 1 /tmp/why)"
    fi >>/tmp/all
  done
  sort -u /tmp/all >/tmp/part; cp /tmp/part /tmp/all; mv /tmp/part /tmp/seen
  sleep 0.3
done"""


def loader_of(buffer):
    return f"gpushm-load-{buffer}"


def shard_name(number, of):
    return f"model-{number:05}-of-{of:05}.safetensors"


def shard(number, data_bytes):
    """A safetensors file with one tensor of random bytes."""
    header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [data_bytes],
                                        "data_offsets": [0, data_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(data_bytes)


class LoadingCase(ChartCase):

    def setUp(self):
        super().setUp()
        self.folder = self.cluster.state / f"volume-{self.namespace}"
        shutil.rmtree(self.folder, ignore_errors=True)  # Of a run that was killed.
        self.folder.mkdir()
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, path, content):
        """Into a folder of the node."""
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_bytes(content)

    def with_reader(self, thing, files, more=None):
        """The pod with buffers that are loaded from these paths of its volume `models`, and a container
        `reader` that reads them all the time."""
        thing["spec"]["containers"] = [shell("reader", f"NAMES='{' '.join(files)}'{READ}", volumeMounts=[
            {**MOUNT, "mountPropagation": "HostToContainer"}])]
        return annotated(thing, {"private.gpushm.io/reader": "0", **{
            f"buffers.gpushm.io/{buffer}": f"{{size: 8Mi, access: read-only, file: models/{path}}}"
            for buffer, path in files.items()}, **(more or {})})

    def start(self, thing, files, more=None):
        """Makes this pod; returns when it is ready."""
        made = self.run_pod(self.with_reader(thing, files, more))
        name = thing["metadata"]["name"]
        volumes = {c["name"]: {mount["name"] for mount in c.get("volumeMounts", [])}
                   for c in made["spec"]["initContainers"]}
        self.assertEqual(volumes["gpushm"], {"gpushm"}, "the broker mounts volumes of the pod")
        self.assertEqual(self.mounts(name, "gpushm"), [])
        for buffer in files:
            self.assertIn("models", volumes[loader_of(buffer)])
        return name

    def mounts(self, pod_name, container_name):
        """The container's mounts that are volumes of the pod, as its processes see them. Volumes in memory
        do not show whose they are."""
        process = self.process(pod_name, container_name)
        mounts = pathlib.Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
        return [line for line in mounts if "/volumes/" in line.split()[3]
                or str(self.folder) in line.split()[3] or " - fuse " in line]

    def process(self, pod_name, container_name):
        """PID 1 of the container."""
        return self.cluster.process_of_container(
            statuses(self.get_pod(pod_name))[container_name]["containerID"])

    def child(self, pod_name, buffer):
        """The loader's process that loads; None: none does now."""
        stays = self.process(pod_name, loader_of(buffer)).pid
        numbers = pathlib.Path(f"/proc/{stays}/task/{stays}/children").read_text().split()
        return Process.of(int(numbers[0])) if numbers else None

    def kill(self, pod_name, *containers):
        """Kills them all; returns when their successors run."""
        before = self.container_ids(pod_name)
        for name in containers:
            self.process(pod_name, name).kill()
        self.wait_pod(pod_name, lambda p: all(
            s["restartCount"] > before[name][1] and "running" in s["state"]
            for name, s in statuses(p).items() if name in containers), f"{containers} do not come back")

    def stat(self, pod_name, buffer):
        return json.loads(self.execute(pod_name, "reader", "gpushmctl", "stat", buffer, "-o", "json"))

    def content(self, pod_name, buffer):
        """What another load would change."""
        stat = self.stat(pod_name, buffer)
        return [stat[key] for key in ("state", "generation", "content_bytes", "digest")]

    def wait_reason(self, pod_name, buffer, text):
        wait_until(lambda: f"{buffer} does not say {text!r}: {self.stat(pod_name, buffer)}\n"
                   + self.log(pod_name, loader_of(buffer)), WAIT_S,
                   lambda: text in self.stat(pod_name, buffer).get("reason", ""), 0.2)

    def wait_loaded(self, pod_name, *buffers):
        for buffer in buffers:
            self.execute(pod_name, "reader", "gpushmctl", "wait", buffer, "--timeout", f"{WAIT_S}s",
                         timeout=WAIT_S + 30)

    def check_loaded(self, pod_name, files):
        """Waits until each buffer has the content of its file, and checks that nobody ever saw another
        one: until then it was not loaded yet."""
        self.wait_loaded(pod_name, *files)
        for buffer, path in files.items():
            self.execute(pod_name, "reader", "gpushmctl", "verify", buffer, f"/models/{path}")

        def seen():
            """(buffer, answer)"""
            lines = self.execute(pod_name, "reader", "cat", "/tmp/seen").splitlines()
            return [line.split(" ", 1) for line in lines]

        wait_until("the reader reads nothing", 30, lambda: {b for b, answer in seen() if answer.startswith(
            "content ")} == set(files), 0.2)
        contents = [(buffer, answer) for buffer, answer in seen() if answer.startswith("content ")]
        self.assertEqual(len(contents), len(files), contents)
        for buffer, answer in contents:
            path = self.folder / files[buffer].removeprefix("served/")
            if path.is_file():
                self.assertEqual(answer, "content " + hashlib.sha256(path.read_bytes()).hexdigest())
        for buffer, answer in seen():
            if not answer.startswith("content "):
                self.assertTrue(answer.startswith(NOT_YET), f"{buffer}: {answer}")


class ServedVolumeTest(LoadingCase):
    """The volume is a FUSE file system, which a native sidecar mounts and serves (mirror.py)."""

    def setUp(self):
        super().setUp()
        self.allow_everything()

    def served(self, name, late_s=0):
        serve = shell("serve", f"sleep {late_s}; exec python3 /cluster/mirror.py /bucket /models/served",
                      image=image("python"), restartPolicy="Always",
                      securityContext={"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
                      volumeMounts=[{**MOUNT, "mountPropagation": "Bidirectional"},
                                    {"name": "bucket", "mountPath": "/bucket"},
                                    {"name": "cluster", "mountPath": "/cluster", "readOnly": True}])
        return pod(name, initContainers=[serve], volumes=[
            {"name": "models", "emptyDir": {}}, {"name": "bucket", "hostPath": {"path": str(self.folder)}},
            {"name": "cluster", "hostPath": {"path": str(HERE)}}])

    def hold(self, file, after):
        self.write(f".hold-{file}", str(after).encode())

    def go_on(self, *files):
        for file in files:
            (self.folder / f".hold-{file}").unlink()

    def wait_held(self, pod_name, files, former=()):
        """Waits until other processes than the former ones load these buffers, and the volume holds them
        up at these files; returns these processes."""
        wanted = {path.rpartition("/")[2] for path in files.values()}

        def names():
            told = self.folder / ".held"
            return set(told.read_text().split() if told.exists() else ())

        def held():
            now = [self.child(pod_name, buffer) for buffer in files]
            return wanted <= names() and all(now) and not set(now) & set(former) and now

        return wait_until(lambda: f"of {wanted}, {names()} are held up: " + "\n".join(
            self.log(pod_name, loader_of(buffer)) for buffer in files), WAIT_S, held)

    def test_a_loader_that_is_killed_at_any_step_is_followed_by_another(self):
        """Method: the volume holds loaders up before they open their file, in its middle, and when all
        bytes have been read and nothing is checked. There their processes are killed: that which loads,
        twice; then the container, and containerd with it. At last those that stay after READY."""
        steps = {"start": 0, "middle": SIZE // 2, "end": SIZE}
        files = {name: f"served/{name}" for name in steps}
        for name, after in steps.items():
            self.write(name, os.urandom(SIZE))
            self.hold(name, after)
        name = self.start(self.served("killed"), files)
        held = self.wait_held(name, files)
        for _ in range(2):
            for process in held:
                process.kill()
            held = self.wait_held(name, files, held)
        self.cluster.kill("containerd")
        self.cluster.start("containerd")
        self.kill(name, *map(loader_of, files))
        self.wait_held(name, files, held)
        self.assertEqual({self.stat(name, buffer)["state"] for buffer in files}, {"loading"})
        self.go_on(*files)
        self.check_loaded(name, files)
        before = [self.content(name, buffer) for buffer in files]
        self.kill(name, *map(loader_of, files))
        for buffer in files:
            self.wait_log(name, loader_of(buffer), f"has its content, {SIZE} bytes")
        self.assertEqual([self.content(name, buffer) for buffer in files], before)

    def test_a_volume_that_hangs_holds_up_only_what_is_loaded_from_it(self):
        """Method: the server is stopped in the middle of a load, so that not even SIGKILL ends the
        process that reads. It says what it waits for; another buffer and another pod wait for nothing."""
        self.write("hung", os.urandom(SIZE))
        self.hold("hung", SIZE // 2)
        files = {"hung": "served/hung"}
        thing = self.served("hangs")
        thing["spec"]["volumes"].append({"name": "other", "emptyDir": {}})
        thing["spec"]["initContainers"].append(shell("fill", "printf fine > /other/fine", volumeMounts=[
            {"name": "other", "mountPath": "/other"}]))
        name = self.start(thing, files, {"buffers.gpushm.io/fine": "{size: 4Mi, file: other/fine}"})
        held, = self.wait_held(name, files)
        server = self.process(name, "serve")
        server.kill(signal.SIGSTOP)
        self.wait_reason(name, "hung", "no byte has moved for 10 s")
        held.kill()
        self.wait_loaded(name, "fine")
        self.run_pod(annotated(pod("other", container("a"), container("b")), SMALL))
        self.share("other")
        self.assertTrue(held.alive(), "SIGKILL ends it, so the volume does not hang")
        server.kill(signal.SIGCONT)
        self.wait_held(name, files, [held])
        self.go_on("hung")
        self.check_loaded(name, files)

    def test_a_pod_ends_while_its_volume_hangs(self):
        self.write("hung", os.urandom(SIZE))
        self.hold("hung", SIZE // 2)
        name = self.start(self.served("ends"), {"hung": "served/hung"})
        self.wait_held(name, {"hung": "hung"})
        uid = self.get_pod(name)["metadata"]["uid"]
        server, loader = self.process(name, "serve"), self.process(name, loader_of("hung"))
        server.kill(signal.SIGSTOP)
        self.api.delete("Pod", name, self.namespace)
        wait_until("loader and server do not end", 30, lambda: not loader.alive() and not server.alive())
        # A server that could not unmount leaves that to the node's administrator.
        self.cluster.on_node_run(
            "umount", "--lazy", f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/models/served")
        self.delete_pods(name)

    def test_a_server_that_is_late_and_dies_in_the_middle_is_waited_for(self):
        """Method: a model of two files. It is mounted after the loader has started; the server dies in the
        second file, and its successor mounts it again. Then the folder is renamed over, in the second file
        of the next attempt."""
        names = [shard_name(number, 2) for number in (1, 2)]
        for folder in ("llama", "next"):
            for number, file in enumerate(names):
                self.write(f"{folder}/{file}", shard(number, SIZE // 4))
        self.hold(names[1], SIZE // 8)
        files = {"model": "served/llama/"}
        name = self.start(self.served("late", late_s=3), files)
        self.assertIn("no such file", self.log(name, loader_of("model")))
        held = self.wait_held(name, {"model": names[1]})
        self.assertEqual(self.mounts(name, "gpushm"), [])
        self.assertEqual(len(self.mounts(name, loader_of("model"))), 2, "the folder, and the FUSE in it")
        self.kill(name, "serve")
        self.wait_held(name, {"model": names[1]}, held)
        (self.folder / "llama").rename(self.folder / "former")
        (self.folder / "next").rename(self.folder / "llama")
        self.go_on(names[1])
        self.wait_log(name, loader_of("model"), "changed while it was loaded")
        self.check_loaded(name, files)


class ReplacedVolumeTest(LoadingCase):
    """Goal: of two versions, one is loaded. Method: the first one lacks a file, so it is waited for; the
    other file of the second version is another one, too."""

    FIRST = {shard_name(1, 2): shard(1, 1000)}
    SECOND = {shard_name(number, 2): shard(number, 2000) for number in (1, 2)}

    def test_a_config_map_that_the_kubelet_swaps(self):
        def data(files):
            return {"binaryData": {name: base64.b64encode(content).decode()
                                   for name, content in files.items()}}

        self.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "model"},
                     **data(self.FIRST)})
        files = {"model": ""}
        name = self.start(pod("swapped", volumes=[{"name": "models", "projected": {
            "sources": [{"configMap": {"name": "model"}}]}}]), files)
        self.wait_reason(name, "model", "missing: 2")
        self.api.patch("ConfigMap", "model", data(self.SECOND), self.namespace)
        # The kubelet looks at once, instead of after up to syncFrequency.
        self.api.patch("Pod", name, {"metadata": {"annotations": {"example.com/look": "now"}}},
                       self.namespace)
        self.check_loaded(name, files)

    def test_a_folder_of_the_node_that_is_renamed_over(self):
        self.allow_everything()
        for folder, files in (("now", self.FIRST), ("next", self.SECOND)):
            for file, content in files.items():
                self.write(f"{folder}/{file}", content)
        files = {"model": "now/"}
        name = self.start(pod("renamed", volumes=[
            {"name": "models", "hostPath": {"path": str(self.folder)}}]), files)
        self.wait_reason(name, "model", "missing: 2")
        (self.folder / "now").rename(self.folder / "former")
        (self.folder / "next").rename(self.folder / "now")
        self.check_loaded(name, files)


class RestartedPodTest(LoadingCase):

    def test_a_pod_that_its_controller_makes_again_loads_again(self):
        """Method: the pod is deleted; then the node loses its power."""
        self.allow_everything()
        self.write("w.bin", os.urandom(SIZE))
        files = {"weights": "w.bin"}
        self.create(replica_set("again", 1, self.with_reader(pod("x", volumes=[
            {"name": "models", "hostPath": {"path": str(self.folder)}}]), files)))
        former = set()

        def loaded():
            pods = self.wait_pods(lambda pods: [n for n in pods if n not in former and is_ready(pods[n])],
                                  "no other pod is ready")
            self.check_loaded(pods[0], files)
            former.update(pods)
            return pods[0]

        self.delete_pods(loaded())
        loaded()
        self.cluster.reboot()
        loaded()
