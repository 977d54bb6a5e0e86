"""The GPUs of this computer according to NVML, NVIDIA's or the simulated one."""

import ctypes
import pathlib

from processes import Failure

_LIBRARY = "libnvidia-ml.so.1"
# Folders with drivers that the loader does not search.
_FOLDERS = ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
_TEXT_BYTES = 96


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def real_driver():
    """Whether NVIDIA's kernel module is loaded."""
    return pathlib.Path("/proc/driver/nvidia/version").exists() or pathlib.Path(
        "/dev/nvidiactl").exists()


class Gpus:

    def __init__(self, folder=None):
        """`folder`: the simulated driver's."""
        names = [f"{folder}/{_LIBRARY}"] if folder else [
            _LIBRARY, *(f"{place}/{_LIBRARY}" for place in _FOLDERS)]
        self._library = self._load(names)
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            self._devices.append(device)

    def _load(self, names):
        for name in names:
            try:
                return ctypes.CDLL(name)
            except OSError as error:
                reason = error
        raise Failure(f"no {_LIBRARY}: {reason}")

    def _call(self, name, *arguments):
        result = getattr(self._library, name)(*arguments)
        if result:
            raise Failure(f"{name}: NVML says {result}")

    def _text(self, name, *before):
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(name, *before, text, _TEXT_BYTES)
        return text.value.decode()

    def driver_version(self):
        return self._text("nvmlSystemGetDriverVersion")

    def list(self):
        """[{uuid, name, total_bytes, used_bytes}]"""
        gpus = []
        for device in self._devices:
            memory = _Memory()
            self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
            gpus.append({"uuid": self._text("nvmlDeviceGetUUID", device),
                         "name": self._text("nvmlDeviceGetName", device),
                         "total_bytes": memory.total, "used_bytes": memory.used})
        return gpus

    def used_bytes(self):
        """The sum over all of them."""
        return sum(gpu["used_bytes"] for gpu in self.list())
