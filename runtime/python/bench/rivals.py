"""Measures the package beside what people use today, in one run on a machine with a GPU, PyTorch and
safetensors. The broker of GPUSHM_DIR needs a pool of 10 GiB. Prints JSON: medians in microseconds, and
ratios.

    python rivals.py [GIB] [FOLDER]     size of the model (8), and a folder for its file (/dev/shm)

Goal: what a server waits for. Method: a model of 1,000 tensors, whose file is in the page cache; each
way in turn in one process that has its CUDA context already; and tensors handed from one process to
another, the value of each read by the peer.
"""

import datetime
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import time

import safetensors.torch
import torch

import gpushm
import gpushm.tensors
import gpushm.torch

TENSORS = 1000
NAME = "bench-model"
MIB = 1 << 20
ITEMS = 200


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
    load_us = median(lambda: gpushm.torch.load_file(NAME), 20)
    attach_us = median(lambda: client.attach(NAME).detach(), 20)
    open_us = median(lambda: gpushm.tensors.open(NAME).close(), 20)
    with client.attach(NAME):
        again_us = median(lambda: [client.attach(NAME) for _ in range(100)], 20) / 100
    shared = gpushm.torch.load_file(NAME)
    assert all(shared[f"layer.{i:04}"][-1].item() == i % 7 for i in range(0, TENSORS, 97))
    return {"model_gib": gib, "tensors": TENSORS, "publish_of_the_file_us": publish_us,
            "safetensors_load_file_us": from_file_us, "gpushm_load_file_us": load_us,
            "safetensors_over_gpushm": from_file_us / load_us,
            "attach_us": attach_us, "open_us": open_us, "open_over_attach_us": open_us - attach_us,
            "attach_again_us": again_us}


def serve(kind, requests, answers):
    """The peer: reads each tensor's value and answers with it."""
    torch.zeros(1, device="cuda")
    answers.put("ready")
    queue = gpushm.torch.Queue("bench-queue") if kind == "gpushm" else requests
    for _ in range(ITEMS):
        answers.put(queue.get()[0].item())


def hand_over(kind):
    """Median time from put to the answer of the peer, less the time of the answer alone."""
    context = torch.multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    peer = context.Process(target=serve, args=(kind, requests, answers), daemon=True)
    peer.start()
    assert answers.get(timeout=120) == "ready"
    queue = gpushm.torch.Queue("bench-queue", write=True, nbytes=4 * MIB) if kind == "gpushm" else requests
    took = []
    for number in range(ITEMS):
        tensor = torch.full((MIB,), float(number), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        queue.put(tensor)
        assert answers.get(timeout=60) == number
        took.append((time.perf_counter() - start) * 1e6)
    peer.join(60)
    if kind == "gpushm":
        queue.close()
    return statistics.median(took[10:])


def answer(connection, answers):
    for _ in range(ITEMS):
        answers.put(connection.get())


def round_trip():
    """What the two queues of host objects take, which both ways of hand_over have in part."""
    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    peer = context.Process(target=answer, args=(there, back), daemon=True)
    peer.start()
    took = []
    for number in range(ITEMS):
        start = time.perf_counter()
        there.put(float(number))
        back.get(timeout=60)
        took.append((time.perf_counter() - start) * 1e6)
    peer.join(60)
    return statistics.median(took[10:])


def main():
    gib = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    folder = sys.argv[2] if len(sys.argv) > 2 else "/dev/shm"
    torch.zeros(1, device="cuda")
    found = {"date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
             "processors": os.cpu_count(), "torch": torch.__version__,
             "safetensors": safetensors.__version__, "driver": gpushm.about()["driver"],
             "library_version": gpushm.about()["library_version"]}
    found["weights"] = weights(gib, folder)
    found["hand_over_of_4_mib"] = {"round_trip_of_host_queues_us": round_trip(),
                                   "torch_multiprocessing_us": hand_over("torch"),
                                   "gpushm_torch_queue_us": hand_over("gpushm")}
    gpushm.delete(NAME)
    print(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
