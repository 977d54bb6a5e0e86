"""torch.multiprocessing's own queues and pipes over gpushm, where CUDA IPC does not work.

    import gpushm.torch.multiprocessing
    gpushm.torch.multiprocessing.install()       # in the process that sends
    queue = torch.multiprocessing.get_context("spawn").Queue()
    queue.put(tensor)                            # the receiver gets the same memory, without a copy

Between the processes of one container. CUDA IPC cannot share the memory of cuMemCreate, as some pools of
torch.cuda.MemPool allocate it, and fails with PyTorch's expandable segments in a container that may not
use pidfd_getfd. For queues between containers there is gpushm.torch.Queue.

Only dense tensors on a GPU take this path. Tensors of the CPU, sparse and nested tensors, and those that
PyTorch refuses, go on as before.
"""

import os
import re
import secrets
import threading
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions as _reductions

from gpushm import _default, _native, torch as _torch
from gpushm.errors import Error, NotFound, Orphaned, Status, Unsupported, from_status

__all__ = ["collect", "held", "install", "uninstall"]

# A buffer's name says which process offers it, so that another one can clean up after its death.
_NAME = re.compile(r"torch-mp-(\d+)-[0-9a-f]{12}-\d+")
# How many earlier hand-overs each new one looks at, so that a long queue does not slow the sender down.
_LOOKS = 8
# After the feeder threads of queues have been joined, whose priority is -5.
_LAST = -100


class _Sent:
    """A storage that was handed over: it must live until its receiver has let go of it."""

    def __init__(self, client, name, generation, storage):
        self._client, self.name, self._generation, self._storage = client, name, generation, storage

    def unused(self):
        try:
            return self._client.offer_state(self.name, self._generation).unused
        except (NotFound, Orphaned):  # The broker restarted, and no longer knows. A receiver may read.
            return False

    def withdraw(self):
        try:
            self._client.delete(self.name)
        except Error:
            pass  # The receiver has deleted it, or there is no broker to ask.


class _Sender:
    """What this process has handed over. Any thread may use it: queues pickle in threads of theirs."""

    def __init__(self, client, allow_copy, timeout, replaced):
        self._client, self._allow_copy, self._timeout = client, allow_copy, timeout
        self.replaced = replaced
        self._lock = threading.Lock()
        self._sent = []
        self._prefix, self._count = None, 0

    def forget(self):
        """In a child of fork(): its parent's storages are its parent's."""
        self._lock, self._sent, self._prefix = threading.Lock(), [], None

    def _begin(self, client):
        self._prefix = f"torch-mp-{os.getpid()}-{secrets.token_hex(6)}"
        util.Finalize(None, self.withdraw, exitpriority=_LAST)
        _delete_of_the_dead(client)

    def hand_over(self, storage):
        """Offers a storage, and returns the name that its one receiver attaches and deletes."""
        client = self._client or _default.client()
        self.collect(_LOOKS)
        with self._lock:
            if self._prefix is None:
                self._begin(client)
            self._count += 1
            name = f"{self._prefix}-{self._count}"
        try:
            result = client.offer(name, _bytes_of(storage), on_writer_exit="keep",
                                  allow_copy=self._allow_copy, timeout=self._timeout)
        except Unsupported as error:
            raise from_status(
                Status.UNSUPPORTED, f"cannot hand over a tensor of {storage.nbytes()} bytes: {error.what}",
                f"{error.remedy + '; or ' if error.remedy else ''}call install(allow_copy=True), or send "
                "tensor.cpu()") from error
        if not result.copied:
            with self._lock:
                self._sent.append(_Sent(client, name, result.generation, storage))
        return name

    def collect(self, looks=None):
        """Looks at the oldest ones. Those that are used still go to the end, so each gets its turn."""
        with self._lock:
            taken, self._sent = self._sent[:looks], self._sent[len(self._sent[:looks]):]
        kept = [each for each in taken if not each.unused()]
        with self._lock:
            self._sent += kept
            return len(self._sent)

    def withdraw(self):
        with self._lock:
            sent = list(self._sent)
        for each in sent:
            each.withdraw()

    def withdraw_one(self, name):
        """Takes a name back. The memory is held until its users have let go of it."""
        with self._lock:
            sent = [each for each in self._sent if each.name == name]
        for each in sent:
            each.withdraw()


def _delete_of_the_dead(client):
    """Deletes what senders of this container offered that were killed before it was taken."""
    own = client.broker().container
    for info in client.list():
        found = _NAME.fullmatch(info.name)
        if found and info.creator == own and not os.path.exists(f"/proc/{found[1]}"):
            try:
                client.delete(info.name)
            except NotFound:
                pass


_sender = None
# After uninstall(), storages whose receivers still read them.
_retired = []


def install(*, allow_copy=False, client=None, timeout=10.0):
    """Makes tensors on a GPU that this process pickles for other processes go over gpushm.

    The receiver needs no call: it imports gpushm when the first tensor comes. Both see the same memory,
    and both may write, as with CUDA IPC. What the stream of the pickling thread has queued is done
    before the receiver gets the tensor. A queue pickles in a thread of its own, whose stream is the
    default stream: if another stream computes the tensor, synchronise it before `put`.

    The sender's memory is held until the receiver's last tensor of it is gone and unmapped, see `collect`.
    The next tensor that is sent frees it, and so does `collect`. Each hand-over has one receiver. If the sender ends, what no
    receiver has taken is lost. Memory that was taken stays valid, except for that of cudaMalloc. What a
    sender that was killed leaves behind is deleted by the next process that sends.

    The receiver maps whole allocations: other tensors of PyTorch's allocator that lie in them are within
    its reach. `allow_copy`: memory that cannot be shared is copied into the pod's pool; the receiver then
    has memory of its own. `client`: None: the default client of the process. `timeout`: seconds for an
    offer, with the work on its stream.

    A second call replaces the settings. When a tensor is pickled: Unsupported (memory that cannot be
    shared), Unavailable, Denied, Exhausted, Timeout. When it is taken: NotFound (the sender ended).
    """
    global _sender
    if _sender is not None:
        uninstall()
    classes = [*torch._tensor_classes, torch.Tensor, torch.nn.Parameter]
    replaced = {each: ForkingPickler._extra_reducers.get(each, _reductions.reduce_tensor) for each in classes}
    _sender = _Sender(client, allow_copy, timeout, replaced)
    for each in classes:
        ForkingPickler.register(each, _reduce)


def uninstall():
    """Gives torch.multiprocessing back what it used before. What was sent can still be received, and its
    memory is held until then.
    """
    global _sender
    if _sender is None:
        return
    for each, reducer in _sender.replaced.items():
        ForkingPickler.register(each, reducer)
    _sender.collect()
    _retired.append(_sender)
    _sender = None


def collect():
    """In a sender, lets go of memory whose receivers have let go of it, and returns how many hand-overs are
    still held. In a receiver, unmaps memory whose tensors are gone, which otherwise the next tensor that is
    received does. The counterpart of torch.cuda.ipc_collect().
    """
    _native.collect()
    _retired[:] = [each for each in _retired if each.collect()]
    return held() if _sender is None else _sender.collect() + sum(len(each._sent) for each in _retired)


def held():
    """How many hand-overs hold memory of this process, as of the last collect()."""
    return sum(len(each._sent) for each in [*_retired, *([_sender] if _sender else [])])


def _after_fork():
    _retired.clear()
    if _sender is not None:
        _sender.forget()


os.register_at_fork(after_in_child=_after_fork)


def _takes(tensor):
    return tensor.device.type == "cuda"


def _reduce(tensor):
    sender = _sender
    storage = tensor.untyped_storage() if tensor.layout is torch.strided and not tensor.is_nested else None
    refused = tensor.requires_grad and not tensor.is_leaf
    if sender is None or storage is None or refused or not _takes(tensor) or not storage.nbytes():
        return (sender.replaced.get(type(tensor), _reductions.reduce_tensor) if sender
                else _reductions.reduce_tensor)(tensor)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    name = sender.hand_over(storage)
    return _rebuild, (name, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()),
                      tensor.storage_offset(), isinstance(tensor, torch.nn.Parameter), tensor.requires_grad,
                      bool(tensor.is_conj()), bool(tensor.is_neg()))


def _bytes_of(storage):
    """A storage as a tensor of bytes, from its first byte on."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _rebuild(name, dtype, shape, stride, offset, parameter, requires_grad, conj, neg):
    client = _default.client()
    raw = _attach(client, name, "keep the sender running until its tensors are received, and unpickle each once")
    client.delete(name)  # It has one receiver. The sender learns from the attachment's end.
    return _view(raw, dtype, shape, stride, offset, parameter, requires_grad, conj, neg)


def _attach(client, name, remedy):
    """The bytes of a storage that was handed over."""
    try:
        buffer = client.attach(name, write=True, timeout=0)
    except NotFound as error:
        raise from_status(Status.NOT_FOUND, f"the memory of a tensor that was sent is gone: {error.what}",
                          remedy) from error
    return _torch.as_tensor(buffer.view("uint8", (buffer.nbytes,)))


def _view(raw, dtype, shape, stride, offset, parameter=False, requires_grad=False, conj=False, neg=False):
    tensor = torch.empty(0, dtype=dtype, device=raw.device).set_(raw.untyped_storage(), offset, shape, stride)
    tensor = torch.conj(tensor) if conj else tensor
    tensor = torch._neg_view(tensor) if neg else tensor
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)
