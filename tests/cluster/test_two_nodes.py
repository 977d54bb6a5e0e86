"""A cluster of two nodes that moves from the device plugin to claims node by node, with the steps of
docs/guides/allocation.md, and has both front ends meanwhile."""

import re

from case import container, describe_all, is_ready, pod, replica_set
from chart import CLAIMS_RELEASE, ROOT, Chart
from chart_case import SMALL, ChartCase, annotated
from cluster import SecondNode
from plugin import ATTACH, MEMORY, NAMESPACE, UNITS
from processes import Failure, wait_until
import settings

FIRST, SECOND = (node.name for node in settings.NODES)
LABEL = "gpushm.io/allocation"
GPU_COUNT = "example.com/gpus"  # A label.
GUIDE = ROOT / "docs/guides/allocation.md"


class ReleaseForClaims(Chart):
    """What serves the nodes that have moved."""

    def __init__(self, cluster):
        # Services have no addresses here, because there is no kube-proxy.
        super().__init__(cluster, CLAIMS_RELEASE,
                         **{"plugin.config.dra.api-server": settings.API_SERVER})

    def install_as_the_guide_says(self):
        """With the guide's own options; its release has no node at first."""
        command = re.search(rf"helm install {CLAIMS_RELEASE} .*?\n```", GUIDE.read_text(),
                            re.DOTALL)[0]
        words = re.findall(r"--set(?:-string)? (\S+)", command)
        self.install(**{key.replace("\\\\.", "\\."): value
                        for key, _, value in (word.rpartition("=") for word in words)})

    def wait_allocatable(self, units=UNITS):
        pass


class TwoNodesTest(ChartCase):

    # By the label only pods of several GPUs get anything.
    VALUES = {"injector.claims": "true", "injector.apiServer": settings.API_SERVER,
              "injector.gpuCountLabel": GPU_COUNT}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.second = SecondNode(cls.cluster)
        cls.addClassCleanup(cls.second.down)
        cls.second.up(cls.images, cls.driver)
        cls.provide(cls.VALUES)
        cls.claims = ReleaseForClaims(cls.cluster)
        cls.claims.install_as_the_guide_says()
        cls.addClassCleanup(cls.claims.uninstall)
        cls.wait_front_end(SECOND, "device-plugin")

    @classmethod
    def wait_front_end(cls, node, kind):
        """Waits until the node has this front end and nothing of the other one."""
        def has(nodes):
            have = nodes[node]["status"]["allocatable"]
            units = str(UNITS) if kind == "device-plugin" else "0"
            return have.get(MEMORY, "0") == units and (have.get(ATTACH, "0") != "0") == (
                units != "0")

        cls.cluster.api.wait("Node", None, has, 60, lambda nodes: (
            f"{node} is not {kind}: {nodes[node]['status']['allocatable']}"))
        cls.cluster.api.wait(
            "ResourceSlice", None, lambda slices: (kind == "dra") == any(
                s["spec"]["nodeName"] == node for s in slices.values()), 60,
            lambda slices: f"{node} is not {kind}: slices {list(slices)}")

    def move(self, node, kind):
        """The guide's steps for a node."""
        self.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data",
                             "--force", "--timeout", "60s", timeout=90)
        label = f"{LABEL}=dra" if kind == "dra" else f"{LABEL}-"
        self.cluster.kubectl("label", "node", node, label)
        self.wait_front_end(node, kind)
        self.cluster.kubectl("uncordon", node)

    def back(self):
        """For the next case."""
        # Not with a grace period of 0: such pods are gone from the API before the kubelet has ended their
        # claims, which it cannot once the node's plugin is replaced.
        self.delete_pods(*(p["metadata"]["name"] for p in self.api.list("Pod", self.namespace)))
        for node in (FIRST, SECOND):
            self.cluster.kubectl("label", "node", node, f"{LABEL}-")
            self.cluster.kubectl("uncordon", node)
            self.wait_front_end(node, "device-plugin")

    def reached(self, name):
        try:
            return self.execute(name, "b", "true") == ""
        except Failure:
            return False

    def node_of(self, name):
        return self.get_pod(name)["spec"]["nodeName"]

    def plugin_on(self, node):
        """The pod of the node's plugin, once there is only one and it is ready."""
        def one(pods):
            here = [p for p in pods.values() if "plugin" in p["metadata"]["name"]
                    and p["spec"].get("nodeName") == node]
            return here[0] if len(here) == 1 and is_ready(here[0]) else None

        return self.api.wait("Pod", NAMESPACE, one, 60, lambda pods: describe_all(pods))

    def test_a_node_moves_to_claims_and_back_while_the_other_works(self):
        self.addCleanup(self.back)
        self.run_pod(shared("stays", spec=on(FIRST)))
        self.share("stays", "kept")
        before = self.container_ids("stays")
        self.create(replica_set("servers", 4, shared("servers")))
        self.wait_replicas("servers", 4)
        self.move(SECOND, "dra")
        pods = self.wait_replicas("servers", 4)
        self.assertEqual({p["spec"]["nodeName"] for p in pods}, {FIRST})
        self.run_pod(shared("claimed", "dra"))
        self.run_pod(shared("counted", "device-plugin"))
        self.assertEqual(self.node_of("claimed"), SECOND)
        self.assertEqual(self.node_of("counted"), FIRST)
        self.share("claimed", "moved")
        # The way back, without a drain: the plugin that would count units refuses to begin.
        self.cluster.kubectl("label", "node", SECOND, f"{LABEL}-")
        self.wait_refusal("claimed")
        self.assertEqual(self.read("claimed", "b"), "moved")
        self.assertNotEqual(self.units_of(SECOND), str(UNITS))
        # As its log says: back to the way that knows the claim, until the pod has ended.
        self.cluster.kubectl("label", "node", SECOND, f"{LABEL}=dra")
        self.wait_front_end(SECOND, "dra")
        self.delete_pods("claimed")
        self.cluster.kubectl("label", "node", SECOND, f"{LABEL}-")
        self.wait_front_end(SECOND, "device-plugin")
        self.run_pod(shared("again", spec=on(SECOND)))
        self.share("again")
        self.assertEqual(self.read("stays", "b", 4), "kept")
        self.assertEqual(self.container_ids("stays"), before)

    def units_of(self, node):
        return self.api.get("Node", node)["status"]["allocatable"].get(MEMORY, "0")

    def wait_replicas(self, name, count):
        """Pods of the set, all of them ready."""
        def ready(pods):
            mine = [p for p in pods.values() if p["metadata"].get("labels", {}).get("app") == name
                    and "deletionTimestamp" not in p["metadata"]]
            return mine if len(mine) == count and all(map(is_ready, mine)) else None

        return self.wait_pods(ready, f"not {count} of {name}", 90)

    def wait_refusal(self, pod_name):
        """The log of the node's device plugin names the pod whose claim is prepared."""
        def told():
            return any(re.search(rf"claim.*{pod_name}", self.api.log(
                NAMESPACE, p["metadata"]["name"], "plugin"))
                for p in self.api.list("Pod", NAMESPACE)
                if p["spec"].get("nodeName") == SECOND
                and p["metadata"]["name"].startswith("gpushm-plugin"))

        wait_until(f"no plugin names {pod_name}", 60, told, 0.5)

    def test_the_injectors_are_on_both_nodes(self):
        """Method: after several rollouts, because chance may spread them as well. The nodes have no
        label of a zone, as many clusters."""
        for _ in range(3):
            self.cluster.kubectl("rollout", "restart", "deployment/gpushm-injector", "-n", NAMESPACE)
            self.wait_former_injectors_end()
            pods = self.api.list("Pod", NAMESPACE)
            self.assertEqual({p["spec"]["nodeName"] for p in pods
                              if "injector" in p["metadata"]["name"]}, {FIRST, SECOND})

    def test_both_kinds_at_once_and_each_part_killed(self):
        self.addCleanup(self.back)
        self.move(SECOND, "dra")
        kinds = {"dra": SECOND, "device-plugin": FIRST}
        names = {f"{kind}-{number}": node for kind, node in kinds.items() for number in range(6)}
        self.create(*(shared(name, name.rpartition("-")[0]) for name in names))
        self.wait_ready(*names, seconds=120)
        self.assertEqual({name: self.node_of(name) for name in names}, names)
        for name in names:
            self.share(name, name)
        for node, cluster in ((FIRST, self.cluster), (SECOND, self.second)):
            status = self.plugin_on(node)["status"]["containerStatuses"][0]
            cluster.process_of_container(status["containerID"]).end(0)
            cluster.kill("kubelet")
            cluster.start("kubelet")
        for node, kind in ((FIRST, "device-plugin"), (SECOND, "dra")):
            self.plugin_on(node)
            self.wait_front_end(node, kind)
        for name in names:
            # A kubelet that has just started does not know the pod yet.
            wait_until(lambda n=name: f"{n} cannot be reached", 30,
                       lambda n=name: self.reached(n))
            self.assertEqual(self.read(name, "b", len(name)), name)
        for kind, node in kinds.items():
            self.run_pod(shared(f"later-{kind}", kind))
            self.assertEqual(self.node_of(f"later-{kind}"), node)

    def test_pods_of_several_gpus_go_to_nodes_that_have_as_many(self):
        """Goal: the label with a node's number of GPUs decides. Method: both nodes have four GPUs, and
        one is labelled with one; it gets pods of one GPU only."""
        for node, count in ((FIRST, "4"), (SECOND, "1")):
            self.cluster.kubectl("label", "--overwrite", "node", node, f"{GPU_COUNT}={count}")
            self.addCleanup(self.cluster.kubectl, "label", "node", node, f"{GPU_COUNT}-")
        self.addCleanup(self.back)
        two = {"gpushm.io/gpus": "2", "buffers.gpushm.io/weights": "{size: 4Mi, gpu: each}",
               "private.gpushm.io/a": "0"}
        names = [f"two-{number}" for number in range(6)]
        self.create(*(annotated(pod(name, container("a")), two) for name in names))
        self.wait_ready(*names)
        self.assertEqual({self.node_of(name) for name in names}, {FIRST})
        self.create(annotated(pod("never", container("a"), **on(SECOND)), two))
        self.run_pod(shared("one", spec=on(SECOND)))
        self.wait_event("never", "didn't match Pod's node affinity")

    def test_the_whole_cluster_moves_and_the_second_release_goes(self):
        self.addCleanup(self.chart.install, **self.VALUES)
        self.addCleanup(self.claims.install_as_the_guide_says)
        for node in (SECOND, FIRST):
            self.move(node, "dra")
        self.run_pod(shared("before", "dra"))
        self.share("before", "kept")
        ids = self.container_ids("before")
        whole = Chart(self.cluster, **{
            "injector.replicas": 2, "plugin.allocation": "dra",
            "plugin.config.dra.api-server": settings.API_SERVER,
            "injector.apiServer": settings.API_SERVER})
        whole.wait_allocatable = lambda units=UNITS: None
        whole.install()
        for node in (FIRST, SECOND):
            self.cluster.kubectl("label", "node", node, f"{LABEL}-")
        self.claims.uninstall()
        for node in (FIRST, SECOND):
            self.plugin_on(node)
            self.wait_front_end(node, "dra")
        self.assertEqual(self.read("before", "b", 4), "kept")
        self.assertEqual(self.container_ids("before"), ids)
        for node in (FIRST, SECOND):
            name = f"after-{node}"
            self.run_pod(shared(name, spec=on(node)))
            self.share(name)
        self.delete_pods("before", *(f"after-{n}" for n in (FIRST, SECOND)))


def on(node):
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def shared(name, kind=None, spec=None):
    """A pod of two containers with one buffer, which says `kind` itself if it is given."""
    annotations = {**SMALL, "private.gpushm.io/b": "0", **({LABEL: kind} if kind else {})}
    return annotated(pod(name, container("a"), container("b"), **(spec or {})), annotations)
