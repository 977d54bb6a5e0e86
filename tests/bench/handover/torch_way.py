"""torch.multiprocessing's CUDA tensors, as one of the methods of bench_handover, which starts this.

torch_way.py SOCKET PEERS: talks to the program over a socket that it inherits.
  -> "ready VERSION", or "torch is not installed: ...", then it ends
  <- "run BYTES COUNT WARM BUDGET_NS"
  -> "samples BEFORE_NS NS AFTER_NS ..." as often as needed, then "ok"

A hand-over begins when the tensor's bytes are on the GPU and the stream is empty, and ends when
the last consumer has read the tensor's last word on its stream, as in the program. BEFORE_NS is the
time to make the tensor, AFTER_NS the consumer's time to release it.
"""

import ctypes
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
WORD_BYTES = 8
SAMPLES_A_MESSAGE = 60  # A message has at most 4 KiB.


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def consume(tensors, answers):
    """A consumer: answers (when it had read, what it read, how long the release took)."""
    die_with_parent()
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    answers.put(None)
    while True:
        tensor = tensors.get()
        word = tensor[-1].item()
        read_ns = time.monotonic_ns()
        del tensor
        answers.put((read_ns, word, time.monotonic_ns() - read_ns))


def hand_over(torch, queues, size_bytes, sequence):
    begin = time.monotonic_ns()
    tensor = torch.empty(size_bytes // WORD_BYTES, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    before_ns = time.monotonic_ns() - begin
    tensor[-1] = sequence
    torch.cuda.synchronize()
    start_ns = time.monotonic_ns()
    for tensors, _ in queues:
        tensors.put(tensor)
    answers = [answers.get() for _, answers in queues]
    for _, word, _ in answers:
        if word != sequence:
            raise ValueError(f"hand-over {sequence} brought {word}")
    return (before_ns, max(read_ns for read_ns, _, _ in answers) - start_ns,
            max(after_ns for _, _, after_ns in answers))


def run_block(torch, queues, size_bytes, count, warm, budget_ns):
    samples = []
    start_ns = time.monotonic_ns()
    for sequence in range(1, warm + count + 1):
        sample = hand_over(torch, queues, size_bytes, sequence)
        if sequence <= warm:
            continue
        samples.append(sample)
        if time.monotonic_ns() - start_ns > budget_ns:
            break
    torch.cuda.empty_cache()
    return samples


def serve(channel, torch, queues):
    while True:
        request = channel.recv(4096).decode().split()
        if not request:
            return
        samples = run_block(torch, queues, *map(int, request[1:]))
        for i in range(0, len(samples), SAMPLES_A_MESSAGE):
            part = samples[i:i + SAMPLES_A_MESSAGE]
            numbers = " ".join(str(number) for sample in part for number in sample)
            channel.send(f"samples {numbers}".encode())
        channel.send(b"ok")


def main():
    die_with_parent()
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch
        import torch.multiprocessing as multiprocessing
    except ImportError as error:
        channel.send(f"torch is not installed: {error}".encode())
        return
    if not torch.cuda.is_available():
        channel.send(f"torch {torch.__version__} finds no GPU".encode())
        return
    multiprocessing.set_start_method("spawn")
    queues = []
    for _ in range(int(sys.argv[2])):
        queues.append((multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()))
        multiprocessing.Process(target=consume, args=queues[-1], daemon=True).start()
    torch.zeros(1, device="cuda")
    for _, answers in queues:
        answers.get()
    channel.send(f"ready {torch.__version__}".encode())
    try:
        serve(channel, torch, queues)
    except Exception as error:  # The program turns it into a row.
        channel.send(f"torch failed: {error}".encode()[:4000])


if __name__ == "__main__":
    main()
