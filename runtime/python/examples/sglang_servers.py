"""Several servers of SGLang answer from one copy of a model's weights, on one GPU.

    python sglang_servers.py models/llama --max-total-tokens 16384

The first server loads the model and publishes its weights. The others take them: they start one after the
other, and the first is killed while they serve. Each of them must give the same answers as the first one did.

It needs a GPU, SGLang and gpushm; and a broker: the one in $GPUSHM_DIR, with a pool that has room for the
weights, or the one of the package gpushm-sim, which the script then starts for the GPU. It ends with 0 if all
answers are equal.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

PROMPTS = ["The capital of France is", "1, 2, 3, 5, 8,", "def add(a, b):"]
NEW_TOKENS = 24
START_S = 1800
ANSWER_S = 300


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Server:
    """A server that answers HTTP, as a process of one container of the pod."""

    def __init__(self, command, environment, port, health):
        self._url, self._health = f"http://127.0.0.1:{port}", health
        self._process = subprocess.Popen(command, env=environment, start_new_session=True)

    def wait(self):
        """Waits until it answers, and returns how many seconds that took."""
        begin = time.monotonic()
        while True:
            if (status := self._process.poll()) is not None:
                sys.exit(f"a server ended with {status}: see its log above")
            with contextlib.suppress(OSError):
                self.ask(self._health)
                return time.monotonic() - begin
            if time.monotonic() > begin + START_S:
                sys.exit(f"a server does not answer after {START_S} s: see its log above")
            time.sleep(0.5)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return answer.read()

    def kill(self):
        """Ends it and its workers at once, as a crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(ANSWER_S)


def start(options, environment):
    port = free_port()
    command = ["sglang", "serve", "--model-path", options.model, "--load-format", "gpushm", "--port",
               str(port), "--max-total-tokens", str(options.max_total_tokens), *options.more]
    return Server(command, environment, port, "/health_generate")


def answers(server):
    return [json.loads(server.ask("/generate", {
        "text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS}}))["text"]
        for prompt in PROMPTS]


@contextlib.contextmanager
def containers(names, pool):
    """The environments of processes in containers of these names."""
    if "GPUSHM_DIR" in os.environ:
        yield [dict(os.environ) for _ in names]
        return
    import gpushm.testing

    with gpushm.testing.broker(containers=names, pool=pool, simulated=False) as broker:
        yield [broker.environment(name) for name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model, or its name on a hub")
    parser.add_argument("--servers", type=int, default=3, help="how many, two or more (default: 3)")
    parser.add_argument("--max-total-tokens", type=int, default=16384, help="size of each server's KV cache")
    parser.add_argument("--pool", default="32Gi", help="pool of a broker that is started (default: 32Gi)")
    options, options.more = parser.parse_known_args()  # What is not known goes to SGLang.
    servers, equal = [], []
    with containers([f"server{number}" for number in range(options.servers)], options.pool) as environments:
        try:
            for number, environment in enumerate(environments):
                servers.append(start(options, environment))
                print(f"server {number}: ready after {servers[-1].wait():.1f} s", flush=True)
            wanted = answers(servers[0])
            servers[0].kill()
            equal = [answers(server) == wanted for server in servers[1:]]
        finally:
            for server in servers:
                server.kill()
    print(f"answers equal: {equal}")
    return 0 if equal and all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
