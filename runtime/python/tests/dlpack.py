"""A consumer of DLPack, as frameworks are: it takes a capsule, reads the tensor, and calls the deleter.
It shows what a consumer sees, byte for byte, where no framework has a GPU.
"""

import ctypes


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


READ_ONLY, IS_COPIED = 1, 2
_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class Consumed:
    """What a framework keeps of a capsule; `drop` is the death of its tensor."""

    def __init__(self, capsule):
        name = _api.PyCapsule_GetName(capsule)
        kind = Managed if name == b"dltensor" else Versioned
        self._address = _api.PyCapsule_GetPointer(capsule, name)
        _api.PyCapsule_SetName(capsule, _USED[name])
        self._managed = kind.from_address(self._address)
        tensor = self._managed.tensor
        self.address, self.device = tensor.data, (tensor.device_type, tensor.device_id)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[:tensor.ndim])
        self.strides = tuple(tensor.strides[:tensor.ndim])
        self.flags = getattr(self._managed, "flags", None)
        self.version = (self._managed.major, self._managed.minor) if kind is Versioned else None

    def drop(self):
        """As a thread of C++ does it: without the GIL."""
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._managed.deleter)
        deleter(self._address)
