"""gpushm for LMCache: the engine's KV cache is handed to LMCache's server in another container of the pod.

    LMCACHE_DEVICE_BACKEND=gpushm lmcache server ...      # one container
    LMCACHE_DEVICE_BACKEND=gpushm vllm serve ...          # the others, with LMCacheMPConnector

LMCache's server reads and writes the KV cache of the engines where it lies, without a copy through the
host. By itself it gets at that memory by CUDA IPC, which needs a shared /dev/shm and processes with different
IDs, and cannot share memory of the driver's newer interface (cuMemCreate): vLLM's sleep mode and PyTorch's
expandable segments. Here the broker hands the memory over, and gpushm's signals take the place of CUDA's
events between processes.

LMCache finds the class below by the entry point "gpushm" of the group lmcache.device_plugins, and uses it
only where that variable names it. It is written for LMCache 0.5.6. Nothing is patched: what is sent is
LMCache's own descriptor of an allocation whose file descriptor travels beside it. Here it travels through the
broker.
"""

import contextlib
import os
import secrets
import struct
import threading

# LMCache loads this file while it is being imported itself: no other of its modules may be imported here.
from lmcache.v1.platform.devices.cuda import CudaDeviceSpec

from gpushm import _default, _native, _streams
from gpushm.errors import Busy, NotFound, Orphaned, Status, from_status

BACKEND = "gpushm"
TIMEOUT_S = 60.0
_VALUE = struct.Struct("!Q")


class GpushmDeviceSpec(CudaDeviceSpec):
    """LMCache's device "cuda", with memory and events that cross containers by gpushm."""

    _events = None

    @property
    def backend_name(self):
        return BACKEND

    def is_available(self):
        """Only where LMCACHE_DEVICE_BACKEND asks for it: LMCache refuses to choose between two for "cuda"."""
        wanted = os.environ.get("LMCACHE_DEVICE_BACKEND", "").strip().lower()
        return wanted == BACKEND and super().is_available()

    @property
    def ipc_wrapper_cls(self):
        return _Offered

    @property
    def event_ipc_backend(self):
        if self._events is None:
            self._events = SignalEvents()
        return self._events

    def create_cache_context(self, kv_caches, *arguments, **options):
        context = super().create_cache_context([_Taken.of(each) for each in kv_caches], *arguments, **options)
        context.gpushm_last = _Last()
        return context


# ---- memory

class _Offered:
    """The engine's side."""

    _offers, _lock = {}, threading.Lock()

    @classmethod
    def wrap(cls, tensor):
        """Offers the memory of a tensor on the GPU to the other containers, and returns what LMCache sends.

        Raises Unsupported (memory that cannot be shared), Exhausted, Unavailable, Denied, Timeout.
        """
        from lmcache.v1.gpu_connector.kv_format.contiguity import attempt_permute_to_contiguous_view
        from lmcache.v1.platform.base.ipc_wire import TensorMetadata, VmmCudaIPCData
        from lmcache.v1.platform.devices.cuda.ipc_wrapper import VmmCudaIPCWrapper

        tensor = attempt_permute_to_contiguous_view(tensor)
        span = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
        nbytes = span * tensor.element_size()
        metadata = TensorMetadata(
            dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()), storage_offset=0,
            device_uuid=VmmCudaIPCWrapper._get_device_uuid(tensor.device.index))
        return VmmCudaIPCWrapper.from_wire(VmmCudaIPCData(
            version=1, metadata=metadata, export_id=cls._offer(tensor, nbytes), kind="posix_fd",
            fabric_blob=None, alloc_size=nbytes, alloc_offset=0, nbytes=nbytes))

    @classmethod
    def _offer(cls, tensor, nbytes):
        """The 16 bytes that name the offer. Layers that share memory share an offer. When an engine registers
        again, an offer that a server took before is made anew: the memory at that address may be another."""
        key, client = (tensor.data_ptr(), nbytes), _default.client()
        with cls._lock:
            if (held := cls._offers.get(key)) is not None:
                with contextlib.suppress(NotFound, Orphaned):
                    state = client.offer_state(_name(held[0]), held[1])
                    if state.published and not state.users:
                        return held[0]
                    client.delete(_name(held[0]))
            number = secrets.token_bytes(16)
            result = client.offer(_name(number), _bytes_of(tensor, nbytes), writers="all",
                                  on_writer_exit="drop", timeout=TIMEOUT_S)
            cls._offers[key] = number, result.generation
            return number


def _name(number):
    return f"lmcache-{number.hex()}"


def _bytes_of(tensor, nbytes):
    import torch

    start = tensor.storage_offset() * tensor.element_size()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage(), start,
                                                                        (nbytes,), (1,))


class _Taken:
    """The server's side, in place of LMCache's wrapper."""

    device_type = "cuda"

    def __init__(self, descriptor):
        self._descriptor = descriptor

    @classmethod
    def of(cls, wrapper):
        """For memory that was offered by `_Offered`; what comes from other engines stays as it is."""
        descriptor = wrapper.to_wire()
        return cls(descriptor) if getattr(descriptor, "kind", None) == "posix_fd" else wrapper

    def to_tensor(self):
        """The engine's tensor: its memory, mapped for writing while a view of the tensor lives.

        Raises NotFound (the engine has ended), Denied, Unsupported, Unavailable.
        """
        import torch
        from gpushm import torch as _torch
        from lmcache.v1.platform.base.ipc_wire import DTYPES

        try:
            buffer = _default.client().attach(_name(self._descriptor.export_id), write=True, timeout=0)
        except NotFound as error:
            raise from_status(Status.NOT_FOUND, f"the engine's KV cache is gone: {error.what}",
                              "start the engine again, which registers its cache") from error
        raw, view = _torch.as_tensor(buffer.view("uint8", (buffer.nbytes,))), self._descriptor.metadata
        tensor = torch.empty(0, dtype=DTYPES[view.dtype], device=raw.device)
        return tensor.set_(raw.untyped_storage(), 0, view.shape, view.stride)

    def close(self):
        """The memory is unmapped when LMCache drops the tensors."""


class _Last:
    """The last attribute of a cache context goes after its tensors: their memory can be unmapped then."""

    def __del__(self):
        _native.collect()


# ---- events

class _Event:
    """A value that a signal reaches."""

    def __init__(self, signal=None, value=0):
        self.signal, self.value = signal, value

    def wait(self, stream=None):
        """Holds up the caller instead of the stream. A stream that waits for a process that dies goes on, and
        LMCache would then keep or use a KV cache that nobody finished. Here it gets PeerDied."""
        if self.value:
            self.signal.wait(self.value, TIMEOUT_S)


class SignalEvents:
    """LMCache's interface EventIPCBackend, on gpushm's signals: one for each stream that records, whose
    values count its events. Any thread may use it. A wait raises PeerDied, Ended or Timeout.
    """

    device_type = "cuda"

    def __init__(self):
        self._lock = threading.Lock()
        self._prefix = f"lmcache-{secrets.token_hex(12)}"
        self._own, self._others = {}, {}

    def check_event_support(self, device):
        """Raises Unavailable if there is no broker."""
        _default.client().broker()

    def create_event(self, device):
        return _Event()

    def record_event(self, event, stream):
        number = _streams.handle(stream)
        with self._lock:
            if number not in self._own:
                self._own[number] = _default.client().signal(f"{self._prefix}-{len(self._own)}", write=True)
            event.signal = self._own[number]
            event.value = event.signal.recorded + 1
            event.signal.record(event.value, stream)

    def export_event(self, event, device):
        return _VALUE.pack(event.value) + (event.signal.name.encode() if event.value else b"")

    def import_event(self, handle, device):
        value, name = _VALUE.unpack(handle[:_VALUE.size])[0], handle[_VALUE.size:].decode()
        with self._lock:
            if value and name not in self._others:
                self._forget_the_dead()
                self._others[name] = _default.client().signal(name, timeout=TIMEOUT_S)
            return _Event(self._others.get(name), value)

    def _forget_the_dead(self):
        for name, signal in list(self._others.items()):
            with contextlib.suppress(Busy):
                if signal.state in ("died", "ended"):
                    signal.close()
                    del self._others[name]

    def wait_event(self, event, stream):
        event.wait(stream)

    def query_event(self, event):
        return not event.value or event.signal.check(event.value)

    def synchronize_event(self, event, device):
        event.wait()
