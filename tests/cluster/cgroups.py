"""A node's own folder in each hierarchy of cgroups, of version 1 and 2, next to all others."""

import contextlib
import os
import pathlib

from processes import Failure, wait_until

# Controllers that the kubelet expects in its root, as far as the kernel has them.
_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "memory", "pids")


def _hierarchies():
    """(mount point, whether it is version 2)"""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] in ("cgroup", "cgroup2"):
            yield pathlib.Path(fields[1]), fields[2] == "cgroup2"


def make_cgroups(name):
    hierarchies = list(_hierarchies())
    if not hierarchies:
        raise Failure("no cgroups are mounted here: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    if all(unified for _, unified in hierarchies):  # With version 1, the kubelet uses that one.
        for folder, _ in hierarchies:
            _hand_down_controllers(folder)
    for folder, _ in hierarchies:
        (folder / name).mkdir(exist_ok=True)


def _hand_down_controllers(root):
    """In version 2, a folder has only the controllers that its parent enables for its children.
    systemd enables only some, and without systemd none is. They stay enabled, because others may
    use them."""
    have = (root / "cgroup.controllers").read_text().split()
    handed = (root / "cgroup.subtree_control").read_text().split()
    for controller in set(_CONTROLLERS) & set(have) - set(handed):
        try:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            raise Failure(f"{root} cannot enable {controller} ({error.strerror}): it is not the "
                          "root of the machine's cgroups") from error


def remove_cgroups(name):
    """Their processes are dead, but the kernel may take a moment to notice."""
    def gone(top):
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        return not top.exists()

    for folder, _ in _hierarchies():
        wait_until(f"cgroup {folder / name} still has processes", 20,
                   lambda f=folder / name: gone(f))
