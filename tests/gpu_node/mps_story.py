"""Containers of one pod on one GPU: MPS, its limits, and CUDA IPC. The rows of the table "What ends what" of
docs/guides/several-containers.md, in containers of a real kubelet. The pods are what the webhook makes
(mps_pods.py)."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

from case import statuses
from mps_pods import LIMIT_MIB, PROBE, SECOND_GPU, SHARED_MIB
from processes import Failure, wait_until
import programs
import settings
from story import expect

FOLDER = "/run/gpushm-mps"
CLIENTS = 48  # That an MPS server takes.
STEP_S = 30
# A server says that it ended to whoever asks next; gpushm-mps asks every two seconds.
METRICS_S = 20


class MpsStory:

    def __init__(self, node, gpus, report, simulated, others):
        """`others`: a folder of programs that are not the project's (programs.py), or None."""
        self._others = others
        self._node = node
        self._gpus = gpus
        self._report = report
        self._simulated = simulated

    def steps(self):
        return [self.containers_take_turns_without_mps, self.containers_run_at_the_same_time,
                self.killed_and_stopped_clients_disturb_nobody, self.a_fault_ends_all_clients,
                self.a_killed_server_is_replaced, self.a_killed_daemon_is_replaced,
                self.the_sidecar_container_is_restarted, self.more_clients_than_a_server_takes,
                self.limits_hold, self.cuda_ipc_works_between_containers,
                self.programs_of_others_work_unchanged,
                *([self.limits_and_cuda_ipc_on_two_gpus] if len(self._gpus.list()) > 1 else []), self.a_lost_gpu]

    # ------------------------------------------------------------ steps

    def containers_take_turns_without_mps(self):
        """Goal: what an empty kernel takes beside a busy neighbour without MPS."""
        self._start("turns")
        self._compare("turns")

    def containers_run_at_the_same_time(self):
        """Goal: with MPS the same kernel takes about as long as on an idle GPU, and operators see it."""
        self._node.delete("turns")
        start = time.monotonic()
        self._start("mps")
        self._report.fact("seconds from the static pod to ready", time.monotonic() - start)
        self._compare("mps")
        doctor = self._doctor("mps")
        self._report.fact("doctor", doctor.get("mps"))
        expect(doctor["mps"]["detail"].startswith("on"), f"doctor: {doctor}")
        with self._busy("mps", "b"):
            self._wait_metric("gpushm_mps_ready", lambda value: value == 1)
            self._wait_metric("gpushm_mps_clients", lambda value: self._simulated or value >= 1)
            self._wait_metric("gpushm_mps_outside_processes", lambda value: value == 0)
            self._report.fact("metrics", self._metrics("gpushm_mps_"))
            self._report.save_nvidia_smi("under MPS")
        if self._simulated:  # Its NVML tells PIDs of the containers' own namespaces, so it shows no process here.
            return
        outside = self._start_probe("mps", "a", "serve", "12", env={"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})
        self._wait_metric("gpushm_mps_outside_processes", lambda value: value == 1)
        self._report.fact("with a process outside", self._metrics("gpushm_mps_outside"))
        self._end(outside)

    def killed_and_stopped_clients_disturb_nobody(self):
        """Goal: a client that is killed in a kernel, and one that is stopped, end nobody else's work."""
        for number in (signal.SIGKILL, signal.SIGSTOP):
            with self._busy("mps", "b") as neighbour:
                serving = self._start_probe("mps", "a", "serve", "3")
                time.sleep(1)
                os.kill(neighbour, number)
                told = self._end(serving)
                self._report.fact(f"beside a client with {number.name}", told)
                expect("error" not in told, f"{number.name} of a neighbour: {told}")

    def a_fault_ends_all_clients(self):
        """Goal: a fault of one process is everybody's, and new processes start."""
        serving = self._start_probe("mps", "a", "serve", "4")
        time.sleep(1)
        self._report.fact("the process that faults", self._probe("mps", "b", "fault"))
        told = self._end(serving)
        self._report.fact("its neighbour", told)
        expect(self._simulated or "error" in told, f"a fault did not reach the neighbour: {told}")
        self._serves_again("mps")

    def a_killed_server_is_replaced(self):
        self._replaces("server", lambda: self._kill("nvidia-cuda-mps-server"), "server_restarts")

    def a_killed_daemon_is_replaced(self):
        self._replaces("daemon", lambda: self._kill("nvidia-cuda-mps-control"), "daemon_restarts")

    def the_sidecar_container_is_restarted(self):
        """Goal: clients fail, and new ones have MPS after the kubelet's restart; no other container ends."""
        before = self._node.container_ids("mps")
        self._replaces("container", lambda: os.kill(self._node.pid("mps", "gpushm-mps"), signal.SIGKILL),
                       "daemon_restarts")
        after = self._node.container_ids("mps")
        for name in ("gpushm", "a", "b"):
            expect(before[name] == after[name], f"{name} was restarted too")

    def more_clients_than_a_server_takes(self):
        """Goal: what the processes after the 48th get."""
        processes = [self._start_probe("mps", "ab"[i % 2], "serve", "8") for i in range(CLIENTS + 2)]
        answers = [self._end(process) for process in processes]
        refused = [answer for answer in answers if "error" in answer]
        self._report.fact(f"of {len(answers)} processes", {"served": len(answers) - len(refused),
                                                           "refused": refused[:1]})
        expect(self._simulated or 1 <= len(refused) <= 4, f"{len(refused)} were refused")
        self._serves_again("mps")

    def limits_hold(self):
        """Goal: with mps, enforce-private, compute and cuda-ipc together, a process can take its container's
        private memory and what it may attach, by either call, and two processes twice as much."""
        self._node.delete("mps")
        self._start("together")
        most = LIMIT_MIB + SHARED_MIB
        for how in ("malloc", "create"):
            self._check_limit("together", how)
        without = self._probe("together", "a", "limit", "malloc", env={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None})
        self._report.fact("without the variable", without)
        expect(without.get("mib", 0) > most, f"the variable is not the limit: {without}")
        two = [self._start_probe("together", "a", "limit", "malloc") for _ in range(2)]
        self._report.fact("two processes at once", [self._end(process) for process in two])
        doctor = self._doctor("together", "b")
        self._report.fact("doctor", {name: doctor[name]["detail"] for name in ("memory limit", "compute limit")})
        self._compare("together")

    def _check_limit(self, name, how, env=None):
        told = self._probe(name, "a", "limit", how, env=env)
        self._report.fact(f"a takes by {how}{' on the second GPU' if env else ''}", told)
        most = LIMIT_MIB + SHARED_MIB
        expect(self._simulated or 0 < told.get("mib", 0) <= most, f"not up to {most} MiB: {told}")

    def cuda_ipc_works_between_containers(self):
        """Goal: memory and events by CUDA IPC between two processes with PID 1: not without the annotation,
        with it, and with it under MPS."""
        self._node.delete("together")
        self._exchange("ipc-without", "ipc-with", "ipc-together")

    def limits_and_cuda_ipc_on_two_gpus(self):
        """Goal: with two GPUs the limit is for each of them, MPS serves both, and CUDA IPC works on the second."""
        self._start("two-together")
        for env in (None, SECOND_GPU):
            for how in ("malloc", "create"):
                self._check_limit("two-together", how, env)
        for env in (None, SECOND_GPU):
            with self._busy("two-together", "b", env):
                told = self._probe("two-together", "a", "serve", "3", env=env)
            self._report.fact(f"beside a busy neighbour on the {'second' if env else 'first'} GPU", told)
            expect("error" not in told, f"under MPS: {told}")
        self._node.delete("two-together")
        self._exchange("two-ipc-with", "two-ipc-together")

    def _exchange(self, *names):
        for name in names:
            self._create(name)
            self._wait_ended(name)
            told = {each: self._said(name, each) for each in "ab"}
            self._report.fact(f"CUDA IPC in the pod {name}", told)
            if name == "ipc-without":
                expect("error" in told["b"], f"it works: {told}")
            else:
                expect([told["a"].get("read"), told["b"].get("read")] == [8, 7], f"{name}: {told}")
            self._node.delete(name)

    def programs_of_others_work_unchanged(self):
        """Goal: programs that use CUDA IPC work between two containers with the annotation, also under MPS,
        and not without it."""
        if self._others is None:
            self._report.fact("left out", "--programs names no folder")
            return
        for name, pair in programs.PAIRS.items():
            if not programs.is_there(pair, self._others):
                self._report.fact(name, f"left out: there is no {pair.needs}")
                continue
            for kind in ("pair-without", "pair-with", "pair-together"):
                codes, said = self._run_pair(kind, pair)
                worked = not any(codes) and re.search(pair.proof, said) is not None
                self._report.fact(f"{name}, {kind}", {"exit codes": codes, "said": said[-1500:]})
                expect(worked == (kind != "pair-without"), f"{name} in {kind}: {said[-2000:]}")

    def _run_pair(self, kind, pair):
        """(exit codes, output of both containers)"""
        made = self._read(kind)
        mounts = {"usr": ("/usr", self._usr()), "programs": (programs.HERE, self._others),
                  "pairs": (programs.OURS, pathlib.Path(__file__).parent / "pairs")}
        for number, folder in enumerate(programs.folders_of_python()):
            mounts[f"python{number}"] = (folder, folder)
        made["spec"]["volumes"] += [{"name": volume, "hostPath": {"path": str(path)}}
                                    for volume, (_, path) in mounts.items()]
        for container, command in zip(made["spec"]["containers"], (pair.a, pair.b)):
            container["command"] = command
            container["volumeMounts"] += [{"name": volume, "mountPath": at}
                                          for volume, (at, _) in mounts.items()]
        self._node.create(made)
        self._wait_ended(kind, 90)
        states = statuses(self._node.pods()[kind])
        codes = [states[each]["state"]["terminated"]["exitCode"] for each in "ab"]
        said = "".join(f"{each}: {self._log(kind, each)}\n" for each in "ab")
        self._node.delete(kind)
        return codes, said

    def _usr(self):
        """The node's /usr, on which the runtime can put the driver's files without changing it."""
        folder = self._node.state / "usr"
        if not folder.exists():
            folder.mkdir()
            layers = self._node.state / "usr-layers"
            layers.mkdir()
            self._node.run("mount", "-t", "tmpfs", "tmpfs", str(layers))
            for layer in ("upper", "work"):
                (layers / layer).mkdir()
            self._node.run("mount", "-t", "overlay", "overlay", "-o",
                           f"lowerdir=/usr,upperdir={layers}/upper,workdir={layers}/work", str(folder))
        return folder

    def _wait_ended(self, name, seconds=60):
        self._node.wait_pods(lambda pods: all(
            "terminated" in statuses(pods.get(name, {})).get(each, {}).get("state", {})
            for each in "ab"), f"{name} does not end", seconds)

    def a_lost_gpu(self):
        """Goal: with the GPU off the bus, a client fails at once. Only simulated GPUs can be lost."""
        if not self._simulated:
            return
        self._start("mps")
        faults = pathlib.Path(self._simulated[1], "faults.yaml")
        serving = self._start_probe("mps", "a", "serve", "20")
        time.sleep(1)
        faults.write_text("lost: [0, 1]\n")
        told = self._end(serving)
        faults.unlink()
        self._report.fact("a client when the GPU is lost", told)
        expect("error" in told, f"it went on: {told}")
        self._node.delete("mps")

    # ------------------------------------------------------------ the table's rows

    def _replaces(self, what, kill, counter):
        """A client fails when `kill` ends something, a new one is served, and it is counted."""
        counted = self._state("mps")[counter]
        serving = self._start_probe("mps", "a", "serve", "4")
        time.sleep(1)
        start = time.monotonic()
        kill()
        told = self._end(serving)
        self._report.fact(f"a client when the {what} is killed", told)
        expect(self._simulated or "error" in told, f"it went on: {told}")
        wait_until(lambda: f"it is not counted: {self._state('mps')}", STEP_S,
                   lambda: self._state("mps")[counter] == counted + 1)
        self._serves_again("mps")
        self._report.fact("seconds until a new client is served", time.monotonic() - start)
        self._wait_metric(f"gpushm_mps_{counter}_total", lambda value: value == counted + 1)

    def _serves_again(self, name):
        wait_until(lambda: f"MPS is not ready: {self._state(name)}", STEP_S,
                   lambda: self._state(name)["state"] == "ready")
        told = self._probe(name, "a", "serve", "1")
        expect("error" not in told, f"a new process: {told}")
        expect(self._doctor(name)["mps"]["detail"].startswith("on"), "it runs without MPS")

    def _compare(self, name):
        """An empty kernel on an idle GPU and beside a neighbour."""
        idle = self._probe(name, "a", "serve", "2")
        with self._busy(name, "b"):
            busy = self._probe(name, "a", "serve", "3")
        self._report.fact(f"an empty kernel in the pod {name}, idle", idle)
        self._report.fact("beside a busy neighbour", busy)

    # ------------------------------------------------------------ looking into it

    def _log(self, name, container, stream=""):
        """What the container's first process wrote."""
        log = max(self._node.logs.glob(f"pods/*_{name}-*/{container}/0.log"), key=lambda p: p.stat().st_mtime)
        return "\n".join(line.split(" ", 3)[3] for line in log.read_text().splitlines() if stream in line)

    def _said(self, name, container):
        """The last line that it wrote to standard output."""
        lines = self._log(name, container, " stdout ").splitlines()
        return json.loads(lines[-1]) if lines else {"error": "it said nothing"}

    def _start(self, name):
        self._create(name)
        self._node.wait_ready(name)

    def _create(self, name):
        self._node.create(self._read(name))

    def _read(self, name):
        made = json.loads((self._node.files / "pods" / f"{name}.json").read_text())
        for volume in made["spec"]["volumes"]:
            if volume["name"] == "probes":
                volume["hostPath"]["path"] = str(self._node.files / "probes")
        return made

    def _command(self, name, container, words, env=None):
        variables = [word for key, value in (env or {}).items()
                     for word in (["-u", key] if value is None else [f"{key}={value}"])]
        return self._node.exec_words(name, container, *(["env", *variables] if variables else []), *words)

    def _start_probe(self, name, container, *words, env=None):
        # containerd's own warnings go to standard error.
        with open(self._node.logs / "probes.log", "a") as log:
            return subprocess.Popen(self._command(name, container, [PROBE, *words], env), text=True,
                                    stdout=subprocess.PIPE, stderr=log)

    @staticmethod
    def _end(process):
        """The last line that a probe said."""
        try:
            said, _ = process.communicate(timeout=STEP_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failure(f"a probe does not end: {process.args[-3:]}") from error
        lines = said.strip().splitlines()
        with contextlib.suppress(IndexError, ValueError):
            return json.loads(lines[-1])
        return {"error": f"it ended with {process.returncode}; see probes.log"}

    def _probe(self, name, container, *words, env=None):
        return self._end(self._start_probe(name, container, *words, env=env))

    @contextlib.contextmanager
    def _busy(self, name, container, env=None):
        """A neighbour that keeps the GPU busy; its PID on the node."""
        process = self._start_probe(name, container, "spin", str(STEP_S), env=env)
        said = process.stdout.readline()
        expect("busy" in said, f"the neighbour does not start: {said}")
        pid = self._pid_of("gpushm-gpu-probe", "spin")
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            process.wait()

    @staticmethod
    def _pid_of(program, *words):
        """The PID on the node of the process that runs this program with these words."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().decode().split("\0")
                if line[0].endswith(program) and all(word in line for word in words):
                    return int(folder.name)
        raise Failure(f"no process runs {program} {' '.join(words)}")

    def _kill(self, program):
        words = ["-f"] if program.endswith("control") else []
        os.kill(self._pid_of(program, *words), signal.SIGKILL)

    def _state(self, name):
        return json.loads(self._node.execute(name, "a", "cat", f"{FOLDER}/state.json"))

    def _doctor(self, name, container="a"):
        """{check: {level, detail}}"""
        done = subprocess.run(self._node.exec_words(name, container, "gpushmctl", "-o", "json", "doctor"),
                              capture_output=True, text=True, timeout=60, check=False)
        return {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    def _metrics(self, prefix):
        with urllib.request.urlopen(f"http://{settings.FIRST_NODE.address}:9400/metrics", timeout=10) as page:
            return [line for line in page.read().decode().splitlines() if line.startswith(prefix)]

    def _metric(self, name):
        values = [float(line.rpartition(" ")[2]) for line in self._metrics(name)
                  if re.match(rf"{name}[ {{]", line)]
        return values[0] if values else None

    def _wait_metric(self, name, is_so):
        wait_until(lambda: f"{name}: {self._metrics('gpushm_mps')}", METRICS_S,
                   lambda: (value := self._metric(name)) is not None and is_so(value), 0.2)
