"""The device plugin in the cluster: deploy/plugin.yaml unchanged, except for the place of its
driver."""

import json
import pathlib
import re

from case import is_ready
from processes import Failure, wait_until
import settings
from settings import NAMESPACE

NAME = "gpushm-plugin"
MEMORY, ATTACH, EXCLUSIVE = "gpushm.io/memory", "gpushm.io/attach", "gpushm.io/exclusive"
TOKENS = 64 * settings.GPUS
UNITS_OF_GPU = settings.GPU_GIB - 1  # A unit is 1 GiB, and the same amount is kept back.
UNITS = UNITS_OF_GPU * settings.GPUS
TIMEOUT_S = 60
MANIFEST = pathlib.Path(__file__).parents[2] / "deploy/plugin.yaml"


def with_lines(config, more):
    """`config` with the keys of `more` replaced or added; each key is one line."""
    keys = {line.partition(":")[0] for line in more.splitlines()}
    return "".join(line for line in config.splitlines(keepends=True)
                   if line.partition(":")[0] not in keys) + more


class Plugin:

    def __init__(self, cluster):
        self._cluster = cluster
        self._api = cluster.api
        self._config = ""  # From the manifest, and the simulated driver's place.

    def deploy(self, config="", image=None):
        """`config`: more lines for its file. Returns when the node has its resources."""
        text = self._cluster.kubectl("create", "--dry-run=client", "-o", "json", "-f",
                                     str(MANIFEST))
        self._apply(text, config, image)
        self.wait_serving()

    def _apply(self, text, config, image=None):
        """Makes what kubectl printed, on the simulated driver, with more lines for the plugin's file.
        Returns it."""
        things = [thing for document in documents(text) for thing in document]
        for thing in things:
            if thing["kind"] == "ConfigMap":
                self._config = with_lines(thing["data"]["plugin.yaml"],
                                          f"driver-root: {self._cluster.driver}\n")
                thing["data"]["plugin.yaml"] = with_lines(self._config, config)
            if thing["kind"] == "DaemonSet":
                self._simulate(thing["spec"]["template"]["spec"])
                if image:
                    thing["spec"]["template"]["spec"]["containers"][0]["image"] = image
        self._cluster.kubectl("label", "--overwrite", "node", settings.NODE_NAME,
                              "gpushm.io/gpu=true")
        made = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
        self._cluster.kubectl("apply", "-f", "-", input=made)
        return made

    def end(self):
        self._api.remove_namespace(NAMESPACE)

    def _simulate(self, spec):
        """The simulated driver's cards are files; real ones would be device nodes."""
        cards = str(self._cluster.cards)
        spec["volumes"].append({"name": "cards", "hostPath": {"path": cards}})
        plugin = spec["containers"][0]
        plugin["volumeMounts"].append({"name": "cards", "mountPath": cards})
        plugin["env"].append({"name": "GPUSHM_SIM_DIR", "value": cards})

    def configure(self, config, units=UNITS, tokens=TOKENS):
        """Sets other lines for its file. The kubelet would bring them to the plugin within a minute
        or two, so this restarts the plugin."""
        self._api.patch("ConfigMap", NAME, {"data": {
            "plugin.yaml": with_lines(self._config, config)}}, NAMESPACE)
        self.replace(units, tokens)

    def pod(self):
        pods = [p for p in self._api.list("Pod", NAMESPACE)
                if "injector" not in p["metadata"]["name"]]
        running = [p for p in pods if p["status"].get("phase") == "Running"
                   and "deletionTimestamp" not in p["metadata"]]
        if len(running) != 1:
            raise Failure(f"{len(running)} of {len(pods)} plugins are running")
        return running[0]

    def log(self):
        return self._api.log(NAMESPACE, self.pod()["metadata"]["name"], "plugin")

    def process(self):
        """Its process, as a PID of this computer."""
        status = self.pod()["status"]["containerStatuses"][0]
        return self._cluster.process_of_container(status["containerID"])

    def kill(self):
        """Kills it as a crash would; returns when the kubelet has started another one and it is
        registered."""
        mark = self.mark()
        self.process().end(0)
        self.wait_registered(mark)

    def replace(self, units=UNITS, tokens=TOKENS):
        """Another pod of the DaemonSet, as after an upgrade. The node then has this number of
        units."""
        mark = self.mark()
        name = self.pod()["metadata"]["name"]
        self._api.delete("Pod", name, NAMESPACE)
        self._api.wait("Pod", NAMESPACE, lambda pods: name not in pods, TIMEOUT_S,
                       lambda _: f"{name} does not end")
        self.wait_registered(mark)
        self.wait_serving(units, tokens)

    def update(self):
        """Another pod of the DaemonSet in parallel with the first, which ends when the new one is
        ready, as in an upgrade. Returns the new pod's log."""
        former = self.pod()["metadata"]["name"]
        self._api.patch("DaemonSet", NAME, {"spec": {"template": {"metadata": {"annotations": {
            "updated-from": former}}}}}, NAMESPACE)

        def updated(pods):
            return len(pods) == 1 and former not in pods and is_ready(*pods.values())

        self._api.wait("Pod", NAMESPACE, updated, TIMEOUT_S, lambda pods: (
            f"{former} is not replaced: {self._state(pods.values())}"))
        self.wait_serving()
        return self.log()

    def mark(self):
        """For wait_registered: the kubelet, and how often the plugin registered with it."""
        return self._cluster.process("kubelet"), self._registrations()

    def wait_registered(self, mark):
        """Waits until the kubelet has all resources again since `mark`. Allocatable is not enough:
        it lags by a second, and may never show a short absence."""
        kubelet, counts = mark

        def again():
            now = self._registrations()
            before = counts if self._cluster.process("kubelet") == kubelet else {}
            return all(now.get(name, 0) > before.get(name, 0)
                       for name in (MEMORY, ATTACH, EXCLUSIVE))

        wait_until(lambda: f"not registered again: {self._registrations()}, before {counts}: "
                   + self._state(self._api.list("Pod", NAMESPACE)), TIMEOUT_S, again, 0.1)

    def _registrations(self):
        """Registrations since the kubelet's start: {resource: number}."""
        path = f"/api/v1/nodes/{settings.NODE_NAME}/proxy/metrics"
        metrics = self._api.raw("GET", path)[1]
        return {name: int(float(number)) for name, number in re.findall(
            r'^kubelet_device_plugin_registration_total\{resource_name="([^"]+)"\} (\S+)$', metrics,
            re.MULTILINE)}

    def wait_serving(self, units=UNITS, tokens=TOKENS, exclusive=None):
        """Waits until it runs and the node has this number of units, of tokens, and if it is given, of
        GPUs that a pod could have alone."""
        wanted = {MEMORY: str(units), ATTACH: str(tokens)}
        if exclusive is not None:
            wanted[EXCLUSIVE] = str(exclusive)

        def serves(nodes):
            return wanted.items() <= nodes[settings.NODE_NAME]["status"]["allocatable"].items()

        self._api.wait("Node", None, serves, TIMEOUT_S, self._why_not)
        self._wait_ready()

    def _wait_ready(self):
        self._api.wait("Pod", NAMESPACE, lambda pods: any(map(is_ready, pods.values())), TIMEOUT_S,
                       lambda pods: f"the plugin is not ready: {self._state(pods.values())}")

    def _why_not(self, nodes):
        have = {name: count for name, count in
                nodes[settings.NODE_NAME]["status"]["allocatable"].items() if "gpushm" in name}
        return f"the node has {have}: {self._state(self._api.list('Pod', NAMESPACE))}"

    def _state(self, pods):
        lines = []
        for pod in pods:
            name = pod["metadata"]["name"]
            lines += [f"{name}: {pod['status']}", self._api.log(NAMESPACE, name, "plugin")[-3000:]]
        lines += [f"{e['reason']}: {e['message']}" for e in self._api.list("Event", NAMESPACE)]
        return "\n".join(lines)

    # ------------------------------------------------------------ what it leaves on the node

    def wait_hanging(self):
        """Until a thread of the plugin waits in the kernel for a disk (state D)."""
        def hangs():
            tasks = pathlib.Path(f"/proc/{self.process().pid}/task").iterdir()
            return any((task / "stat").read_text().rpartition(")")[2].split()[0] == "D"
                       for task in tasks)
        wait_until("no thread of the plugin waits for the disk", 30, hangs)

    def specs(self):
        """Specs of bindings; what all containers share stays."""
        folder = self._cluster.on_node("/run/cdi")
        return sorted(path.name for path in folder.glob("*")
                      if path.name != "gpushm.io-driver-files.json") if folder.exists() else []

    def links(self):
        folder = self._cluster.on_node("/var/lib/gpushm/links")
        return sorted(path.name for path in folder.glob("*")) if folder.exists() else []

    def wait_released(self):
        """Waits until nothing of any pod is left. A room is free within twelve seconds of its
        broker's end, but half a minute later after a restart of kubelet or plugin
        (docs/design/plugin.md)."""
        wait_until(lambda: f"not released: specs {self.specs()}, links {self.links()}", 90,
                   lambda: not self.specs() and not self.links(), 0.2)

    def descriptors(self):
        return len(list(pathlib.Path(f"/proc/{self.process().pid}/fd").iterdir()))


def documents(text):
    """kubectl prints one JSON object after another, or one List."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        yield value["items"] if value["kind"] == "List" else [value]
