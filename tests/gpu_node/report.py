"""What was done and seen, as text and JSON. Lines appear as steps end."""

import json
import os
import pathlib
import platform
import shutil
import subprocess
import time
import traceback

from processes import Failure


class Report:

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        self._machine = {}
        self._steps = []
        self._lines = []

    def say(self, line):
        print(line, flush=True)
        self._lines.append(line)

    def describe_machine(self, node, gpus, simulated):
        release = platform.freedesktop_os_release().get("PRETTY_NAME", "")
        self._machine = {
            "system": f"{release}, Linux {platform.release()}, {os.cpu_count()} CPUs",
            "cgroups": "v2" if pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1",
            "driver": f"{'simulated' if simulated else 'NVIDIA'} {gpus.driver_version()}",
            "gpus": [f"{gpu['name']} {gpu['uuid']}, {gpu['total_bytes'] >> 20} MiB"
                     for gpu in gpus.list()],
            "devices": sorted(path.name for path in pathlib.Path("/dev").glob("nvidia*")),
            "kubelet": node.run("kubelet", "--version").split()[-1],
            "containerd": node.run("containerd", "--version").split()[2],
            "runc": node.run("runc", "--version").split()[2],
        }
        for name, value in self._machine.items():
            self.say(f"{name:12} {', '.join(value) if isinstance(value, list) else value}")

    def fact(self, name, value):
        if isinstance(value, float):
            value = round(value, 3)
        self._steps[-1]["facts"][name] = value
        text = value if isinstance(value, str) else json.dumps(value)
        self.say(f"    {name}: {text}")

    def step(self, function):
        """Runs the step; returns whether it succeeded."""
        name = function.__name__.replace("_", " ")
        step = {"name": name, "goal": " ".join((function.__doc__ or "").split()), "facts": {}}
        self._steps.append(step)
        self.say(f"{name}")
        start = time.monotonic()
        try:
            function()
            step["ok"] = True
        except Exception as error:  # The report shows it, and the other steps continue.
            step["ok"] = False
            step["failure"] = str(error)
            self.say(f"    {error}" if isinstance(error, Failure) else traceback.format_exc())
        step["seconds"] = round(time.monotonic() - start, 2)
        self.say(f"    {'ok' if step['ok'] else 'FAILED'}, {step['seconds']} s")
        return step["ok"]

    def save_nvidia_smi(self, when):
        program = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
        if not os.path.exists(program):
            return
        try:
            text = subprocess.run([program], capture_output=True, text=True, timeout=30,
                                  check=False).stdout
        except subprocess.TimeoutExpired:
            text = "no answer\n"
        with open(self.folder / "nvidia-smi.txt", "a") as file:
            file.write(f"{when}\n{text}\n")

    def write(self, seconds):
        failed = [step["name"] for step in self._steps if not step["ok"]]
        passed = len(self._steps) - len(failed)
        self.say(f"gpu-node: {passed} passed, {len(failed)} failed, {seconds:.0f} s")
        (self.folder / "gpu-node.json").write_text(json.dumps(
            {"machine": self._machine, "steps": self._steps, "passed": passed,
             "failed": len(failed), "seconds": round(seconds, 1)}, indent=1) + "\n")
        (self.folder / "gpu-node.txt").write_text("\n".join(self._lines) + "\n")
        return not failed and passed > 0
