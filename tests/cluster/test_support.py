"""deploy/support-bundle, as an operator runs it: what is in the archive, and that no secret is."""

import base64
import io
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile

from case import container, pod
from chart import ROOT
from chart_case import MORE_VALUES, SECRET, SMALL, ChartCase, annotated, installed_with
from plugin import NAMESPACE
from settings import NODE_NAME


def support_bundle(cluster, *words):
    """{path: bytes} of the archive; of the archives in it as well, below the archive's path."""
    with tempfile.TemporaryDirectory() as folder:
        archive = pathlib.Path(folder) / "bundle.tar.gz"
        cluster.enter_network()
        done = subprocess.run([ROOT / "deploy/support-bundle", *words, "--output", archive],
                              env=cluster.environment(), text=True, capture_output=True,
                              timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert archive.stat().st_mode & 0o777 == 0o600
        return unpacked(archive.read_bytes(), "")


def unpacked(archive, prefix):
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if not member.isfile():
                continue
            name, content = prefix + member.name, tar.extractfile(member).read()
            files[name] = content
            if name.endswith(".tar"):
                files |= unpacked(content, name + "/")
    return {name.removeprefix("gpushm-support/"): content for name, content in files.items()}


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
        return [text.encode() for text in texts]

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
            if name.endswith(".json"):
                json.loads(content)
        text = {name: content.decode(errors="replace") for name, content in files.items()}
        index = text["index.txt"]
        self.assertNotIn("\nmissing", index)
        self.assertIn("Server Version: v", text["cluster/version.txt"])

        self.assertIn("DaemonSet gpushm-plugin", text["gpushm/workloads.txt"])
        self.assertIn("variable API_TOKEN\n", text["gpushm/workloads.txt"])
        self.assertIn("state-folder: /var/lib/gpushm", text["gpushm/plugin.yaml"])
        self.assertIn("simulated: true", text["gpushm/values.yaml"])
        self.assertIn("failurePolicy Fail", text["gpushm/webhooks.txt"])
        self.assertRegex(text["gpushm/events.txt"], r"Created Pod/gpushm-")
        for injector in self.injectors():
            self.assertIn(" info ", text[f"gpushm/{injector}.log"])
            self.assertIn("gpushm_", text[f"gpushm/{injector}.metrics.txt"])

        node = f"nodes/{NODE_NAME}/"
        self.assertIn("allocatable gpushm.io/memory ", text[node + "node.txt"])
        self.assertIn(f"{self.namespace}/other gpushm gpushm.io/memory 1", text[node + "use.txt"])
        plugin = next(name for name in files if name.startswith(node) and name.endswith(".tar"))
        self.assertIn(" info ready ", text[plugin.removesuffix(".tar") + ".log"])
        status = json.loads(text[plugin + "/plugin/status.json"])
        self.assertIn("named", {p["pod"] for g in status["gpus"] for p in g["pools"]})
        self.assertIn("gpushm_", text[plugin + "/plugin/metrics.txt"])
        self.assertIn("unit: 1Gi", text[plugin + "/plugin/config.yaml"])
        self.assertIn("gpushm.io-memory-", text[plugin + "/plugin/cdi.json"])

        of_pod = f"pods/{self.namespace}/named/"
        self.assertIn('annotation buffers.gpushm.io/weights "4Mi"', text[of_pod + "pod.txt"])
        self.assertRegex(text[of_pod + "events.txt"], "Unhealthy .*message left out")
        self.assertIn(" info ready ", text[of_pod + "gpushm.log"])
        for container_name in ("gpushm", "a", "b"):
            archive = f"{of_pod}{container_name}.tar/"
            self.assertIn('"name": "weights"', text[archive + "buffers.json"])
            self.assertIn('"checks"', text[archive + "doctor.json"])
        self.assertFalse([name for name in files if "other" in name])

    def test_a_command_that_cannot_start_is_left_out(self):
        """Goal: the runtime's message of it, which repeats the command, is not taken whole."""
        self.create(pod("refused", container("a", f"run {SECRET}")))
        self.wait_event("refused", f"run {SECRET}")
        files = support_bundle(self.cluster, "--pod", f"{self.namespace}/refused")
        for name, content in files.items():
            self.assertNotIn(SECRET.encode(), content, name)
        self.assertRegex(files[f"pods/{self.namespace}/refused/events.txt"].decode(),
                         r" Failed .*(exec:|executable file) \(left out\)")

    def test_it_says_what_it_cannot_do(self):
        def run(*words, **environment):
            self.cluster.enter_network()
            return subprocess.run([ROOT / "deploy/support-bundle", *words], text=True,
                                  env=self.cluster.environment() | environment,
                                  capture_output=True, timeout=100, check=False)

        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "x.tar.gz")
            silent = run("--output", output, KUBECONFIG="/dev/null")
            self.assertEqual(silent.returncode, 1, silent.stdout)
            self.assertIn("the API server does not answer", silent.stderr)
            self.assertFalse(os.path.exists(output))
            for words in (("--pod", "../x"), ("--node", "a/../b"), ("--output", folder),
                          ("--output", "/nowhere/x")):
                refused = run(*words)
                self.assertEqual(refused.returncode, 1, words)
                self.assertIn("remedy: ", refused.stderr)
            self.assertEqual(run("--bogus", "x").returncode, 2)
            # A node that is not there, and a namespace without gpushm: it says so, and goes on.
            files = support_bundle(self.cluster, "--node", "nobody", "--namespace", "default")
            self.assertRegex(files["index.txt"].decode(), "missing +nodes/nobody/node.txt")
