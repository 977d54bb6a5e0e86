"""Reads where an array of any framework is: its address, type and shape."""

import dataclasses
import sys

from gpushm import _native
from gpushm.errors import Status, from_status

_TORCH_NAMES = {"float4_e2m1fn_x2": "float4_e2m1fn"}


@dataclasses.dataclass
class Source:
    """An array, contiguous. `host` is its memory as a bytes-like object, if that is the host's."""

    dtype: str
    shape: tuple
    nbytes: int
    address: int = 0
    device: int = 0
    host: object = None
    keep: object = None  # Keeps the memory alive.


def _bad(what, remedy):
    return from_status(Status.INVALID_ARGUMENT, what, remedy)


def _of_torch(tensor):
    if tensor.layout is not sys.modules["torch"].strided:
        raise _bad("a sparse tensor has no single memory", "pass tensor.to_dense()")
    if tensor.is_conj() or tensor.is_neg():  # Its memory has other values than the tensor.
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.detach().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if dtype == "float4_e2m1fn_x2":  # Two elements in each.
        shape = (*shape[:-1], shape[-1] * 2)
    dtype = _TORCH_NAMES.get(dtype, dtype)
    nbytes = tensor.nbytes
    if tensor.is_cuda:
        return Source(dtype, shape, nbytes, tensor.data_ptr(), tensor.get_device(), keep=tensor)
    if tensor.device.type != "cpu":
        raise _bad(f"a tensor on {tensor.device} is neither in GPU nor in host memory",
                   "move it to the CPU or to a CUDA device")
    return Source(dtype, shape, nbytes, host=_host_view(tensor.data_ptr(), nbytes), keep=tensor)


def _host_view(address, nbytes):
    import ctypes

    return memoryview((ctypes.c_char * nbytes).from_address(address)) if nbytes else b""


def _of_cuda_interface(array, interface):
    if interface.get("strides") is not None and not _is_contiguous(interface):
        raise _bad("the array is not contiguous", "pass a contiguous copy")
    typestr, shape = interface["typestr"], tuple(interface["shape"])
    names = {"b1": "bool", "u": "uint", "i": "int", "f": "float", "c": "complex"}
    kind, size = typestr[1], int(typestr[2:])
    name = names.get(f"{kind}{size}") or f"{names[kind]}{8 * size}"
    nbytes = _native.dtype_nbytes(name, shape)
    return Source(name, shape, nbytes, interface["data"][0], getattr(array, "device", 0)
                  if isinstance(getattr(array, "device", 0), int) else array.device.id, keep=array)


def _is_contiguous(interface):
    expected = int(interface["typestr"][2:])
    for length, stride in zip(reversed(interface["shape"]), reversed(interface["strides"])):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def of(array):
    """The Source of an array: a tensor of PyTorch, anything with __cuda_array_interface__ (CuPy,
    Numba, gpushm's own), an array of NumPy or what numpy.asarray makes one of.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _of_torch(array)
    if isinstance(array, (_native.Array, _native.Frame, _native.Buffer)):
        view = array.array if isinstance(array, _native.Frame) else array
        dtype, shape = getattr(view, "dtype", "uint8"), getattr(view, "shape", (view.nbytes,))
        return Source(dtype, shape, view.nbytes, view.ptr, view.device, keep=view)
    if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
        return _of_cuda_interface(array, interface)
    if isinstance(array, (bytes, bytearray, memoryview)):
        view = memoryview(array).cast("B")
        return Source("uint8", (len(view),), len(view), host=view, keep=array)
    import numpy

    if type(array).__module__.split(".")[0] in ("jax", "jaxlib") and array.devices().pop().platform == "gpu":
        device = array.devices().pop()
        return Source(str(array.dtype), tuple(array.shape), array.nbytes,
                      array.unsafe_buffer_pointer(), device.id, keep=array)
    host = numpy.ascontiguousarray(array).reshape(numpy.shape(array))
    if host.dtype.hasobject or host.dtype.kind in "USV" and host.dtype.name not in _known_extensions():
        raise _bad(f"an array of {host.dtype} has no type that GPUs know", "convert it to numbers")
    view = host.view(numpy.uint8).reshape(-1) if host.ndim else host.reshape(1).view(numpy.uint8)
    return Source(host.dtype.name, host.shape, host.nbytes, host=memoryview(view), keep=host)


def _known_extensions():
    """NumPy's kind of the types of ml_dtypes is V."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    return () if ml_dtypes is None else (
        "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
        "float8_e5m2fnuz")
