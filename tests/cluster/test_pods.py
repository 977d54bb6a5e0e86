"""Pods of unusual shapes."""

import json

from case import container, pod, shell
from chart_case import MORE_VALUES, SMALL, ChartCase, annotated, holder, installed_with, workload


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

    @installed_with(MORE_VALUES)
    def test_pull_secrets_are_the_pods_and_gpushms(self):
        made = self.run_pod(annotated(pod("pulls", container("a"), imagePullSecrets=[
            {"name": "mine"}]), SMALL))
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
