"""PID 1 of a PID namespace: sets up what is special in it, then only reaps. Its death is the death
of every process in the namespace, which is what makes `down` certain.

machine RECORD          has the cluster's network; the control plane runs in it
node RECORD KUBELET     inside the machine: a computer of its own, with its /run, /dev/shm, /proc,
                        /var/lib/kubelet (KUBELET) and boot ID, so that nothing of it can remain
                        on this computer, and so that killing it is a power failure

RECORD: file that gets this process's PID, once all is set up.
"""

import os
import pathlib
import signal
import subprocess
import sys
import uuid

from settings import NODE_ADDRESS, NODE_NAME


def run(*words):
    subprocess.run(words, check=True)


def own_pid():
    """As this computer counts: /proc is still its own, whatever namespace we are in."""
    return int(os.readlink("/proc/self"))


def set_up_machine():
    run("ip", "link", "set", "lo", "up")
    # A bridge with an address: what the node is reached at, by the control plane and by pods. The
    # route leads nowhere; without one programs refuse to guess which address is theirs.
    run("ip", "link", "add", NODE_NAME, "type", "bridge")
    run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", NODE_NAME)
    run("ip", "link", "set", NODE_NAME, "up")
    run("ip", "route", "add", "default", "dev", NODE_NAME)


def set_up_node(kubelet_folder):
    run("hostname", NODE_NAME)
    # Below here mounts spread to containers, as on a computer that systemd started.
    run("mount", "--make-rshared", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    run("mount", "--bind", kubelet_folder, "/var/lib/kubelet")
    os.mkdir("/run/lock")
    # The kubelet knows a reboot by a boot ID that it has not seen.
    boot_id = pathlib.Path("/run/boot_id")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    run("mount", "--bind", boot_id, "/proc/sys/kernel/random/boot_id")


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
    role, record, *rest = sys.argv[1:]
    pid = own_pid()
    {"machine": set_up_machine, "node": set_up_node}[role](*rest)
    part = pathlib.Path(record + ".part")
    part.write_text(str(pid))
    part.rename(record)
    reap()


if __name__ == "__main__":
    main()
