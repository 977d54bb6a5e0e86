"""Client.offer: memory that the application already has."""

from gpushm import _source
from gpushm.errors import Status, from_status


def offer(client, name, array, *, writers="creator", one_writer=False, on_writer_exit="mark",
          allow_copy=False, stream=None, timeout=10.0):
    source = _source.of(array)
    if source.host is not None:
        raise from_status(Status.UNSUPPORTED, f"cannot offer \"{name}\": the array is in host memory",
                          "offer an array in GPU memory, or create a buffer and write into it")
    return client._offer(name, source.address, source.nbytes, writers=writers, one_writer=one_writer,
                         on_writer_exit=on_writer_exit, allow_copy=allow_copy, stream=stream,
                         device=source.device, timeout=timeout)
