"""Measures the package beside what people use today, in one run on a machine with a GPU, PyTorch and
safetensors. The broker of GPUSHM_DIR needs a pool of 10 GiB. Prints JSON: medians in microseconds, and
ratios.

    python rivals.py [GIB] [FOLDER]     size of the model (8; 0: only the hand-overs), and a folder for
                                        its file (/dev/shm)

Goal: what a server waits for. Method: a model of 1,000 tensors, whose file is in the page cache; each
way in turn in one process that has its CUDA context already. Tensors are handed from one process to
another. All processes of a host have one clock, so the peer says when it had read the value, and no way
back is in that time. "floor": one such copy in each of two processes that poll a word of shared memory
and wait for their copies. It shows what a GPU without MPS takes to go from one process's work to the
other's.
"""

import datetime
import functools
import json
import mmap
import os
import pathlib
import statistics
import struct
import sys
import tempfile
import time

import safetensors.torch
import torch

import gpushm
import gpushm.tensors
import gpushm.torch
import gpushm.torch.multiprocessing

TENSORS = 1000
NAME = "bench-model"
MIB = 1 << 20
ITEMS = 200
WARM = 20
KINDS = ("torch.multiprocessing", "gpushm.torch.Queue", "gpushm.torch.Queue, copy=False", "install()")


def median(call, times):
    took = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = call()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - start) * 1e6)
        del kept
    return statistics.median(took)


def weights(gib, folder):
    path = str(pathlib.Path(folder, "gpushm-bench.safetensors"))
    elements = gib * (1 << 30) // TENSORS // 2 // 128 * 128
    try:
        tensors = {f"layer.{i:04}": torch.full((elements,), float(i % 7), dtype=torch.bfloat16)
                   for i in range(TENSORS)}
        safetensors.torch.save_file(tensors, path)
        del tensors
        start = time.perf_counter()
        gpushm.tensors.publish(NAME, path)
        publish_us = (time.perf_counter() - start) * 1e6
        from_file_us = median(lambda: safetensors.torch.load_file(path, device="cuda"), 5)
    finally:
        pathlib.Path(path).unlink(missing_ok=True)
    client = gpushm.client()
    load_us = median(lambda: gpushm.torch.load_file(NAME), 30)
    attach_us = median(lambda: client.attach(NAME).detach(), 30)
    open_us = median(lambda: gpushm.tensors.open(NAME).close(), 30)
    with client.attach(NAME):
        again_us = median(lambda: [client.attach(NAME) for _ in range(100)], 50) / 100
    shared = gpushm.torch.load_file(NAME)
    assert all(shared[f"layer.{i:04}"][-1].item() == i % 7 for i in range(0, TENSORS, 97))
    return {"model_gib": gib, "tensors": TENSORS, "publish_of_the_file_us": publish_us,
            "safetensors_load_file_us": from_file_us, "gpushm_load_file_us": load_us,
            "safetensors_over_gpushm": from_file_us / load_us,
            "attach_us": attach_us, "open_us": open_us, "open_over_attach_us": open_us - attach_us,
            "attach_again_us": again_us}


def serve(kind, requests, answers):
    """The peer: reads each tensor's value, and answers with it and the time."""
    torch.zeros(1, device="cuda")
    answers.put("ready")
    get = requests.get
    if kind.startswith("gpushm.torch.Queue"):
        get = functools.partial(gpushm.torch.Queue("bench-queue").get, copy="copy=False" not in kind)
    for _ in range(ITEMS):
        value = get()[0].item()
        answers.put((value, time.perf_counter()))


def hand_over(kind, same):
    """Median times from put until the peer has the value, and until its answer is here."""
    context = torch.multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.SimpleQueue()
    if kind == "install()":
        gpushm.torch.multiprocessing.install()
    peer = context.Process(target=serve, args=(kind, requests, answers), daemon=True)
    peer.start()
    assert answers.get() == "ready"
    queue = (gpushm.torch.Queue("bench-queue", write=True, nbytes=4 * MIB)
             if kind.startswith("gpushm.torch.Queue") else requests)
    there, back, tensor = [], [], torch.empty(MIB, device="cuda")
    for number in range(ITEMS):
        tensor = tensor.fill_(number) if same else torch.full((MIB,), float(number), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        queue.put(tensor)
        value, read = answers.get()
        back.append((time.perf_counter() - start) * 1e6)
        there.append((read - start) * 1e6)
        assert value == number
    peer.join(60)
    gpushm.torch.multiprocessing.uninstall()
    if queue is not requests:
        queue.close()
    return {"value_on_the_peer_us": statistics.median(there[WARM:]),
            "and_the_answer_us": statistics.median(back[WARM:])}


class Word:
    """A number in memory that two processes share."""

    def __init__(self, path, index):
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._offset = 64 * index

    def set(self, number):
        struct.pack_into("q", self._memory, self._offset, number)

    def wait(self, number):
        while struct.unpack_from("q", self._memory, self._offset)[0] < number:
            pass


def copy_and_read(path, answers):
    asked, done = Word(path, 0), Word(path, 1)
    source = torch.zeros(MIB, device="cuda")
    answers.put("ready")
    for number in range(1, ITEMS + 1):
        asked.wait(number)
        source.clone()[0].item()
        answers.put(time.perf_counter())
        done.set(number)


def floor():
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        peer = context.Process(target=copy_and_read, args=(file.name, answers), daemon=True)
        peer.start()
        assert answers.get() == "ready"
        asked, done = Word(file.name, 0), Word(file.name, 1)
        source, target, took = torch.zeros(MIB, device="cuda"), torch.zeros(MIB, device="cuda"), []
        for number in range(1, ITEMS + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            target.copy_(source)
            torch.cuda.current_stream().synchronize()
            asked.set(number)
            done.wait(number)
            took.append((answers.get() - start) * 1e6)
        peer.join(60)
    return statistics.median(took[WARM:])


def main():
    gib = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    folder = sys.argv[2] if len(sys.argv) > 2 else "/dev/shm"
    torch.zeros(1, device="cuda")
    found = {"date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
             "processors": os.cpu_count(), "torch": torch.__version__,
             "safetensors": safetensors.__version__, "driver": gpushm.about()["driver"],
             "library_version": gpushm.about()["library_version"]}
    if gib:
        found["weights"] = weights(gib, folder)
    found["hand_over_of_4_mib"] = {
        f"{kind}, {'the same tensor' if same else 'a new tensor each time'}": hand_over(kind, same)
        for same in (False, True) for kind in KINDS}
    found["hand_over_of_4_mib"]["floor"] = {"value_on_the_peer_us": floor()}
    if gib:
        gpushm.delete(NAME)
    print(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
