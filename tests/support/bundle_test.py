"""deploy/support-bundle without a cluster: a program of the shell answers in place of kubectl.

It prints what the templates make of the objects; tests/cluster/test_support.py has the real one.
"""

import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRIPT = ROOT / "deploy/support-bundle"
SECRET = "hunter2"

POD = f"""pod team/llm on node-1
annotation buffers.gpushm.io/weights "4Mi"
annotation gpushm.io/access "read"
annotation kubernetes.io/description "{SECRET}"
annotation nvidia.com/note "{SECRET}"
annotation not-gpushm.io/note "{SECRET}"
init container gpushm image sidecar
"""
NODE = f"""node-1
label gpushm.io/gpu "true"
label kubernetes.io/arch "amd64"
label nvidia.com/gpu.product "NVIDIA-H100"
label nvidia.com/mig-1g.10gb.count "7"
label nvidia.com/owner "{SECRET}"
label kubernetes.io/owner "{SECRET}"
label example.com/owner "{SECRET}"
"""
FAILED = "2026-11-27T10:00:00Z Warning Failed Pod/llm "
EVENTS = "".join(FAILED + text + "\n" for text in (
    rf'"Error: runc create failed: unable to start: exec: \"sh -c {SECRET}\": not found in $PATH"',
    rf'"Error: container init: exec: \"/{SECRET}\": stat /{SECRET}: no such file or directory"',
    rf'"Error: executable file `{SECRET}` not found in $PATH: No such file or directory"',
    rf'"Error: cut off: exec: \"sh -c {SECRET}',
    r'"Failed to pull image \"x\": not found"')) + (
        '2026-11-27T10:00:00Z Normal Pulled Pod/exec "Image is present"\n')
ODD = r"\033]0;owned\007\033[31mno gpushmctl\r\n"

# The first whose words are in kubectl's arguments.
ANSWERS = {
    "version": "Server Version: v1.35.4\n",
    "component=plugin -o jsonpath": "plugin-1 plugin node-1\n",
    "get configmaps": (HERE / "plugin.yaml").read_text(),
    "get daemonsets,deployments -n gpushm-system -l app.kubernetes.io/part-of=gpushm -o jsonpath":
        "gpushm",
    "get pod llm -n team -o jsonpath": "node-1",
    "get pod llm -n team -o go-template": POD,
    "get events -n team": EVENTS,
    "get node node-1": NODE,
}


def write_program(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


class BundleTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.output = self.folder / "bundle.tar.gz"
        self.environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        shutil.copy(HERE / "values.yaml", self.folder / "values")
        write_program(self.folder / "helm", f"cat '{self.folder}/values'\n")

    def kubectl(self, *first):
        """`first`: cases of the shell that come before ANSWERS."""
        cases = list(first)
        for number, (words, answer) in enumerate(ANSWERS.items()):
            (self.folder / f"answer-{number}").write_text(answer)
            cases.append(f"*' {words}'*) cat '{self.folder}/answer-{number}' ;;")
        cases.append(f"*) printf '{ODD}' >&2; exit 1 ;;")
        write_program(self.folder / "kubectl",
                      'case " $*" in\n' + "\n".join(cases) + "\nesac\n")

    def command(self, *words):
        return [SCRIPT, *words, "--output", self.output]

    def collect(self, *words):
        """({path: text} of the archive, what the terminal got)."""
        done = subprocess.run(self.command(*words), env=self.environment, capture_output=True,
                              text=True, errors="replace", timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with tarfile.open(fileobj=io.BytesIO(self.output.read_bytes())) as tar:
            files = {member.name.removeprefix("gpushm-support/"):
                     tar.extractfile(member).read().decode(errors="replace")
                     for member in tar if member.isfile()}
        return files, done.stdout + done.stderr

    def test_what_is_taken(self):
        self.kubectl()
        files, terminal = self.collect("--pod", "team/llm")
        for name, text in files.items():
            with self.subTest(name):
                self.assertNotIn(SECRET, text)

        self.assertEqual(files["gpushm/values.yaml"].splitlines(), [
            "global.imageRegistry: registry.example/team", "gpushm.driver.simulated: true",
            "gpushm.plugin.image.tag: 1.0.0", "gpushm.plugin.priorityClassName: (left out)",
            'gpushm.unit: "2Gi"', "metrics.port: 9400", "plugin.featuresFolder: (left out)"])

        events = files["pods/team/llm/events.txt"]
        self.assertEqual(events.count("exec: (left out)"), 3)
        self.assertIn("executable file (left out)", events)
        self.assertIn("Failed to pull image", events)
        self.assertIn("Image is present", events)

        self.assertEqual(re.findall("annotation (.*) ", files["pods/team/llm/pod.txt"]),
                         ["buffers.gpushm.io/weights", "gpushm.io/access"])
        self.assertEqual(re.findall("label (.*) ", files["nodes/node-1/node.txt"]),
                         ["gpushm.io/gpu", "kubernetes.io/arch", "nvidia.com/gpu.product",
                          "nvidia.com/mig-1g.10gb.count"])

        for text in (terminal, files["index.txt"]):
            self.assertIn("no gpushmctl", text)
            self.assertTrue(text.replace("\n", "").isprintable(), text)

    def test_configuration_is_what_gpushmctl_takes(self):
        """Goal: both filters of this file are alike, and leave out no documented key."""
        rows = (ROOT / "docs/reference/plugin-config.md").read_text()
        keys = re.findall(r"^\| `(?:[a-z-]+\.)?([a-z-]+)` \|", rows, re.MULTILINE)
        known = [f"{key}: 1" for key in keys]
        self.assertIn("attach-tokens: 1", known)
        configuration = self.folder / "plugin.yaml"
        configuration.write_text("\n".join([(HERE / "plugin.yaml").read_text(), *known, ""]))
        self.kubectl(f"*' get configmaps'*) cat '{configuration}' ;;")
        of_script = self.collect()[0]["gpushm/plugin.yaml"]
        self.assertNotIn(SECRET, of_script)
        for kept in ("credentials-folder: /var/run,", "nvidia.com/hostdev#1", "recheck-ms: 5000",
                     "passphrase: (removed)", *known):
            self.assertIn(kept, of_script)

        program = os.environ.get("GPUSHMCTL")
        if not program:
            self.skipTest("GPUSHMCTL names no program: run it with ctest")
        made = self.folder / "gpushm.tar"
        subprocess.run([program, "support-bundle", "--timeout", "1s", "--config", configuration,
                        made], capture_output=True, timeout=60, check=True)
        with tarfile.open(made) as tar:
            name = next(name for name in tar.getnames() if name.endswith("plugin/config.yaml"))
            self.assertEqual(tar.extractfile(name).read().decode(), of_script)

    def test_an_error_is_printable(self):
        self.kubectl(f"*version*) printf '{ODD}' >&2; exit 1 ;;")
        done = subprocess.run(self.command(), env=self.environment, capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no gpushmctl", done.stderr)
        self.assertTrue(done.stderr.replace("\n", "").isprintable(), done.stderr)

    def test_its_end_ends_kubectl(self):
        """Goal: also if the signal comes right after kubectl's start. Method: each command of the
        script begins late."""
        (self.folder / "late").write_text(
            "set -o functrace; trap '[ $BASHPID != $$ ] || sleep 0.05' DEBUG\n")
        self.environment["BASH_ENV"] = str(self.folder / "late")
        started = self.folder / "started"
        os.mkfifo(started)
        self.kubectl(f"*version*) echo $$ >'{started}'; exec sleep 90 ;;")
        for number in (signal.SIGTERM, signal.SIGHUP):
            with subprocess.Popen(self.command(), env=self.environment,
                                  stderr=subprocess.DEVNULL) as script:
                pid = int(started.read_text())
                script.send_signal(number)
                self.assertEqual(script.wait(30), 128 + number)
            running = pathlib.Path(f"/proc/{pid}").exists()
            if running:
                os.kill(pid, signal.SIGKILL)
            self.assertFalse(running, number)

    def test_the_list_of_values_is_the_charts(self):
        """Goal: a value that the chart gets later is in the list, or left out on purpose."""
        schema = json.loads((ROOT / "helm/gpushm/values.schema.json").read_text())

        def leaves(node, path):
            if "$ref" in node:
                node = schema["$defs"][node["$ref"].rpartition("/")[2]]
            if "properties" in node:
                for name, child in node["properties"].items():
                    yield from leaves(child, [*path, name])
            elif node.get("type") not in ("array", "object"):
                yield ".".join(path)

        listed = re.search(r"readonly chart_values=\(\n(.*?)\n\)", SCRIPT.read_text(), re.DOTALL)
        words = subprocess.run(["bash", "-c", f"printf '%s\\n' {' '.join(listed[1].split())}"],
                               capture_output=True, text=True, check=True).stdout.split()
        # Free text, names of others' objects, and what the plugin's configuration has.
        left_out = re.compile(r"plugin\.config\.|certificates\.(secret|certManager)\.|"
                              r"metrics\.prometheusRule\.(runbookUrl|thresholds)")
        self.assertEqual({leaf for leaf in leaves(schema, []) if not left_out.match(leaf)},
                         set(words))
        self.assertEqual(len(words), len(set(words)))


if __name__ == "__main__":
    unittest.main()
