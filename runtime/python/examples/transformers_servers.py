"""Several servers answer from one copy of a model's weights, on one GPU.

    python transformers_servers.py

One process makes a small model with random weights, saves it, and publishes it. Two servers take the shared
weights, and answer. A third is started while they run, and the first is killed. Every answer must equal, bit
for bit, that of a process which loads the model from its files. Nothing is downloaded.

It needs a GPU, PyTorch, transformers and gpushm; and a broker: the one in $GPUSHM_DIR, with a pool that has
room for the weights, or the one of the package gpushm-sim, which the script then starts for the GPU. It ends
with 0 if all answers are equal and no server has memory of its own for the weights.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

NAME = "example-transformers"
PROMPTS = [[1, 17, 4, 99, 3], [1, 250, 6], list(range(1, 120))]
NEW_TOKENS = 24
STEP_S = 300


def configuration(layers):
    import transformers

    return transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=8192, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="bfloat16")


def make(folder, layers):
    """A model with random weights, in files as a checkpoint has them."""
    import torch
    import transformers

    torch.manual_seed(7)
    transformers.AutoModelForCausalLM.from_config(configuration(layers)).save_pretrained(folder)


def from_files(folder):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder).to("cuda").eval()


def publish(folder):
    from gpushm.integrations import transformers as shared

    model = from_files(folder)
    generation = shared.publish(model, NAME, writers="all")
    say(generation=generation, nbytes=sum(each.numel() * each.element_size() for each in model.parameters()))


def serve(folder):
    """Reads prompts, one JSON list a line, and writes answers, until its input ends. `folder`: load from
    there; None: take the shared weights."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.cuda.init()
    begin = time.perf_counter()
    if folder:
        model = from_files(folder)
    else:
        import transformers
        from gpushm.integrations import transformers as shared

        model = shared.from_shared(transformers.AutoModelForCausalLM, NAME)
    torch.cuda.synchronize()
    say(ready_s=time.perf_counter() - begin, own_nbytes=torch.cuda.memory_allocated())
    for line in sys.stdin:
        tokens = torch.tensor([json.loads(line)], device="cuda")
        with torch.inference_mode():
            logits = model(tokens).logits
            told = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS,
                                  do_sample=False)
        raw = logits.float().cpu().numpy().tobytes()
        say(logits=hashlib.sha256(raw).hexdigest(), tokens=told[0].tolist())


def say(**what):
    print(json.dumps(what), flush=True)


class Process:
    """This script in another role, as a process of a container of the pod."""

    def __init__(self, *words, environment=None):
        self._process = subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, env=environment)

    def hear(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a process ended with {self._process.wait(STEP_S)}: see its error above")
        return json.loads(line)

    def ask(self, prompt):
        self._process.stdin.write(json.dumps(prompt) + "\n")
        self._process.stdin.flush()
        return self.hear()

    def answers(self):
        return [self.ask(prompt) for prompt in PROMPTS]

    def kill(self):
        self._process.kill()
        self._process.wait(STEP_S)

    def end(self):
        self._process.stdin.close()
        self._process.wait(STEP_S)


@contextlib.contextmanager
def containers():
    """A function that gives the environment of a process in the container of that number."""
    if "GPUSHM_DIR" in os.environ:
        yield lambda number: dict(os.environ)
        return
    import gpushm.testing

    with gpushm.testing.broker(containers=("loader", "server0", "server1", "server2"), pool="4Gi",
                               simulated=False) as broker:
        yield lambda number: broker.environment(broker.containers[number])


def show(who, told, weights):
    print(f"{who}: ready after {told['ready_s']:.2f} s, {told['own_nbytes'] / 2**20:.1f} MiB of its own, "
          f"weights {weights / 2**20:.1f} MiB")


def run(layers):
    with tempfile.TemporaryDirectory() as folder, containers() as environment:
        make(folder, layers)
        loader = Process("--publish", folder, environment=environment(0))
        weights = loader.hear()["nbytes"]
        loader.end()
        plain = Process("--serve", folder)
        show("plain load", plain.hear(), weights)
        wanted = plain.answers()
        plain.end()

        servers = [Process("--serve", "", environment=environment(number)) for number in (1, 2)]
        states = [server.hear() for server in servers]
        equal = [server.answers() == wanted for server in servers]
        servers.append(Process("--serve", "", environment=environment(3)))
        states.append(servers[2].hear())
        servers[0].kill()
        equal += [server.answers() == wanted for server in servers[1:]]
        for number, told in enumerate(states):
            show(f"server {number}", told, weights)
        for server in servers[1:]:
            server.end()
    alone = all(told["own_nbytes"] < weights / 10 for told in states)
    print(f"answers equal bit for bit: {equal}; no server has the weights in memory of its own: {alone}")
    return 0 if all(equal) and alone else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="layers of the model (default: 8)")
    parser.add_argument("--publish", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if options.publish is not None:
        return publish(options.publish)
    if options.serve is not None:
        return serve(options.serve)
    import torch

    if not torch.cuda.is_available():
        return "this example needs a GPU: the simulated driver runs no kernels"
    return run(options.layers)


if __name__ == "__main__":
    sys.exit(main())
