"""gpushm for PyTorch: weights by name, as safetensors has them by file.

    import gpushm.torch
    gpushm.torch.save_file(model.state_dict(), "weights")    # one process
    weights = gpushm.torch.load_file("weights")              # the others: no copy, read-only

    with torch.device("meta"):
        model = Model()
    model.load_state_dict(weights, assign=True)

The tensors of load_file are mapped for reading. PyTorch has no read-only tensors: an in-place operation
on one is an illegal access, after which the process has no CUDA context any more. `guard` raises an
exception with the tensor's name instead, for operations of PyTorch; kernels of Triton and of extensions
escape it.
"""

import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpushm import _default, _native, _streams, tensors as _tensors
from gpushm.errors import Status, from_status

_FP4 = "float4_e2m1fn"
_AS_BYTES = {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", _FP4}

# load_file puts a tensor's name onto its storage, for guard: views share it, clones do not.
_NAME = "_gpushm_name"


def _from_dlpack(array, stream):
    """A tensor of an array. PyTorch takes capsules, which saves half of the time of from_dlpack."""
    try:
        return torch.from_dlpack(array.__dlpack__(stream=stream, max_version=(1, 0)))
    except RuntimeError:  # This PyTorch is older than DLPack 1.0.
        return torch.from_dlpack(array.unsafe_writable().__dlpack__(stream=stream))


def _stream_of(device):
    return torch.cuda.current_stream(device).cuda_stream or 1


def as_tensor(array, stream=None):
    """The tensor of a gpushm.Array or gpushm.Frame, without a copy. FP8 and FP4 become PyTorch's types.

    `stream`: the number of the CUDA stream that uses it; None: PyTorch's present one.

    Raises Unsupported for types that this PyTorch lacks.
    """
    if isinstance(array, _native.Frame):
        array = array.array
    stream = _stream_of(array.device) if stream is None else stream
    dtype = array.dtype
    if dtype in _AS_BYTES:
        return _view(_from_dlpack(array.bytes(), stream), dtype, array.shape)
    if not hasattr(torch, dtype):
        raise _lacks(dtype)
    return _from_dlpack(array, stream)


def _view(raw, name, shape):
    """Bytes as a narrow type."""
    torch_name = "float4_e2m1fn_x2" if name == _FP4 else name
    dtype = getattr(torch, torch_name, None)
    if dtype is None:
        raise _lacks(name)
    return raw.view(dtype) if name == _FP4 else raw.view(dtype).reshape(shape)


def _lacks(name):
    return from_status(Status.UNSUPPORTED, f"PyTorch {torch.__version__} has no type {name}",
                       "take the array's .bytes(), or use a newer PyTorch")


def spec(tensor):
    """Type and shape of a tensor, as a set has them: ("bfloat16", (4096, 4096)). Its memory is not read."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if dtype == "float4_e2m1fn_x2":  # Two elements in each.
        return _FP4, (*shape[:-1], shape[-1] * 2)
    return dtype, shape


def load_file(name, *, rank=None, generation=0, timeout=60.0, client=None):
    """The tensors of a buffer, as a dict of names to tensors on the GPU that holds them: no copy, and
    for reading only. Their memory stays mapped while one of them lives, or a view of it, and until work
    that their streams had is done.

    `rank`: with several GPUs, the part of the model on the GPU of that number. It is the buffer
    `<name>-<rank>`, as `gpu: each` in the pod's annotation makes it. The tensors are on that GPU, so one
    process may load the parts of all ranks, or each process its own.
    `generation`: exactly that one; 0: the current one. `timeout`: seconds to wait until it exists and is
    loaded.

    Raises Timeout, NotFound, Denied, Stale, Unsupported.
    """
    opened = _tensors.open(_of_rank(name, rank), generation=generation, timeout=timeout, client=client)
    return tensors_of(opened)


def _of_rank(name, rank):
    if rank is None:
        return name
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise from_status(Status.INVALID_ARGUMENT, f"rank is {rank!r}; it must be a number from 0 on",
                          "give the number of the GPU among the pod's, such as rank=0")
    return f"{name}-{rank}"


def tensors_of(opened):
    """The tensors of a gpushm.tensors.TensorSet, as load_file gives them: for generations of `watch`."""
    buffer, loaded = opened.buffer, {}
    stream = _stream_of(buffer.device)
    for name, (_, dtype, shape, offset, _) in opened._table.items():
        loaded[name] = tensor = _part(buffer, dtype, shape, offset, stream)
        setattr(tensor.untyped_storage(), _NAME, name)
    return loaded


def _part(buffer, dtype, shape, offset, stream):
    """as_tensor(buffer.view(...)), in half of the time: a set may have thousands."""
    if dtype not in _AS_BYTES and hasattr(torch, dtype):
        try:
            return torch.from_dlpack(buffer._dlpack(dtype, shape, offset, stream))
        except RuntimeError:
            pass  # As in _from_dlpack.
    return as_tensor(buffer.view(dtype, shape, offset), stream)


def save_file(tensors, name, metadata=None, *, rank=None, client=None, timeout=600.0):
    """Gives `name` new content: a dict of tensors, on the GPU or on the host. Returns the generation.

    Tensors on the GPU are copied on PyTorch's present stream, and the call waits for that. Tensors that
    share memory are copied once each. `rank` as for load_file: the copy is on the GPU of that number,
    where the pod's annotation declares the buffer. See gpushm.tensors.publish for `metadata` and the errors.
    """
    return _tensors.publish(_of_rank(name, rank), tensors, metadata=metadata, client=client,
                            timeout=timeout)


def pool(**options):
    """A torch.cuda.MemPool whose tensors other processes can map: gpushm.offer shares them without a copy.

        with torch.cuda.use_mem_pool(gpushm.torch.pool()):
            frame = torch.empty(1080, 1920, 3, dtype=torch.uint8, device="cuda")
        offered = gpushm.offer("frame", frame)

    PyTorch puts small tensors side by side into allocations of 2 and 20 MiB, and a process that attaches
    one of them can reach its neighbours. `options` are those of MemPool: with `no_split=True`, each tensor
    has allocations of its own. Keep the tensor until gpushm.offer_state says that it is unused: PyTorch
    uses its memory again when it dies. The memory belongs to this process, and counts in no pool of gpushm.

    Raises Unsupported if this PyTorch has no GPU, or no pools.
    """
    if not torch.cuda.is_available() or not hasattr(torch.cuda, "MemPool"):
        raise from_status(Status.UNSUPPORTED, f"PyTorch {torch.__version__} has no pools of GPU memory here",
                          "use PyTorch 2.5 or newer, with CUDA, where it sees a GPU")
    return torch.cuda.MemPool(_allocator().allocator(), **options)


@functools.cache
def _allocator():
    """Lives as long as the process: PyTorch calls it for the last tensor, too."""
    return torch.cuda.memory.CUDAPluggableAllocator(_native.__file__, "gpushm_torch_allocate",
                                                    "gpushm_torch_free")


def publish_module(module, name, *, metadata=None, client=None, timeout=600.0):
    """Publishes a module's parameters and buffers as they are now, for example after fusing and
    quantising, with the ties between them. Other processes take them by adopt_module. Returns the
    generation.
    """
    tensors, ties = {}, {}
    seen = {}
    for key, tensor in _named(module):
        identity = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and identity in seen:
            ties[key] = seen[identity]
        else:
            seen[identity] = key
            tensors[key] = tensor
    own = {_FINGERPRINT: fingerprint(module), **{_TIE + key: of for key, of in ties.items()}}
    return save_file(tensors, name, {**(metadata or {}), **own}, client=client, timeout=timeout)


_FINGERPRINT = "gpushm.fingerprint"
_TIE = "gpushm.tie."


def fingerprint(module):
    """What two processes must agree on to share a module's tensors: its classes, and the names, types
    and shapes of its parameters and buffers, as a hash.
    """
    import hashlib

    lines = [f"{name} {type(each).__module__}.{type(each).__qualname__}"
             for name, each in module.named_modules()]
    lines += [f"{key} {tensor.dtype} {tuple(tensor.shape)}" for key, tensor in _named(module)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def adopt_module(module, name, *, timeout=60.0, client=None):
    """Gives a module, for example one that was made on the device "meta", the tensors that
    publish_module published: no copy. They do not require gradients. Returns the module.

    Raises Incompatible if the module's structure is another one, and the errors of load_file.
    """
    opened = _tensors.open(name, timeout=timeout, client=client)
    metadata = opened.metadata
    if metadata.get(_FINGERPRINT) != fingerprint(module):
        raise from_status(
            Status.INCOMPATIBLE, f"\"{name}\" has the tensors of another module: classes, names, types or "
            "shapes differ", "make the module as its publisher does, with the same versions, types and "
            "quantisation")
    loaded = tensors_of(opened)
    for key, value in metadata.items():
        if key.startswith(_TIE):
            loaded[key.removeprefix(_TIE)] = loaded[value]
    for key, tensor in loaded.items():
        _assign(module, key, tensor)
    return module


def _named(module):
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _assign(module, key, tensor):
    path, _, leaf = key.rpartition(".")
    owner = module.get_submodule(path)
    if leaf in owner._parameters:
        owner._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)
    else:
        owner._buffers[leaf] = tensor


class guard(TorchDispatchMode):
    """While it is active, an operation of PyTorch that would write to a tensor of load_file raises
    Denied with the tensor's name.

        with gpushm.torch.guard():
            model(batch)

    It sees operations of PyTorch in this thread. Kernels of Triton, CUDA graphs that run again, and
    extensions that take raw pointers escape it.
    """

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        for index, argument in enumerate(function._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = arguments[index] if index < len(arguments) else options.get(argument.name)
            for tensor in given if isinstance(given, (list, tuple)) else [given]:
                if isinstance(tensor, torch.Tensor):
                    self._check(function, tensor)
        return function(*arguments, **options)

    @staticmethod
    def _check(function, tensor):
        name = getattr(tensor.untyped_storage(), _NAME, None)
        if name is not None and tensor.numel():
            raise from_status(
                Status.DENIED, f"{function} would write to the shared tensor \"{name}\", which is mapped "
                "for reading", "clone() it first, or publish a new generation")


class Queue:
    """Hands tensors from one container to another, as torch.multiprocessing.Queue does within one.

    The process that puts opens it with `write=True`; each item goes to one process that gets.
    `nbytes` is the size of the largest tensor. Both sides must be connected at the same time.
    `gpu`: the number of the pod's GPU that holds the items; tensors must be there.
    """

    def __init__(self, name, *, write=False, frames=8, nbytes=0, gpu=0, client=None, timeout=60.0):
        client = client or _default.client()
        self._queue = client.queue(name, write=write, frames=frames, nbytes=nbytes, gpu=gpu,
                                   timeout=timeout)

    def put(self, tensor, timeout=60.0):
        """Copies a tensor into the queue, on PyTorch's present stream, without waiting for the copy.

        Raises Timeout if all items are taken; ValueError if the tensor is larger than `nbytes`.
        """
        self._queue.put(tensor, timeout=timeout)

    def get(self, timeout=60.0, *, copy=True):
        """A tensor of its own, copied on PyTorch's present stream, on the GPU of the queue.

        `copy=False`: the memory of the queue itself, for reading only, when it is complete. The item ends
        after the tensor's last view and the work of the stream. Until then the process that puts has one
        item less, and if this process dies, another one gets the item.

        Raises Timeout, Ended, PeerDied.
        """
        stream = _stream_of(None)
        if not copy:
            return as_tensor(self._queue.read(_streams.HOST, timeout)._lend(), stream)
        with self._queue.read(stream, timeout) as frame:
            return as_tensor(frame, stream).clone()

    def close(self):
        """Leaves the queue."""
        self._queue.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._queue.__exit__(None, None, None)
