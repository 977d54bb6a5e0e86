"""For test_torch_multiprocessing.py, in sender and receiver: tensors of the CPU take the path of those on
a GPU. Only the access to memory is replaced: a storage's bytes are copied to the simulated GPU before the
offer, and back when the tensor is made.
"""

import ctypes
import os

import driver
import torch

import gpushm.torch
import gpushm.torch.multiprocessing as mp

GRANULE = 2 << 20


class OnGpu:
    """A copy of a storage in memory of cuMemCreate, or of cuMemAlloc as cudaMalloc gives it."""

    def __init__(self, storage, can_export=True):
        data = bytes(torch.empty(0, dtype=torch.uint8).set_(storage).tolist())
        size = -(-len(data) // GRANULE) * GRANULE
        with driver.context() as library:
            address, handle = ctypes.c_uint64(), ctypes.c_uint64()
            pinned, posix, device = 1, int(can_export), 1
            wanted = (ctypes.c_int * 8)(pinned, posix, device, 0)
            driver.must(library.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), wanted,
                                            ctypes.c_ulonglong(0)))
            driver.must(library.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(size),
                                                    ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_ulonglong(0)))
            driver.must(library.cuMemMap(address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle,
                                         ctypes.c_ulonglong(0)))
            driver.must(library.cuMemSetAccess(address, ctypes.c_size_t(size), (ctypes.c_int * 3)(device, 0, 3),
                                               ctypes.c_size_t(1)))
            driver.must(library.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(len(data))))
        self.address = address.value
        self.__cuda_array_interface__ = {"shape": (len(data),), "typestr": "|u1", "version": 3,
                                         "data": (address.value, False), "strides": None}


def _from_dlpack(array, stream):
    tensor = torch.from_dlpack(array.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    tensor.untyped_storage().keeps = array  # A tensor on a GPU keeps the memory mapped; the copy must, too.
    return tensor


def replace(patch):
    patch(mp, "_takes", lambda tensor: True)
    patch(mp, "_bytes_of", OnGpu)
    patch(mp, "_synchronize", lambda device: None)
    patch(gpushm.torch, "_from_dlpack", _from_dlpack)
    patch(gpushm.torch, "_stream_of", lambda device: 1)


def receive(folder, tensors, answers):
    """A process that takes tensors and answers with their text, until None comes."""
    os.environ["GPUSHM_DIR"] = folder
    replace(setattr)
    while (received := tensors.get()) is not None:
        answers.put([(str(each.dtype), list(each.shape), list(each.stride()), each.requires_grad,
                      type(each).__name__, each.detach().flatten().tolist()) for each in received])
        if received[0].numel() == 1:
            received = None
            return
