"""Sets of tensors by name: weights that several processes use in place.

    gpushm.tensors.publish("weights", "models/llama/")      # one process, or: a dict of arrays
    weights = gpushm.tensors.open("weights")                # the others
    torch.from_dlpack(weights["model.embed_tokens.weight"])

A set is one buffer. Each tensor begins at a multiple of 256 bytes; names, types, shapes and offsets
are the buffer's description, in host memory, so opening a set reads no GPU memory. Each publish is a
new generation: who has an older one open keeps it, and its memory is freed with its last user.
"""

import collections.abc
import os
import time

from gpushm import _default, _native, _source, _streams
from gpushm.errors import (Busy, Error, InvalidArgument, NotFound, Stale, Status, SystemCallError,
                           from_status)

ALIGNMENT = 256

_TIMEOUT = 600.0  # The default of publish: as in Client.load, not all of it is for a missing file.
_FILE_TIMEOUT = 10.0
_LOOK_SECONDS = 1.0  # No event comes from NFS and FUSE.


class TensorSet(collections.abc.Mapping):
    """The tensors of one generation: a Mapping of names to `gpushm.Array`, which are views.

    Making an array costs about a microsecond, and nothing is copied. The memory stays mapped while
    the set, or an array of it, lives. Any thread may use it.
    """

    def __init__(self, client, name, generation=0, timeout=10.0, unsafe_writable=False):
        found, table, metadata = client._tensors(name, generation=generation, timeout=timeout)
        self._client = client
        self._buffer = client.attach(name, generation=found, timeout=timeout)
        self._table = {entry[0]: entry for entry in table}
        self._unsafe_writable = unsafe_writable
        self._metadata = metadata
        self._digest = self._find_digest()

    @property
    def name(self):
        """The buffer's name."""
        return self._buffer.name

    @property
    def generation(self):
        """The generation that is open."""
        return self._buffer.generation

    @property
    def buffer(self):
        """The gpushm.Buffer that holds all of them."""
        return self._buffer

    @property
    def stale(self):
        """Whether the name has other content now. One load, no system call."""
        return self._buffer.check() != "current"

    @property
    def nbytes(self):
        """Size of all tensors in bytes."""
        return sum(entry[4] for entry in self._table.values())

    @property
    def metadata(self):
        """The metadata of the set, str to str: that of the safetensors file, or of publish()."""
        return dict(self._metadata)

    @property
    def digest(self):
        """Says in short what the tensors are, whatever files they came from: sets with equal digests have
        equal tensors. It finds mistakes, not malice. None: nobody made it, or the name had newer content
        when the set was opened."""
        return self._digest

    def _find_digest(self):
        try:
            info = self._client.lookup(self.name)
        except NotFound:
            return None
        return info.digest or None if info.generation == self.generation else None

    def spec(self, name):
        """Type and shape of a tensor: ("bfloat16", (4096, 4096))."""
        return self._entry(name)[1:3]

    def offset(self, name):
        """Where a tensor begins, in bytes from the start of the buffer."""
        return self._entry(name)[3]

    def _entry(self, name):
        try:
            return self._table[name]
        except KeyError:
            raise MissingTensor(name, self.name, list(self._table)) from None

    def __getitem__(self, name):
        entry = self._table.get(name) or self._entry(name)
        array = self._buffer.view(entry[1], entry[2], entry[3])
        return array.unsafe_writable() if self._unsafe_writable else array

    def __iter__(self):
        return iter(self._table)

    def __len__(self):
        return len(self._table)

    def __contains__(self, name):
        return name in self._table

    def numpy(self):
        """Copies all tensors to the host: a dict of NumPy arrays."""
        return {name: array.numpy() for name, array in self.items()}

    def _advance(self, generation, streams):
        found, table, metadata = self._client._tensors(self.name, generation=generation)
        if table != list(self._table.values()):
            raise from_status(
                Status.INVALID_ARGUMENT, f"generation {found} of \"{self.name}\" has other tensors",
                "open it as a new set, or publish the same names, types and shapes in the same order")
        self._buffer.advance(streams, found)
        self._metadata = metadata
        self._digest = self._find_digest()

    def close(self):
        """Ends the use of this object. The memory is unmapped after the last array of it."""
        self._buffer.__exit__(None, None, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<gpushm.TensorSet {self.name!r} generation {self.generation}, {len(self)} tensors>"


class MissingTensor(NotFound, KeyError):
    """A set has no tensor of that name."""

    def __init__(self, name, of, names):
        import difflib

        near = difflib.get_close_matches(str(name), names, 1)
        self.what = f"\"{of}\" has no tensor \"{name}\""
        self.remedy = f"did you mean \"{near[0]}\"?" if near else "list(set) gives the names"
        super().__init__(name, of, names)

    def __str__(self):
        return f"{self.what} ({self.remedy})"


def open(name, *, generation=0, timeout=10.0, client=None, unsafe_writable=False):
    """Opens the tensors of a buffer. Waits until it exists and is loaded.

    `generation`: exactly that one; 0: the current one. `unsafe_writable`: arrays do not carry the
    mark that they are read-only, for frameworks whose DLPack is older than 1.0; a kernel that then
    writes to one ends with an illegal access.

    Raises Timeout, NotFound (the buffer holds no tensors), Denied, Stale, Corrupt, Incompatible.
    """
    return TensorSet(client or _default.client(), name, generation, timeout, unsafe_writable)


def publish(name, tensors, *, metadata=None, stream=None, client=None, timeout=600.0,
            progress=None, writers="creator"):
    """Gives `name` new content, and returns its generation.

    `tensors`: a dict of arrays (PyTorch, CuPy, JAX, NumPy; on the GPU or on the host), or the path of
    a safetensors file, of an index of shards, or of a folder with either. A buffer that does not
    exist is made; `writers` says which containers may write it then, "creator" or "all". Other
    processes see the new content as a whole, when all of it is there.

    Arrays on the GPU are copied on `stream` (None: PyTorch's or CuPy's present one, on which their
    values must be complete). The call waits for that stream before it publishes. `metadata`: str to
    str. `progress(done, total)` is called with bytes.

    `timeout`: for all of it; of the default, ten seconds are for a file that is not there yet. A model
    that is not whole is not published.

    Raises Exhausted (no room in the pool for one more generation), Denied, InvalidArgument (also: as it
    is, the file cannot be loaded), Timeout; with timeout=0 also NotFound and Busy (the file is not there,
    or being written).
    """
    client = client or _default.client()
    if isinstance(tensors, (str, os.PathLike)):
        return _publish_path(client, name, tensors, metadata, timeout, progress, writers)
    sources = {key: _source.of(value) for key, value in tensors.items()}
    return _publish_sources(client, name, sources, sources.items(), metadata, stream, timeout, progress,
                            writers)


def publish_each(name, specs, tensors, *, metadata=None, stream=None, client=None, timeout=600.0,
                 progress=None, writers="creator"):
    """As publish(), for tensors that are made one after the other and need not exist at once, such as
    those that a trainer gathers from its shards.

    `specs`: names, in the order of the buffer, with type and shape: {"w": ("bfloat16", (8, 8))}.
    `tensors`: an iterable of (name, array), each name once, in any order.

    Raises InvalidArgument if a tensor is missing, comes twice, or is another than its spec says; nothing is
    published then. Further errors are those of publish().
    """
    client = client or _default.client()
    declared = {key: _source.Source(dtype, tuple(shape), _native.dtype_nbytes(dtype, tuple(shape)))
                for key, (dtype, shape) in specs.items()}
    return _publish_sources(client, name, declared, _checked(name, declared, tensors), metadata, stream,
                            timeout, progress, writers)


def _checked(name, declared, tensors):
    missing = set(declared)
    for key, array in tensors:
        source = _source.of(array)
        if key not in missing:
            raise from_status(Status.INVALID_ARGUMENT, f"cannot publish \"{name}\": the tensor \"{key}\" "
                              + ("comes twice" if key in declared else "is not in specs"), "")
        wanted = declared[key]
        if (source.dtype, tuple(source.shape)) != (wanted.dtype, wanted.shape):
            raise from_status(
                Status.INVALID_ARGUMENT, f"cannot publish \"{name}\": the tensor \"{key}\" is {source.dtype} "
                f"{list(source.shape)}, and specs say {wanted.dtype} {list(wanted.shape)}", "")
        missing.discard(key)
        yield key, source
    if missing:
        raise from_status(Status.INVALID_ARGUMENT, f"cannot publish \"{name}\": {len(missing)} tensors are "
                          f"missing, such as \"{min(missing)}\"", "yield each tensor of specs")


def _publish_sources(client, name, declared, sources, metadata, stream, timeout, progress, writers):
    for key in declared:
        if not isinstance(key, str) or "\0" in key:
            raise from_status(Status.INVALID_ARGUMENT, f"invalid tensor name {key!r}: it must be a "
                              "str without NUL", "")
    offsets, size = _layout(declared)
    pairs = _pairs(metadata or {})
    buffer = client.create(name, max(size, 1), replace=True, publish=False, writers=writers,
                           on_writer_exit="keep", timeout=timeout)
    with buffer:
        buffer._set_tensors([(key, source.dtype, source.shape, offsets[key], source.nbytes)
                             for key, source in declared.items()], pairs)
        _fill(buffer, sources, offsets, size, stream, progress)
        buffer.digest()
        buffer.publish()
        return buffer.generation


def _publish_path(client, name, path, metadata, timeout, progress, writers):
    if metadata is not None:
        raise from_status(Status.INVALID_ARGUMENT, "metadata is given for a file",
                          "leave it out: a set from a file has the file's metadata")
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        size = _await_model(path, timeout)
        try:
            return _publish_measured(client, name, path, size, timeout, progress, writers)
        except (Busy, InvalidArgument):
            # Another model is there now, for which the buffer has no room.
            if end is not None and time.monotonic() >= end or not _was_resized(path, size):
                raise


def _was_resized(path, size):
    try:
        return _native.measure(path)[0] != size
    except Error:
        return False


def _await_model(path, timeout):
    """The size that the model needs, once it is whole."""
    patience = _FILE_TIMEOUT if timeout == _TIMEOUT else timeout
    end = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return _native.measure(path)[0]
        except (NotFound, Busy, SystemCallError) as error:
            if patience == 0:
                raise
            left = _LOOK_SECONDS if end is None else end - time.monotonic()
            if left <= 0:
                raise from_status(Status.TIMEOUT, f"timed out waiting for the file: {error.what}",
                                  error.remedy) from None
            time.sleep(min(left, _LOOK_SECONDS))


def _publish_measured(client, name, path, size, timeout, progress, writers):
    if _awaits_content(client, name, size):
        client.load(name, path, format="tensors", progress=progress, timeout=timeout)
        return client.lookup(name).generation
    buffer = client.create(name, size, replace=True, publish=False, writers=writers,
                           on_writer_exit="keep", timeout=timeout)
    with buffer:
        buffer.load(path, format="tensors", progress=progress, timeout=timeout)
        buffer.digest()
        buffer.publish()
        return buffer.generation


def _awaits_content(client, name, size):
    """Whether the name is declared, waits for its first load, and has room for it."""
    try:
        info = client.lookup(name)
    except NotFound:
        return False
    return info.state == "loading" and info.loaded_nbytes == 0 and info.nbytes >= size


def watch(name, *, since=0, timeout=None, client=None, in_place=False, streams=()):
    """Yields the TensorSet of each new generation, beginning with the present one if it is newer
    than `since`. Generations that pass while the caller is busy are skipped.

    `timeout`: seconds to wait for each; None: without a limit. Drop the tensors of a set before you
    take the next one: otherwise the pool needs room for one more generation.

    `in_place`: new content comes at the same addresses, so that tensors and captured CUDA graphs go
    on; it yields the same set again. Each generation must have the same tensors, in types and shapes.
    The exchange waits for `streams`, and for the streams that took arrays. No other work may use the
    tensors when the next set is taken.

    Raises Timeout; with `in_place` InvalidArgument if the tensors differ; and the errors of open().
    """
    client = client or _default.client()
    kept = None
    while True:
        info = client.wait(name, since, timeout)
        if kept is not None:
            kept._advance(info.generation, streams)
            since = kept.generation
            yield kept
            continue
        try:
            opened = TensorSet(client, name, info.generation, timeout)
        except Stale:
            continue  # A newer one came.
        since = opened.generation
        if in_place:
            kept = opened
        # The generator must not hold what it yields: the caller decides when the memory goes.
        handed_over = [opened]
        del opened
        yield handed_over.pop()


async def awatch(name, *, since=0, client=None):
    """As watch(), for asyncio: `async for weights in gpushm.tensors.awatch("policy")`."""
    from gpushm import _aio

    client = client or _default.client()
    async for handed_over in _aio.opened(client, name, since, TensorSet):
        yield handed_over.pop()


def _layout(sources):
    offsets, end = {}, 0
    for name, source in sources.items():
        offsets[name] = end
        end += -(-source.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _fill(buffer, sources, offsets, size, stream, progress):
    stream = _streams.current() if stream is None else stream
    done, on_gpu = 0, False
    for name, source in sources:
        if source.host is not None:
            buffer.write(source.host, offsets[name])
        elif source.nbytes:
            buffer._copy_from(source.address, source.nbytes, offsets[name], stream)
            on_gpu = True
        done += source.nbytes
        if progress is not None:
            progress(done, size)
    if on_gpu:
        buffer._synchronize(stream)


def _pairs(metadata):
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or "\0" in key + value:
            raise from_status(Status.INVALID_ARGUMENT, f"invalid metadata: {key!r}: {value!r}",
                              "metadata is a dict of str to str, without NUL")
    return list(metadata.items())
