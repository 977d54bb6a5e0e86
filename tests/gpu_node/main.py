"""A kubelet without a cluster, on a machine with a GPU and no network: the plugin runs as a
container, and pods share GPU memory. It needs root, and from the machine only Python, mount,
unshare and ldconfig. Everything runs in its own namespaces and is gone when this ends.

usage: main.py --files FOLDER --state FOLDER --results FOLDER [--driver ..] [--gpus ..]
FILES is the output of `assemble`. Results: gpu-node.txt, gpu-node.json, logs.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "cluster"))

# pylint: disable=wrong-import-position
from cgroups import remove_cgroups
from gpus import Gpus, real_driver
from gpus_story import GpusStory
from mps_story import MpsStory
from node import CGROUP, Node
from plugin_pod import NAME
from processes import Failure
from report import Report
import settings
from story import Story

TIMEOUT_S = 540  # For everything; four minutes are usual, more with --programs.
HIDDEN = ("/run/", "/dev/", "/proc/", "/sys/")  # Folders that are the node's own.
SIMULATED_GPU_GIB = 16
# The kubelet sets these for the whole computer, because they belong to no namespace.
KERNEL_SETTINGS = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic",
                   "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
                   "kernel/keys/root_maxbytes"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("files", "state", "results"):
        parser.add_argument(f"--{name}", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--driver", choices=["auto", "nvidia", "simulated"], default="auto")
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of the simulated driver")
    parser.add_argument("--programs", type=lambda p: pathlib.Path(p).resolve(),
                        help="folder of programs that use CUDA IPC (programs.py)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver == "auto":
        arguments.driver = "nvidia" if real_driver() else "simulated"
    return arguments


# ---------------------------------------------------------------- outside


def outside(arguments):
    """Starts `inside` in its own namespaces, and cleans up however it ends."""
    if os.geteuid() != 0:
        raise Failure("needs root")
    if str(arguments.state).startswith(HIDDEN):
        raise Failure(f"{arguments.state} is not visible from the node; unpack it elsewhere")
    for program in ("unshare", "mount", "ldconfig"):
        if not shutil.which(program):
            raise Failure(f"{program} is missing")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    remove(arguments.state)
    arguments.state.mkdir(parents=True)
    kernel = kernel_settings()
    # Its PID 1 dies with unshare, and with it everything in the namespace.
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--propagation", "private",
         "--fork", "--kill-child", sys.executable, *sys.argv, "--inside"],
        stdin=subprocess.DEVNULL)
    status = 1
    try:
        status = process.wait(TIMEOUT_S + 30)
    except subprocess.TimeoutExpired:
        print(f"gpu-node: not done in {TIMEOUT_S + 30} s", file=sys.stderr)
    finally:
        process.kill()
        process.wait()
        save(arguments)
        restore(kernel)
        remove_cgroups(CGROUP)
        remove(arguments.state)
    return status


def kernel_settings():
    paths = [pathlib.Path("/proc/sys", name) for name in KERNEL_SETTINGS]
    return {path: path.read_text() for path in paths if path.exists()}


def restore(settings_before):
    for path, text in settings_before.items():
        if path.read_text() != text:
            path.write_text(text)


def save(arguments):
    """The report and the logs, as few files in one folder."""
    arguments.results.mkdir(parents=True, exist_ok=True)
    for path in [*arguments.state.glob("report/*"), *arguments.state.glob("logs/*.log")]:
        shutil.copyfile(path, arguments.results / path.name)


def remove(state):
    """Its mounts belonged to the namespace; deleting the folder would empty one that is left."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        if line.split()[1].startswith(f"{state}/"):
            raise Failure(f"{line.split()[1]} is still mounted; unmount it and try again")
    if state.exists():
        shutil.rmtree(state)


# ---------------------------------------------------------------- inside


def inside(arguments):
    """As PID 1 of the namespace: a child does the work, and this process reaps orphans until it
    ends."""
    child = os.fork()
    if child == 0:
        os._exit(tell(arguments))
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def out_of_time(*_):
    raise Failure(f"not done in {TIMEOUT_S} s")


def tell(arguments):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(TIMEOUT_S)
    start = time.monotonic()
    report = Report(arguments.state / "report")
    node = Node(arguments.files, arguments.state)
    simulated = simulate(arguments) if arguments.driver == "simulated" else None
    try:
        node.start()
        gpus = Gpus(simulated and simulated[0])
        report.describe_machine(node, gpus, simulated)
        report.say(f"node ready after {time.monotonic() - start:.1f} s")
        story = Story(node, gpus, report, simulated)
        for step in [*story.steps(), *GpusStory(node, gpus, report, simulated).steps(), *MpsStory(
                node, gpus, report, simulated, arguments.programs).steps()]:
            ok = report.step(step)
            if not ok:
                report.say(f"errors of the kubelet:\n{node.kubelet_errors()}")
                node.save_pod_logs(report.folder / "pods-at-failure.log")
            if not ok and step in story.needed() or time.monotonic() - start > TIMEOUT_S:
                break
        node.save_pod_logs(report.folder / "plugin.log", NAME)
    except Exception as error:  # As with a step's: the report must contain it.
        report.say(f"gpu-node: {error}" if isinstance(error, Failure) else traceback.format_exc())
    return 0 if report.write(time.monotonic() - start) else 1


def simulate(arguments):
    """(folder of the simulated driver, folder of its cards), at the node's paths."""
    cards = arguments.state / "cards"
    cards.mkdir()
    cards.chmod(0o777)  # Like the driver itself: everybody who sees it may use it.
    (cards / "cards.yaml").write_text("gpus:\n" + "".join(
        f"- name: Simulated GPU\n  memory: {SIMULATED_GPU_GIB}Gi\n"
        f"  uuid: {settings.gpu_uuid(index)}\n" for index in range(arguments.gpus)))
    os.environ["GPUSHM_SIM_DIR"] = str(cards)
    return arguments.files / "driver-sim", cards


def main():
    arguments = parse()
    sys.exit(inside(arguments) if arguments.inside else outside(arguments))


if __name__ == "__main__":
    try:
        main()
    except Failure as problem:
        sys.exit(f"gpu-node: {problem}")
