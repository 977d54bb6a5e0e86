"""Servers of a model that is spread over several GPUs share one copy of each GPU's part of the weights.

    python tensor_parallel.py

One process for each GPU makes its part of the layers, and publishes it. Then two servers start, each with one
process for each GPU: every process takes the part of its GPU without a copy. Both servers answer a prompt,
eagerly and as a CUDA graph. The first layer of each pair is split by columns and the second by rows, so the
processes of a server add their results by NCCL after each pair. They do so in place, on a buffer
`activations-<server>-<rank>` that other processes can read. Every answer must equal, bit for bit, that of
processes with weights of their own, and the first of them must be close to that of the whole model on one GPU.

It needs two GPUs, PyTorch with NCCL, and gpushm; and a broker that has these GPUs: the one in $GPUSHM_DIR, as
in a pod with gpushm.io/gpus: "2", or the one of the package gpushm-sim, which the script then starts.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile

WIDTH = 2048
BATCH = 64
WHO = ("plain", "first", "second")  # `plain` has weights of its own.
STEP_S = 300


def matrices(layers, device):
    """The whole model: pairs of matrices, the same in each process."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(7)
    for _ in range(layers):
        yield tuple(torch.randn(shape, generator=generator, dtype=torch.float32).mul_(WIDTH ** -0.5).to(device)
                    for shape in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)))


def part_of(rank, ranks, layers):
    """Columns of the first and rows of the second matrix of each pair, on this process's GPU."""
    part = {}
    for layer, (first, second) in enumerate(matrices(layers, f"cuda:{rank}")):
        part[f"{layer}.first"] = first.chunk(ranks, 1)[rank].contiguous()
        part[f"{layer}.second"] = second.chunk(ranks, 0)[rank].contiguous()
    return part


def prompt(device):
    import torch

    return torch.randn((BATCH, WIDTH), generator=torch.Generator().manual_seed(1)).to(device)


def publish(rank, ranks, layers):
    import torch
    import gpushm.torch

    torch.cuda.set_device(rank)
    gpushm.torch.save_file(part_of(rank, ranks, layers), "weights", rank=rank)


def serve(who, rank, ranks, layers, meeting):
    import torch
    import torch.distributed
    import gpushm
    import gpushm.torch

    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks,
                                         device_id=torch.device("cuda", rank))
    part = part_of(rank, ranks, layers) if who == "plain" else gpushm.torch.load_file("weights", rank=rank)
    own_nbytes = torch.cuda.memory_allocated()
    activations = torch.empty((BATCH, WIDTH), device="cuda")
    if who != "plain":
        shared = gpushm.connect().create(f"activations-{who}-{rank}", activations.nbytes, gpu=rank)
        activations = gpushm.torch.as_tensor(shared.view("float32", [BATCH, WIDTH]))

    def answer():
        for layer in range(layers):
            hidden = torch.relu(activations @ part[f"{layer}.first"])
            torch.matmul(hidden, part[f"{layer}.second"], out=activations)
            torch.distributed.all_reduce(activations)

    def told():
        torch.cuda.synchronize()
        return hashlib.sha256(activations.cpu().numpy().tobytes()).hexdigest()

    question = prompt("cuda")
    answers = []
    activations.copy_(question)
    answer()
    answers.append(told())
    result = activations.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer()
    for _ in range(2):
        activations.copy_(question)
        graph.replay()
        answers.append(told())
    error = None
    if who == "plain" and rank == 0:
        whole = question
        for first, second in matrices(layers, "cuda"):
            whole = torch.relu(whole @ first) @ second
        error = ((whole - result).norm() / whole.norm()).item()
    print(json.dumps({"answers": answers, "own_nbytes": own_nbytes, "error": error}), flush=True)
    torch.distributed.barrier()
    del graph  # It holds NCCL's communicator.
    torch.distributed.destroy_process_group()


def start(environment, *words):
    return subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True,
                            env=environment)


def results(processes):
    """What each process says, when all of them have ended. A process that fails ends the others."""
    try:
        outputs = [process.communicate(timeout=STEP_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        sys.exit("a process failed: see its error above")
    return [json.loads(output.splitlines()[-1]) if output.strip() else None for output in outputs]


@contextlib.contextmanager
def containers(ranks):
    """A function that gives the environment of a process in the container of that name."""
    if "GPUSHM_DIR" in os.environ:
        yield lambda name: dict(os.environ)
        return
    import gpushm.testing

    with gpushm.testing.broker({"weights": "{size: 512Mi, gpu: each, generations: 2}"}, containers=("loader", *WHO),
                               pool="2Gi", gpus=ranks, simulated=False) as broker:
        yield broker.environment


def run(ranks, layers):
    with tempfile.TemporaryDirectory() as folder, containers(ranks) as environment:
        results([start(environment("loader"), "--publish", rank, "--ranks", ranks, "--layers", layers)
                 for rank in range(ranks)])
        told = {}
        for who in WHO:
            meeting = os.path.join(folder, who)
            told[who] = [start(environment(who), "--serve", who, "--rank", rank, "--ranks", ranks, "--layers",
                               layers, "--meeting", meeting) for rank in range(ranks)]
            if who == "plain":
                told[who] = results(told[who])
        servers = results([process for who in WHO[1:] for process in told[who]])
    plain = told["plain"]
    wanted = {answer for each in plain for answer in each["answers"]}
    equal = [set(each["answers"]) == wanted and len(wanted) == 1 for each in servers]
    weights = sum(each["own_nbytes"] for each in plain)
    own = sum(each["own_nbytes"] for each in servers)
    error = plain[0]["error"]
    print(f"{len(servers)} processes of two servers; weights {weights / 2**20:.0f} MiB on {ranks} GPUs, "
          f"{own / 2**20:.1f} MiB of them in memory of their own")
    print(f"answers, eager and as a graph, equal bit for bit: {equal}; distance to the whole model on one GPU: "
          f"{error:.1e}")
    return 0 if all(equal) and own < weights / 10 and error < 1e-2 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="number of GPUs (default: 2)")
    parser.add_argument("--layers", type=int, default=4, help="pairs of layers of the model (default: 4)")
    for hidden in ("--publish", "--serve", "--rank", "--meeting"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.publish is not None:
        return publish(int(options.publish), options.ranks, options.layers)
    if options.serve is not None:
        return serve(options.serve, int(options.rank), options.ranks, options.layers, options.meeting)
    import torch

    if torch.cuda.device_count() < options.ranks:
        return (f"this example needs {options.ranks} GPUs, and PyTorch sees {torch.cuda.device_count()}; the "
                "simulated driver runs no kernels")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # All processes are on this machine.
    return run(options.ranks, options.layers)


if __name__ == "__main__":
    sys.exit(main())
