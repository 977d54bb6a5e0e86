"""Ring.put, and iteration over rings and queues."""

from gpushm import _source, _streams
from gpushm.errors import Ended


def put(ring, array, metadata, stream, timeout):
    source = _source.of(array)
    frame = ring.begin(timeout)
    try:
        if metadata is None:
            frame.describe(source.dtype, source.shape)
        else:
            frame.metadata = metadata
        if source.host is not None:
            frame.write(source.host)
            stream = _streams.HOST
        else:
            stream = _streams.handle(stream)
            frame._copy_from(source.address, source.nbytes, stream)
            frame.nbytes = source.nbytes
        frame.end(stream)
    except BaseException:
        frame.give_back()
        raise


def frames(ring):
    """Yields frames until the writer ends. Each is ended when the next one is taken, and given back
    if the loop's body raises or leaves the loop: then this generator is closed at its `yield`.
    """
    while True:
        try:
            frame = ring.read(timeout=None)
        except Ended:
            return
        with frame:
            yield frame
