"""Pods of unusual shapes, and what happens when versions of gpushm meet."""

import json

from case import container, pod, shell, statuses
from chart import no_history
from chart_case import SMALL, ChartCase, annotated, holder, workload


class ShapeTest(ChartCase):

    def test_a_cron_jobs_job_completes(self):
        thing = pod("x", shell("a", "gpushmctl stat"))
        thing["spec"]["restartPolicy"] = "Never"
        job = workload("Job", "x", annotated(thing, SMALL))
        self.cluster.kubectl("create", "-n", self.namespace, "-f", "-", input=json.dumps({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": job["spec"]}}}))
        self.cluster.kubectl("create", "job", "now", "--from", "cronjob/nightly", "-n",
                             self.namespace)
        self.wait_job("now")

    def test_a_pod_in_the_nodes_network(self):
        self.allow_everything()
        self.run_pod(annotated(pod("host", container("a"), container("b"), hostNetwork=True),
                               SMALL))
        self.share("host")

    def test_pull_secrets_are_the_pods_and_gpushms(self):
        self.chart.install(**{"sidecar.pullSecrets": "{ours}"})
        try:
            made = self.run_pod(annotated(pod("pulls", container("a"), imagePullSecrets=[
                {"name": "mine"}]), SMALL))
        finally:
            self.chart.install()
        self.assertEqual(made["spec"]["imagePullSecrets"], [{"name": "mine"}, {"name": "ours"}])

    def test_what_a_pod_has_as_a_whole_is_the_sidecars_too(self):
        """Goal: the API server refuses a pod whose containers request more than the pod itself; the
        sidecar must not be the reason. Method: there is no room for it, explicitly or by default.
       """
        asks = {"requests": {"cpu": "100m", "memory": "128Mi"}}
        limits = {"cpu": "200m", "memory": "256Mi"}
        shapes = {"said": ({**asks, "limits": limits}, "Burstable"),
                  "default": ({"limits": limits}, "Burstable"),
                  "same": ({"requests": limits, "limits": limits}, "Guaranteed")}
        self.create(*(annotated(pod(name, container("a", resources=asks), container("b"),
                                    resources=resources), SMALL)
                      for name, (resources, _) in shapes.items()))
        made = self.wait_ready(*shapes)
        for name, (_, quality) in shapes.items():
            self.share(name)
            self.assertEqual(made[name]["status"]["qosClass"], quality)


class SignalTest(ChartCase):
    """A signal that the pod declares: a process that waits for it needs no writer yet, and a
    process that may not write it cannot."""

    DECLARED = {**SMALL, "private.gpushm.io/b": "0", "private.gpushm.io/c": "0",
                "signals.gpushm.io/ready": "{writers: [a]}"}

    def test_a_declared_signal_says_that_a_buffer_is_written(self):
        late = {**holder("a"), "command": [
            "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done; exec gpushm-demo-app "
                        "--write 'all of it' --ready ready weights"]}
        idle = {**holder("c"), "command": container("c")["command"]}
        self.run_pod(annotated(pod("turns", late, holder("b", "--ready", "ready", "weights"), idle),
                               self.DECLARED))
        self.assertRegex(self.execute("turns", "c", "gpushmctl", "ls"), r"ready +signal")
        denied = self.execute("turns", "c", "sh", "-c",
                              "gpushm-demo-app --write x --ready ready weights 2>&1 || true")
        self.assertRegex(denied, "DENIED: .*ready")
        self.assertEqual(self.log("turns", "b"), "")
        self.execute("turns", "a", "touch", "/tmp/go")
        self.wait_log("turns", "b", 'begins "all of it"')
        self.assertEqual(self.log("turns", "b").count("begins"), 1)


FORMER = "825fd01"  # As `former` has it.


class VersionsTest(ChartCase):
    """Plugin and sidecar of an earlier commit (suite.py's --former) together with those of this
    tree; an old plugin with the chart of its time, whose configuration it knows. The plugin brings
    the library and gpushmctl into containers; the sidecar is the broker."""

    OLD_PLUGIN = {"plugin.image.repository": "docker.io/gpushm/plugin",
                  "plugin.image.tag": "former"}
    OLD_SIDECAR = {"sidecar.image.repository": "docker.io/gpushm/sidecar",
                   "sidecar.image.tag": "former"}

    @classmethod
    def setUpClass(cls):
        if cls.former is None:
            raise no_history(f"commit {FORMER}")
        super().setUpClass()
        cls.cluster.load(cls.former)

    @classmethod
    def tearDownClass(cls):
        cls.chart.install()

    def sidecar_image(self, name):
        return self.get_pod(name)["spec"]["initContainers"][0]["image"]

    def pair(self, name):
        return annotated(pod(name, container("a"), container("b")), SMALL)

    def test_pods_from_before_an_upgrade_go_on(self):
        """Goal: old brokers serve old and new libraries, and get their buffers back from a new
        plugin. Method: a restarted container gets the new library; the broker is killed."""
        self.chart.install(self.chart.of_commit(FORMER), **self.OLD_PLUGIN, **self.OLD_SIDECAR)
        self.run_pod(self.pair("stays"))
        self.share("stays", "before")
        self.chart.install()
        self.assertEqual(self.read("stays", "b", 6), "before")
        self.restart("stays", "b")
        self.assertEqual(self.read("stays", "b", 6), "before")
        self.restart("stays", "gpushm")
        self.assertEqual(self.read("stays", "b", 6), "before")
        self.share("stays", "after", writer="b", reader="a")
        self.assertTrue(self.sidecar_image("stays").endswith(":former"))

    def test_a_rollback_brings_the_former_version_back(self):
        """Goal: the rollback of docs/guides/install.md. Pods of both versions continue with the
        former plugin, and a new pod has the former sidecar."""
        self.chart.install(self.chart.of_commit(FORMER), **self.OLD_PLUGIN, **self.OLD_SIDECAR)
        self.wait_former_injectors_end()
        self.run_pod(self.pair("first"))
        self.chart.install()
        self.wait_former_injectors_end()
        self.run_pod(self.pair("second"))
        self.assertFalse(self.sidecar_image("second").endswith(":former"))
        before = {name: self.container_ids(name) for name in ("first", "second")}
        for name in before:
            self.share(name, name)
        self.chart.rollback()
        self.wait_former_injectors_end()
        self.run_pod(self.pair("third"))
        self.assertTrue(self.sidecar_image("third").endswith(":former"))
        self.share("third")
        for name, ids in before.items():
            self.assertEqual(self.read(name, "b", len(name)), name)
            self.assertEqual(self.container_ids(name), ids)

    def test_an_old_broker_with_a_new_library(self):
        self.chart.install(**self.OLD_SIDECAR)
        self.run_pod(self.pair("old"))
        self.assertTrue(self.sidecar_image("old").endswith(":former"))
        self.share("old")

    def test_a_new_broker_with_an_old_plugin_and_library(self):
        """As on nodes whose plugin an upgrade has not replaced yet."""
        self.chart.install(self.chart.of_commit(FORMER), **self.OLD_PLUGIN)
        self.run_pod(self.pair("new"))
        self.share("new")
        self.restart("new", "gpushm")
        self.assertEqual(self.read("new", "b"), "hello")

    def test_a_copy_of_a_pod_gets_the_sidecar_of_its_time(self):
        """Method: the output of `kubectl get -o yaml` for a pod is created again, after an upgrade,
        under another name."""
        self.chart.install(**self.OLD_SIDECAR)
        made = self.run_pod(self.pair("first"))
        self.chart.install()
        self.wait_former_injectors_end()
        copy = {**made, "metadata": {"name": "second",
                                     "annotations": made["metadata"]["annotations"]}}
        del copy["status"]
        made = self.run_pod({"apiVersion": "v1", "kind": "Pod", **copy})
        self.assertEqual(statuses(made).keys(), {"gpushm", "a", "b"})
        self.assertFalse(self.sidecar_image("second").endswith(":former"))
        self.share("second")
        self.share("first")
