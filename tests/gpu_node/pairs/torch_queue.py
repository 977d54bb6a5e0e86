"""A tensor and an event by torch.multiprocessing's reductions, between two programs that know nothing of
gpushm: `send SOCKET` and `receive SOCKET`."""

import sys
import time
from multiprocessing.connection import Client, Listener

import torch
import torch.multiprocessing

KEY = b"gpushm"
NUMBERS = 1 << 22
TIMEOUT_S = 60


def send(path):
    with Listener(path, "AF_UNIX", authkey=KEY) as listener, listener.accept() as peer:
        tensor = torch.arange(NUMBERS, device="cuda", dtype=torch.float32)
        event = torch.cuda.Event(interprocess=True)
        event.record()
        peer.send((tensor, event.ipc_handle()))
        assert peer.recv() == "written"
        torch.cuda.synchronize()
        assert tensor[-1].item() == 42
    print("sent")


def receive(path):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            peer = Client(path, "AF_UNIX", authkey=KEY)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    tensor, handle = peer.recv()
    torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), handle).wait()
    assert tensor[:100].sum().item() == 4950
    tensor[-1] = 42
    torch.cuda.synchronize()
    del tensor
    peer.send("written")
    print("received")


if __name__ == "__main__":
    torch.zeros(1, device="cuda")
    {"send": send, "receive": receive}[sys.argv[1]](sys.argv[2])
