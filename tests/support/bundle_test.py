"""deploy/support-bundle without a cluster: a program of the shell answers in place of kubectl.

tests/cluster/test_support.py has the real one.
"""

import io
import json
import os
import pathlib
import re
import signal
import subprocess
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRIPT = ROOT / "deploy/support-bundle"
SECRET = "hunter2"
ODD = r"\033]0;owned\007\033[31mno gpushmctl\r\n"

# Wherever a user can write something: each has the secret.
FREE = {
    "env": [{"name": "TOKEN", "value": SECRET}],
    "envFrom": [{"secretRef": {"name": SECRET}}],
    "args": [SECRET, f"--password={SECRET}", f"--unit={SECRET} x", f"--api-server=me:{SECRET}@db"],
    "command": ["sh", "-c", SECRET],
    "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
    "livenessProbe": {"httpGet": {"path": SECRET, "httpHeaders": [{"value": SECRET}]}},
}
PLUGIN = {
    "metadata": {"name": "plugin-1", "namespace": "gpushm-system", "annotations": {"note": SECRET},
                 "labels": {"app.kubernetes.io/component": "plugin", "owner": SECRET}},
    "spec": {"nodeName": "node-1", "containers": [
        {"name": "plugin", "image": "plugin:1", **FREE},
        {"name": "injector", **FREE, "args": ["--unit=1Gi", "--mps", f"--token={SECRET}"]}]},
}
POD = {
    "metadata": {"name": "llm", "namespace": "team", "annotations": {
        "buffers.gpushm.io/weights": "4Mi", "gpushm.io/access": "read", "nvidia.com/note": SECRET,
        "kubernetes.io/description": SECRET, "not-gpushm.io/note": SECRET,
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"env": SECRET})},
        "managedFields": [{"manager": SECRET}]},
    "spec": {"nodeName": "node-1", "hostAliases": [SECRET],
             "volumes": [{"name": "v", "csi": {"volumeAttributes": {"password": SECRET}}}],
             "initContainers": [{"name": "gpushm", "image": "sidecar", "restartPolicy": "Always",
                                 **FREE}],
             "containers": [{"name": "a", "image": "app", **FREE, "resources": {
                 "limits": {"gpushm.io/attach": "1", "example.com/x": SECRET}}},
                            {"name": "b", **FREE}]},
    "status": {"phase": "Running", "message": SECRET, "containerStatuses": [
        {"name": "a", "lastState": {"terminated": {
            "exitCode": 1, "reason": "Error", "message": SECRET}}}]},
}
NODE = {
    "metadata": {"name": "node-1", "annotations": {"csi.volume.kubernetes.io/nodeid": SECRET},
                 "labels": {"gpushm.io/gpu": "true", "kubernetes.io/arch": "amd64",
                            "nvidia.com/gpu.product": "NVIDIA-H100",
                            "nvidia.com/mig-1g.10gb.count": "7", "nvidia.com/owner": SECRET,
                            "kubernetes.io/owner": SECRET, "example.com/owner": SECRET}},
    "status": {"capacity": {"gpushm.io/memory": "80"}, "images": [{"names": [SECRET]}]},
}
PRESTART = ("Error: device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown "
            "desc = team/llm, container gpushm needs 8 GiB on one GPU")
UNSCHEDULABLE = "0/1 nodes are available: 1 had untolerated taint {team: %s}, 1 Insufficient cpu"
TOLD = {PRESTART: PRESTART.removeprefix("Error: "),
        UNSCHEDULABLE % SECRET: UNSCHEDULABLE.replace("{team: %s}", "{}"),
        'MountVolume.SetUp failed for volume "tls" : secret "tls" not found':
            'secret "tls" not found',
        "Readiness probe failed: HTTP probe failed with statuscode: 503": "statuscode: 503"}
UNTOLD = (
    f'MountVolume.SetUp failed for volume "v" : mount failed: exit status 32\nMounting command: '
    f"mount\nMounting arguments: -t cifs -o username=me,password={SECRET} //db/x /var/lib/x",
    f"Readiness probe failed: {SECRET}",
    f'Error: runc create failed: unable to start: exec: "sh -c {SECRET}": not found in $PATH',
    f"Error: executable file `{SECRET}` not found in $PATH: No such file or directory",
    f'Exec lifecycle hook ([sh -c {SECRET}]) for Container "a" failed',
    f'Failed to pull image "x": https://registry/token?t={SECRET}: 401',
    f"PreStop of gpushm: {SECRET}")


def items(*objects):
    return {"items": list(objects)}


def events(name, messages):
    return items(*({"reason": "R", "message": each, "involvedObject": {"kind": "Pod", "name": name}}
                   for each in messages))


# What kubectl makes of plugin.yaml as YAML: tests/cluster has the real one.
PARSED = {"metadata": {"name": "x"}, "plugin": {
    "attach-tokens": 64, "unit": "1Gi", "gpus": [0, "1g.18gb"],
    "log": {"level": "info", "format": "json", "api-token": SECRET, "address": f"me:{SECRET} @db"},
    "dra": {"credentials-folder": "/var/run", "Client_Secret": SECRET,
            "api-server": f"https://me:{SECRET}@db"},
    "not-gpus": ["nvidia.com/hostdev", f"#{SECRET}"],
    **dict.fromkeys(("pwd", "bearer", "jwt", "dsn", "database", "proxy", "my secret", "password",
                     "credential", "caBundle"), SECRET),
    "unknown": [{"unit": SECRET}, SECRET], "more": [{"unit": SECRET, "value": SECRET}],
    "private_pem": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n",
    "host-root": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n",
    "health": {"recheck-ms": 5000, "password": SECRET}}}
RESULT = {"driver": "gpushm.io", "device": "gpu-0"}
# The first whose words are in kubectl's arguments.
ANSWERS = {
    "version": {"serverVersion": {"gitVersion": "v1.35.4"}, "token": SECRET},
    "get configmaps": (HERE / "plugin.yaml").read_text(),
    "label --local": PARSED,
    "get daemonsets,deployments": items({"kind": "DaemonSet", "metadata": {
        "name": "gpushm-plugin", "annotations": {"note": SECRET}}, "spec": {"template": PLUGIN}}),
    "get mutatingwebhookconfigurations": items({"metadata": {"name": "gpushm"}, "webhooks": [
        {"name": "mutate.gpushm.io", "clientConfig": {"caBundle": SECRET, "url": SECRET}}]}),
    "get pods -n gpushm-system": items(PLUGIN),
    "get events -n gpushm-system": events("gpushm-plugin-1", [*TOLD, *UNTOLD]),
    "get events -n team": events("llm", [*TOLD, *UNTOLD]),
    "get resourceslices": items(
        {"spec": {"driver": "gpushm.io", "devices": [{"name": "gpu-0", "attributes": {
            "gpushm.io/uuid": {"string": "GPU-1"}}, "capacity": {"memory": {"value": "80Gi"}}}]}},
        {"spec": {"driver": "other", "devices": [{"attributes": {"x": {"string": SECRET}}}]}}),
    "get resourceclaims": items({
        "metadata": {"name": "shared", "annotations": {"note": SECRET}},
        "spec": {"devices": {"requests": [{"name": "broker"}], "config": [{"opaque": SECRET}]}},
        "status": {"allocation": {"devices": {"results": [RESULT],
                                              "config": [{"opaque": SECRET}]}}}}),
    "get pod llm": POD,
    "get node node-1": NODE,
    "logs --previous": "", "logs -n": "2026-11-27T10:00:00Z info ready\n2026-11-27T10:00:01Z error start-failed "
    f'reason="INVALID_ARGUMENT: \\"https://me:{SECRET}@db\\" is not host:port"\n',
    "-- gpushmctl top --node": {"node": "node-1"},
    "-- gpushmctl --folder /run/gpushm/a": {"buffers": []},
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

    def kubectl(self, *first):
        """`first`: cases of the shell that come before ANSWERS."""
        cases = list(first)
        for number, (words, answer) in enumerate(ANSWERS.items()):
            text = answer if isinstance(answer, str) else json.dumps(answer)
            (self.folder / f"answer-{number}").write_text(text)
            cases.append(f"*' {words}'*) cat '{self.folder}/answer-{number}' ;;")
        cases.append(f"*) printf '{ODD}' >&2; exit 1 ;;")
        write_program(self.folder / "kubectl",
                      'case " $*" in\n' + "\n".join(cases) + "\nesac\n")

    def command(self, *words):
        return [SCRIPT, *words, "--output", self.output]

    def collect(self, *words):
        """({path: text} of the archive, what the terminal got)."""
        self.output.unlink(missing_ok=True)
        done = subprocess.run(self.command(*words), env=self.environment, capture_output=True,
                              text=True, errors="replace", timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with tarfile.open(fileobj=io.BytesIO(self.output.read_bytes())) as tar:
            files = {member.name.removeprefix("gpushm-support/"):
                     tar.extractfile(member).read().decode(errors="replace")
                     for member in tar if member.isfile()}
        for name, text in files.items():
            self.assertNotIn(SECRET, text, name)
            if name.endswith(".json"):
                json.loads(text)
        return files, done.stdout + done.stderr

    def test_what_is_taken(self):
        self.kubectl()
        files, terminal = self.collect("--pod", "team/llm")
        parts = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
        self.assertEqual(parts["gpushm/plugin.json"], {
            "attach-tokens": 64, "unit": "1Gi", "gpus": [0, "1g.18gb"],
            "log": {"level": "info", "format": "json", "address": "(left out)"},
            "dra": {"credentials-folder": "/var/run", "api-server": "(left out)"},
            "not-gpus": ["nvidia.com/hostdev", "(left out)"], "host-root": "(left out)",
            "health": {"recheck-ms": 5000}})

        for name in ("gpushm/events.json", "pods/team/llm/events.json"):
            self.assertEqual([event["message"] for event in parts[name]["items"]],
                             [*TOLD.values(), *["(left out)"] * len(UNTOLD)])

        pod = parts["pods/team/llm/pod.json"]
        self.assertEqual(pod["metadata"]["annotations"],
                         {"buffers.gpushm.io/weights": "4Mi", "gpushm.io/access": "read"})
        self.assertEqual(pod["spec"]["containers"][0], {
            "name": "a", "image": "app", "env": ["TOKEN"],
            "resources": {"limits": {"gpushm.io/attach": "1"}}})
        self.assertEqual(pod["status"]["containerStatuses"][0]["lastState"]["terminated"],
                         {"exitCode": 1, "reason": "Error", "message": "(left out)"})
        self.assertEqual(list(parts["nodes/node-1/node.json"]["metadata"]["labels"]),
                         ["gpushm.io/gpu", "kubernetes.io/arch", "nvidia.com/gpu.product",
                          "nvidia.com/mig-1g.10gb.count"])
        self.assertEqual(parts["nodes/node-1/node.json"]["status"],
                         {"capacity": {"gpushm.io/memory": "80"}})
        plugin, injector = parts["gpushm/pods.json"]["items"][0]["spec"]["containers"]
        self.assertEqual(plugin["args"], ["(left out)", "(left out)"])
        self.assertEqual(injector["args"], ["--unit=1Gi", "--mps"])
        self.assertEqual(parts["gpushm/webhooks.json"]["items"][0]["webhooks"],
                         [{"name": "mutate.gpushm.io", "clientConfig": {"caBundle": len(SECRET)}}])
        slices = parts["cluster/slices.json"]["items"]
        claims = parts["cluster/claims.json"]["items"]
        self.assertEqual(len(slices), 1)
        self.assertEqual(slices[0]["spec"]["devices"][0]["attributes"],
                         {"gpushm.io/uuid": {"string": "GPU-1"}})
        self.assertEqual(claims[0]["status"]["allocation"]["devices"], {"results": [RESULT]})
        self.assertEqual(parts["nodes/node-1/plugin-1.status.json"], {"node": "node-1"})
        self.assertEqual(parts["pods/team/llm/a.ls.json"], {"buffers": []})
        for name in ("nodes/node-1/plugin-1.plugin.log", "pods/team/llm/llm.gpushm.log"):
            self.assertIn("info ready", files[name])
        self.assertFalse([name for name in files if "/b." in name])

        # The doctor in the container could not be asked.
        for text in (terminal, files["index.txt"]):
            self.assertIn("missing pods/team/llm/a.doctor.json: ", text)
            self.assertTrue(text.replace("\n", "").isprintable(), text)

    def test_a_doctor_that_finds_something_is_taken(self):
        self.kubectl("*'gpushmctl doctor'*) echo '{\"failed\": 1}'; exit 1 ;;")
        files, _ = self.collect("--pod", "team/llm")
        self.assertEqual(files["pods/team/llm/a.doctor.json"], '{\n "failed": 1\n}')

    def test_a_configuration_without_keys_is_left_out(self):
        """Goal: also of kubectl's reason, which repeats words of the file, nothing is taken."""
        for said in (f"echo 'unknown anchor {SECRET}' >&2; exit 1",
                     f"""echo '{{"plugin": "{SECRET}"}}'""",
                     f"""echo '{{"plugin": ["{SECRET}"]}}'"""):
            self.kubectl(f"*' label --local'*) {said} ;;")
            files, terminal = self.collect()
            self.assertNotIn(SECRET, terminal)
            self.assertIn("missing gpushm/plugin.json: ", files["index.txt"])

    def test_the_lists_are_those_of_plugin_and_chart(self):
        """Goal: a key or a flag that they get later is in the list, or left out on purpose."""
        script = SCRIPT.read_text()

        def listed(name):
            return set(re.search(rf'(?ms)^{name} = words\("""(.*?)"""', script)[1].split())

        rows = (ROOT / "docs/reference/plugin-config.md").read_text()
        keys = re.findall(r"^\| `([a-z.-]+)` \|", rows, re.MULTILINE)
        self.assertIn("attach-tokens", keys)
        words = {word for key in keys for word in key.split(".")}
        self.assertEqual(listed("CONFIGURATION"), words | {"plugin", "name", "memory", "gpu"})
        chart = (ROOT / "helm/gpushm/templates/injector.yaml").read_text()
        flags = set(re.findall(r"^ +- --([a-z-]+)", chart, re.MULTILINE))
        # Names of Secrets, and free text.
        self.assertEqual(listed("FLAGS"), flags - {"sidecar-pull-secret", "toleration"})

    def test_an_error_is_printable(self):
        self.kubectl(f"*version*) printf '{ODD}' >&2; exit 1 ;;")
        done = subprocess.run(self.command(), env=self.environment, capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no gpushmctl", done.stderr)
        self.assertIn("remedy: ", done.stderr)
        self.assertTrue(done.stderr.replace("\n", "").isprintable(), done.stderr)

    def test_without_an_api_server_it_says_so(self):
        """Goal: though kubectl then prints its own version, and fails."""
        self.kubectl("""*version*) echo '{"clientVersion": {"gitVersion": "v1"}}'; exit 1 ;;""")
        done = subprocess.run(self.command(), env=self.environment, capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the API server does not answer", done.stderr)
        self.assertFalse(self.output.exists())

    def test_a_wrong_word_is_refused_with_what_to_do(self):
        self.kubectl()
        for words in (("--pod", "../x"), ("--node", "a/../b"), ("--output", self.folder),
                      ("--output", "/nowhere/x"), ("--bogus", "x")):
            done = subprocess.run([SCRIPT, *words], env=self.environment, capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2 if "--bogus" in words else 1, words)
            self.assertIn("usage: " if "--bogus" in words else "remedy: ", done.stderr)

    def test_an_answer_without_end_is_cut(self):
        self.kubectl("*' logs'*) exec yes ;;", "*'gpushmctl top'*) exec yes ;;")
        files, _ = self.collect()
        self.assertIn("missing nodes/node-1/plugin-1.status.json: ", files["index.txt"])

    def test_its_end_ends_kubectl(self):
        """Goal: also if the signal comes right after kubectl's start. Nothing is left of the
        archive."""
        started = self.folder / "started"
        os.mkfifo(started)
        self.kubectl(f"*configmaps*) echo $$ >'{started}'; exec sleep 90 ;;")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with subprocess.Popen(self.command(), env=self.environment,
                                  stderr=subprocess.DEVNULL) as script:
                pid = int(started.read_text())
                script.send_signal(number)
                self.assertEqual(script.wait(30), 128 + number)
            running = pathlib.Path(f"/proc/{pid}").exists()
            if running:
                os.kill(pid, signal.SIGKILL)
            self.assertFalse(running, number)
            self.assertFalse(self.output.exists())


if __name__ == "__main__":
    unittest.main()
