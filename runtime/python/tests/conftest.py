"""A real broker on the simulated driver, and other processes as peers."""

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
import textwrap
import time

import pytest

import gpushm
import gpushm.testing

STEP_S = 120  # A peer that imports PyTorch takes long on a busy machine.
# The modules that need more than requirements.txt: packages of requirements-torch.txt, or "contracts", the
# wheels that GPUSHM_INTEGRATIONS=1 downloads. What is left out is told at the end.
NEEDS = {
    "test_lmcache.py": ["torch", "contracts"],
    "test_lmcache_contract.py": ["contracts"],
    "test_ray.py": ["torch", "ray"],
    "test_sglang.py": ["torch", "contracts"],
    "test_sglang_contract.py": ["contracts"],
    "test_torch.py": ["torch"],
    "test_torch_multiprocessing.py": ["torch"],
    "test_transformers.py": ["torch", "transformers"],
    "test_vllm.py": ["torch", "contracts"],
    "test_vllm_contract.py": ["contracts"],
}


def _absent(need):
    if need == "contracts":
        return os.environ.get("GPUSHM_INTEGRATIONS") != "1"
    return importlib.util.find_spec(need) is None


LEFT_OUT = {file: absent for file, needs in NEEDS.items() if (absent := [each for each in needs if _absent(each)])}
collect_ignore = list(LEFT_OUT)
# A stream that waits holds up those that share its hardware queue: give each stream of a test its own.
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"


def pytest_terminal_summary(terminalreporter):
    for file, absent in LEFT_OUT.items():
        terminalreporter.write_line(f"left out: {file} needs {' and '.join(absent)}; run with GPUSHM_INTEGRATIONS=1")


@pytest.fixture
def broker():
    with gpushm.testing.broker() as running:
        yield running


@pytest.fixture
def app(broker):
    with broker.connect("app") as client:
        yield client


@pytest.fixture
def other(broker):
    with broker.connect("other") as client:
        yield client


class Peer:
    """A process that runs Python code as a container of the pod. `say` and `hear` exchange lines."""

    def __init__(self, broker, code, container="other"):
        self._process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-c", textwrap.dedent(code)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=broker.environment(container), bufsize=0)
        self._heard = b""

    @property
    def pid(self):
        return self._process.pid

    def hear(self):
        """The next line that the peer prints; "" at its end."""
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._process.stdout], [], [], STEP_S)
            assert ready, "the peer says nothing"
            if not (read := self._process.stdout.read(1 << 16)):
                break
            self._heard += read
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def say(self, line=""):
        self._process.stdin.write(f"{line}\n".encode())

    def end(self):
        """Waits for its end, and returns the rest of its output. It must succeed."""
        out, _ = self._process.communicate(timeout=STEP_S)
        assert self._process.returncode == 0, out
        return (self._heard + out).decode().strip()

    def kill(self):
        self._process.kill()
        self._process.wait(STEP_S)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def peer(broker):
    peers = []

    def start(code, container="other"):
        peers.append(Peer(broker, code, container))
        return peers[-1]

    yield start
    for each in peers:
        each.kill()


def until(condition):
    """Waits until `condition()` is true."""
    end = time.monotonic() + STEP_S
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        os.sched_yield()
    return found
