"""Shared by the tests of deploy/examples: a pod's broker and applications as processes, started as the
manifest says.
"""

import contextlib
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

STEP_S = 30


class Program:
    """A process that is killed at the end. Its output is read as it arrives."""

    def __init__(self, words, environment, pass_fds=()):
        self.process = subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, pass_fds=pass_fds)
        self.lines, self.said = queue.Queue(), []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip())
        self.lines.put(None)

    def expect(self, pattern):
        """Waits for a line that matches as a whole, and returns the match."""
        end = time.monotonic() + STEP_S
        with contextlib.suppress(queue.Empty):
            while (line := self.lines.get(timeout=max(0, end - time.monotonic()))) is not None:
                self.said.append(line)
                if match := re.fullmatch(pattern, line):
                    return match
        sys.exit(f"FAILED: no {pattern!r} in {self.said}")

    def stop(self):
        self.process.terminate()
        self.expect_end(0)

    def expect_end(self, status, within_s=STEP_S):
        """Waits for the end. Afterwards `said` contains the whole output."""
        found = self.process.wait(within_s)
        self.reader.join(STEP_S)
        self.said += filter(None, self.lines.queue)
        if found != status:
            sys.exit(f"FAILED: status {found}, not {status}: {self.said}")

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def example(manifest, application, broker, prefix=()):
    """Starts a broker for the pod of `manifest`, on the driver that GPUSHM_DRIVER names, or on the
    machine's. Yields a function that runs a container's command with further arguments. `prefix` is
    put before each application's command.
    """
    lines = pathlib.Path(manifest).read_text().splitlines()
    start = lines.index("  annotations:")
    annotations = lines[start:lines.index("spec:")]
    commands = {}
    for line in lines:
        if match := re.fullmatch(r"  - name: (\S+)", line):
            container = match[1]
        if match := re.fullmatch(r"    command: \[gpushm-\w+-app, (.*)\]", line):
            commands[container] = match[1].replace('"', "").split(", ")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        environment = {**os.environ, "GPUSHM_SIM_DIR": f"{folder}/gpu"}
        if driver := os.environ.get("GPUSHM_DRIVER"):
            environment["LD_LIBRARY_PATH"] = f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"

        def run(container, *more, pass_fds=()):
            program = Program([*prefix, application, *commands[container], *more],
                              {**environment, "GPUSHM_DIR": f"{folder}/{container}"}, pass_fds)
            programs.callback(program.kill)
            return program

        config = pathlib.Path(folder, "broker.yaml")
        config.write_text("\n".join([f"folder: {folder}", "gpu: 0", "annotations:",
                                     *annotations[1:], f"containers: [{', '.join(commands)}]"]))
        sidecar = Program([broker, "--config", str(config), "--link", "none", "--log-level",
                           "warning"], environment)
        programs.callback(sidecar.kill)
        yield run
