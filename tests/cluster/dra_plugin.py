"""The plugin with `allocation: dra` in the cluster, alone and by the chart."""

import subprocess

from case import is_ready
from chart import SOURCE, Chart
from plugin import NAMESPACE, Plugin
import settings

DRIVER = "gpushm.io"
CLASS = "memory.gpushm.io"
TIMEOUT_S = 60


class DraPlugin(Plugin):
    """The chart's plugin with the other front end, and without the injector."""

    def deploy(self, config="", image=None):
        repository, _, tag = settings.image("plugin").rpartition(":")
        values = {"plugin.allocation": "dra", "injector.enabled": "false",
                  "plugin.image.repository": repository, "plugin.image.tag": tag,
                  # Services have no addresses here, because there is no kube-proxy.
                  "plugin.config.dra.api-server": settings.API_SERVER}
        rendered = subprocess.run(
            ["helm", "template", "gpushm", str(SOURCE), "--namespace", NAMESPACE,
             "--kube-version", "1.36.0", "--skip-tests",
             *(word for key, value in values.items() for word in ("--set", f"{key}={value}"))],
            env=self._cluster.environment(), check=True, capture_output=True, text=True).stdout
        text = self._cluster.kubectl("create", "--dry-run=client", "-o", "json", "-f", "-",
                                     input=rendered)
        self._api.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "privileged"})
        self._things = self._apply(text, config)
        self.wait_serving()

    def slices(self):
        return [s for s in self._api.list("ResourceSlice") if s["spec"]["driver"] == DRIVER]

    def wait_serving(self, *_):
        self._api.wait("ResourceSlice", None, lambda _: self.slices(), TIMEOUT_S, lambda _: (
            f"no slices: {self._state(self._api.list('Pod', NAMESPACE))}"))
        self._wait_ready()

    def kill(self):
        """Kills it; returns when another one is ready."""
        before = self.pod()["status"]["containerStatuses"][0]["restartCount"]
        self.process().end(0)
        self._api.wait(
            "Pod", NAMESPACE, lambda pods: any(
                is_ready(p) and p["status"]["containerStatuses"][0]["restartCount"] > before
                for p in pods.values()), TIMEOUT_S,
            lambda pods: f"the plugin does not come back: {self._state(pods.values())}")

    def end(self):
        # The other front end could not end a claim that is still prepared: its memory would stay bound.
        try:
            self.wait_released()
        finally:
            self._cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=self._things)
            self._cluster.kubectl("delete", "--ignore-not-found", "namespace", NAMESPACE,
                                  "--timeout=60s")


class ClaimsChart(Chart):
    """GPUs with 15 GiB each, allocated by claims."""

    def __init__(self, cluster, **values):
        # Services have no addresses here, because there is no kube-proxy.
        super().__init__(cluster, **{
            "injector.replicas": 1, "plugin.allocation": "dra",
            "plugin.config.dra.api-server": settings.API_SERVER,
            "sidecar.cpu": "10m",  # Fifty of them fit on the node.
            "injector.apiServer": settings.API_SERVER,
            "plugin.privileged": "true",  # For claims with MPS.
            **values})
        self.plugin = DraPlugin(cluster)

    def wait_allocatable(self, units=None):
        self.plugin.wait_serving()

    def end(self):
        try:
            self.plugin.wait_released()  # As DraPlugin.end.
        finally:
            self.uninstall()
