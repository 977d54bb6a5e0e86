"""The simulated driver, as a framework's runtime uses it."""

import contextlib
import ctypes
import os

import gpushm.testing


def cuda():
    gpushm.testing.use_simulator()
    return ctypes.CDLL(os.environ["GPUSHM_DRIVER"] + "/libcuda.so.1")


def must(result):
    assert result == 0, f"CUDA error {result}"


@contextlib.contextmanager
def context():
    """The primary context of the GPU, current."""
    library, primary, old = cuda(), ctypes.c_void_p(), ctypes.c_void_p()
    must(library.cuInit(0))
    must(library.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0))
    must(library.cuCtxPushCurrent_v2(primary))
    try:
        yield library
    finally:
        must(library.cuCtxPopCurrent_v2(ctypes.byref(old)))


def read(address, size):
    """Bytes of the device."""
    target = ctypes.create_string_buffer(size)
    with context() as library:
        must(library.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), ctypes.c_size_t(size)))
    return target.raw


class Stream:
    """A stream that waits until `go` is called: work after it is pending as long as the test wants."""

    def __init__(self):
        self._library = cuda()
        self._stream, self._flag = ctypes.c_void_p(), ctypes.c_uint64()
        with context():
            must(self._library.cuStreamCreate(ctypes.byref(self._stream), 1))
            must(self._library.cuMemAlloc_v2(ctypes.byref(self._flag), ctypes.c_size_t(4)))
            must(self._library.cuMemsetD32_v2(self._flag, 0, ctypes.c_size_t(1)))

    @property
    def cuda_stream(self):
        return self._stream.value

    def block(self):
        with context():
            must(self._library.cuStreamWaitValue32_v2(self._stream, self._flag, 1, 0))

    def fill(self, address, value, count):
        with context():
            must(self._library.cuMemsetD32Async(ctypes.c_uint64(address), value,
                                                ctypes.c_size_t(count), self._stream))

    def go(self):
        with context():
            must(self._library.cuMemsetD32_v2(self._flag, 1, ctypes.c_size_t(1)))

    def wait(self):
        with context():
            must(self._library.cuStreamSynchronize(self._stream))
