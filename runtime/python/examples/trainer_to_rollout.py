"""A trainer gives new weights to rollouts in other containers, while they run.

    python trainer_to_rollout.py --train policy        # in the container that may write the weights
    python trainer_to_rollout.py --roll-out policy     # in each of the others

The policy is a linear one that learns to imitate another: small, and its error falls with each step, so that you
see that the weights arrive. Each publish is a new generation. A rollout gets a whole generation, and keeps it
until it takes the next one. With PyTorch and a GPU, the weights never leave the GPU. Without them, for example
on the simulated driver, NumPy does the same on the host.
"""

import argparse
import sys
import time

import gpushm.tensors
import numpy

try:
    import torch
except ImportError:
    torch = None

INPUTS, OUTPUTS, EXAMPLES = 64, 8, 256
RATE = 0.1


def task():
    """What to learn: inputs and the wanted outputs, the same in every process."""
    random = numpy.random.default_rng(7)
    inputs = random.standard_normal((EXAMPLES, INPUTS), dtype=numpy.float32)
    teacher = random.standard_normal((INPUTS, OUTPUTS), dtype=numpy.float32)
    bias = random.standard_normal(OUTPUTS, dtype=numpy.float32)
    return inputs, inputs @ teacher + bias


def train(name, steps, every_s, to_device):
    inputs, wanted = map(to_device, task())
    weight = to_device(numpy.zeros((INPUTS, OUTPUTS), dtype=numpy.float32))
    bias = to_device(numpy.zeros(OUTPUTS, dtype=numpy.float32))
    for step in range(1, steps + 1):
        error = inputs @ weight + bias - wanted
        weight = weight - RATE * (inputs.T @ error) / EXAMPLES
        bias = bias - RATE * error.mean(0)
        gpushm.tensors.publish(name, {"weight": weight, "bias": bias}, metadata={"step": str(step)})
        print(f"trainer: published step {step}, error {(error ** 2).mean().item():.3f}", flush=True)
        time.sleep(every_s)


def roll_out(name, to_device, take):
    inputs, wanted = map(to_device, task())
    for weights in gpushm.tensors.watch(name):
        step, generation = weights.metadata["step"], weights.generation
        policy = {key: take(array) for key, array in weights.items()}
        del weights
        error = inputs @ policy["weight"] + policy["bias"] - wanted
        del policy  # The memory of this generation is free when the GPU has used it.
        print(f"rollout: step {step}, generation {generation}, error {(error ** 2).mean().item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--train", metavar="NAME", help="learn, and publish the weights under this name")
    role.add_argument("--roll-out", metavar="NAME", help="use the weights of this name")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the trainer (default: 1000000)")
    parser.add_argument("--every-s", type=float, default=1.0, help="pause after a step (default: 1)")
    options = parser.parse_args()
    on_gpu = torch is not None and torch.cuda.is_available()

    def to_device(array):
        return torch.from_numpy(array).to("cuda") if on_gpu else array

    def take(array):
        return torch.from_dlpack(array) if on_gpu else array.numpy()

    if options.train:
        return train(options.train, options.steps, options.every_s, to_device)
    return roll_out(options.roll_out, to_device, take)


if __name__ == "__main__":
    sys.exit(main())
