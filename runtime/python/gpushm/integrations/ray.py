"""gpushm for Ray: actors hand tensors on a GPU to each other without a copy, where CUDA IPC fails.

    from gpushm.integrations import ray as gpushm_ray

    gpushm_ray.register()                  # in the driver, before it creates the actors

    @ray.remote(num_gpus=0.5)
    class Encoder:
        @ray.method(tensor_transport="GPUSHM")
        def encode(self, batch): ...       # returns tensors on the GPU

It is a transport of Ray's direct transport (RDT), whose interface Ray calls alpha. It is written for Ray
2.60. Both actors must see one broker and one GPU. The receiver gets the sender's memory, and both may write
to it. The sender's memory is held until Ray has freed the object and the receivers have dropped its tensors.
"""

from dataclasses import dataclass, field

import torch
from ray.experimental import (
    CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport)

from gpushm import _default
from gpushm.errors import Status, from_status
from gpushm.torch import multiprocessing as _mp

NAME = "GPUSHM"
TIMEOUT_S = 60.0


@dataclass
class GpushmMetadata(TensorTransportMetadata):
    """What a receiver is told: for each tensor the name of its storage, and where it lies in it."""

    views: list = field(default_factory=list)
    gpu: str = ""


class GpushmTransport(TensorTransportManager):
    """Ray makes one in each actor."""

    def __init__(self):
        self._sender = None

    def tensor_transport_backend(self):
        return NAME

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True  # A transfer is one attach, which no peer waits for.

    def actor_has_tensor_transport(self, actor):
        return True  # Ray registers it in each actor; without a broker, the transfer raises.

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        """Offers the storages of an object's tensors. Raises Unsupported for tensors that are not on a GPU,
        or are not dense, and for memory that cannot be shared."""
        for tensor in rdt_object:
            if not _mp._takes(tensor) or tensor.layout is not torch.strided:
                raise from_status(
                    Status.UNSUPPORTED, f"the transport {NAME} cannot send a tensor on {tensor.device} of layout "
                    f"{tensor.layout}", "return dense tensors on the GPU, or leave tensor_transport out")
        client = _default.client()
        self._sender = self._sender or _mp._Sender(None, False, TIMEOUT_S, {})
        names, views = {}, []
        for tensor in rdt_object:
            storage = tensor.detach().untyped_storage()
            key = storage.data_ptr()
            if storage.nbytes() and key not in names:
                names[key] = self._sender.hand_over(storage)
            views.append((names.get(key) if storage.nbytes() else None, tensor.dtype, tuple(tensor.shape),
                          tuple(tensor.stride()), tensor.storage_offset()))
        return GpushmMetadata(
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in rdt_object],
            tensor_device=rdt_object[0].device.type if rdt_object else None, views=views,
            gpu=client.broker().gpu_uuid if rdt_object else "")

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return CommunicatorMetadata()

    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata,
                              target_buffers=None):
        """Attaches the tensors; copies them, if Ray gives tensors to receive into.

        Raises Unsupported (the sender's broker serves another GPU), NotFound (the sender ended).
        """
        views = tensor_transport_metadata.views
        if not views:
            return []
        client = _default.client()
        if (own := client.broker().gpu_uuid) != tensor_transport_metadata.gpu:
            raise from_status(
                Status.UNSUPPORTED, f"the tensors are on the GPU {tensor_transport_metadata.gpu}, and this actor's "
                f"broker serves {own}", "place both actors in one pod, or use Ray's transport NCCL")
        attached = {name: _mp._attach(client, name, "keep the sending actor alive until its objects are read")
                    for name in {view[0] for view in views} if name is not None}
        device = next(iter(attached.values())).device if attached else torch.device("cuda")
        received = [torch.empty(shape, dtype=dtype, device=device) if name is None
                    else _mp._view(attached[name], dtype, shape, stride, offset)
                    for name, dtype, shape, stride, offset in views]
        if target_buffers:
            for target, tensor in zip(target_buffers, received, strict=True):
                target.copy_(tensor)
            return target_buffers
        return received

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("the transport is one-sided: only the receiver acts")

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        """Takes the names back. The memory is held until the receivers have let go of it."""
        if self._sender is None:
            return
        for name in {view[0] for view in tensor_transport_meta.views} - {None}:
            self._sender.withdraw_one(name)
        self._sender.collect()

    def abort_transport(self, obj_id, communicator_metadata):
        """Nothing is under way between the two actors."""


def register():
    """Makes the transport "GPUSHM" known to Ray, in the process that creates the actors and before it does.
    Calling it again is harmless."""
    from ray.experimental.rdt import util

    if NAME not in util.transport_manager_info:
        register_tensor_transport(NAME, ["cuda"], GpushmTransport, torch.Tensor)
