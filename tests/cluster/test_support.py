"""deploy/support-bundle, as an operator runs it: what is in the archive, and that no secret is."""

import base64
import json
import pathlib
import re
import subprocess
import tarfile
import tempfile

from case import container, pod
from chart import ROOT
from chart_case import MORE_VALUES, SECRET, SMALL, ChartCase, annotated, installed_with
from plugin import NAMESPACE
from settings import NODE_NAME


def support_bundle(cluster, *words):
    """{path: text} of the archive."""
    with tempfile.TemporaryDirectory() as folder:
        archive = pathlib.Path(folder) / "bundle.tar.gz"
        cluster.enter_network()
        done = subprocess.run([ROOT / "deploy/support-bundle", *words, "--output", archive],
                              env=cluster.environment(), text=True, capture_output=True,
                              timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert archive.stat().st_mode & 0o777 == 0o600
        with tarfile.open(archive) as tar:
            return {member.name.removeprefix("gpushm-support/"):
                    tar.extractfile(member).read().decode(errors="replace") for member in tar}


class SupportBundleTest(ChartCase):

    def secrets(self):
        """What no archive may have: of Secrets and tokens also parts, as base64 and as they are."""
        self.assertTrue(self.api.list("Secret", NAMESPACE))
        texts = [SECRET, "PRIVATE KEY", "eyJhbGciOi"]  # The last one begins every token.
        for secret in self.api.list("Secret", NAMESPACE):
            if not secret["type"].startswith("helm.sh/"):
                texts += [value[40:120] for value in secret.get("data", {}).values()
                          if len(value) > 120]
        texts += [base64.b64encode(SECRET.encode()).decode()[:18]]
        return texts

    @installed_with(MORE_VALUES)
    def test_it_has_all_parts_and_no_secret(self):
        """Goal: what an operator publishes has the state of gpushm and nothing of others. Method:
        one text stands for all secrets: in values of the chart, a pod's environment, arguments,
        annotations, failing probe and buffer, and in a neighbour on the node."""
        has = {"env": [{"name": "TOKEN", "value": SECRET}, {"name": "GPUSHM_KEY", "value": SECRET}],
               "args": [SECRET]}
        probe = {"exec": {"command": ["sh", "-c", f"echo {SECRET}; exit 1"]}, "periodSeconds": 1}
        self.create(annotated(pod("named", container("a", **has),
                                  container("b", **has, readinessProbe=probe)),
                              {**SMALL, "example.com/mail": SECRET}),
                    annotated(pod("other", container("a", **has)),
                              {**SMALL, "example.com/mail": SECRET}))
        self.wait_ready("other")
        self.wait_event("named", SECRET)
        self.share("named", SECRET)

        files = support_bundle(self.cluster, "--pod", f"{self.namespace}/named")
        for name, content in files.items():
            for text in self.secrets():
                self.assertNotIn(text, content, name)
        self.assertNotIn("missing", files["index.txt"])
        parts = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
        self.assertRegex(parts["cluster/version.json"]["serverVersion"]["gitVersion"], "^v")

        workloads = {one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]
                     for one in parts["gpushm/workloads.json"]["items"]}
        self.assertIn("gpushm-plugin", workloads)
        self.assertEqual(workloads["gpushm-injector"]["env"], ["API_TOKEN"])
        self.assertIn("--unit=1Gi", workloads["gpushm-injector"]["args"])
        self.assertEqual(parts["gpushm/plugin.json"]["state-folder"], "/var/lib/gpushm")
        self.assertEqual(parts["gpushm/plugin.json"]["unit"], "1Gi")
        self.assertIn('"failurePolicy": "Fail"', files["gpushm/webhooks.json"])
        self.assertIn('"reason": "Created"', files["gpushm/events.json"])
        for injector in self.injectors():
            self.assertIn(" info ", files[f"gpushm/{injector}.injector.log"])

        node = f"nodes/{NODE_NAME}/"
        self.assertIn("gpushm.io/memory", parts[node + "node.json"]["status"]["allocatable"])
        plugin = next(name for name in files if re.fullmatch(f"{node}.*\\.plugin\\.log", name))
        self.assertIn(" info ready ", files[plugin])
        status = parts[plugin.removesuffix(".plugin.log") + ".status.json"]
        self.assertIn("named", {p["pod"] for g in status["gpus"] for p in g["pools"]})

        of_pod = f"pods/{self.namespace}/named/"
        annotations = parts[of_pod + "pod.json"]["metadata"]["annotations"]
        self.assertEqual(annotations["buffers.gpushm.io/weights"], "4Mi")
        unhealthy = [one["message"] for one in parts[of_pod + "events.json"]["items"]
                     if one["reason"] == "Unhealthy"]
        self.assertIn("(left out)", unhealthy)
        self.assertIn(" info ready ", files[of_pod + "named.gpushm.log"])
        for name in ("a", "b"):
            self.assertIn('"name": "weights"', files[f"{of_pod}{name}.ls.json"])
            self.assertEqual(parts[f"{of_pod}{name}.stat.json"]["container"], name)
            self.assertIn("checks", parts[f"{of_pod}{name}.doctor.json"])
        self.assertFalse([name for name in files if "other" in name])

    def test_of_a_configuration_only_known_keys_are_taken(self):
        """Goal: what the real kubectl makes of each form in which YAML has a key and a value."""
        text = (ROOT / "tests/support/plugin.yaml").read_text()
        labels = {"app.kubernetes.io/part-of": "gpushm", "app.kubernetes.io/component": "plugin"}
        self.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "plugin", "labels": labels}, "data": {"plugin.yaml": text}})
        files = support_bundle(self.cluster, "--namespace", self.namespace)
        self.assertNotIn("hunter2", files["gpushm/plugin.json"])
        kept = json.loads(files["gpushm/plugin.json"])
        self.assertEqual(kept["health"], {"recheck-ms": 5000})
        self.assertEqual(kept["log"], {"level": "info", "format": "json", "address": "(left out)"})

    def test_a_command_that_cannot_start_is_left_out(self):
        """Goal: the runtime's message of it, which repeats the command, is not taken whole."""
        self.create(pod("refused", container("a", f"run {SECRET}")))
        self.wait_event("refused", f"run {SECRET}")
        files = support_bundle(self.cluster, "--pod", f"{self.namespace}/refused")
        for name, content in files.items():
            self.assertNotIn(SECRET, content, name)
        events = json.loads(files[f"pods/{self.namespace}/refused/events.json"])["items"]
        self.assertEqual({one["message"] for one in events if one["reason"] == "Failed"},
                         {"(left out)"})
