"""Runs the cases of test_*.py in the cluster: one that runs already, which stays (its images are
brought up to date, and the example of `./run cluster` goes), else its own. Prints a line for each
and writes JUnit's XML.

usage: suite.py --state .. --programs .. --images .. --driver .. [--results FILE] [--former FOLDER]
                [PATTERN ...]
PATTERN: only cases whose name has one of these in it
"""

import argparse
import contextlib
import faulthandler
import importlib
import io
import pathlib
import signal
import subprocess
import sys
import time
import traceback
import unittest
import xml.etree.ElementTree as ElementTree

from case import ClusterCase
from chart import RELEASE
from cluster import Cluster, add_options
from plugin import NAMESPACE
from processes import Failure
import start_bench
import try_it

# In the order in which they make sense: what fails first explains what fails later.
MODULES = ["test_node", "test_plugin", "test_restarts", "test_chart", "test_readme",
           "test_pods", "test_monitoring"]
CASE_TIMEOUT_S = 240


class Result(unittest.TestResult):
    """One line for each case, the reason of a failure at once, and numbers for the end."""

    def __init__(self, cluster):
        super().__init__()
        self._cluster = cluster
        self._suite = ElementTree.Element("testsuite", name="cluster")
        self._start = 0.0
        self._trouble = []

    def startTest(self, test):
        super().startTest(test)
        self._start = time.monotonic()
        self._trouble = []
        signal.alarm(CASE_TIMEOUT_S)

    def addError(self, test, err):
        super().addError(test, err)
        self._note(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._note(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self._note(subtest, err)

    def _note(self, test, err):
        """While everything is still there to be looked at: before cleanups run."""
        text = "".join(traceback.format_exception(*err, limit=-3))
        with contextlib.suppress(Exception):
            text += "events:\n" + getattr(test, "test_case", test).events_text()
        self._trouble.append(text)

    def stopTest(self, test):
        signal.alarm(0)
        seconds = time.monotonic() - self._start
        case = ElementTree.SubElement(self._suite, "testcase", name=str(test.id()),
                                      classname="cluster", time=f"{seconds:.3f}", status="run")
        skipped = next((why for t, why in self.skipped if t is test), None)
        word = "FAILED" if self._trouble else "skipped" if skipped else "ok"
        print(f"{test.id():72} {word:7} {seconds:6.1f} s {skipped or ''}", flush=True)
        if self._trouble:
            case.set("status", "fail")
            ElementTree.SubElement(case, "failure").text = "\n".join(self._trouble)
            print("\n".join(self._trouble), flush=True)
        elif skipped:
            ElementTree.SubElement(case, "skipped", message=skipped)
        super().stopTest(test)

    def write(self, path):
        cases = self._suite.findall("testcase")
        self._suite.set("tests", str(len(cases)))
        self._suite.set("failures", str(sum(c.get("status") == "fail" for c in cases)))
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(self._suite).write(path)

    def failures_outside_cases(self):
        """Of setUpClass and its like, which no stopTest follows."""
        return [text for test, text in self.errors if not isinstance(test, unittest.TestCase)]


def cases_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases_of(item)
        else:
            yield item


def load(patterns):
    loader = unittest.defaultTestLoader
    found = [case for name in MODULES
             for case in cases_of(loader.loadTestsFromModule(importlib.import_module(name)))]
    return unittest.TestSuite(case for case in found
                              if not patterns or any(p in case.id() for p in patterns))


def make_room(cluster):
    """Takes away what `./run cluster`, its benchmark and earlier runs left: cases count units, and
    deploy a plugin themselves."""
    subprocess.run(["helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found",
                    "--wait", "--timeout", "60s"], env=cluster.environment(), check=True)
    for name in (try_it.WHERE, start_bench.WHERE, NAMESPACE):
        cluster.api.delete("Namespace", name)
        cluster.api.wait("Namespace", None, lambda all_of, n=name: n not in all_of, 90,
                         lambda _, n=name: f"namespace {n} does not go")


@contextlib.contextmanager
def running_cluster(arguments):
    cluster = Cluster(arguments.state, arguments.programs)
    if cluster.running():
        cluster.enter_network()
        cluster.load(arguments.images)
        make_room(cluster)
        yield cluster
        return
    start = time.monotonic()
    cluster.up(arguments.images, arguments.driver)
    print(f"cluster: up: {time.monotonic() - start:.1f} s", flush=True)
    try:
        yield cluster
    finally:
        cluster.save_logs(arguments.results.parent / "cluster-logs")
        cluster.down()


def out_of_time(*_):
    text = io.StringIO()
    traceback.print_stack(file=text)
    raise Failure(f"the case takes more than {CASE_TIMEOUT_S} s")


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--results", type=pathlib.Path, default="cluster.xml")
    parser.add_argument("--former", help="folder with archives of an earlier commit's images")
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the cluster goes down.
    start = time.monotonic()
    arguments.results.unlink(missing_ok=True)
    with running_cluster(arguments) as cluster:
        ClusterCase.cluster = cluster
        ClusterCase.former = arguments.former or None  # Empty: there are none.
        ClusterCase.programs = pathlib.Path(arguments.driver).resolve().parent / "tests"
        result = Result(cluster)
        try:
            load(arguments.patterns).run(result)
        finally:
            result.write(arguments.results)
    outside = result.failures_outside_cases()
    print("\n".join(outside), end="")
    failed = len({t.id() for t, _ in result.failures + result.errors})
    print(f"cluster: {result.testsRun - failed} passed or skipped, {failed} failed, "
          f"{time.monotonic() - start:.0f} s")
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
