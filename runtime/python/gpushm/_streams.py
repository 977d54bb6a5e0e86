"""What callers may pass as a stream."""

import sys

# GPUSHM_NO_STREAM of sync.h.
_HOST = 2**64 - 1
_LEGACY = 1
_PER_THREAD = 2


class _Host:
    """In place of a stream: the host does the work, so a call waits until it may begin."""

    def __repr__(self):
        return "gpushm.HOST"


HOST = _Host()


def current():
    """The stream that PyTorch or CuPy launches on now; HOST if the process uses neither on a GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch.cuda.current_stream()
    if (cupy := sys.modules.get("cupy")) is not None:
        return cupy.cuda.get_current_stream()
    return HOST


def handle(stream):
    """The CUstream of a stream as an int. `stream` is an int, a stream of PyTorch, CuPy or Numba, an
    object with __cuda_stream__, HOST, or None for the framework's present stream.
    """
    if stream is None:
        stream = current()
    if stream is HOST:
        return _HOST
    if isinstance(stream, int):
        number = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        number = (protocol() if callable(protocol) else protocol)[1]
    else:
        number = next((getattr(stream, name) for name in ("cuda_stream", "ptr", "handle")
                       if hasattr(stream, name)), None)
        number = getattr(number, "value", number)
        if not isinstance(number, int):
            raise TypeError(f"{stream!r} is not a stream: pass an int, a stream of PyTorch or CuPy, an "
                            "object with __cuda_stream__, or gpushm.HOST")
    return number or _LEGACY
