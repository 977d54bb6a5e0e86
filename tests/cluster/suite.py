"""Runs the cases of test_*.py in a cluster. A running cluster is used and stays (its images are
updated, and the example of `./run cluster` is removed); otherwise the suite starts its own. Prints
a line for each case and writes JUnit's XML.

usage: suite.py --state .. --programs .. --images .. --driver .. [--results FILE] [--former FOLDER]
                [--release FOLDER] [PATTERN ...]
PATTERN: runs only cases whose name contains one of these; test_certificates, test_two_injectors,
test_versions and test_mixed_versions run only by their names
--release: chart and images come from there, what `./run release` made, by a registry in the cluster
"""

import argparse
import contextlib
import faulthandler
import importlib
import pathlib
import re
import signal
import subprocess
import sys
import time
import traceback
import unittest
import xml.etree.ElementTree as ElementTree

from case import ClusterCase
from chart import CLAIMS_RELEASE, RELEASE, ROOT, Chart
from cluster import Cluster, SecondNode, add_options
from plugin import NAMESPACE
from processes import Failure
import settings
from settings import NODE_NAME
import start_bench
import try_it

# In a sensible order: what fails first explains what fails later. Cases that need the same of gpushm
# follow the first of them.
MODULES = ["test_node", "test_plugin", "test_restarts", "test_hostile", "test_dra", "test_claims",
           "test_with_claims", "test_chart", "test_loading", "test_mps", "test_gpus", "test_placement", "test_readme", "test_pods",
           "test_monitoring", "test_support", "test_two_nodes", "test_users"]
# These take longer, and run only when a pattern begins with their name.
NAMED = ["test_certificates", "test_two_injectors", "test_versions", "test_mixed_versions"]
CASE_TIMEOUT_S = 240
# XML 1.0 has no place for them, and a container's log may.
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Result(unittest.TestResult):
    """One line for each case, with the reason of a failure at once, and numbers at the end."""

    def __init__(self, cluster, path):
        super().__init__()
        self._cluster = cluster
        self._path = path
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

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if not isinstance(test, unittest.TestCase):
            self._record(test.id(), 0, [], reason)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self._note(subtest, err)

    def _note(self, test, err):
        """Called while everything still exists, before cleanups run."""
        text = "".join(traceback.format_exception(*err, limit=-3))
        with contextlib.suppress(Exception):
            text += "events:\n" + getattr(test, "test_case", test).events_text()
        if isinstance(test, unittest.TestCase):
            self._trouble.append(text)
        else:
            self._record(test.id(), 0, [text], None)

    def stopTest(self, test):
        signal.alarm(0)
        skipped = next((why for t, why in self.skipped if t is test), None)
        self._record(test.id(), time.monotonic() - self._start, self._trouble, skipped)
        super().stopTest(test)

    def _record(self, name, seconds, trouble, skipped):
        """For a case, or for setUpClass and similar, which no stopTest follows."""
        case = ElementTree.SubElement(self._suite, "testcase", name=name, classname="cluster",
                                      time=f"{seconds:.3f}", status="run")
        trouble = [NOT_IN_XML.sub("\ufffd", text) for text in trouble]
        word = "FAILED" if trouble else "ok" if skipped is None else "skipped"
        print(f"{name:72} {word:7} {seconds:6.1f} s {skipped or ''}", flush=True)
        if trouble:
            case.set("status", "fail")
            ElementTree.SubElement(case, "failure").text = "\n".join(trouble)
            print("\n".join(trouble), flush=True)
        elif skipped is not None:
            ElementTree.SubElement(case, "skipped", message=skipped)
        self._write()  # What has ended counts, however this process ends.

    def numbers(self):
        """(passed, skipped, failed) of the recorded cases."""
        cases = self._suite.findall("testcase")
        failed = sum(case.get("status") == "fail" for case in cases)
        skipped = sum(case.find("skipped") is not None for case in cases)
        return len(cases) - failed - skipped, skipped, failed

    def add_versions(self):
        """Of what the cases ran on, as it says itself."""
        info = self._cluster.api.get("Node", NODE_NAME)["status"]["nodeInfo"]
        runc = subprocess.run(["runc", "--version"], env=self._cluster.environment(), check=True,
                              capture_output=True, text=True).stdout
        versions = {"Kubernetes": self._cluster.api.call("GET", "/version")["gitVersion"],
                    "kubelet": info["kubeletVersion"],
                    "container runtime": info["containerRuntimeVersion"].replace("://v", "://"),
                    "runc": runc.split()[2], "kernel": info["kernelVersion"],
                    "architecture": info["architecture"]}
        properties = ElementTree.SubElement(self._suite, "properties")
        for name, value in versions.items():
            ElementTree.SubElement(properties, "property", name=name, value=value)

    def _write(self):
        passed, skipped, failed = self.numbers()
        for name, number in (("tests", passed + skipped + failed), ("skipped", skipped),
                             ("failures", failed)):
            self._suite.set(name, str(number))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(self._suite).write(self._path)


def cases_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases_of(item)
        else:
            yield item


def load(patterns):
    loader = unittest.defaultTestLoader
    named = [name for name in NAMED if any(p.partition(".")[0] == name for p in patterns)]
    found = [case for name in MODULES + named
             for case in cases_of(loader.loadTestsFromModule(importlib.import_module(name)))]
    for pattern in patterns:
        if not any(pattern in case.id() for case in found):
            raise Failure(f'no case has "{pattern}" in its name')
    groups = {}
    for case in found:
        if not patterns or any(p in case.id() for p in patterns):
            groups.setdefault(case.needs(), []).append(case)
    return unittest.TestSuite(case for group in groups.values() for case in group)


def use_release(folder):
    """From now on, cases take the chart and the images of a release, which a registry serves. The calling
    thread must be in the cluster's network."""
    sys.path.insert(0, str(ROOT / "release"))
    import registry  # pylint: disable=import-outside-toplevel
    host, port = settings.REGISTRY.split(":")
    registry.serve(folder, host, int(port))
    for line in (folder / "images.txt").read_text().splitlines():
        name, _, digest = line.split()
        settings.released[name.rpartition("/")[2]] = digest
    Chart.RELEASED, = (folder / "chart").glob("*.tgz")


def make_room(cluster):
    """Removes what `./run cluster`, its benchmark and earlier runs left, because cases count units
    and deploy a plugin themselves."""
    subprocess.run(["helm", "uninstall", RELEASE, CLAIMS_RELEASE, "--namespace", NAMESPACE,
                    "--ignore-not-found", "--wait", "--timeout", "60s"], env=cluster.environment(),
                   check=True)
    SecondNode(cluster).down()
    cluster.kubectl("delete", "clusterroles,clusterrolebindings,validatingadmissionpolicies,"
                    "validatingadmissionpolicybindings", "-l", "app.kubernetes.io/part-of=gpushm",
                    "--ignore-not-found")
    for name in (try_it.WHERE, start_bench.WHERE, NAMESPACE):
        cluster.api.remove_namespace(name, 90)


@contextlib.contextmanager
def running_cluster(arguments):
    cluster = Cluster(arguments.state, arguments.programs)
    if cluster.running():
        if cluster.programs != arguments.programs:
            raise Failure(f"a cluster of other programs runs, those in {cluster.programs}; "
                          "./run cluster down ends it")
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
        try:
            cluster.end()
            cluster.save_logs(arguments.results.parent / "cluster-logs")
        finally:
            cluster.down()


def out_of_time(*_):
    raise Failure(f"the case takes more than {CASE_TIMEOUT_S} s")


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--results", type=pathlib.Path, default="cluster.xml")
    parser.add_argument("--former", help="folder with archives of an earlier commit's images")
    parser.add_argument("--release", type=pathlib.Path)
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unittest lets only this one through.
    start = time.monotonic()
    arguments.results.unlink(missing_ok=True)
    with running_cluster(arguments) as cluster:
        if arguments.release:
            cluster.enter_network()
            use_release(arguments.release.resolve())
        ClusterCase.cluster = cluster
        ClusterCase.former = arguments.former or None  # Empty: there are none.
        ClusterCase.programs = pathlib.Path(arguments.driver).resolve().parent / "tests"
        ClusterCase.images, ClusterCase.driver = arguments.images, arguments.driver
        result = Result(cluster, arguments.results)
        result.add_versions()
        load(arguments.patterns).run(result)
    passed, skipped, failed = result.numbers()
    print(f"cluster: {passed} passed, {skipped} skipped, {failed} failed, "
          f"{time.monotonic() - start:.0f} s")
    return 0 if result.wasSuccessful() and passed + skipped else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
