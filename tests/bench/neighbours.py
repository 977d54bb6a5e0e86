#!/usr/bin/env python3
"""What a container waits for beside busy neighbours on its GPU, with MPS and without, in one run.

usage: neighbours.py BUILD [--out FILE] [--seconds S]

BUILD: a build with bench/ and bin/. Prints a table and writes JSON. For each way to share the GPU and each
neighbour it measures:
  signal   a tensor of 2 MiB from one process to another, by gpushm's signal (bench_handover)
  kernel   an empty kernel and the wait for it (gpushm-gpu-probe serve)
Ratios are to the idle GPU in the same way. Neighbours:
  spin     kernels of 200 us with a block on each multiprocessor
  product  bf16 matrix products of 8192, by PyTorch, which fill the GPU. Left out without PyTorch
  loads    a broker outside of MPS that makes, loads and frees a buffer of 1 GiB, again and again
  outside  spin in a process outside of MPS, like another pod
The simulated driver runs no kernels: there, this only tries the script.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

READY_S = 60
LOAD_BYTES = 1 << 30
PRODUCT = """
import torch, time
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
a @ b; torch.cuda.synchronize()
print("busy", flush=True)
while True:
    start = time.monotonic()
    for _ in range(20): c = a @ b
    torch.cuda.synchronize()
    print(f"{(time.monotonic() - start) / 20 * 1e3:.3f}", flush=True)
"""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("neighbours.json"))
    parser.add_argument("--seconds", type=float, default=3, help="for each figure (3)")
    return parser.parse_args()


class Bench:

    def __init__(self, build, seconds, folder):
        self._build = build
        self._seconds = seconds
        self._folder = folder
        self._has_torch = subprocess.run([sys.executable, "-c", "import torch; torch.zeros(1).cuda()"],
                                         capture_output=True, check=False).returncode == 0

    # ------------------------------------------------------------ what is measured

    def measure(self, environment):
        """{"signal_us", "kernel_us"}: medians."""
        out = self._folder / "handover.json"
        subprocess.run(
            [self._build / "bench/bench_handover", "--benchmark_filter=2MiB/1 peer/idle/gpushm-signal$",
             f"--seconds={self._seconds}", f"--benchmark_out={out}"],
            env=environment, check=True, capture_output=True, timeout=120)
        row = json.loads(out.read_text())["benchmarks"][0]
        said = subprocess.run([self._build / "bin/gpushm-gpu-probe", "serve", str(round(self._seconds))],
                              env=environment, check=True, capture_output=True, text=True, timeout=120)
        kernel = json.loads(said.stdout)
        return {"signal_us": row["p50_ns"] / 1000, "signal_p99_us": row["p99_ns"] / 1000,
                "kernel_us": kernel["p50_us"], "kernel_p99_us": kernel["p99_us"]}

    # ------------------------------------------------------------ neighbours

    @contextlib.contextmanager
    def process(self, words, environment):
        """A neighbour that runs once it has said "busy"; yields what it said until then and after."""
        log, errors = self._folder / "neighbour.log", self._folder / "neighbour.errors"
        with open(log, "w") as file, open(errors, "w") as said:
            process = subprocess.Popen(words, env=environment, stdout=file, stderr=said, start_new_session=True)
        try:
            deadline = time.monotonic() + READY_S
            while "busy" not in log.read_text():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{words}: {errors.read_text()[-2000:]}")
                time.sleep(0.02)
            yield log
            if process.poll() is not None:
                raise RuntimeError(f"{words} ended while it was measured: {errors.read_text()[-2000:]}")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def spin(self, environment):
        return self.process([self._build / "bin/gpushm-gpu-probe", "spin", "600"], environment)

    def product(self, environment):
        return self.process([sys.executable, "-c", PRODUCT], environment)

    @contextlib.contextmanager
    def loads(self, environment):
        """Without MPS, as the broker's children are."""
        outside = without_mps(environment)
        sockets = self._folder / "broker"
        config = self._folder / "broker.yaml"
        config.write_text(f"annotations: {{gpushm.io/pool-extra: 2Gi}}\ncontainers: [app]\nfolder: {sockets}\n")
        data = self._folder / "data"
        with open(data, "wb") as file:
            file.write(os.urandom(1 << 20) * (LOAD_BYTES >> 20))
        control = [self._build / "bin/gpushmctl", "--folder", sockets / "app"]
        with open(self._folder / "broker.log", "w") as log:
            broker = subprocess.Popen([self._build / "bin/gpushm-broker", "--config", config], env=outside,
                                      stdout=log, stderr=log)
        try:
            subprocess.run([*control, "wait", "--broker", "--timeout", "60s"], env=outside, check=True,
                           capture_output=True)
            script = ('while "$@" create x 1Gi >/dev/null && "$@" load --format raw "$0" x >/dev/null'
                      ' && "$@" rm x >/dev/null; do echo busy; done')
            with self.process(["sh", "-c", script, data, *control], outside) as said:
                yield said
        finally:
            broker.terminate()
            broker.wait(30)
            data.unlink()

    @contextlib.contextmanager
    def mps(self):
        """The environment of clients of a daemon of our own, kept by gpushm-mps."""
        folder = self._folder / "mps"
        folder.mkdir()
        environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(folder)}
        program = shutil.which("nvidia-cuda-mps-control") or next(
            (str(p) for p in (pathlib.Path("/usr/local/nvidia/bin/nvidia-cuda-mps-control"),
                              self._build / "driver-sim/nvidia-cuda-mps-control") if p.exists()), "")
        keeper = [self._build / "bin/gpushm-mps", "--pipe-folder", folder]
        with open(self._folder / "mps.log", "w") as log:
            process = subprocess.Popen([*keeper, "--program", program, "--server-uid", str(os.getuid())],
                                       stdout=log, stderr=log)
        try:
            subprocess.run([*keeper, "wait"], check=True)
            yield environment
        finally:
            process.terminate()
            process.wait(30)

    # ------------------------------------------------------------ the table

    def rows(self):
        turns = without_mps(os.environ)
        yield from self._way("turns", turns, turns, {"spin": self.spin, "loads": self.loads,
                                                     "product": self.product})
        with self.mps() as clients:
            yield from self._way("MPS", clients, clients, {"spin": self.spin, "loads": self.loads,
                                                           "product": self.product})
            yield from self._way("MPS", clients, turns, {"outside": self.spin}, idle=False)
            half = clients | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
            yield from self._way("MPS, 50/50", half, half, {"spin": self.spin, "product": self.product})

    def _way(self, way, environment, of_neighbour, neighbours, idle=True):
        if idle:
            yield {"way": way, "neighbour": "idle", **self.measure(environment)}
        for name, neighbour in neighbours.items():
            if name == "product" and not self._has_torch:
                yield {"way": way, "neighbour": name, "left_out": "no PyTorch with CUDA"}
                continue
            with neighbour(of_neighbour) as said:
                row = {"way": way, "neighbour": name, **self.measure(environment)}
                if name == "product":
                    times = [float(line) for line in said.read_text().split() if line != "busy"]
                    row["product_ms"] = sorted(times)[len(times) // 2] if times else None
            yield row


def without_mps(environment):
    return {key: value for key, value in environment.items() if not key.startswith("CUDA_MPS_")} | {
        "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}


def machine():
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        gpu = "simulated"
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "gpu": gpu, "kernel": platform.release(), "cpus": os.cpu_count()}


def table(rows):
    idle = {row["way"]: row for row in rows if row["neighbour"] == "idle"}
    lines = ["| way | neighbour | signal, us | of idle | empty kernel, us | of idle | matrix product, ms |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        if "left_out" in row:
            lines.append(f"| {row['way']} | {row['neighbour']} | {row['left_out']} | | | | |")
            continue
        of = idle[row["way"]]
        lines.append(f"| {row['way']} | {row['neighbour']} | {row['signal_us']:.1f} | "
                     f"{row['signal_us'] / of['signal_us']:.2f} | {row['kernel_us']:.1f} | "
                     f"{row['kernel_us'] / of['kernel_us']:.2f} | {row.get('product_ms') or ''} |")
    return "\n".join(lines)


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(Bench(arguments.build, arguments.seconds, pathlib.Path(folder)).rows())
    arguments.out.write_text(json.dumps({"context": machine(), "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
