"""A broker for tests, on the simulated GPU driver: no GPU, no container and no privilege is needed.

    def test_weights():
        with gpushm.testing.broker() as broker:
            client = broker.connect()
            gpushm.tensors.publish("weights", {"w": numpy.ones(8)}, client=client)

As a pytest fixture: `pytest_plugins = ["gpushm.testing"]`, and a parameter `gpushm_broker`.

The broker and the simulated driver come from the package gpushm-sim (`pip install gpushm[sim]`), or
from a build of gpushm that GPUSHM_BUILD names. Device memory is not readable by the host there, as on a
GPU: use `Array.numpy()`. The simulated driver runs no kernels.
"""

import atexit
import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from gpushm import _native

START_S = 30
STOP_S = 10


def _build():
    """Folder with bin/gpushm-broker and driver-sim/."""
    if folder := os.environ.get("GPUSHM_BUILD"):
        return pathlib.Path(folder)
    spec = importlib.util.find_spec("gpushm_sim")
    if spec is not None and spec.submodule_search_locations:
        return pathlib.Path(spec.submodule_search_locations[0])
    raise FileNotFoundError("there is no broker for tests: install gpushm[sim], or set GPUSHM_BUILD to "
                            "the folder of a build of gpushm")


def use_simulator(gpus=1):
    """Makes this process and its children use the simulated driver, with `gpus` GPUs of their own. The
    driver is chosen once in a process: call it before anything uses the GPU.
    """
    os.environ.setdefault("GPUSHM_DRIVER", str(_build() / "driver-sim"))
    if "GPUSHM_SIM_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="gpushm-gpu-")
        os.environ["GPUSHM_SIM_DIR"] = folder
        cards = "".join(f"- {{memory: 80Gi, uuid: GPU-00000000-0000-4000-8000-{number:012d}}}\n"
                        for number in range(gpus))
        pathlib.Path(folder, "cards.yaml").write_text(f"gpus:\n{cards}")
        atexit.register(_remove_if_ours, folder, os.getpid())


def _remove_if_ours(folder, pid):
    if os.getpid() == pid:  # Not in a child of fork().
        shutil.rmtree(folder, ignore_errors=True)


class Broker:
    """A running broker. Its containers are folders, one socket each."""

    def __init__(self, folder, containers, words):
        self.root = pathlib.Path(folder)
        self.containers = containers
        self._words = words
        self._process = None
        self.start()

    @property
    def pid(self):
        """The broker's process."""
        return self._process.pid

    def folder(self, container=None):
        """What GPUSHM_DIR is in a container; None: the first one."""
        return str(self.root / (container or self.containers[0]))

    def environment(self, container=None):
        """The environment of a process of that container."""
        return {**os.environ, "GPUSHM_DIR": self.folder(container)}

    def connect(self, container=None, **options):
        """A Client that is a process of that container."""
        return _native.Client(self.folder(container), **options)

    def log(self):
        """What the broker wrote."""
        return (self.root / "broker.log").read_text(errors="replace")

    def start(self):
        """Starts it again, after stop() or kill()."""
        with (self.root / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log)
        try:
            for container in self.containers:
                self._await(container)
        except BaseException:
            self.kill()
            raise

    def _await(self, container):
        end = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended with {self._process.returncode}: {self.log()}")
            try:
                return self.connect(container, timeout=1).close()
            except (ConnectionError, TimeoutError):
                if time.monotonic() > end:
                    raise

    def kill(self):
        """Ends it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self):
        """Ends it in order."""
        self._end(signal.SIGTERM)

    def _end(self, number):
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)


@contextlib.contextmanager
def broker(buffers=None, *, containers=("app", "other"), pool="256Mi", gpus=1, simulated=True):
    """Starts a broker, and yields a Broker. It is killed at the end.

    `buffers`: annotations without their prefix, such as {"weights": "{size: 8Mi, writers: [app]}"}.
    `containers`: names of the pod's containers. `pool`: memory for buffers that programs make, on each
    GPU. `gpus`: number of the pod's GPUs; more than one are simulated only if this is the first use of
    the simulator in this process and its children.
    `simulated`: False: on the machine's first GPU and its driver, with PyTorch for example.

    Raises FileNotFoundError (no broker is installed), RuntimeError (it refuses the settings).
    """
    if simulated:
        use_simulator(gpus)
    with tempfile.TemporaryDirectory(prefix="gpushm-") as folder:
        config = pathlib.Path(folder, "broker.yaml")
        lines = [f"folder: {folder}", f"pool: {pool}", f"containers: [{', '.join(containers)}]"]
        if buffers or gpus > 1:
            lines += ["annotations:", f"  gpushm.io/gpus: {gpus}",
                      *(f"  buffers.gpushm.io/{name}: {value}"
                        for name, value in (buffers or {}).items())]
        config.write_text("\n".join(lines) + "\n")
        running = Broker(folder, list(containers),
                         [str(_build() / "bin/gpushm-broker"), "--config", str(config), "--link",
                          "none", "--log-level", "warning"])
        try:
            yield running
        finally:
            running.kill()


try:
    import pytest
except ImportError:
    pass
else:
    @pytest.fixture
    def gpushm_broker():
        """A broker with the containers "app" and "other" and a pool of 256 MiB."""
        with broker() as running:
            yield running
