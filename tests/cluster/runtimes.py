"""Container runtimes of a node: containerd, or another one whose program `tests/cluster/build` has put
beside the others. In the cluster's commands, `containerd` is whichever it is."""

import json
import pathlib
import sys

import settings

HERE = pathlib.Path(__file__).resolve().parent


class Containerd:
    name = "containerd"
    socket = "/run/containerd/containerd.sock"

    def __init__(self, cluster):
        self._cluster = cluster

    def write_settings(self, cdi=True):
        """`cdi`: whether it knows CDI."""
        cluster = self._cluster
        (cluster.state / "etc/containerd.toml").write_text(
            settings.containerd(cluster.state, cdi, settings.version_of(cluster.programs, "containerd")))

    def words(self):
        return ["containerd", "--config", f"{self._cluster.state}/etc/containerd.toml"]

    def load(self, archive):
        self._cluster.on_node_run("ctr", "--namespace", "k8s.io", "images", "import",
                                  *self._local(), str(archive))

    def _local(self):
        """2.0 has another way, which leaves out what the archive says of names."""
        old = settings.version_of(self._cluster.programs, "containerd") < (2, 0)
        return [] if old else ["--local"]

    def pid(self, container):
        """PID 1 of a container, as the node counts, or None."""
        tasks = self._cluster.on_node_run("ctr", "--namespace", "k8s.io", "tasks", "ls")
        return next((int(line.split()[1]) for line in tasks.splitlines()
                     if line.startswith(container)), None)


class Crio:
    """CRI-O, with runc. buildah puts images into the store that they share."""

    name = "cri-o"
    socket = "/run/crio/crio.sock"
    _STORE = ("--root", "/var/lib/containers/storage", "--runroot", "/run/containers/storage",
              "--storage-driver", "overlay")

    def __init__(self, cluster):
        self._cluster = cluster

    def write_settings(self, cdi=True):
        etc = self._cluster.state / "etc"
        (etc / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        (etc / "crio.conf").write_text(settings.crio(self._cluster.state, self._cluster.programs, cdi))
        runc = etc / "runc"
        runc.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'runc_within_rights.py'} "
                        f"{self._cluster.programs / 'runc'} \"$@\"\n")
        runc.chmod(0o755)

    def words(self):
        return ["crio", "--config", f"{self._cluster.state}/etc/crio.conf", "--config-dir", ""]

    def load(self, archive):
        self._cluster.on_node_run("buildah", *self._STORE, "pull", "--quiet", "--signature-policy",
                                  f"{self._cluster.state}/etc/policy.json", f"docker-archive:{archive}")

    def pid(self, container):
        listed = json.loads(self._cluster.on_node_run("runc", "--root", "/run/runc", "list", "--format",
                                                      "json")) or []
        return next((task["pid"] for task in listed if task["id"] == container
                     and task["status"] == "running"), None)


def of(cluster):
    return (Crio if (cluster.programs / "crio").exists() else Containerd)(cluster)
