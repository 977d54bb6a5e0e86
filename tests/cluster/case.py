"""Shared by the suite's cases: one namespace each, pods for restricted namespaces, and waits."""

import copy
import json
import re
import subprocess
import unittest

from processes import Failure, wait_until
from settings import NAMESPACE, image

POD_TIMEOUT_S = 60  # A pod takes two seconds on an idle machine, but longer on two busy cores.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def container(name, *command, **more):
    """A container of a pod; without a command it waits for its end."""
    words = list(command) or ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
    return {"name": name, "image": image("app"), "imagePullPolicy": "Never", "command": words,
            "securityContext": {"allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]}}, **more}


def shell(name, script, **more):
    return container(name, "sh", "-ec", script, **more)


def pod(name, *containers, **spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 2, "dnsPolicy": "Default",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": list(containers), **spec}}


def replica_set(name, replicas, template):
    template = copy.deepcopy(template)
    del template["apiVersion"], template["kind"]
    template["metadata"] = {**template["metadata"], "labels": {"app": name}}
    del template["metadata"]["name"]
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}}


def statuses(pod_object):
    """name: status of each container of the pod, init containers included."""
    status = pod_object.get("status", {})
    return {s["name"]: s for key in ("initContainerStatuses", "containerStatuses")
            for s in status.get(key, [])}


def is_ready(pod_object):
    return any(c["type"] == "Ready" and c["status"] == "True"
               for c in pod_object.get("status", {}).get("conditions", []))


def describe(pod_object):
    """A line for messages."""
    status = pod_object.get("status", {})
    parts = [pod_object["metadata"]["name"], status.get("phase", "no phase"),
             status.get("reason", ""), status.get("message", "")]
    parts += [f"{name}: {json.dumps(s.get('state'))}" for name, s in statuses(pod_object).items()]
    return " ".join(part for part in parts if part)


def describe_all(objects):
    return "; ".join(describe(thing) for thing in objects.values()) or "no pods"


class ClusterCase(unittest.TestCase):
    """Its test functions have `cluster`, `api` and their own namespace with Pod Security
    "restricted". No class may leave anything but what serves the node's GPUs."""

    cluster = None  # These are set by suite.py.
    former = None
    maxDiff = None
    _serves = (None, None)

    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(cls._check_left, cls._state())  # It runs last.

    @classmethod
    def _state(cls):
        """What there is apart from gpushm's own namespace."""
        api = cls.cluster.api
        return {
            "namespaces": {n["metadata"]["name"] for n in api.list("Namespace")
                           if "deletionTimestamp" not in n["metadata"]} - {NAMESPACE},
            "pods": {f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in api.list("Pod")
                     if p["metadata"]["namespace"] != NAMESPACE},
            "nodes": {n["metadata"]["name"]: (n["spec"], {
                key: value for key, value in n["metadata"]["labels"].items()
                if key != "gpushm.io/gpu"}) for n in api.list("Node")}}

    @classmethod
    def _check_left(cls, before):
        wait_until(lambda: f"{cls.__name__} leaves {cls._state()}, not {before}", 60,
                   lambda: cls._state() == before, 0.5)

    @classmethod
    def served_by(cls, what, make):
        """What serves the node's GPUs as `what` says: `make` makes it, unless it does so already. A
        node has one, so another one is ended."""
        if ClusterCase._serves[0] != what:
            former, ClusterCase._serves = ClusterCase._serves[1], (None, None)
            if former:
                former.end()
            ClusterCase._serves = what, make()
        return ClusterCase._serves[1]

    def needs(self):
        """Cases that need the same follow each other (suite.py)."""
        return type(self).__module__

    def setUp(self):
        self.api = self.cluster.api
        name = self._testMethodName.removeprefix("test_").replace("_", "-")[:50].rstrip("-")
        self.namespace = self.make_namespace(name, RESTRICTED)

    def make_namespace(self, name, labels):
        """A namespace that is removed after the test, with everything in it."""
        self.api.remove_namespace(name)
        self.api.create({"apiVersion": "v1", "kind": "Namespace",
                         "metadata": {"name": name, "labels": labels}})
        self.addCleanup(self._remove_namespace, name)
        self.api.wait("ServiceAccount", name, bool, POD_TIMEOUT_S,
                      lambda _: f"no ServiceAccount in {name}")
        return name

    def _remove_namespace(self, name):
        """Waits for the pods to end, so that the next test does not lack what they held."""
        def empty():
            """Owners first, and repeatedly, because an owner that is ending may still make pods."""
            for kind in ("Deployment", "StatefulSet", "Job", "ReplicaSet", "Pod"):
                for thing in self.api.list(kind, name):
                    self.api.delete(kind, thing["metadata"]["name"], name,
                                    0 if kind == "Pod" else None)
            return not self.api.list("Pod", name) and not self.api.list("ReplicaSet", name)

        wait_until(f"pods of {name} do not end", POD_TIMEOUT_S, empty, 0.2)
        self.api.delete("Namespace", name)

    # ------------------------------------------------------------ pods

    def create(self, *things):
        for thing in things:
            self.api.create(thing, self.namespace)

    def wait_pods(self, condition, what, seconds=POD_TIMEOUT_S):
        """Waits for `condition` of {name: pod} of the namespace; returns its value."""
        return self.api.wait("Pod", self.namespace, condition, seconds,
                             lambda pods: f"{what}: {describe_all(pods)}\n{self.events_text()}")

    def wait_pod(self, name, condition, what, seconds=POD_TIMEOUT_S):
        """Returns the pod for which `condition` is true."""
        return self.wait_pods(lambda pods: pods[name] if name in pods and condition(pods[name])
                              else None, f"{name} {what}", seconds)

    def wait_ready(self, *names, seconds=POD_TIMEOUT_S):
        return self.wait_pods(
            lambda pods: all(n in pods and is_ready(pods[n]) for n in names) and pods,
            f"{', '.join(names)} not ready", seconds)

    def wait_phase(self, name, phase, seconds=POD_TIMEOUT_S):
        return self.wait_pod(name, lambda p: p["status"].get("phase") == phase, f"not {phase}",
                             seconds)

    def wait_unschedulable(self, name):
        self.wait_pod(name, lambda p: any(
            c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable"
            for c in p["status"].get("conditions", [])), "is scheduled")

    def run_pod(self, thing):
        """Makes the pod and waits until it is ready."""
        self.create(thing)
        name = thing["metadata"]["name"]
        return self.wait_ready(name)[name]

    def delete_pods(self, *names, namespace=None, grace_seconds=None):
        """Returns when the pods are gone."""
        namespace = namespace or self.namespace
        for name in names:
            self.api.delete("Pod", name, namespace, grace_seconds)
        self.api.wait("Pod", namespace, lambda pods: not set(names) & set(pods), POD_TIMEOUT_S,
                      lambda pods: f"pods do not end: {describe_all(pods)}")

    def get_pod(self, name):
        return self.api.get("Pod", name, self.namespace)

    def container_ids(self, name):
        return {n: (s["containerID"], s["restartCount"])
                for n, s in statuses(self.get_pod(name)).items()}

    def fault(self, text):
        """Of the simulated driver; by renaming, because processes read it meanwhile."""
        part = self.cluster.cards / "faults.part"
        part.write_text(text)
        part.rename(self.cluster.cards / "faults.yaml")

    # ------------------------------------------------------------ looking into them

    def execute(self, pod_name, container_name, *words, namespace=None, timeout=60):
        """Output of a program in a container. The program must succeed."""
        try:
            return self.cluster.kubectl("exec", "-n", namespace or self.namespace, pod_name, "-c",
                                        container_name, "--", *words, timeout=timeout)
        except subprocess.CalledProcessError as error:
            raise Failure(f"in {pod_name}/{container_name}: {' '.join(words)}: exit status "
                          f"{error.returncode}: {error.stdout}{error.stderr}") from error

    def log(self, pod_name, container_name):
        return self.api.log(self.namespace, pod_name, container_name)

    def events_text(self, namespace=None):
        return "\n".join(
            f"  {e['involvedObject']['name']}: {e['reason']}: {e['message']}"
            for e in self.api.list("Event", namespace or self.namespace))

    def wait_event(self, name, pattern, seconds=POD_TIMEOUT_S):
        """The message of an event of object `name` that matches."""
        def matching(events):
            return next((e["message"] for e in events.values()
                         if e["involvedObject"]["name"] == name
                         and re.search(pattern, e["message"])), None)

        return self.api.wait(
            "Event", self.namespace, matching, seconds,
            lambda _: f"no event of {name} matches {pattern!r}:\n{self.events_text()}")
