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
import shutil
import tempfile
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
# How many earlier storages each new one looks at, so that a long queue does not slow the sender down.
_LOOKS = 8
# How many storages keep their name for the next time that they are sent, while the program holds them.
_NAMED = 64
# After the feeder threads of queues have been joined, whose priority is -5.
_LAST = -100


class _Sent:
    """A storage that was handed over: it must live until its receivers have let go of it.

    Each message to a receiver has a token, an empty file, which the receiver removes when it has the memory
    mapped. So a storage that is sent again needs nothing from the broker, and the name can be taken back
    when no token is left. `tokens` is None if another protocol than that of queues says when that is.
    """

    def __init__(self, client, name, generation, storage, tokens):
        self._client, self.name, self._generation, self._storage = client, name, generation, storage
        self.key, self._where = storage._cdata, (storage.data_ptr(), storage.nbytes())
        self._tokens, self.published = tokens, True

    def is_of(self, storage):
        return self.published and self._where == (storage.data_ptr(), storage.nbytes())

    def send(self, token):
        os.close(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        self._tokens.append(token)
        return self.name, token

    def unused(self, may_keep_name):
        if self._tokens is not None:
            self._tokens = [token for token in self._tokens if os.path.exists(token)]
            if self._tokens or may_keep_name and _users(self._storage) > 1:
                return False
            if self.published:
                self.withdraw()
        try:
            return self._client.offer_state(self.name, self._generation).unused
        except (NotFound, Orphaned):  # The broker restarted, and no longer knows. A receiver may read.
            return False

    def withdraw(self):
        self.published = False
        try:
            self._client.delete(self.name)
        except Error:
            pass  # It is deleted already, or there is no broker to ask.


def _users(storage):
    """How many tensors and variables share a storage; 1 if this PyTorch does not say."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count(storage._cdata) if count else 1


class _Sender:
    """What this process has handed over. Any thread may use it: queues pickle in threads of theirs."""

    def __init__(self, client, allow_copy, timeout, replaced):
        self._client, self._allow_copy, self._timeout = client, allow_copy, timeout
        self.replaced = replaced
        self._lock = threading.Lock()
        self._sent = []
        self._named = {}  # By the address of the storage's structure, which is in _sent.
        self._prefix, self._count = None, 0

    def forget(self):
        """In a child of fork(): its parent's storages are its parent's."""
        self._lock, self._sent, self._named, self._prefix = threading.Lock(), [], {}, None

    def _next(self, client):
        """A new name, and with a folder before it a new token. Requires _lock."""
        if self._prefix is None:
            own = client.broker().container
            _delete_of_the_dead(client, own)
            self._prefix = f"torch-mp-{os.getpid()}-{secrets.token_hex(6)}"
            self._folder = tempfile.mkdtemp(prefix=f"gpushm-{own}-{self._prefix}-", dir=_folder())
            util.Finalize(None, self.withdraw, exitpriority=_LAST)
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def send(self, storage):
        """What a message says of a storage: a name, and the token that its one receiver removes. Without a
        token, the receiver deletes the name instead. The work of the present stream is done then.
        """
        self.collect(_LOOKS)
        client = self._client or _default.client()
        if storage._cdata in self._named:
            _synchronize(storage.device)
            with self._lock:
                sent = self._named.get(storage._cdata)
                if sent is not None and sent.is_of(storage):
                    return sent.send(os.path.join(self._folder, self._next(client)))
        name, sent = self._offer(client, storage, [])
        if sent is None:
            return name, None
        with self._lock:
            self._sent.append(sent)
            self._named[storage._cdata] = sent
            return sent.send(os.path.join(self._folder, self._next(client)))

    def hand_over(self, storage):
        """Offers a storage under a name that stays until withdraw_one(), and returns the name."""
        self.collect(_LOOKS)
        name, sent = self._offer(self._client or _default.client(), storage, None)
        if sent is not None:
            with self._lock:
                self._sent.append(sent)
        return name

    def _offer(self, client, storage, tokens):
        with self._lock:
            name = self._next(client)
        try:
            result = client.offer(name, _bytes_of(storage), on_writer_exit="keep",
                                  allow_copy=self._allow_copy, timeout=self._timeout)
        except Unsupported as error:
            raise from_status(
                Status.UNSUPPORTED, f"cannot hand over a tensor of {storage.nbytes()} bytes: {error.what}",
                f"{error.remedy + '; or ' if error.remedy else ''}call install(allow_copy=True), or send "
                "tensor.cpu()") from error
        return name, None if result.copied else _Sent(client, name, result.generation, storage, tokens)

    def collect(self, looks=None):
        """Looks at the oldest ones. Those that are used still go to the end, so each gets its turn."""
        with self._lock:
            may_keep_name = looks is not None and len(self._sent) <= _NAMED
            looked_at = self._sent[:looks]
            kept = [each for each in looked_at if not each.unused(may_keep_name)]
            self._sent = self._sent[len(looked_at):] + kept
            for each in looked_at:
                if not each.published and self._named.get(each.key) is each:
                    del self._named[each.key]
            return len(self._sent)

    def withdraw(self):
        with self._lock:
            for each in self._sent:
                each.withdraw()
            shutil.rmtree(self._folder, ignore_errors=True)

    def withdraw_one(self, name):
        """Takes a name back. The memory is held until its users have let go of it."""
        with self._lock:
            sent = [each for each in self._sent if each.name == name]
        for each in sent:
            each.withdraw()


def _folder():
    """Where tokens are: in memory, if the container has such a folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _delete_of_the_dead(client, own):
    """Deletes what senders of the container `own`, this one, offered that were killed before it was taken."""
    for entry in os.scandir(_folder() or tempfile.gettempdir()):
        found = re.match(rf"gpushm-{re.escape(own)}-torch-mp-(\d+)-", entry.name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            shutil.rmtree(entry.path, ignore_errors=True)
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
# In a receiver, the buffer of the last tensor that came: if the same memory comes again, it is mapped.
_last = None


def install(*, allow_copy=False, client=None, timeout=10.0):
    """Makes tensors on a GPU that this process pickles for other processes go over gpushm.

    The receiver needs no call: it imports gpushm when the first tensor comes. Both see the same memory,
    and both may write, as with CUDA IPC. What the stream of the pickling thread has queued is done
    before the receiver gets the tensor. A queue pickles in a thread of its own, whose stream is the
    default stream: if another stream computes the tensor, synchronise it before `put`.

    The sender's memory is held until the receiver's last tensor of it is gone and unmapped, see `collect`.
    The next tensor that is sent frees it, and so does `collect`. A tensor whose memory was sent before is
    handed over faster. Each hand-over has one receiver. If the sender ends, what no receiver has taken is
    lost. Memory that was taken stays valid, except for that of cudaMalloc. What a sender that was killed
    leaves behind is deleted by the next process that sends.

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
    """In a sender, lets go of memory whose receivers have let go of it, and returns how many storages are
    still held. In a receiver, unmaps memory whose tensors are gone, which otherwise the next tensor that is
    received does. The counterpart of torch.cuda.ipc_collect().
    """
    global _last
    _last = None
    _native.collect()
    _retired[:] = [each for each in _retired if each.collect()]
    return held() if _sender is None else _sender.collect() + sum(len(each._sent) for each in _retired)


def held():
    """How many storages of this process receivers hold, as of the last collect()."""
    return sum(len(each._sent) for each in [*_retired, *([_sender] if _sender else [])])


def _after_fork():
    global _last
    _last = None
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
    name, token = sender.send(storage)
    return _rebuild, (name, token, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()),
                      tensor.storage_offset(), isinstance(tensor, torch.nn.Parameter), tensor.requires_grad,
                      bool(tensor.is_conj()), bool(tensor.is_neg()))


def _synchronize(device):
    torch.cuda.current_stream(device).synchronize()


def _bytes_of(storage):
    """A storage as a tensor of bytes, from its first byte on."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


_REMEDY = "keep the sender running until its tensors are received, and unpickle each once"


def _rebuild(name, token, dtype, shape, stride, offset, parameter, requires_grad, conj, neg):
    global _last
    client = _default.client()
    buffer = _attach_buffer(client, name, _REMEDY)
    if token is None:
        client.delete(name)
    else:
        try:
            os.unlink(token)  # After the attach: from now on, the sender learns from the attachment's end.
        except FileNotFoundError:
            raise from_status(Status.NOT_FOUND, "a tensor that was sent has been received already",
                              _REMEDY) from None
    _last = buffer
    return _view(_bytes(buffer), dtype, shape, stride, offset, parameter, requires_grad, conj, neg)


def _attach(client, name, remedy):
    """The bytes of a storage that was handed over."""
    return _bytes(_attach_buffer(client, name, remedy))


def _attach_buffer(client, name, remedy):
    try:
        return client.attach(name, write=True, timeout=0)
    except NotFound as error:
        raise from_status(Status.NOT_FOUND, f"the memory of a tensor that was sent is gone: {error.what}",
                          remedy) from error


def _bytes(buffer):
    return _torch.as_tensor(buffer.view("uint8", (buffer.nbytes,)))


def _view(raw, dtype, shape, stride, offset, parameter=False, requires_grad=False, conj=False, neg=False):
    tensor = torch.empty(0, dtype=dtype, device=raw.device).set_(raw.untyped_storage(), offset, shape, stride)
    tensor = torch.conj(tensor) if conj else tensor
    tensor = torch._neg_view(tensor) if neg else tensor
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)
