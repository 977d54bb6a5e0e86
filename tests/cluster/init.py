"""PID 1 of a PID namespace: sets up what is special in it, then only reaps. Its death is the death
of every process in the namespace, which is what makes `down` certain.

machine STATE LOGS   has the cluster's network; the control plane runs in it
NODE STATE LOGS      inside the machine: a computer of that name, with its own /run, /dev/shm, /proc,
                     /var/lib (STATE/var-lib), /var/log (LOGS) and boot ID, so that nothing of it can
                     remain on this computer, and so that killing it is a power failure

STATE/records/NAME (machine or the node's): file that gets this process's PID, once all is set up.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import uuid

from settings import BRIDGE, NODES


def run(*words):
    subprocess.run(words, check=True)


def own_pid():
    """As this computer counts: /proc is still the computer's, whatever namespace this process is
    in."""
    return int(os.readlink("/proc/self"))


def set_up_machine():
    run("ip", "link", "set", "lo", "up")
    # A bridge with an address for each node, at which the control plane and pods reach it. The route
    # leads nowhere, but without one, programs refuse to guess their own address.
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    for node in NODES:
        run("ip", "address", "add", f"{node.address}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    run("ip", "route", "add", "default", "dev", BRIDGE)


def set_up_node(name, state, logs):
    socket.sethostname(name)
    # Mounts below here spread to containers, as on a computer that systemd started.
    run("mount", "--make-rshared", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "-o", "mode=755,nosuid,nodev,noexec", "tmpfs", "/run")
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    os.mkdir("/run/lock")
    run("mount", "--bind", logs, "/var/log")  # Kubelets before 1.30 have no other place for pods' logs.
    set_up_var_lib(state)
    # The kubelet detects a reboot by a new boot ID.
    boot_id = pathlib.Path("/run/boot_id")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    run("mount", "--bind", boot_id, "/proc/sys/kernel/random/boot_id")
    hide_unmounted_controllers()
    # The kernel lets a pod with users of its own mount /proc only if one without such a cover is here.
    os.mkdir("/run/proc")
    run("mount", "-t", "proc", "proc", "/run/proc")


def hide_unmounted_controllers():
    """CRI-O takes each controller in /proc/cgroups for one that it can use, but with version 1 the
    computer may have mounted only some."""
    fields = [line.split() for line in pathlib.Path("/proc/cgroups").read_text().splitlines()]
    if all(hierarchy == "0" for _, hierarchy, *_ in fields[1:]):
        return  # Version 2, where this file says nothing.
    shown = pathlib.Path("/run/cgroups")
    shown.write_text("".join("\t".join(line) + "\n" for line in fields if line[1] != "0"))
    run("mount", "--bind", shown, "/proc/cgroups")


def set_up_var_lib(state):
    """The folders of the kubelet, containerd and the plugin are there. This computer's content
    there is hidden, except for the folder with this checkout or the user's home."""
    of_host = "/run/var-lib-of-host"
    os.mkdir(of_host)
    run("mount", "--bind", "/var/lib", of_host)
    run("mount", "--bind", f"{state}/var-lib", "/var/lib")
    for path in (state, __file__, os.path.expanduser("~")):
        name = pathlib.PurePath(path).parts[3:4] if path.startswith("/var/lib/") else ()
        for folder in name:
            os.makedirs(f"/var/lib/{folder}", exist_ok=True)
            if not os.path.ismount(f"/var/lib/{folder}"):
                run("mount", "--bind", f"{of_host}/{folder}", f"/var/lib/{folder}")


def reap():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def main():
    role, state, logs = sys.argv[1:]
    pid = own_pid()
    if role == "machine":
        set_up_machine()
    else:
        set_up_node(role, state, logs)
    record = pathlib.Path(state, "records", role)
    part = record.with_suffix(".part")
    part.write_text(str(pid))
    part.rename(record)
    reap()


if __name__ == "__main__":
    main()
