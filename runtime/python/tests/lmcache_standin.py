"""The pinned LMCache without its dependencies: the modules that the integration works with come from the
wheel as they are, and the rest of LMCache is empty. There is no GPU: the tensors of an engine are on the
host, and `replace` puts their bytes into memory of the simulated driver.
"""

import ctypes
import dataclasses
import functools
import json
import logging
import types
import typing

import contract
import mp_standin
import torch

V1 = "lmcache.v1"
PLATFORM = f"{V1}.platform"
# From the wheel, as they are.
REAL = {
    PLATFORM, f"{PLATFORM}._device_detect", f"{PLATFORM}.kv_wrap", f"{PLATFORM}.cache_context",
    f"{PLATFORM}.ipc_policy",
    f"{PLATFORM}.base.device_spec", f"{PLATFORM}.base.event_ipc", f"{PLATFORM}.base.ipc_wrapper",
    f"{PLATFORM}.base.ipc_wire", f"{PLATFORM}.devices.cuda", f"{PLATFORM}.devices.cuda.ipc_wrapper",
    f"{V1}.gpu_connector.kv_format.contiguity", f"{V1}.multiprocess.transfer_mode",
}


class Struct:
    """msgspec.Struct, as far as it is used."""

    def __init_subclass__(cls, tag=None, **_):
        dataclasses.dataclass(kw_only=True)(cls)
        cls.tag = tag


def _encode(value):
    def plain(each):
        if dataclasses.is_dataclass(each):
            return {"tag": each.tag, **{field.name: plain(getattr(each, field.name))
                                        for field in dataclasses.fields(each)}}
        return {"hex": each.hex()} if isinstance(each, bytes) else each

    return json.dumps(plain(value)).encode()


def _decode(data, type):
    """Makes the member of a union with the tag that the data says."""
    found = json.loads(data)

    def make(cls, given):
        values = {}
        for field in dataclasses.fields(cls):
            value = given[field.name]
            if isinstance(value, dict):
                value = bytes.fromhex(value["hex"]) if "hex" in value else make(TensorMetadata(), value)
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def TensorMetadata():
        from lmcache.v1.platform.base import ipc_wire

        return ipc_wire.TensorMetadata

    return make(next(each for each in typing.get_args(type) if each.tag == found["tag"]), found)


class CacheContext:
    """LMCache's GPUCacheContext, without kernels: it has the tensors from its begin to its end."""

    def __init__(self, kv_caches, *_, **__):
        self._wrappers = kv_caches
        self.tensors = [each.to_tensor() for each in kv_caches]

    def close(self):
        for each in self._wrappers:
            each.close()


def _subclasses(package, base, **_):
    """What LMCache finds among its own devices where there is a GPU."""
    from lmcache.v1.platform.devices.cuda import CudaDeviceSpec

    CudaDeviceSpec.is_available = lambda self: True
    return [CudaDeviceSpec]


GIVEN = {
    "msgspec": {"Struct": Struct, "Meta": lambda **_: None,
                "msgpack": types.SimpleNamespace(encode=_encode, decode=_decode)},
    "lmcache": {"torch_device_type": "cuda", "torch_dev": types.SimpleNamespace(
        get_device_properties=lambda index: types.SimpleNamespace(uuid="simulated"))},
    "lmcache.logging": {"init_logger": logging.getLogger},
    "lmcache.utils": {"EngineType": types.SimpleNamespace(VLLM="vllm")},
    f"{V1}.gpu_connector.utils": {"get_device": lambda tensor: types.SimpleNamespace(type="cuda")},
    f"{V1}.multiprocess.custom_types": {"KVCache": list},
    f"{V1}.utils.subclass_discovery": {"discover_subclasses": _subclasses},
    f"{PLATFORM}.devices.cuda.cache_context": {"GPUCacheContext": CacheContext},
}


def installed(sources):
    """While it is active, `import lmcache` gives the stand-in."""
    return contract.standin(sources, "lmcache", REAL, GIVEN)


def replace(patch):
    """Tensors of the host take the path of those on a GPU; the receiver's are copies. An offer of the memory
    at one address gives the same memory again."""
    from gpushm.integrations import lmcache as ours

    @functools.cache
    def on_gpu(address, nbytes):
        data = bytearray(ctypes.string_at(address, nbytes))
        return mp_standin.OnGpu(torch.frombuffer(data, dtype=torch.uint8).untyped_storage())

    mp_standin.replace(patch)
    patch(ours, "_bytes_of", lambda tensor, nbytes: on_gpu(tensor.data_ptr(), nbytes))

