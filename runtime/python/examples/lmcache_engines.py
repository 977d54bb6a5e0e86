"""Two engines of vLLM share what they have computed, by LMCache's server in its own container, on one GPU.

    python lmcache_engines.py models/llama --gpu-memory-utilization 0.4

The first engine answers a long prompt, and LMCache's server takes its KV cache from the engine's memory. The
engine is killed. The second engine gets the same prompt, and the server writes the cache into its memory.
Both answers must be equal, and the second engine must count tokens that it did not have to compute.

It needs a GPU, vLLM, LMCache and gpushm; and a broker: the one in $GPUSHM_DIR, or the one of the package
gpushm-sim, which the script then starts for the GPU. It ends with 0 if both is so.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time

from sglang_servers import START_S, Server, containers, free_port

PROMPT = "Count: " + ", ".join(str(number) for number in range(600)) + ","
NEW_TOKENS = 24


def start_cache(options, environment):
    """LMCache's server, and the port of it that the engines are told."""
    port = free_port()
    process = subprocess.Popen(
        ["lmcache", "server", "--host", "127.0.0.1", "--port", str(port), "--http-port", str(free_port()),
         "--l1-size-gb", str(options.l1_size_gb), "--eviction-policy", "LRU"], env=environment)
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process, port
        time.sleep(0.5)
    process.kill()
    sys.exit("LMCache's server does not come up: see its log above")


def start_engine(options, environment, cache_port):
    connector = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": cache_port}}
    port = free_port()
    return Server(["vllm", "serve", options.model, "--port", str(port), "--kv-transfer-config",
                   json.dumps(connector), *options.more], environment, port, "/health")


def answer(server, model):
    told = server.ask("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": NEW_TOKENS,
                                          "temperature": 0})
    return json.loads(told)["choices"][0]["text"]


def tokens_from_cache(server):
    lines = server.ask("/metrics").decode().splitlines()
    name = "vllm:external_prefix_cache_hits_total"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model, or its name on a hub")
    parser.add_argument("--l1-size-gb", type=float, default=8, help="LMCache's host memory (default: 8)")
    parser.add_argument("--wait-s", type=float, default=5, help="time for the server to store (default: 5)")
    options, options.more = parser.parse_known_args()  # What is not known goes to vLLM.
    with contextlib.ExitStack() as undo:
        environments = undo.enter_context(containers(["cache", "engine0", "engine1"], "64Mi"))
        for environment in environments:
            environment["LMCACHE_DEVICE_BACKEND"] = "gpushm"
        for environment in environments[1:]:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        cache, port = start_cache(options, environments[0])
        undo.callback(cache.kill)
        answers = []
        for number, environment in enumerate(environments[1:]):
            engine = start_engine(options, environment, port)
            undo.callback(engine.kill)
            print(f"engine {number}: ready after {engine.wait():.1f} s", flush=True)
            begin = time.perf_counter()
            answers.append(answer(engine, options.model))
            print(f"engine {number}: answered after {time.perf_counter() - begin:.2f} s", flush=True)
            time.sleep(options.wait_s)
            hits = tokens_from_cache(engine)
            engine.kill()
    print(f"answers equal: {answers[0] == answers[1]}; tokens that engine 1 got from the cache: {hits:.0f}")
    return 0 if answers[0] == answers[1] and hits else 1


if __name__ == "__main__":
    sys.exit(main())
