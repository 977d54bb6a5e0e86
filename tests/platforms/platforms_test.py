"""run.py, with commands of the shell as platforms."""

import os
import pathlib
import tempfile
import unittest

from platforms import Platform
import run

RESULTS = """<testsuite name="cluster" tests="3">
<properties><property name="Kubernetes" value="v1.29.15"/></properties>
<testcase name="test_a"/><testcase name="test_b"><skipped message="no"/></testcase>%s</testsuite>"""
FAILED = """<testcase name="test_c" status="fail"><failure>Traceback
  File "test_c.py", line 1
processes.Failure: pod p is not ready
events:
  p: Pulled: an event</failure></testcase>"""


class RunTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, value in (("ROWS", self.folder / "rows"), ("LOGS", self.folder / "logs"),
                            ("LIMIT_S", run.LIMIT_S)):
            self.addCleanup(setattr, run, name, getattr(run, name))
            setattr(run, name, value)

    def row(self, script, **more):
        platform = Platform("p", "a platform", ("sh", "-c", script),
                            str(self.folder / "results.xml"), **more)
        return run.run(platform, "abc")

    def test_a_pass_has_versions_and_cases(self):
        row = self.row(f"cat >{self.folder}/results.xml <<'X'\n{RESULTS % ''}\nX")
        self.assertEqual((row["result"], row["passed"], row["skipped"], row["failed"]),
                         ("yes", 1, 1, []))
        self.assertEqual(row["versions"], {"Kubernetes": "v1.29.15"})
        self.assertEqual((row["commit"], row["command"]), ("abc", "./run test platforms p"))
        self.assertNotIn("why", row)

    def test_a_failed_case_says_why(self):
        row = self.row(f"cat >{self.folder}/results.xml <<'X'\n{RESULTS % FAILED}\nX\nexit 1")
        self.assertEqual((row["result"], row["passed"], row["failed"]), ("no", 1, ["test_c"]))
        self.assertTrue(row["why"].startswith("failed in sh -c"))
        self.assertTrue(row["why"].endswith(": test_c: processes.Failure: pod p is not ready"))

    def test_a_failed_case_counts_whatever_the_status(self):
        row = self.row(f"cat >{self.folder}/results.xml <<'X'\n{RESULTS % FAILED}\nX")
        self.assertEqual(row["result"], "no")

    def test_what_cannot_be_prepared_is_not_tried(self):
        row = self.row(f"echo tried >{self.folder}/tried", prepare=("sh", "-c", "echo lacks go; exit 2"))
        self.assertEqual(row["why"], "exit status 2 of sh -c echo lacks go; exit 2: lacks go")
        self.assertFalse((self.folder / "tried").exists())

    def test_results_of_a_former_run_do_not_count(self):
        (self.folder / "results.xml").write_text(RESULTS % "")
        self.assertIsNone(self.row("true")["passed"])

    def test_what_takes_too_long_is_ended_with_all_that_it_started(self):
        run.LIMIT_S = 2
        row = self.row(f"trap 'echo ended >{self.folder}/trap; exit' TERM; while :; do sleep 0.1; done")
        self.assertEqual(row["result"], "no")
        self.assertIn("took more than", row["why"])
        self.assertEqual((self.folder / "trap").read_text(), "ended\n")

    def test_what_a_shell_leaves_is_ended_too(self):
        """As bash does in `./run`: it ends at once, and what it started does not."""
        run.LIMIT_S = run.END_S = 1
        self.addCleanup(setattr, run, "END_S", run.END_S)
        row = self.row(f"""python3 -c 'import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("{self.folder}/pid", "w").write(str(os.getpid()))
time.sleep(60)'; true""")
        self.assertEqual(row["result"], "no")
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text()), 0)

    def test_a_pattern_without_cases_is_a_no(self):
        row = self.row("true")
        self.assertEqual(row["result"], "no")
        self.assertEqual(row["why"], "no case passed in sh -c true")

    def test_what_this_computer_cannot_run_writes_no_row(self):
        self.assertIsNone(self.row("exit 77"))

    def test_only_a_row_of_this_very_tree_is_done(self):
        row = self.row("true")
        self.assertTrue(run.is_done(row, "abc"))
        self.assertFalse(run.is_done(row, "abd"))
        self.assertFalse(run.is_done({"commit": "abc-dirty"}, "abc-dirty"))
        self.assertFalse(run.is_done(None, "abc"))
        run.write(row)
        self.assertEqual(run.row_of("p"), row)


if __name__ == "__main__":
    unittest.main()
