"""README, followed to the letter by somebody who has the chart's package and not this tree."""

import re
import shutil
import subprocess
import tempfile

from case import container, pod
from chart import ROOT
from chart_case import WEIGHTS, ChartCase, annotated
from plugin import NAMESPACE


def commands():
    """The first block under the heading, a command a line, as it reads without a GPU."""
    part = (ROOT / "README.md").read_text().partition("\n## On Kubernetes\n")[2]
    lines = re.search(r"\n```\n(.*?)\n```\n", part, re.DOTALL)[1].splitlines()
    option = re.search(r"no GPU: add `([^`]+)` to the fourth command, and leave out the third",
                       part)[1]
    lines[3] += f" {option}"
    return lines


class ReadmeTest(ChartCase):

    def test_five_commands_to_a_shared_buffer(self):
        lines = commands()
        self.assertEqual(len(lines), 5, lines)
        del lines[2]
        self.chart.uninstall()
        self.addCleanup(self.chart.install)
        self.api.delete("Namespace", NAMESPACE)
        self.api.wait("Namespace", None, lambda all_of: NAMESPACE not in all_of, 60,
                      lambda _: "gpushm's namespace does not go")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(self.chart.package, folder)
            for line in lines:
                done = subprocess.run(line, shell=True, cwd=folder, text=True, timeout=180,
                                      env=self.cluster.environment(), capture_output=True,
                                      check=False)
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}{done.stderr}")
        self.assertRegex(done.stdout, r"Phase: +Succeeded")
        self.run_pod(annotated(pod("pair", container("a"), container("b")), WEIGHTS))
        self.share("pair")
