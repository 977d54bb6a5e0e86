"""Programs of others that use CUDA IPC, unchanged, as the first processes of two containers.

The folder that `main.py --programs` names has what is not the project's: `simpleIPC` (compiled from
cuda-samples) and `ucx` (UCX from its wheel: bin, lib). The containers have the node's /usr and Python, so
PyTorch is the node's. A program that is not there is left out, and the report says so.
"""

import importlib.util
import pathlib
import sys
from typing import NamedTuple

HERE = "/programs"  # In the containers: that folder.
OURS = "/pairs"     # In the containers: tests/gpu_node/pairs.


class Pair(NamedTuple):
    needs: str   # A file of the folder, or a Python module.
    a: list      # The commands of both containers.
    b: list
    proof: str   # A regular expression for what one of them says if it worked.


def _shell(script):
    return ["sh", "-ec", script]


def _ucx(test, peer=""):
    return _shell(f"""
        libs=$(echo {HERE}/ucx/lib {HERE}/ucx/lib/ucx {HERE}/ucx/*.libs | tr " " :)
        export LD_LIBRARY_PATH=$libs:$LD_LIBRARY_PATH
        export UCX_MODULE_DIR={HERE}/ucx/lib/ucx
        export UCX_TLS=cuda_ipc,cuda_copy,tcp,self UCX_NET_DEVICES=lo
        {"sleep 3" if peer else ""}
        exec {HERE}/ucx/bin/ucx_perftest -t {test} -m cuda -s 67108864 -n 100 -w 10 -p 15100 {peer}""")


PAIRS = {
    # It names its shared memory by the parent's PID, which is 1, and the child by its parent's, which is 0
    # for the first process of a container. So the parent starts a script that gives the memory both names.
    "simpleIPC": Pair(
        "simpleIPC",
        [sys.executable, "-c", f"import os; os.execv('{HERE}/simpleIPC', ['{OURS}/simpleipc_child'])"],
        _shell(f"""
            until [ -e /dev/shm/simpleIPCshm0 ]; do sleep 0.1; done
            exec {HERE}/simpleIPC 0"""),
        "Process 0 complete!"),
    "torch.multiprocessing": Pair(
        "torch", [sys.executable, f"{OURS}/torch_queue.py", "send", "/dev/shm/queue"],
        [sys.executable, f"{OURS}/torch_queue.py", "receive", "/dev/shm/queue"], "received"),
    "UCX tag_bw": Pair("ucx/bin/ucx_perftest", _ucx("tag_bw"), _ucx("tag_bw", "127.0.0.1"),
        # Without CUDA IPC it copies over the host, and says nothing. So the proof is at least 10 GB/s in the
        # column of the whole run, in MB/s; over the host it was 0.6 GB/s.
        r"Final: +100( +\S+){4} +\d{5,}\."),
}


def is_there(pair, folder):
    return pathlib.Path(folder, pair.needs).exists() or importlib.util.find_spec(pair.needs) is not None


def folders_of_python():
    """What a container needs beside /usr to run this Python: a virtual environment is elsewhere."""
    return sorted({prefix for prefix in (sys.prefix, sys.base_prefix) if not prefix.startswith("/usr")})
