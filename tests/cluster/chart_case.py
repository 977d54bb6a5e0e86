"""Cases with the chart installed, and the annotated pods and workloads that they make."""

from api import Refused
from case import RESTRICTED, ClusterCase, container, is_ready, pod
from chart import Chart
from plugin import NAMESPACE, UNITS_OF_GPU
from processes import wait_until
from settings import image

WEIGHTS = {"buffers.gpushm.io/weights": "4Mi"}
# Of one unit: no memory is reserved for the container itself.
SMALL = {**WEIGHTS, "private.gpushm.io/a": "0"}
INJECTORS = 2
SECRET = "hunter2-hunter2"
# What some cases need and the others of these do not mind: one installation for all of them.
MORE_VALUES = {"injector.maxPodMemory": f"{UNITS_OF_GPU}Gi", "sidecar.pullSecrets": "{ours}",
               "injector.extraEnv[0].name": "API_TOKEN", "injector.extraEnv[0].value": SECRET,
               "plugin.podAnnotations.note": SECRET}


def installed_with(values):
    """For a case that needs these values of the chart as well."""
    def mark(case):
        case.values = values
        return case
    return mark


def annotated(thing, annotations):
    thing["metadata"]["annotations"] = dict(annotations)
    return thing


def holder(name, *words):
    """A container with an application that holds a buffer: docker/demo.c."""
    return {**container(name), "image": image("demo"), "imagePullPolicy": "IfNotPresent",
            "command": ["gpushm-demo-app", *words]}


def workload(kind, name, template, **spec):
    """A Deployment, Job ... with pods like `template`."""
    template = {"metadata": {"labels": {"app": name},
                             "annotations": template["metadata"].get("annotations", {})},
                "spec": template["spec"]}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name},
            "spec": {**selector, "template": template, **spec}}


class ChartCase(ClusterCase):
    """With the chart of this tree installed, once for all cases that need the same values."""

    CHART = Chart
    VALUES = {}  # For all cases of the class; None: they install it themselves.
    chart = None

    @classmethod
    def provide(cls, values):
        """Installs the chart with these values unless it is; None: whichever."""
        # As by default; the profile for simulated GPUs has only one replica.
        cls.chart = cls.served_by(cls.CHART, lambda: cls.CHART(
            cls.cluster, **{"injector.replicas": INJECTORS}))
        if values is not None and cls.chart.installed != values:
            cls.chart.install(**values)

    def _values(self):
        more = getattr(getattr(self, self._testMethodName), "values", {})
        return self.VALUES if self.VALUES is None else {**self.VALUES, **more}

    def needs(self):
        values = self._values()
        return self.CHART, super().needs() if values is None else tuple(sorted(values.items()))

    def setUp(self):
        self.provide(self._values())
        super().setUp()

    def deny(self, thing):
        """The API server's error message."""
        try:
            self.api.create(thing, self.namespace)
        except Refused as refused:
            return str(refused)
        self.fail(f"admitted: {thing}")
        return None

    def wait_log(self, pod_name, container_name, text):
        wait_until(lambda: f"{pod_name}/{container_name} does not print {text!r}: "
                   + self.log(pod_name, container_name), 30,
                   lambda: text in self.log(pod_name, container_name), 0.2)

    def wait_job(self, name):
        self.api.wait("Job", self.namespace, lambda jobs: jobs[name].get("status", {}).get(
            "succeeded") == 1, 60, lambda jobs: f"{jobs[name]['status']}\n{self.events_text()}")

    def share(self, name, text="hello", writer="a", reader="b"):
        """A container of the pod writes the buffer `weights`, another one reads it."""
        self.execute(name, writer, "sh", "-ec",
                     f"printf {text} > /tmp/in; gpushmctl load /tmp/in weights")
        self.assertEqual(self.read(name, reader, len(text)), text)

    def read(self, name, reader, size=5):
        """The start of the buffer's content."""
        return self.execute(name, reader, "sh", "-ec", "gpushmctl save weights /tmp/out >/dev/null; "
                            f"head -c {size} /tmp/out")

    def restart(self, name, container_name):
        """Kills a container of the pod; returns when its successor runs and the pod is ready."""
        before = self.container_ids(name)[container_name]
        self.cluster.process_of_container(before[0]).kill()
        self.wait_pod(name, lambda p: is_ready(p) and self.container_ids(name)[container_name][1]
                      > before[1], f"{container_name} is not restarted")

    def allow_everything(self):
        """Objects in the case's namespace of kinds that Pod Security restricts."""
        self.api.patch("Namespace", self.namespace, {"metadata": {"labels": {
            key: "privileged" for key in RESTRICTED}}})
        # The API server's admission sees the change a moment later.
        privileged = pod("tried", container("a"), hostNetwork=True)
        path = f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All"

        def admits():
            try:
                return self.api.call("POST", path, privileged)
            except Refused:
                return False

        wait_until(f"Pod Security still restricts {self.namespace}", 30, admits, 0.05)

    def scale_injector(self, replicas):
        self.api.patch("Deployment", "gpushm-injector", {"spec": {"replicas": replicas}}, NAMESPACE)
        self.api.wait("Deployment", NAMESPACE, lambda all_of: all_of["gpushm-injector"].get(
            "status", {}).get("readyReplicas", 0) == replicas, 60,
            lambda all_of: f"the injector has no {replicas} replicas: "
                           f"{all_of['gpushm-injector']['status']}")
        if replicas == 0:
            self.api.wait("Pod", NAMESPACE, lambda pods: not any(
                "injector" in name for name in pods), 60, lambda pods: f"still there: {list(pods)}")

    def injectors(self):
        """Names of its pods, without those that are ending."""
        return {p["metadata"]["name"] for p in self.api.list("Pod", NAMESPACE)
                if "injector" in p["metadata"]["name"]
                and "deletionTimestamp" not in p["metadata"]}

    def all_injectors(self):
        """The same, once no rollout is in progress: as many as the suite requests."""
        self.cluster.kubectl("rollout", "status", "deployment/gpushm-injector", "-n", NAMESPACE,
                             "--timeout", "90s", timeout=100)
        names = self.injectors()
        self.assertEqual(len(names), INJECTORS, names)
        return names

    def wait_former_injectors_end(self):
        """Waits until the former replicas have ended after a rollout, because they answer until
        then."""
        names = self.all_injectors()
        self.api.wait("Pod", NAMESPACE, lambda pods: {n for n in pods if "injector" in n} == names,
                      60, lambda pods: f"still there: {list(pods)}")

    def wait_bound(self, pods):
        """Waits until the plugin has memory bound for exactly this number of pods."""
        folder = self.cluster.on_node("/run/cdi")
        wait_until(lambda: f"not {pods} bound: {sorted(p.name for p in folder.iterdir())}", 60,
                   lambda: len(list(folder.glob("gpushm.io-memory-*"))) == pods, 0.2)

