"""docs/start/kubernetes.md, followed to the letter: by somebody who has the chart's package and not
this tree, and by somebody who has the tree."""

import re
import shutil
import subprocess
import sys
import tempfile

from case import container, describe_all, is_ready, pod
from chart import RELEASE, ROOT
from chart_case import WEIGHTS, ChartCase, annotated
from plugin import NAMESPACE
import try_it


def commands():
    """The first block under the heading, a command a line, as it reads without a GPU; images come from
    nowhere, and are here."""
    part = (ROOT / "docs/start/kubernetes.md").read_text().partition("\n## Install\n")[2]
    lines = re.search(r"\n```sh\n(.*?)\n```\n", part, re.DOTALL)[1].splitlines()
    option = re.search(r"leave out the third command and add `([^`]+)` to the fourth", part)[1]
    lines[3] = lines[3].replace("registry.example/team", "registry.invalid") + f" {option}"
    return lines


class ReadmeTest(ChartCase):

    VALUES = None

    def start_from_nothing(self):
        self.chart.uninstall()
        self.api.remove_namespace(NAMESPACE)

    def type(self, line, **options):
        """Output of a command, which must succeed."""
        done = subprocess.run(line, shell=True, text=True, timeout=180, capture_output=True,
                              check=False, **options)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}{done.stderr}")
        return done.stdout

    def test_five_commands_to_a_shared_buffer(self):
        lines = commands()
        self.assertEqual(len(lines), 5, lines)
        del lines[2]
        self.start_from_nothing()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(self.chart.package, folder)
            for line in lines:
                printed = self.type(line, cwd=folder, env=self.cluster.environment())
        self.assertRegex(printed, r"Phase: +Succeeded")
        self.run_pod(annotated(pod("pair", container("a"), container("b")), WEIGHTS))
        self.share("pair")

    def test_run_cluster_and_what_it_says_to_try(self):
        """Goal: from an empty cluster to a running example; then each printed command works.
        Method: the program that `./run cluster` starts once there is a cluster; its shell gets one
        line. Commands that would end the cluster are left out."""
        self.start_from_nothing()
        self.addCleanup(self._remove_namespace, try_it.WHERE)
        printed = self.type(f"{sys.executable} {try_it.__file__} --state {self.cluster.state}")
        self.assertIn('begins "weights of release 7"', printed)
        lines = re.findall(r"^  (\./run cluster .+?)(?:  .*)?$", printed, re.MULTILINE)
        self.assertEqual(lines.pop(), "./run cluster down")
        for line in lines:
            self.type(line, cwd=ROOT, input=f"helm status {RELEASE} --namespace {NAMESPACE}\n")
        self.api.wait("Pod", try_it.WHERE, lambda pods: len(pods) == 2 and all(
            map(is_ready, pods.values())), 60, describe_all)
