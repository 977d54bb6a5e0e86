"""gpushm as users install it: the packaged chart, with Helm, and with simulated GPUs."""

import pathlib
import subprocess
import tempfile
import unittest

from plugin import NAMESPACE, UNITS
from processes import Failure
import settings

RELEASE = "gpushm"
CLAIMS_RELEASE = "gpushm-dra"  # docs/guides/allocation.md
ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "helm/gpushm"
IN_GIT = (ROOT / ".git").exists()


def no_history(what):
    """Raised by a case that needs `what` from the git history."""
    way = "git fetch --unshallow" if IN_GIT else "clone the repository (this is an archive)"
    return unittest.SkipTest(f"the git history lacks {what}: {way}")


class Chart:
    """A release of a cluster, with `values` in every installation. For one thread."""

    RELEASED = None  # The chart's package with suite.py's --release.

    def __init__(self, cluster, release=RELEASE, **values):
        self._cluster = cluster
        self._release = release
        self._values = values
        self.installed = None  # The values with which it runs; None: it does not, or they are not known.
        self._before = None
        self._api = cluster.api
        self._folder = tempfile.TemporaryDirectory()
        self.package = self.RELEASED or self.pack(SOURCE)

    def pack(self, source):
        """The path of the package made from a chart's folder."""
        folder = tempfile.mkdtemp(dir=self._folder.name)
        self.helm("package", str(source), "--destination", folder)
        return next(pathlib.Path(folder).glob("*.tgz"))

    def of_commit(self, commit):
        """A package of the chart as of a commit."""
        folder = tempfile.mkdtemp(dir=self._folder.name)
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "helm/gpushm"],
                                 check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        return self.pack(pathlib.Path(folder) / "helm/gpushm")

    def helm(self, *words, timeout=180):
        """Helm's output; raises a Failure with its error text."""
        self._cluster.enter_network()
        done = subprocess.run(["helm", *words], env=self._cluster.environment(), text=True,
                              capture_output=True, timeout=timeout, check=False)
        if done.returncode:
            raise Failure(f"helm {' '.join(words)}: {done.stderr}{done.stdout}")
        return done.stdout

    def values(self, **more):
        """Values for this cluster."""
        values = {"driver.simulatedGpus": settings.GPUS,
                  "driver.simulatedMemory": f"{settings.GPU_GIB}Gi"}
        for part in ("plugin", "sidecar", "injector", "test"):
            values |= settings.chart_image(part)
        values |= self._values | more
        return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]

    def install(self, package=None, timeout_s=120, **values):
        """Installs or upgrades; returns when everything is ready and no former injector answers
        any more. Raises a Failure if that takes longer."""
        self._before, self.installed = self.installed, None
        self._api.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "privileged"})
        package = package or self.package
        simulated = subprocess.run(
            ["tar", "-xzOf", str(package), "gpushm/values-simulated.yaml"], check=True,
            capture_output=True).stdout
        with tempfile.NamedTemporaryFile(suffix=".yaml") as profile:
            profile.write(simulated)
            profile.flush()
            self.helm("upgrade", "--install", self._release, str(package), "--namespace", NAMESPACE,
                      "--values", profile.name, *self.values(**values), "--wait",
                      "--timeout", f"{timeout_s}s")
        self._wait_replaced()
        self.installed = values if package == self.package else None

    def rollback(self):
        """Rolls back to the former revision; returns as `install` does."""
        self.helm("rollback", self._release, "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
        self._wait_replaced()
        self.installed = self._before

    def _wait_replaced(self):
        # An injector that ends still answers for injector.drainMs, with the former values.
        self._api.wait("Pod", NAMESPACE, lambda pods: not any(
            "deletionTimestamp" in p["metadata"] for p in pods.values()), 30,
            lambda pods: f"one of the injectors {sorted(pods)} has not ended",
            labelSelector="app.kubernetes.io/component=injector")
        # Before Kubernetes 1.37, pods are rejected while one plugin follows another.
        self._api.wait("Pod", NAMESPACE, lambda pods: not any(
            "deletionTimestamp" in p["metadata"] for p in pods.values()), 60,
            lambda pods: f"one of the plugins {sorted(pods)} has not ended",
            labelSelector="app.kubernetes.io/component=plugin")
        self.wait_allocatable()

    def uninstall(self):
        self.installed = None
        self.helm("uninstall", self._release, "--namespace", NAMESPACE, "--ignore-not-found", "--wait",
                  "--timeout", "60s")

    end = uninstall

    def wait_allocatable(self, units=UNITS):
        """Waits until the node offers this number of units."""
        def offers(nodes):
            have = nodes[settings.NODE_NAME]["status"]["allocatable"]
            return have.get("gpushm.io/memory", "0") == str(units)

        self._api.wait("Node", None, offers, 60, lambda nodes: (
            f"allocatable {nodes[settings.NODE_NAME]['status']['allocatable']}, not {units}"))
