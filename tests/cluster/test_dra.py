"""The plugin with `allocation: dra`, and pods with claims written by hand."""

import http.client
import json
import pathlib
import re
import ssl

from case import ClusterCase, pod, statuses
from dra_plugin import CLASS, DRIVER, DraPlugin
from gpu_pods import sidecar, user
import settings


def template(name, memory):
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": name}, "spec": {"spec": {"devices": {
                "requests": [
                    {"name": "broker", "exactly": {"deviceClassName": CLASS, "capacity": {
                        "requests": {"memory": memory}}}},
                    {"name": "app", "exactly": {"deviceClassName": CLASS}}],
                "constraints": [{"requests": ["broker", "app"],
                                 "matchAttribute": f"{DRIVER}/uuid"}]}}}}


def claimed(user_container, request):
    return {**user_container, "resources": {"claims": [{"name": "gpushm", "request": request}]}}


def claim_pod(name, template_name, users=("a",), **spec):
    """A pod as the webhook would write it, with a claim from the template."""
    broker = claimed(sidecar(1, {"data": "4Mi"}, users), "broker")
    return pod(name, *(claimed(user(u), "app") for u in users),
               volumes=[{"name": "gpushm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}],
               initContainers=[broker],
               resourceClaims=[{"name": "gpushm", "resourceClaimTemplateName": template_name}],
               **spec)


class DraTest(ClusterCase):
    """One GPU, of which 15 GiB are offered."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plugin = cls.served_by(DraPlugin, cls.deploy)

    @classmethod
    def deploy(cls):
        plugin = DraPlugin(cls.cluster)
        plugin.deploy("gpus: [0]\n")
        return plugin

    def setUp(self):
        super().setUp()
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-",
                             input=json.dumps(template("seven", "7Gi")))

    def claim_of(self, pod_name):
        """namespace/name of the pod's claim, as the plugin's log has it."""
        status = self.get_pod(pod_name)["status"]["resourceClaimStatuses"][0]
        return f"{self.namespace}/{status['resourceClaimName']}"

    def test_the_slice_says_what_the_node_has(self):
        devices = [d for s in self.plugin.slices() for d in s["spec"]["devices"]]
        self.assertEqual(len(devices), 1)
        device = devices[0]
        self.assertEqual(device["attributes"]["uuid"]["string"], settings.gpu_uuid(0))
        self.assertEqual(device["capacity"]["memory"]["value"], f"{settings.GPU_GIB - 1}Gi")
        self.assertTrue(device["allowMultipleAllocations"])

    def wait_health(self, name, wanted):
        """Returns the kubelet's message for the request `app` of container a, when that is so."""
        def health(pod_object):
            told = [r for s in statuses(pod_object)["a"].get("allocatedResourcesStatus", [])
                    if s["name"] == "claim:gpushm/app" for r in s["resources"]]
            return told[0] if len(told) == 1 and told[0]["health"] == wanted else None

        told = self.wait_pod(name, health, f"is not shown as {wanted}")
        return health(told).get("message", "")

    def test_a_pods_status_says_that_its_gpu_is_sick_and_why(self):
        """Goal: whoever looks at the pod learns it, and that it is over; also after an update, in
        which the kubelet forgets what it was told. The pod goes on."""
        self.addCleanup(self.fault, "")
        self.run_pod(claim_pod("pod", "seven"))
        before = self.container_ids("pod")
        self.assertEqual(self.wait_health("pod", "Healthy"), "")
        self.fault(f"lost: [{settings.gpu_uuid(0)}]\n")
        self.assertIn(f"GPU {settings.gpu_uuid(0)} is unhealthy: ",
                      self.wait_health("pod", "Unhealthy"))
        self.fault("")
        self.assertEqual(self.wait_health("pod", "Healthy"), "")
        self.plugin.update()
        self.assertEqual(self.wait_health("pod", "Healthy"), "")
        self.fault(f"lost: [{settings.gpu_uuid(0)}]\n")
        self.wait_health("pod", "Unhealthy")
        self.fault("")
        self.wait_health("pod", "Healthy")
        self.assertEqual(self.container_ids("pod"), before)
        self.delete_pods("pod")
        self.plugin.wait_released()

    def test_memory_of_a_pod_that_was_deleted_by_force_is_not_given_twice(self):
        """The scheduler gives the memory away at once; the plugin waits for the first pod's end."""
        slow = claim_pod("slow", "seven")
        slow["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; sleep 60"]
        self.run_pod(slow)
        self.run_pod(claim_pod("other", "seven"))
        former = self.claim_of("slow")
        self.api.delete("Pod", "slow", self.namespace, 0)
        self.run_pod(claim_pod("next", "seven"))
        log = self.plugin.log()
        ended = re.search(rf"claim-unprepared.*{re.escape(former)}", log)
        started = re.search(rf"claim-prepared.*{re.escape(self.claim_of('next'))}", log)
        self.assertTrue(ended and started, log[-2000:])
        self.assertLess(ended.start(), started.start())

    def test_a_kubelet_that_restarts_disturbs_no_pod(self):
        self.run_pod(claim_pod("stays", "seven"))
        before = self.container_ids("stays")
        self.cluster.restart("kubelet")
        self.plugin.wait_serving()
        self.run_pod(claim_pod("next", "seven"))
        self.assertEqual(self.container_ids("stays"), before)
        self.delete_pods("stays", "next")
        self.plugin.wait_released()

    def test_a_plugin_that_was_killed_takes_its_claims_over(self):
        self.run_pod(claim_pod("stays", "seven"))
        before = self.container_ids("stays")
        self.plugin.kill()
        self.run_pod(claim_pod("next", "seven"))
        self.assertEqual(self.container_ids("stays"), before)
        self.create(claim_pod("third", "seven"))
        self.wait_unschedulable("third")
        self.delete_pods("stays")
        self.wait_ready("third")

    def test_an_update_leaves_no_gap(self):
        """The next plugin serves before the one before it ends, and takes its claims over."""
        self.run_pod(claim_pod("stays", "seven"))
        before = self.container_ids("stays")
        self.plugin.update()
        self.assertEqual(len(self.plugin.slices()), 1)
        self.run_pod(claim_pod("next", "seven"))
        self.assertEqual(self.container_ids("stays"), before)
        self.delete_pods("stays", "next")
        self.plugin.wait_released()

    def test_a_plugin_may_write_only_its_own_nodes_slices(self):
        """An admission policy of the chart: the token of the plugin's pod names its node."""
        slice_of_another = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "node1-gpushm.io-0"},
            "spec": {"driver": DRIVER, "nodeName": "node1", "devices": [], "pool": {
                "name": "node1", "generation": 1, "resourceSliceCount": 1}}}
        process = self.plugin.process()
        token = pathlib.Path(f"/proc/{process.pid}/root/var/run/secrets/kubernetes.io/"
                             "serviceaccount/token").read_text()
        connection = http.client.HTTPSConnection(
            settings.API_SERVER, context=ssl._create_unverified_context(), timeout=30)
        connection.request("POST", "/apis/resource.k8s.io/v1/resourceslices",
                           json.dumps(slice_of_another), {"Authorization": f"Bearer {token}",
                                                          "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        self.assertEqual(answer.status, 422, text)
        self.assertIn("only slices of its own node", text)
