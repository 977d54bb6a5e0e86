"""NCCL on attached buffers beside PyTorch's own memory, on two GPUs, in one run.

    python collectives.py [--output FILE]

An all-reduce in place over two processes, each with one GPU: on memory of PyTorch's allocator ("own"), of
gpushm.torch.pool ("pool"), and of a buffer of the broker ("shared"); eagerly, as a CUDA graph, and after
ncclCommRegister. The three take turns, so that noise of the machine meets all of them. What NCCL says of the
registration is kept, from its log, and whether the driver exports each memory as a dma-buf. Each of MODES is a pair of processes of its own, because NCCL reads its
settings once.

It needs two GPUs, PyTorch with NCCL, and gpushm with gpushm-sim for the broker.
"""

import argparse
import ctypes
import faulthandler
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"64KiB": 64 << 10, "16MiB": 16 << 20, "512MiB": 512 << 20}
MODES = {"defaults": {}, "no registration in graphs": {"NCCL_GRAPH_REGISTER": "0"},
         "cudaMalloc for NCCL": {"NCCL_CUMEM_ENABLE": "0"}}
KINDS = ("own", "pool", "shared")
ROUNDS = 7
CALLS = 10
NCCL_FLOAT, NCCL_SUM = 7, 0
CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124
CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1
LOGGED = re.compile(r"regist|WARN|failed|cuMemRetain|cuMemExport", re.I)


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Communicator:
    """NCCL's own API, because PyTorch has none for ncclCommRegister of memory that it did not allocate."""

    def __init__(self, rank, ranks):
        import torch
        import torch.distributed

        self._nccl = ctypes.CDLL("libnccl.so.2")
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self._nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self._nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                             ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._nccl.ncclCommRegister.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self._nccl.ncclCommDeregister.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        unique = UniqueId()
        if rank == 0:
            self._check(self._nccl.ncclGetUniqueId(ctypes.byref(unique)))
        shared = torch.tensor(list(bytes(unique)), dtype=torch.uint8, device="cuda")
        torch.distributed.broadcast(shared, 0)
        ctypes.memmove(ctypes.byref(unique), bytes(shared.cpu().tolist()), 128)
        self._comm = ctypes.c_void_p()
        self._check(self._nccl.ncclCommInitRank(ctypes.byref(self._comm), ranks, unique, rank))

    def version(self):
        number = ctypes.c_int()
        self._check(self._nccl.ncclGetVersion(ctypes.byref(number)))
        return number.value

    def all_reduce(self, tensor):
        import torch

        self._check(self._nccl.ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), NCCL_FLOAT,
                                             NCCL_SUM, self._comm, torch.cuda.current_stream().cuda_stream))

    def register(self, tensor):
        """A handle, or the text of the refusal."""
        handle = ctypes.c_void_p()
        result = self._nccl.ncclCommRegister(self._comm, tensor.data_ptr(), tensor.nbytes, ctypes.byref(handle))
        return handle if result == 0 else self._nccl.ncclGetErrorString(result).decode()

    def deregister(self, handle):
        self._check(self._nccl.ncclCommDeregister(self._comm, handle))

    def destroy(self):
        self._check(self._nccl.ncclCommDestroy(self._comm))

    def _check(self, result):
        if result:
            raise RuntimeError(f"NCCL: {self._nccl.ncclGetErrorString(result).decode()}")


def dma_buf(rank, tensor):
    """Whether the driver exports the memory as a dma-buf, as RDMA of network cards wants it: its answer."""
    driver = ctypes.CDLL("libcuda.so.1")
    supported, descriptor = ctypes.c_int(), ctypes.c_int(-1)
    driver.cuDeviceGetAttribute(ctypes.byref(supported), CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, rank)
    page = 65536
    start = tensor.data_ptr() & ~(page - 1)
    nbytes = -(-tensor.nbytes // page) * page
    result = driver.cuMemGetHandleForAddressRange(ctypes.byref(descriptor), ctypes.c_uint64(start),
                                                  ctypes.c_size_t(nbytes), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                                  ctypes.c_uint64(0))
    name = ctypes.c_char_p()
    driver.cuGetErrorName(result, ctypes.byref(name))
    if result == 0:
        os.close(descriptor.value)
    return {"attribute": supported.value, "export": name.value.decode()}


def timed(call):
    """Microseconds for one call, of CALLS in a row."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / CALLS


def graph_of(call):
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def is_right(call, tensor, rank, ranks):
    import torch

    tensor.fill_(rank + 1.0)
    call()
    torch.cuda.synchronize()
    return bool((tensor == ranks * (ranks + 1) / 2).all())


def rank_main(rank, ranks, meeting, seconds):
    faulthandler.dump_traceback_later(seconds, exit=True)  # What a collective waits for is a stack.
    import torch
    import torch.distributed
    import gpushm
    import gpushm.torch

    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks,
                                         device_id=torch.device("cuda", rank))
    communicator = Communicator(rank, ranks)
    client = gpushm.connect()
    pool = gpushm.torch.pool()
    told = {"nccl": communicator.version(), "torch": torch.__version__, "right": True, "microseconds": {},
            "ncclCommRegister": {}}
    kept = []
    for label, nbytes in SIZES.items():
        tensors = {"own": torch.empty(nbytes // 4, device="cuda")}
        with torch.cuda.use_mem_pool(pool):
            tensors["pool"] = torch.empty(nbytes // 4, device="cuda")
        buffer = client.create(f"reduce-{rank}-{label.lower()}", nbytes, gpu=rank)
        tensors["shared"] = gpushm.torch.as_tensor(buffer.view("float32", [nbytes // 4]))
        calls = {}
        for kind in KINDS:
            tensor = tensors[kind]
            calls[kind, "eager, torch"] = lambda tensor=tensor: torch.distributed.all_reduce(tensor)
            calls[kind, "eager"] = lambda tensor=tensor: communicator.all_reduce(tensor)
            told["right"] &= is_right(calls[kind, "eager, torch"], tensor, rank, ranks)
            told["right"] &= is_right(calls[kind, "eager"], tensor, rank, ranks)
            graph = graph_of(calls[kind, "eager"])
            kept.append(graph)
            calls[kind, "graph"] = graph.replay
            told["right"] &= is_right(graph.replay, tensor, rank, ranks)
        measure(calls, label, told)
        handles = {kind: communicator.register(tensors[kind]) for kind in KINDS}
        told["ncclCommRegister"][label] = {kind: handle if isinstance(handle, str) else "accepted"
                                           for kind, handle in handles.items()}
        calls = {}
        for kind in KINDS:
            tensor = tensors[kind]
            calls[kind, "eager, registered"] = lambda tensor=tensor: communicator.all_reduce(tensor)
            told["right"] &= is_right(calls[kind, "eager, registered"], tensor, rank, ranks)
        measure(calls, label, told)
        for handle in handles.values():
            if not isinstance(handle, str):
                communicator.deregister(handle)
        told["dma_buf"] = {kind: dma_buf(rank, tensors[kind]) for kind in KINDS}
        kept += [tensors, buffer]
    print(json.dumps(told), flush=True)
    torch.distributed.barrier()
    torch.cuda.synchronize()
    # NCCL does not destroy a communicator that a graph uses.
    kept.clear()
    del graph, calls
    communicator.destroy()
    torch.distributed.destroy_process_group()


def measure(calls, label, told):
    """Each call in turn, ROUNDS times, after a round that does not count."""
    taken = {key: [] for key in calls}
    for number in range(ROUNDS + 1):
        for key, call in calls.items():
            microseconds = timed(call)
            if number:
                taken[key].append(microseconds)
    for (kind, how), values in taken.items():
        told["microseconds"].setdefault(label, {}).setdefault(how, {})[kind] = statistics.median(values)


def run_mode(settings, environment, folder, seconds):
    log = pathlib.Path(folder, "nccl")
    log.mkdir()
    processes = [subprocess.Popen(
        [sys.executable, __file__, "--rank", str(rank), "--meeting", f"{log}/meeting",
         "--seconds", str(seconds)], stdout=subprocess.PIPE,
        text=True, env={**environment, "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", **settings,
                        "NCCL_DEBUG_SUBSYS": "INIT,REG,ALLOC,P2P,GRAPH", "NCCL_DEBUG_FILE": f"{log}/%p.log"})
        for rank in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    said = {}
    for path in sorted(log.glob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            # Without addresses, numbers of processes and names of the machine, equal lines are equal.
            text = re.sub(r"0x[0-9a-f]+", "ADDRESS", line.partition("NCCL ")[2])
            if LOGGED.search(text):
                text = re.sub(r"\d{4,}", "N", text)
                said[text] = said.get(text, 0) + 1
    told = [json.loads(output.splitlines()[-1]) for output in outputs if output.strip()]
    result = told[0] if told else {}
    result["right"] = len(told) == 2 and all(each["right"] for each in told)
    result["ended"] = [process.returncode for process in processes]
    if any(result["ended"]):
        for path in sorted(log.glob("*.log")):
            print(f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-25:], sep="\n")
    result["log"] = [f"{count} x {text}" for text, count in list(said.items())[:60]]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="a file for the figures, as JSON")
    parser.add_argument("--mode", choices=list(MODES), help="only this one of MODES")
    parser.add_argument("--seconds", type=int, default=120, help="limit of each mode (default: 120)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return rank_main(options.rank, 2, options.meeting, options.seconds)
    import torch
    import gpushm.testing

    if torch.cuda.device_count() < 2:
        return f"this benchmark needs two GPUs, and PyTorch sees {torch.cuda.device_count()}"
    name = torch.cuda.get_device_name(0)
    driver = pathlib.Path("/proc/driver/nvidia/version")
    report = {"benchmark": "an all-reduce of two GPUs, in place, by the kind of memory; median microseconds",
              "date": time.strftime("%Y-%m-%d"), "gpus": f"2 x {name}", "kernel": platform.release(),
              "driver": driver.read_text().split("\n")[0] if driver.exists() else "",
              "settings": {key: value for key, value in os.environ.items() if key.startswith("NCCL_")},
              "modes": {}}
    failed = False
    for mode, settings in MODES.items():
        if options.mode not in (None, mode):
            continue
        with gpushm.testing.broker(containers=("app",), pool="1Gi", gpus=2, simulated=False) as broker:
            with tempfile.TemporaryDirectory() as folder:
                result = run_mode(settings, broker.environment("app"), folder, options.seconds)
        report["modes"][mode] = result
        failed = failed or not result["right"] or any(result["ended"])
        for label, ways in result.get("microseconds", {}).items():
            for how, kinds in ways.items():
                print(f"{mode:26} {label:7} {how:18} " + "  ".join(f"{kind} {kinds[kind]:9.1f} us" for kind in kinds)
                      + f"  shared/own {kinds['shared'] / kinds['own']:.3f}")
        print(f"{mode}: right {result['right']}, ended {result['ended']}, "
              f"ncclCommRegister {result.get('ncclCommRegister')}, dma-buf {result.get('dma_buf')}", flush=True)
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
