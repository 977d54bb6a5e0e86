#!/usr/bin/env python3
"""The pods of mps_story.py and gpus_story.py as the webhook would make them, by `gpushm-injector inject`.

usage: mps_pods.py INJECTOR FOLDER     writes FOLDER/NAME.json for each pod
"""

import json
import pathlib
import subprocess
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))

# pylint: disable=wrong-import-position
from case import container, pod
from settings import image

PROBES = "/probes"  # In the containers.
PROBE = f"{PROBES}/gpushm-gpu-probe"
LIMIT_MIB = 1024    # private.gpushm.io of container a.
SHARED_MIB = 64
EACH_MIB = 256      # Of the buffers weights-0 and weights-1 of pod several.
BUFFERS = {"buffers.gpushm.io/frames": f"{SHARED_MIB}Mi", "private.gpushm.io/a": f"{LIMIT_MIB}Mi",
           "private.gpushm.io/b": "2Gi"}
MPS = {"gpushm.io/mps": "true"}
LIMITS = {"gpushm.io/enforce-private": "true", "compute.gpushm.io/b": "50"}
CUDA_IPC = {"gpushm.io/cuda-ipc": "true"}
TWO = {"gpushm.io/gpus": "2"}
SECOND_GPU = {"GPUSHM_PROBE_GPU": "1"}
ANNOTATIONS = {
    "turns": BUFFERS,
    "mps": BUFFERS | MPS,
    "together": BUFFERS | MPS | LIMITS | CUDA_IPC,
    # One CUDA IPC exchange, between the first processes of both containers, which have PID 1.
    "ipc-without": BUFFERS,
    "ipc-with": BUFFERS | CUDA_IPC,
    "ipc-together": BUFFERS | MPS | LIMITS | CUDA_IPC,
    # Programs of others; the story writes their commands into it.
    "pair-without": BUFFERS,
    "pair-with": BUFFERS | CUDA_IPC,
    "pair-together": BUFFERS | MPS | CUDA_IPC,
    # On two GPUs; the CUDA IPC exchanges are on the second one.
    "two-together": BUFFERS | MPS | LIMITS | CUDA_IPC | TWO,
    "two-ipc-with": BUFFERS | CUDA_IPC | TWO,
    "two-ipc-together": BUFFERS | MPS | LIMITS | CUDA_IPC | TWO,
    "several": {"gpushm.io/gpus": "2", "buffers.gpushm.io/weights": f"{{size: {EACH_MIB}Mi, gpu: each, loads: true}}"},
}


def bare(name):
    """A pod before the webhook: containers that run programs of the folder PROBES."""
    probes = [{"name": "probes", "mountPath": PROBES, "readOnly": True}]
    is_ipc = "ipc-" in name
    env = [{"name": key, "value": value} for key, value in SECOND_GPU.items()] if name.startswith("two-ipc") else []
    commands = {"a": "export", "b": "import"} if is_ipc else {}
    made = pod(name, *(container(each, *([PROBE, commands[each], "/dev/shm/ipc"] if is_ipc else []),
                                 volumeMounts=probes, env=env) for each in ("abc" if name == "several" else "ab")),
               volumes=[{"name": "probes", "hostPath": {"path": PROBES}}])
    if is_ipc or name.startswith("pair-"):
        made["spec"]["restartPolicy"] = "Never"
    made["metadata"]["annotations"] = ANNOTATIONS[name]
    made["spec"]["securityContext"]["runAsUser"] = 1000
    return made


def main():
    injector, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir()
    for name in ANNOTATIONS:
        made = subprocess.run(
            [injector, "inject", "--sidecar-image", image("sidecar"), "--sidecar-pull-policy", "Never"],
            input=json.dumps(bare(name)), capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"{name}: {made.stderr}")
        (folder / f"{name}.json").write_text(made.stdout)


if __name__ == "__main__":
    main()
