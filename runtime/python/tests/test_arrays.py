"""Arrays: types, DLPack, __cuda_array_interface__, and how long memory stays mapped."""

import ctypes
import gc
import threading

import numpy
import pytest

import driver
import gpushm
import gpushm.testing
from conftest import until
from dlpack import IS_COPIED, READ_ONLY, Consumed
from gpushm import _native

CUDA = (2, 0)
TYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
         "float32", "float64", "complex64"]


def attached(app, other, size=4096):
    with app.create("x", size, writers="all") as made:
        made.write(bytes(i % 251 for i in range(size)))
    return other.attach("x")


def test_dlpack_carries_address_type_and_shape(app, other):
    buffer = attached(app, other)
    array = buffer.view("float32", (4, 8, 2), 256)
    assert array.__dlpack_device__() == CUDA
    taken = Consumed(array.__dlpack__(stream=1, max_version=(1, 1)))
    assert (taken.address, taken.device, taken.dtype) == (buffer.ptr + 256, CUDA, (2, 32, 1))
    assert (taken.shape, taken.strides) == ((4, 8, 2), (16, 2, 1))
    assert (taken.flags, taken.version) == (READ_ONLY, (1, 1))
    assert driver.read(taken.address, 256) == buffer.read(256, 256)
    taken.drop()


def test_consumers_without_versioned_dlpack(app, other):
    array = attached(app, other).view("float32", (4,))
    with pytest.raises(BufferError, match="unsafe_writable"):
        array.__dlpack__()
    taken = Consumed(array.unsafe_writable().__dlpack__())
    assert (taken.version, taken.flags) == (None, None)
    taken.drop()
    writable = other.attach("x", write=True)
    taken = Consumed(writable.__dlpack__())
    assert (taken.shape, taken.dtype) == ((4096,), (1, 8, 1))
    taken.drop()
    taken = Consumed(writable.__dlpack__(max_version=(1, 0)))
    assert taken.flags == 0
    taken.drop()
    assert writable.__dlpack_device__() == CUDA


def test_what_dlpack_refuses(app, other):
    array = attached(app, other).view("float32", (4,))
    version = {"max_version": (1, 0)}
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 1), **version)
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True, **version)
    with pytest.raises(BufferError):
        array.__dlpack__(copy=False, dl_device=(1, 0), **version)
    with pytest.raises(ValueError, match="stream 0"):
        array.__dlpack__(stream=0, **version)
    Consumed(array.__dlpack__(dl_device=CUDA, copy=False, **version)).drop()


@pytest.mark.parametrize("name", TYPES)
def test_types_that_numpy_has(app, other, name):
    dtype = numpy.dtype(name)
    values = numpy.frombuffer(bytes(range(64)), numpy.uint8).view(dtype)
    app.create("x", 4096).write(values, 512)
    array = other.attach("x").view(name, values.shape, 512)
    assert (array.dtype, array.shape, array.ndim, len(array)) == (name, values.shape, 1, len(values))
    assert (array.nbytes, array.readonly, array.device) == (64, True, 0)
    copied = array.numpy()
    assert copied.dtype == dtype and copied.tobytes() == values.tobytes()
    interface = array.__cuda_array_interface__
    assert numpy.dtype(interface["typestr"]) == dtype
    assert interface["data"] == (array.ptr, True)
    assert (interface["shape"], interface["version"], interface["stream"]) == (values.shape, 3, None)


def test_narrow_types_travel_as_bytes(app, other):
    buffer = attached(app, other)
    for name, bits in {"bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e8m0fnu": 8,
                       "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float4_e2m1fn": 4,
                       "float6_e2m3fn": 6, "float6_e3m2fn": 6}.items():
        array = buffer.view(name, (2, 8), 0)
        assert array.nbytes == 2 * bits
        raw = array.bytes()
        assert (raw.dtype, raw.shape, raw.ptr) == ("uint8", (2, bits), array.ptr)
        assert not hasattr(array, "__cuda_array_interface__")
        if bits == 8:
            with pytest.raises(BufferError, match="bytes"):
                array.__dlpack__(max_version=(1, 0))
            Consumed(array.__dlpack__(max_version=(1, 1))).drop()
        elif bits < 8:
            with pytest.raises(BufferError, match="bytes"):
                array.__dlpack__(max_version=(1, 1))
    with pytest.raises(ValueError, match="whole bytes"):
        buffer.view("float4_e2m1fn", (3,))
    assert buffer.view("BF16", ()).bytes().shape == (2,)


def test_bad_views(app, other):
    buffer = attached(app, other)
    with pytest.raises(ValueError, match="unknown dtype"):
        buffer.view("float17", (1,))
    with pytest.raises(IndexError, match="ends outside"):
        buffer.view("float32", (1024,), 4)
    with pytest.raises(ValueError, match="too large"):
        buffer.view("float32", (1 << 40, 1 << 40))
    array = buffer.view("float32", (16,))
    assert array.view("int16", (2, 16)).shape == (2, 16)
    with pytest.raises(ValueError):
        array.view("float32", (17,))
    with pytest.raises(TypeError):
        len(buffer.view("float32", ()))
    assert repr(array) == "<gpushm.Array float32 (16,) read-only>"
    assert numpy.array_equal(array.numpy().tobytes(), buffer.read(0, 64))


def test_host_copies_by_dlpack(app, other):
    array = attached(app, other).view("int16", (4, 4))
    taken = Consumed(array.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert (taken.device, taken.flags) == ((1, 0), IS_COPIED)
    taken.drop()
    assert array.view("int16", (0,)).numpy().shape == (0,)


def is_mapped(app):
    return any(holder.container == "other" for holder in app.holders("x"))


def test_nothing_is_unmapped_under_an_array(broker, app):
    other = broker.connect("other")
    buffer = attached(app, other)
    address = buffer.ptr
    with pytest.raises(BufferError, match="alive"):
        array = buffer.view("uint8", (4096,))
        buffer.detach()
    taken = Consumed(array.__dlpack__(stream=-1, max_version=(1, 0)))
    with buffer:
        pass
    assert not buffer.attached
    other.close()
    del other, buffer, array
    gc.collect()
    _native.collect()
    assert is_mapped(app)
    assert driver.read(address, 251) == bytes(range(251))
    resources = _native.live_resources()
    dropping = threading.Thread(target=taken.drop)
    dropping.start()
    dropping.join()
    assert _native.live_resources() == resources, "a deleter called the library"
    _native.collect()
    assert _native.live_resources() == resources - 2  # The attachment and its client.
    until(lambda: not is_mapped(app))


def test_nothing_is_unmapped_under_queued_work(app, other):
    buffer = attached(app, other)
    stream = driver.Stream()
    stream.block()
    taken = Consumed(buffer.__dlpack__(stream=stream.cuda_stream, max_version=(1, 0)))
    stream.fill(driver_target := scratch(), 7, 1)
    taken.drop()
    del buffer
    gc.collect()
    for _ in range(3):
        _native.collect()
    assert is_mapped(app)
    stream.go()
    stream.wait()
    _native.collect()
    assert not is_mapped(app)
    assert driver.read(driver_target, 4) == b"\7\0\0\0"


def scratch():
    import ctypes

    address = ctypes.c_uint64()
    with driver.context() as library:
        driver.must(library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)))
    return address.value


def test_detach_says_that_work_is_pending(app, other):
    buffer = attached(app, other)
    stream = driver.Stream()
    stream.block()
    with pytest.raises(gpushm.Busy):
        buffer.detach([stream])
    assert buffer.attached
    buffer.detach([stream], defer=True)
    assert not buffer.attached
    stream.go()
    stream.wait()


class Allocated:
    def __init__(self, address, shape):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "version": 3,
                                         "data": (address, False), "strides": None}


def test_offer(app, other):
    address = ctypes.c_uint64()
    size = 1 << 21
    with driver.context() as library:
        driver.must(library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
        driver.must(library.cuMemsetD32_v2(address, 5, ctypes.c_size_t(size // 4)))
    memory = Allocated(address.value, (size // 4,))
    with pytest.raises(gpushm.Unsupported, match="host memory"):
        app.offer("x", numpy.zeros(4))
    result = app.offer("x", memory, allow_copy=True)
    assert result.generation == other.lookup("x").generation
    assert result.transport == "cuipc" and not result.copied and result.copied_nbytes == 0
    state = app.offer_state("x", result.generation)
    assert state.published and not state.unused and state.users >= 0
    app.delete("x")
    until(lambda: app.offer_state("x", result.generation).unused)
    with pytest.raises(gpushm.NotFound):
        other.offer_state("x", result.generation)


def test_pool_allocator(app, other):
    """What gpushm.torch.pool gives to PyTorch: memory that is offered from where it lies."""
    library = ctypes.CDLL(_native.__file__)
    allocate, free = library.gpushm_torch_allocate, library.gpushm_torch_free
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    free.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    gpushm.testing.use_simulator()
    used = used_bytes()
    size, part = 20 << 20, 1 << 20
    address = allocate(size, 0, None)
    assert used_bytes() - used >= size
    with driver.context() as cuda:
        driver.must(cuda.cuMemsetD32_v2(ctypes.c_uint64(address + part), 5, ctypes.c_size_t(part // 4)))
        driver.must(cuda.cuCtxSynchronize())  # The fill may go on after its call.
    result = app.offer("x", Allocated(address + part, (part // 4,)))
    assert result.transport == "vmm" and not result.copied and result.mapped_nbytes == size
    with other.attach("x") as buffer:
        assert set(buffer.read(0, 4096)) == {0, 5} and buffer.nbytes == part
    app.delete("x")
    until(lambda: app.offer_state("x", result.generation).unused)
    free(address, size, 0, None)
    until(lambda: used_bytes() <= used + part)  # The broker closes its descriptor later.
    assert allocate(1 << 50, 0, None) is None


def used_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with driver.context() as cuda:
        driver.must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return total.value - free.value
