"""README's three uses in Python, as printed, on a real GPU.

    python readme_check.py [README.md]

Goal: a user who copies a block gets what README promises. Method: in the block of Python, empty lines separate
what the first process of each use runs from what the second one does, as two containers of a pod. The names that README takes for granted,
such as `model`, exist. It needs PyTorch and gpushm-sim, or GPUSHM_BUILD, for the broker. It prints "README: ok".
"""

import multiprocessing
import os
import pathlib
import re
import sys

import gpushm.testing

STEP_S = 120
PAUSE_S = 0.2
README = pathlib.Path(__file__).resolve().parents[3] / "README.md"
VALUE = 7.0


def uses(path):
    """Of each use, the part of the writer, and that of the reader."""
    [block] = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    parts = block.split("\n\n")
    return list(zip(parts[::2], parts[1::2], strict=True))


class Names(dict):
    """What a block takes for granted."""

    def __init__(self, told):
        import torch

        import gpushm.tensors
        import gpushm.torch

        model = torch.nn.Linear(64, 64, device="cuda")
        torch.nn.init.constant_(model.weight, VALUE)
        frame = torch.full((3, 1080, 1920), int(VALUE), dtype=torch.uint8, device="cuda")
        super().__init__(torch=torch, gpushm=gpushm, model=model, frame=frame)
        self._told = told

    def see(self, tensor):
        """Of a reader: tells the mean of what it got."""
        self._told.send(tensor.float().mean().item())


def write(text, folder, told, may_end):
    os.environ["GPUSHM_DIR"] = folder
    names = Names(told)
    exec(text, names)
    names["torch"].cuda.synchronize()
    told.send("written")
    # A decoder goes on: a reader of a ring begins with the frame after its start.
    while not may_end.wait(PAUSE_S):
        if "ring.put" in text:
            exec(text.splitlines()[-1], names)


def read(text, folder, told, may_end):
    os.environ["GPUSHM_DIR"] = folder
    names = Names(told)
    torch = names["torch"]
    torch.nn.init.zeros_(names["model"].weight)

    def roll_out(model):
        names.see(model.weight)
        raise SystemExit  # README's loop has no end.

    class Model(torch.nn.Linear):
        def forward(self, frame):
            names.see(frame)
            raise SystemExit

    if "model(" in text:
        names["model"] = Model(1, 1)
    names["roll_out"] = roll_out
    try:
        exec(text, names)
        names.see(names["model"].weight)
    except SystemExit:
        pass


def run(number, parts, broker):
    """Whether the reader got what the writer wrote."""
    context = multiprocessing.get_context("spawn")
    may_end = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in parts]
    processes = [context.Process(target=target, args=(text, broker.folder(container), told, may_end))
                 for target, text, container, (_, told) in zip((write, read), parts, ("app", "other"), pipes)]
    for process in processes:
        process.start()
    heard = [listen.recv() if listen.poll(STEP_S) else None for listen, _ in pipes]
    may_end.set()
    for process in processes:
        process.join(STEP_S)
        process.kill()
    print(f"README, use {number}: {heard}", flush=True)
    return heard == ["written", VALUE] and all(process.exitcode == 0 for process in processes)


def main():
    found = uses(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else README)
    assert len(found) == 3, found
    with gpushm.testing.broker(pool="1Gi", simulated=False) as broker:
        results = [run(number, parts, broker) for number, parts in enumerate(found, 1)]
    print("README: ok" if all(results) else f"README: FAILED {results}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
