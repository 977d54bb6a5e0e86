"""deploy/examples/python-*.yaml as processes, on the simulated driver.

Goal: each prints what its manifest promises, with the pod's annotations, also while one of them dies. Method: the
real broker with the manifest's buffers; each container's arguments are run, with its rights.
"""

import contextlib
import hashlib
import http.client
import json
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

import gpushm.testing
from conftest import STEP_S

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "runtime/python/examples"
MODEL = "/models/all-minilm-l6-v2"


class Manifest:
    """Buffers, and the containers' arguments, of a manifest as our examples write it."""

    def __init__(self, name):
        text = (ROOT / f"deploy/examples/{name}.yaml").read_text()
        self.buffers = dict(re.findall(r"buffers\.gpushm\.io/(\S+): '(.*)'", text))
        self.arguments = {}
        for line in text.splitlines():
            if match := re.fullmatch(r" *- name: (\S+)", line):
                container = match[1]
            if match := re.fullmatch(r" *(?:args|command): \[(.*)\]", line):
                self.arguments[container] = match[1].replace('"', "").split(", ")


class Program:
    def __init__(self, words, environment):
        if words[0] == "gpushmctl":  # Which the wheels do not have: the same load in Python.
            words = ["-m", "gpushm", "publish", *words[-2:]]
        self.process = subprocess.Popen([sys.executable, *words], cwd=EXAMPLES, env=environment,
                                        stdout=subprocess.PIPE, bufsize=0)
        self._heard = b""

    def expect(self, pattern):
        """Waits for a line that matches as a whole, and returns the match."""
        end = time.monotonic() + STEP_S
        while True:
            while b"\n" in self._heard:
                line, _, self._heard = self._heard.partition(b"\n")
                if match := re.fullmatch(pattern, line.decode()):
                    return match
            assert select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0], pattern
            read = self.process.stdout.read(1 << 16)
            assert read, f"the program ended with {self.process.wait(STEP_S)} before {pattern}"
            self._heard += read

    def kill(self):
        self.process.kill()
        self.process.wait(STEP_S)
        self.process.stdout.close()


@pytest.fixture
def example():
    """A function that starts the pod of a manifest, and returns one that runs a container's command."""
    with contextlib.ExitStack() as stack:
        def pod(name):
            manifest = Manifest(name)
            broker = stack.enter_context(gpushm.testing.broker(
                manifest.buffers, containers=tuple(manifest.arguments), pool="256Mi"))

            def start(container, **replaced):
                words = [replaced.get(word, word) for word in manifest.arguments[container]]
                program = Program(words, broker.environment(container))
                stack.callback(program.kill)
                return program

            return start

        yield pod


def test_decoder_to_model(example):
    start = example("python-decoder-to-model")
    model = start("model")
    decoder = start("decoder")
    model.expect(r"model: frame \d+, brightness \d+, \d+ lost, 0 wrong")
    model.expect(r"model: frame \d+, brightness \d+, \d+ lost, 0 wrong")
    decoder.kill()
    assert model.process.wait(STEP_S) != 0  # Its writer died, and it says so.
    model, decoder = start("model"), start("decoder")
    model.expect(r"model: frame \d+, brightness \d+, \d+ lost, 0 wrong")


def test_trainer_to_rollout(example):
    start = example("python-trainer-to-rollout")
    rollouts = [start("rollout-a"), start("rollout-b")]
    trainer = start("trainer")
    line = r"rollout: step ([1-9]\d*), generation (\d+), error (\d+\.\d+)"
    found = [[rollout.expect(line), rollout.expect(line)] for rollout in rollouts]
    for first, second in found:
        assert int(second[1]) > int(first[1]) and int(second[2]) > int(first[2])
        assert float(second[3]) < float(first[3])

    # A rollout that stands still does not hold up the others, nor the trainer for long.
    rollouts[0].process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        rollouts[1].expect(line)
    rollouts[0].process.send_signal(signal.SIGCONT)
    rollouts[0].expect(line)
    assert trainer.process.poll() is None


def test_servers(example, tmp_path):
    values = bytes(range(256))
    header = json.dumps({"w": {"dtype": "U8", "shape": [256], "data_offsets": [0, 256]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)
    start = example("python-servers")
    start("load", **{MODEL: str(tmp_path)}).expect(r"published .* as weights: .*, generation \d+")
    ports = [free_port() for _ in range(2)]
    servers = [start(name, **{MODEL: str(tmp_path), told: str(port)})
               for name, told, port in zip(("server-a", "server-b"), ("8080", "8081"), ports)]
    for server, port in zip(servers, ports):
        state = json.loads(server.expect(r"server: (.*)")[1])
        assert state["tensors"] == 1 and state["nbytes"] == 256
        assert state["digest"] == hashlib.sha256(values).hexdigest()[:16]
        assert ask(port) == (200, state)
    # There is no GPU to compute on, and a bad request is refused first.
    assert ask(ports[0], "[1]")[0] == 400
    assert ask(ports[0], "no JSON")[0] == 400
    assert ask(ports[0], '["A cat sleeps."]')[0] == 503


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def ask(port, body=None):
    """Waits until the server listens. Returns the status and the answer."""
    end = time.monotonic() + STEP_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STEP_S)
        try:
            connection.request("POST" if body else "GET", "/", body)
            answer = connection.getresponse()
            return answer.status, json.load(answer)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)
        finally:
            connection.close()
