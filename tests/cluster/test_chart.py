"""The chart, the injector and what users write: annotated pods of all kinds in a namespace with Pod
Security "restricted", and what happens to them when parts of gpushm are missing or replaced."""

import base64
import json
import os
import pathlib
import re
import subprocess
import tempfile

from api import Refused
from case import container, is_ready, pod, shell, statuses
from chart import RELEASE, ROOT
from chart_case import (INJECTORS, MORE_VALUES, SMALL, WEIGHTS, ChartCase, annotated, installed_with,
                        workload)
from plugin import NAMESPACE, UNITS_OF_GPU, documents
from processes import wait_until
from scrape import Page
from settings import GPUS, NODE_NAME, image


class InstallTest(ChartCase):

    def test_helm_test_shares_a_buffer(self):
        self.chart.helm("test", "gpushm", "--namespace", NAMESPACE, "--timeout", "90s")

    def test_own_accounts_may_do_nothing(self):
        """Goal: no RBAC where none is needed. Method: no role is bound to the chart's accounts."""
        bound = [b["metadata"]["name"] for path in ("clusterrolebindings", "rolebindings")
                 for b in self.api.call("GET", f"/apis/rbac.authorization.k8s.io/v1/{path}")["items"]
                 if any(s.get("namespace") == NAMESPACE for s in b.get("subjects") or [])]
        self.assertEqual(bound, [])


class DriverRootTest(ChartCase):

    def wait_plugin(self, named):
        """The plugin's pod, once the one with (or without) a named root is ready."""
        def ready(pods):
            return next((p for name, p in pods.items() if "plugin" in name and is_ready(p)
                         and any(v["name"] == "driver" for v in p["spec"]["volumes"]) == named
                         and "deletionTimestamp" not in p["metadata"]), None)

        return self.api.wait("Pod", NAMESPACE, ready, 60, lambda pods: (
            f"no such plugin: {list(pods)}: {self.events_text(NAMESPACE)}"))

    def test_of_the_node_the_plugin_sees_a_named_root_and_its_devices(self):
        """Method: the simulated driver is in a folder of the node, like a driver in its root. Its
        cards come from a volume of the user."""
        driver, cards = self.cluster.driver, str(self.cluster.cards)
        self.cluster.kubectl("label", "--overwrite", "node", NODE_NAME, "gpushm.io/gpu=true")
        try:
            self.chart.install(**{
                "driver.simulated": "false", "driver.root": driver, "plugin.privileged": "true",
                "plugin.extraEnv[0].name": "GPUSHM_SIM_DIR", "plugin.extraEnv[0].value": cards,
                "plugin.extraVolumes[0].name": "cards",
                "plugin.extraVolumes[0].hostPath.path": cards,
                "plugin.extraVolumeMounts[0].name": "cards",
                "plugin.extraVolumeMounts[0].mountPath": cards})
            status = statuses(self.wait_plugin(True))["plugin"]
            process = self.cluster.process_of_container(status["containerID"])
            host = pathlib.Path(f"/proc/{process.pid}/root/host")
            self.assertEqual({p.name for p in host.iterdir()}, {"dev", driver.parts[1]})
            self.run_pod(annotated(pod("pair", container("a"), container("b")), WEIGHTS))
            self.share("pair")
            # Its GPU disappears with the driver.
            self.delete_pods("pair")
            self.wait_bound(0)
        finally:
            self.chart.install()
        self.wait_plugin(False)


class AnnotatedPodTest(ChartCase):

    def test_three_lines_share_a_buffer_without_privilege(self):
        """In a restricted namespace, one container writes and the other reads."""
        made = self.run_pod(annotated(pod("pair", container("a"), container("b")), WEIGHTS))
        self.share("pair")
        sidecar = made["spec"]["initContainers"][0]
        self.assertEqual(sidecar["name"], "gpushm")
        self.assertGreater(sidecar["securityContext"]["runAsUser"], 999_999_999)
        status = json.loads(made["metadata"]["annotations"]["gpushm.io/status"])
        self.assertEqual(status["units"], 3)  # 4 MiB, and 1 GiB for each container itself.

    def test_denied_with_field_reason_and_example(self):
        for annotations, words in (
                ({"buffer.gpushm.io/weights": "8Gi"},
                 ["buffer.gpushm.io/weights", "unknown key", "buffers.gpushm.io/weights"]),
                ({"buffers.gpushm.io/weights": "8GB"}, ["8GB", "write 8Gi or 8G"]),
                ({"buffers.gpushm.io/w": "{size: 1Gi, writers: [aa]}"},
                 ["writers[0]", 'no container "aa"', 'nearest is "a"'])):
            message = self.deny(annotated(pod("typo", container("a")), annotations))
            for word in words:
                self.assertIn(word, message)

    @installed_with(MORE_VALUES)
    def test_what_no_gpu_and_no_runtime_can_is_denied(self):
        """Goal: the chart's limit and its default RuntimeClasses reach the injector."""
        whole = {**SMALL, "gpushm.io/pool-extra": f"{UNITS_OF_GPU - 1}Gi"}
        self.run_pod(annotated(pod("whole", container("a")), whole))
        message = self.deny(annotated(pod("larger", container("a")), {
            **whole, "private.gpushm.io/a": "1Gi"}))
        self.assertIn(f"{UNITS_OF_GPU}Gi", message)
        self.api.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                         "metadata": {"name": "kata-qemu"}, "handler": "runc"})
        self.addCleanup(self.api.delete, "RuntimeClass", "kata-qemu")
        message = self.deny(annotated(pod("virtual", container("a"), runtimeClassName="kata-qemu"),
                                      SMALL))
        self.assertIn("kata-qemu", message)

    def test_debug_containers_cannot_get_around_lists(self):
        self.run_pod(annotated(pod("listed", container("a")), {
            "buffers.gpushm.io/w": "{size: 4Mi, writers: [a]}"}))
        with self.assertRaises(subprocess.CalledProcessError) as failed:
            self.cluster.kubectl("debug", "listed", "-n", self.namespace, "--image",
                                 container("x")["image"], "--target", "a", "--profile",
                                 "restricted", "--", "true", timeout=30)
        self.assertIn("ephemeral container", failed.exception.stderr)

    def test_a_native_sidecar_loads_what_it_makes(self):
        fetch = shell("fetch", "printf fetch > /tmp/in; exec gpushmctl load --stay /tmp/in weights",
                      restartPolicy="Always")
        thing = pod("loaded", shell("a", "gpushmctl wait weights --timeout 30s && "
                                         "gpushmctl save weights /tmp/out && head -c 5 /tmp/out; echo; "
                                         "trap exit TERM; sleep infinity & wait"), initContainers=[fetch])
        self.run_pod(annotated(thing, {"private.gpushm.io/fetch": "64Mi",
                                       "buffers.gpushm.io/weights": "{size: 4Mi, writers: [fetch], loads: true}"}))
        self.wait_log("loaded", "a", "fetch")

    def test_file_of_a_volume_is_loaded_and_waited_for(self):
        """Method: an init container, which runs after the sidecar started, writes the file."""
        mount = {"volumeMounts": [{"name": "models", "mountPath": "/models"}]}
        thing = pod("file", shell("a", "gpushmctl wait weights --timeout 30s && "
                                       "gpushmctl save weights /tmp/out && head -c 5 /tmp/out; echo; "
                                       "trap exit TERM; sleep infinity & wait"),
                    initContainers=[shell("fetch", "printf model > /models/w.bin", **mount)],
                    volumes=[{"name": "models", "emptyDir": {}}])
        self.run_pod(annotated(thing, {
            "buffers.gpushm.io/weights": "{size: 4Mi, file: models/w.bin}"}))
        self.wait_log("file", "a", "model")
        made = self.get_pod("file")
        sidecar = next(c for c in made["spec"]["initContainers"] if c["name"] == "gpushm")
        self.assertNotIn("models", [mount["name"] for mount in sidecar["volumeMounts"]])

    def test_the_loader_of_a_file_starts_again_and_leaves_the_content_alone(self):
        mount = {"volumeMounts": [{"name": "models", "mountPath": "/models"}]}
        thing = pod("again", container("a"), volumes=[{"name": "models", "emptyDir": {}}],
                    initContainers=[shell("fetch", "printf model > /models/w.bin", **mount)])
        self.run_pod(annotated(thing, {
            "buffers.gpushm.io/weights": "{size: 4Mi, access: read-only, file: models/w.bin}"}))
        self.wait_log("again", "gpushm-load-weights", "has its content, 5 bytes")
        before = self.execute("again", "a", "gpushmctl", "stat", "weights", "-o", "json")
        first = self.container_ids("again")["gpushm-load-weights"]
        self.cluster.process_of_container(first[0]).kill()
        wait_until("the loader does not start again", 60,
                   lambda: self.container_ids("again")["gpushm-load-weights"][1] > first[1])
        self.wait_log("again", "gpushm-load-weights", "has its content, 5 bytes")
        self.assertEqual(before, self.execute("again", "a", "gpushmctl", "stat", "weights", "-o", "json"))

    def test_a_job_completes_although_the_sidecar_runs(self):
        thing = pod("x", shell("a", "gpushmctl stat"))
        thing["spec"]["restartPolicy"] = "Never"
        self.create(workload("Job", "once", annotated(thing, SMALL)))
        self.wait_job("once")

    def test_a_stateful_set(self):
        self.create(workload("StatefulSet", "set", annotated(pod("x", container("a")), SMALL),
                             replicas=2, serviceName="set", podManagementPolicy="Parallel"))
        self.wait_ready("set-0", "set-1")

    def test_an_unreadable_file_is_told(self):
        """Method: only its writer may read the file; the loader has a uid of its own."""
        mount = {"volumeMounts": [{"name": "models", "mountPath": "/models"}]}
        thing = pod("closed", container("a"), volumes=[{"name": "models", "emptyDir": {}}],
                    initContainers=[shell("fetch", "umask 077; printf x > /models/w.bin", **mount)])
        self.create(annotated(thing, {
            "buffers.gpushm.io/weights": "{size: 4Mi, file: models/w.bin}"}))
        self.wait_log("closed", "gpushm-load-weights", "Permission denied")

    def test_a_quota_and_a_limit_range_are_met(self):
        """Goal: the sidecar has what such namespaces require of every container."""
        for spec in ({"kind": "LimitRange", "spec": {"limits": [{
                "type": "Container", "max": {"cpu": "1", "memory": "1Gi"},
                "min": {"cpu": "10m", "memory": "16Mi"}}]}},
                     {"kind": "ResourceQuota", "spec": {"hard": {
                         "limits.cpu": "2", "limits.memory": "2Gi", "requests.cpu": "1",
                         "requests.gpushm.io/memory": "1"}}}):
            self.cluster.kubectl("create", "-n", self.namespace, "-f", "-", input=json.dumps(
                {"apiVersion": "v1", "metadata": {"name": "bounds"}, **spec}))
        limits = {"limits": {"cpu": "500m", "memory": "256Mi"}}
        self.run_pod(annotated(pod("bounded", container("a", resources=limits)), SMALL))
        message = self.deny(annotated(pod("second", container("a", resources=limits)), SMALL))
        self.assertIn("exceeded quota", message)

    def test_a_pod_of_a_hundred_containers_is_admitted(self):
        """It does not run, because no scheduler takes it."""
        thing = pod("many", *(container(f"c{i}") for i in range(100)),
                    schedulingGates=[{"name": "example.com/never"}])
        self.create(annotated(thing, WEIGHTS))
        made = self.get_pod("many")
        self.assertTrue(all(c["resources"]["limits"]["gpushm.io/attach"] == "1"
                            for c in made["spec"]["containers"]))
        self.assertEqual(made["spec"]["initContainers"][0]["resources"]["limits"]
                         ["gpushm.io/memory"], "101")

    def test_host_ipc_pods_share_across_pods(self):
        """In a namespace that allows it. Method: one pod fills a buffer; another one finds it by
        the first one's uid and reads it."""
        open_namespace = self.make_namespace("host-ipc-pods", {})
        annotations = {**SMALL, "gpushm.io/host-ipc": "true"}
        for name in ("owner", "guest"):
            self.api.create(annotated(pod(name, container("a"), hostIPC=True), annotations),
                            open_namespace)
        self.api.wait("Pod", open_namespace, lambda pods: len(pods) == 2 and all(
            map(is_ready, pods.values())), 60, lambda pods: self.events_text(open_namespace))

        def run(name, script):
            return self.cluster.kubectl("exec", "-n", open_namespace, name, "-c", "a", "--", "sh",
                                        "-ec", script)

        run("owner", "printf hello > /tmp/in; gpushmctl load /tmp/in weights")
        uid = self.api.get("Pod", "owner", open_namespace)["metadata"]["uid"]
        text = run("guest", f"gpushmctl --pod-uid {uid} save weights /tmp/out >/dev/null; "
                            "head -c 5 /tmp/out")
        self.assertEqual(text, "hello")
        self.assertIn("hostIPC: true", self.deny(annotated(pod("isolated", container("a")),
                                                           annotations)))


class WebhookTest(ChartCase):

    HELMS = "gpushm-injector-tls"  # The Secret that the chart makes by default.

    def test_a_pod_gets_a_gpu_alone_by_its_annotation(self):
        """Goal: the annotation is all that a user writes. Method: what the sidecar requests, what the
        API server took, and what the plugin says of the GPU."""
        made = self.run_pod(annotated(pod("alone", container("a"), container("b")),
                                      {**SMALL, "gpushm.io/exclusive": "true"}))
        self.assertEqual(made["spec"]["initContainers"][0]["resources"]["limits"]["gpushm.io/exclusive"],
                         "1")
        self.share("alone")
        wait_until(lambda: "the plugin binds no GPU alone", 30, lambda: Page(self.api, "plugin").sum(
            "gpushm_plugin_bound_devices", resource="gpushm.io/exclusive") == 1)

    def test_without_the_injector_other_pods_start(self):
        self.scale_injector(0)
        try:
            message = self.deny(annotated(pod("asks", container("a")), WEIGHTS))
            self.assertIn("mutate.gpushm.io", message)
            self.run_pod(pod("plain", container("a")))
        finally:
            self.scale_injector(INJECTORS)

    def test_pods_are_made_while_the_injector_is_rolled(self):
        """Goal: an upgrade of the injector loses no pod. Method: pods that no scheduler takes are
        made one after another until no former replica is left. Former replicas answer for seconds
        after the end of the rollout."""
        before = self.all_injectors()
        made, refused = 0, []

        def left():
            return before & {p["metadata"]["name"] for p in self.api.list("Pod", NAMESPACE)}

        def made_enough():
            nonlocal made
            thing = annotated(pod(f"gated-{made}", container("a"),
                                  schedulingGates=[{"name": "example.com/never"}]), SMALL)
            try:
                self.create(thing)
            except Refused as error:
                refused.append(str(error))
            made += 1
            return made >= 50 and not left()

        self.cluster.kubectl("rollout", "restart", "deployment/gpushm-injector", "-n", NAMESPACE)
        wait_until(lambda: f"of {before} are left {left()}, {made} pods later", 120, made_enough,
                   0.1)
        self.assertEqual(refused, [], f"of {made}")
        self.assertTrue(before.isdisjoint(self.all_injectors()))
        pods = self.api.list("Pod", self.namespace)
        self.assertEqual(len(pods), made)
        self.assertTrue(all(p["spec"]["initContainers"][0]["name"] == "gpushm" for p in pods))

    def test_a_renewed_certificate_is_served_without_a_restart(self):
        """They are valid for ten years. Method: the Secret is deleted, and an upgrade makes another
        one; both replicas stay. Pods are admitted before and after the kubelet has brought them the
        new one."""
        injectors = self.all_injectors()
        self.api.delete("Secret", self.HELMS, NAMESPACE)
        self.chart.install()
        made = self.api.get("Secret", self.HELMS, NAMESPACE)["data"]
        for name in ("ca.crt", "tls.crt"):
            valid = subprocess.run(
                ["openssl", "x509", "-noout", "-checkend", str(3640 * 24 * 3600)],
                input=base64.b64decode(made[name]), capture_output=True, check=False)
            self.assertEqual(valid.returncode, 0, f"{name}: {valid.stdout}{valid.stderr}")
        self.run_pod(annotated(pod("before", container("a")), SMALL))
        wait_until("the new certificate is not served", 120, lambda: all(
            "certificate-loaded" in self.api.log(NAMESPACE, name, "injector")
            for name in injectors), 1)
        self.run_pod(annotated(pod("after", container("a")), SMALL))
        self.assertEqual(self.injectors(), injectors)


class ApplyWarningsTest(ChartCase):
    """The warnings of `kubectl apply` if annotations of gpushm would have no effect."""

    KINDS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")

    def warned(self, *words, **options):
        """The API server's warnings that kubectl prints; kubectl must succeed."""
        self.cluster.enter_network()
        done = subprocess.run(["kubectl", "-n", self.namespace, *words], text=True, check=False,
                              env=self.cluster.environment(), capture_output=True, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def applied(self, thing):
        return self.warned("apply", "--dry-run=server", "-f", "-", input=json.dumps(thing))

    def workload(self, kind, template, own, of_job=None):
        """With annotations of the template, of the object itself and, for a CronJob, of its Jobs.
       """
        if kind == "CronJob":
            job = self.workload("Job", template, of_job or {})
            thing = {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "x"}, "spec": {
                "schedule": "@yearly", "jobTemplate": {
                    "metadata": {"annotations": job["metadata"]["annotations"]},
                    "spec": job["spec"]}}}
        else:
            thing = pod("x", container("a"))
            if kind == "Job":
                thing["spec"]["restartPolicy"] = "Never"
            more = {"serviceName": "x"} if kind == "StatefulSet" else {}
            thing = workload(kind, "x", annotated(thing, template), **more)
        return annotated(thing, own)

    def test_annotations_on_a_workload_itself(self):
        other = {"example.com/team": "a", "a/gpushm.io": "b"}
        for kind in self.KINDS:
            with self.subTest(kind):
                text = self.applied(self.workload(kind, {}, {**WEIGHTS, **other}))
                self.assertIn(f"buffers.gpushm.io/weights on the {kind} itself", text)
                self.assertIn("spec.jobTemplate.spec.template.metadata.annotations"
                              if kind == "CronJob" else " spec.template.metadata.annotations", text)
                self.assertNotIn("example.com", text)
                for template, own in ((WEIGHTS, {}), (WEIGHTS, WEIGHTS), (WEIGHTS, other),
                                      ({}, other), ({}, {})):
                    self.assertNotIn("gpushm", self.applied(self.workload(kind, template, own)))
        text = self.applied(self.workload("CronJob", {}, {}, of_job=WEIGHTS))
        self.assertIn("buffers.gpushm.io/weights on the CronJob itself", text)

    def test_annotations_that_change_on_a_pod_that_is_there(self):
        self.create(annotated(pod("x", container("a")), SMALL))
        for change in ("buffers.gpushm.io/weights=8Mi", "gpushm.io/pool-extra=1Gi",
                       "buffers.gpushm.io/weights-"):
            text = self.warned("annotate", "--overwrite", "pod", "x", change)
            self.assertIn(change.rstrip("-").partition("=")[0], text)
            self.assertIn("create it again", text)
        for words in (("annotate", "--overwrite", "pod", "x", "gpushm.io/status=old"),
                      ("annotate", "--overwrite", "pod", "x", "example.com/team=a"),
                      ("label", "pod", "x", "a=b")):
            self.assertNotIn("gpushm", self.warned(*words))


class LifeTest(ChartCase):

    def test_a_deployment_scaled_up_and_down_leaks_nothing(self):
        template = annotated(pod("x", container("a")), SMALL)
        self.create(workload("Deployment", "many", template, replicas=1))
        for replicas in (20, 1):
            self.api.patch("Deployment", "many", {"spec": {"replicas": replicas}}, self.namespace)
            self.wait_pods(lambda pods, n=replicas: len(pods) == n and all(
                map(is_ready, pods.values())), f"not {replicas} pods", 120)
            self.wait_bound(replicas)
        # Room for three pods that each take a whole GPU, but only one is in use.
        whole = {**SMALL, "gpushm.io/pool-extra": f"{UNITS_OF_GPU - 1}Gi"}
        names = [f"whole{number}" for number in range(GPUS - 1)]
        self.create(*(annotated(pod(name, container("a")), whole) for name in names))
        self.wait_ready(*names)

    def test_a_rolling_update_on_a_full_gpu(self):
        """With maxSurge 0, as NOTES say: the new pod gets the old pod's room."""
        whole = {**SMALL, "gpushm.io/pool-extra": f"{UNITS_OF_GPU - 1}Gi"}
        self.create(workload("Deployment", "full", annotated(pod("x", container("a")), whole),
                             replicas=GPUS, strategy={"type": "RollingUpdate", "rollingUpdate": {
                                 "maxSurge": 0, "maxUnavailable": 1}}))
        self.wait_pods(lambda pods: len(pods) == GPUS and all(map(is_ready, pods.values())),
                       "not full")
        self.cluster.kubectl("set", "env", "deployment/full", "X=1", "-n", self.namespace)
        self.cluster.kubectl("rollout", "status", "deployment/full", "-n", self.namespace,
                             "--timeout", "120s", timeout=130)

    def test_a_drained_node_lets_go_of_everything(self):
        def two_ready(pods):
            return len(pods) == 2 and all(map(is_ready, pods.values())) and set(pods)

        self.create(workload("Deployment", "evicted", annotated(pod("x", container("a")), SMALL),
                             replicas=2))
        before = self.wait_pods(two_ready, "not 2")
        node = self.api.list("Node")[0]["metadata"]["name"]
        try:
            self.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data",
                                 "--pod-selector", "app=evicted", "--timeout", "60s", timeout=70)
        finally:
            self.cluster.kubectl("uncordon", node)
        after = self.wait_pods(two_ready, "not started again")
        self.assertTrue(before.isdisjoint(after), f"{before}, then {after}")
        self.wait_bound(2)


def parsed(cluster, text):
    """The objects of manifests; those for cert-manager, which this cluster does not have, as text.
   """
    foreign, ours = [], []
    for document in re.split(r"^---$", text, flags=re.MULTILINE):
        is_foreign = re.search(r"^apiVersion: cert-manager.io/", document, re.MULTILINE)
        (foreign if is_foreign else ours).append(document)
    printed = cluster.kubectl("create", "--dry-run=client", "-o", "json", "-f", "-",
                              input="---".join(ours))
    return [*(thing for document in documents(printed) for thing in document), *foreign]


class ManifestTest(ChartCase):

    FOLDER = ROOT / "deploy"

    def kustomized(self, text):
        """Objects by name, made by a kustomization that begins with this folder."""
        with tempfile.TemporaryDirectory() as folder:
            base = os.path.relpath(self.FOLDER, os.path.realpath(folder))
            pathlib.Path(folder, "kustomization.yaml").write_text(
                f"resources: [{base}]\n{text}", encoding="utf-8")
            return self.by_name(self.cluster.kubectl("kustomize", folder))

    def by_name(self, text):
        return {f"{thing['kind']}/{thing['metadata']['name']}": thing
                for thing in parsed(self.cluster, text) if isinstance(thing, dict)}

    def test_kustomize_takes_the_folder_and_the_patch_that_it_tells(self):
        """Method: unchanged, the folder equals gpushm.yaml. With the settings in the comment of
        kustomization.yaml, all three images, and nothing else, come from elsewhere."""
        plain = self.by_name((self.FOLDER / "gpushm.yaml").read_text(encoding="utf-8"))
        self.assertEqual(self.kustomized(""), plain)
        comment = (self.FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
        moved = self.kustomized("\n".join(re.findall(r"^#   (.*)", comment, re.MULTILINE)))
        self.assertEqual(json.dumps(plain).count("registry.invalid/gpushm/"), 3)
        self.assertEqual(moved, json.loads(json.dumps(plain).replace(
            "registry.invalid/gpushm/", "registry.example/gpushm/")))


class UpgradeTest(ChartCase):

    def test_upgrade_and_rollback_leave_pods_alone(self):
        self.run_pod(annotated(pod("stays", container("a")), SMALL))
        before = self.container_ids("stays")
        self.chart.install(**{"plugin.config.log.level": "debug", "injector.logLevel": "debug"})
        self.run_pod(annotated(pod("during", container("a")), SMALL))
        self.chart.rollback()
        self.run_pod(annotated(pod("later", container("a")), SMALL))
        self.assertEqual(self.container_ids("stays"), before)
        self.assertIn("weights", self.execute("stays", "a", "gpushmctl", "ls", "--names"))

    def objects(self, part):
        """(kind, namespace, name) of each object in the release's `manifest` or `hooks`."""
        things = parsed(self.cluster,
                        self.chart.helm("get", part, RELEASE, "--namespace", NAMESPACE))
        return [(thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
                for thing in things]

    def present(self, things):
        """Those of `objects` that the API server has."""
        return [(kind, namespace, name) for kind, namespace, name in things if self.cluster.kubectl(
            "get", kind, name, "--namespace", namespace, "--ignore-not-found", "-o", "name")]

    def test_uninstall_leaves_nothing_also_while_pods_use_it(self):
        """Goal: no object of the chart remains. A running pod continues, and a new one is not
        changed. Once there is a plugin again, it removes what the former one left on the node."""
        self.run_pod(annotated(pod("uses", container("a")), SMALL))
        self.wait_bound(1)
        made, hooks = self.objects("manifest"), self.objects("hooks")
        self.assertEqual(self.present(made), made)
        failed_test = self.present(hooks)  # As docs/guides/install.md says, its pod stays.
        self.chart.uninstall()
        try:
            self.assertEqual(self.present([*made, *hooks]), failed_test)
            self.assertEqual(self.api.list("Secret", NAMESPACE), [])
            self.assertIn("weights", self.execute("uses", "a", "gpushmctl", "ls", "--names"))
            ignored = self.run_pod(annotated(pod("ignored", container("a")), WEIGHTS))
            self.assertEqual(statuses(ignored).keys(), {"a"})
        finally:
            self.chart.install()
        self.assertTrue(is_ready(self.get_pod("uses")), statuses(self.get_pod("uses")))
        self.wait_bound(1)
        self.delete_pods("uses", "ignored")
        self.wait_bound(0)


NAMES = "registry.invalid/gpushm"  # As the examples have it.


class ExamplesTest(ChartCase):
    """deploy/examples unchanged, except for the images of a release: each example runs in a restricted
    namespace and prints what its first lines promise."""

    PRINTS = {
        "weights-shared": [("app=weights-shared", "server-a", 'begins "weights of release 7"'),
                           ("app=weights-shared", "server-b", 'begins "weights of release 7"')],
        "weights-from-volume": [("app=weights-from-volume", "server",
                                 'begins "model on a volume"')],
        "decoder-to-model": [("", "model", 'begins "frame 1"(.|\n)*begins "frame [23]"')],
        "trainer-to-rollout": [("", rollout, r"step [1-9]\d*, .* [2-9] taken, 0 skipped, 0 wrong")
                               for rollout in ("rollout-a", "rollout-b")],
        "pipeline": [("", "post-processor", r"results: \d+ frames, \d+ lost, 0 wrong")],
        "video": [("", "post-processor", r"results: \d+ frames, \d+ lost, 0 wrong")],
        "request-queue": [("", "gateway", r"requests: [1-9]\d* asked, [1-9]\d* answered, .* "
                                           r"0 wrong, 0 lost")],
        "job": [("", "reader", 'begins "42"')],
        "python-decoder-to-model": [("", "model", r"model: frame [1-9]\d*0, .* 0 wrong")],
        "python-trainer-to-rollout": [("", rollout, r"rollout: step [2-9]\d*, generation \d+, error")
                                      for rollout in ("rollout-a", "rollout-b")],
        # The digest of the published model's tensors, in the order of their names.
        "python-servers": [("app=python-servers", server,
                            r'"tensors": 104, "nbytes": 90856960, "digest": "6feed19bc1a8f3af"')
                           for server in ("server-a", "server-b", "server-c")],
        "tensor-parallel": [("app=tensor-parallel", server, f'weights-{gpu}: .* begins "shard {gpu}"')
                            for server in ("server-a", "server-b") for gpu in (0, 1)],
    }

    only = None  # Names of the examples to run; None: all.

    def test_each_runs_and_prints_what_it_says(self):
        files = {path.stem: path for path in (ROOT / "deploy/examples").glob("*.yaml")
                 if path.stem != "kustomization"}
        self.assertEqual(set(files), set(self.PRINTS))
        for name, prints in self.PRINTS.items():
            if self.only and name not in self.only:
                continue
            with self.subTest(name):
                self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-", input=re.sub(
                    rf"{re.escape(NAMES)}/(\w+):[\w.-]+", lambda found: image(found[1]),
                    files[name].read_text()))
                for selector, container_name, text in prints:
                    self.wait_printed(selector, container_name, text)
                self.cluster.kubectl("delete", "-n", self.namespace, "-f", str(files[name]),
                                     "--wait", "--timeout", "60s", timeout=70)

    def test_the_helm_example_runs_and_takes_values(self):
        repository, _, tag = image("demo").rpartition(":")
        install = ["upgrade", "--install", "weights", str(ROOT / "deploy/examples/helm"), "--wait", "--timeout", "90s",
                   "--namespace", self.namespace, "--set", f"image.repository={repository},image.tag={tag}"]
        self.chart.helm(*install)
        for server in ("server-a", "server-b"):
            self.wait_printed("", server, 'begins "weights of release 7"')
        self.chart.helm(*install, "--set", "servers.server-c.private=512Mi,servers.server-c.args={weights}")
        self.wait_printed("", "server-c", 'begins "weights of release 7"')
        self.chart.helm("uninstall", "weights", "--namespace", self.namespace, "--wait", "--timeout", "60s")

    def test_the_webhooks_admit_the_overlay(self):
        namespace = "gpushm-examples"
        self.api.ensure_namespace(namespace, {"pod-security.kubernetes.io/enforce": "restricted"})
        self.addCleanup(self.api.delete, "Namespace", namespace)
        said = self.cluster.kubectl("apply", "--kustomize", str(ROOT / "deploy/examples-overlay"), "--dry-run=server")
        self.assertEqual(said.count("created (server dry run)"), len(self.PRINTS), said)

    def wait_printed(self, selector, container_name, text):
        def printed():
            for thing in self.api.list("Pod", self.namespace):
                labels = thing["metadata"].get("labels", {})
                if selector and f"app={labels.get('app')}" != selector:
                    continue
                if container_name in {c["name"] for c in thing["spec"]["containers"]} and re.search(
                        text, self.api.log(self.namespace, thing["metadata"]["name"],
                                           container_name)):
                    return True
            return False

        wait_until(lambda: f"{container_name} does not print {text}:\n{self.events_text()}", 60,
                   printed, 0.5)
