"""Processes in namespaces, identified by PID and start time, because a PID may have been reused."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import time


class Failure(Exception):
    """What went wrong, and where to find more."""


def wait_until(what, seconds, condition, period_seconds=0.05):
    """Returns the value of `condition` once it is true; `what` says what did not happen."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"after {seconds} s: {what() if callable(what) else what}")
        time.sleep(period_seconds)


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int
    start: str  # Field 22 of /proc/PID/stat.

    @staticmethod
    def of(pid):
        fields = Process._stat(pid)
        return Process(pid, fields[19]) if fields else None

    @staticmethod
    def _stat(pid):
        """Fields of /proc/PID/stat from the third on; none if the process is gone or a zombie."""
        try:
            text = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = text.rpartition(")")[2].split()  # The name before it may contain any character.
        return None if fields[0] in "ZX" else fields

    def alive(self):
        return Process.of(self.pid) == self

    def kill(self, number=signal.SIGKILL):
        if self.alive():
            os.kill(self.pid, number)

    def end(self, seconds=10, number=signal.SIGTERM):
        """Ends it, with SIGKILL if it takes too long; returns whether SIGKILL was unnecessary."""
        self.kill(number)
        try:
            wait_until("", seconds, lambda: reap() or not self.alive())
            return True
        except Failure:
            self.kill()
            wait_until(f"process {self.pid} outlives SIGKILL", 10, lambda: not self.alive())
            return False


def reap():
    """Reaps children that have ended, so that none remains as a zombie."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def spawn(words, log, namespaces_of=None, namespaces=(), environment=None):
    """Starts `words` in namespaces ("net", "pid", "mount", ...) of the process `namespaces_of`, in
    its own session so that Ctrl-C in the terminal does not reach it. Returns its Process."""
    prefix = []
    if namespaces_of:
        prefix = ["nsenter", "-t", str(namespaces_of.pid), *(f"--{n}" for n in namespaces), "--"]
    with open(log, "ab") as output:
        parent = subprocess.Popen([*prefix, *words], stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=subprocess.STDOUT, start_new_session=True,
                                  env=environment)
    if "pid" not in namespaces:
        return Process.of(parent.pid)

    # Only a child can enter a PID namespace: nsenter stays and waits for it.
    def child():
        try:
            text = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            text = ""
        if not text and parent.poll() is not None:
            raise Failure(f"{words[0]} did not start: {log}")
        return text and Process.of(int(text.split()[0]))

    return wait_until(f"{words[0]} did not start: {log}", 10, child)
