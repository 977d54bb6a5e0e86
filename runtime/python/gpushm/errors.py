"""The exceptions of gpushm: one for each status of the C interface, all of them `Error`.

Each also derives from Python's own exception for that kind of failure, so that code which knows
nothing of gpushm can handle it: `except TimeoutError`, `except LookupError`.
"""

import enum


class Status(enum.IntEnum):
    """The numbers of the C interface (gpushm.h). They never change; later versions may add some."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    ALREADY_EXISTS = 3
    DENIED = 4
    EXHAUSTED = 5
    CONTENDED = 6
    TIMEOUT = 7
    INCOMPATIBLE = 8
    CORRUPT = 9
    UNAVAILABLE = 10
    ORPHANED = 11
    STALE = 12
    PEER_DIED = 13
    DEVICE_LOST = 14
    BUSY = 15
    UNSUPPORTED = 16
    DRIVER = 17
    SYSTEM = 18
    FORKED = 19
    LOADING = 20
    INTERNAL = 21
    ENDED = 22


class Error(Exception):
    """A call of gpushm failed. The text has the cause and the remedy.

    `status` is the Status, `what` the cause alone, and `remedy` what to do about it ("" if there is
    nothing to say).
    """

    status = Status.INTERNAL
    what = ""
    remedy = ""


class InvalidArgument(Error, ValueError):
    """An argument is invalid; the text names it."""

    status = Status.INVALID_ARGUMENT


class NotFound(Error, LookupError):
    """There is no buffer, file, tensor or GPU of that name."""

    status = Status.NOT_FOUND


class AlreadyExists(Error, FileExistsError):
    """The name is taken."""

    status = Status.ALREADY_EXISTS


class Denied(Error, PermissionError):
    """The pod's annotations do not allow this container to do it."""

    status = Status.DENIED


class Exhausted(Error, MemoryError):
    """A limit, the pod's pool or the GPU is full."""

    status = Status.EXHAUSTED


class Contended(Error):
    """Bounded retries ran out; try again."""

    status = Status.CONTENDED


class Timeout(Error, TimeoutError):
    """The deadline passed."""

    status = Status.TIMEOUT


class Incompatible(Error):
    """The library and the broker have no protocol version in common, or the tensors are newer."""

    status = Status.INCOMPATIBLE


class Corrupt(Error, ValueError):
    """Shared or received bytes are invalid."""

    status = Status.CORRUPT


class Unavailable(Error, ConnectionError):
    """No broker answers."""

    status = Status.UNAVAILABLE


class Orphaned(Error):
    """The broker restarted without this buffer."""

    status = Status.ORPHANED


class Stale(Error):
    """The name refers to another generation now, or was deleted."""

    status = Status.STALE


class PeerDied(Error, ConnectionError):
    """The process at the other end died."""

    status = Status.PEER_DIED


class DeviceLost(Error):
    """The GPU must be reset."""

    status = Status.DEVICE_LOST


class Busy(Error):
    """Work still uses it, or another process writes it."""

    status = Status.BUSY


class Unsupported(Error):
    """This driver, GPU, kernel, memory or type cannot do it."""

    status = Status.UNSUPPORTED


class DriverError(Error):
    """A call of the CUDA driver failed; the text says which and how."""

    status = Status.DRIVER


class SystemCallError(Error, OSError):
    """A system call failed; the text says which and how."""

    status = Status.SYSTEM


class Forked(Error):
    """A child of fork() used what its parent opened, or CUDA after its parent had initialised it."""

    status = Status.FORKED


class Loading(Error):
    """The buffer's content is still being loaded."""

    status = Status.LOADING


class InternalError(Error):
    """A bug in gpushm; please report it."""

    status = Status.INTERNAL


class Ended(Error):
    """The writer, or a participant of a barrier, closed it."""

    status = Status.ENDED


_CLASSES = {each.status: each for each in Error.__subclasses__()}


def from_status(status, what, remedy=""):
    """The exception for a status of the C interface."""
    kind = _CLASSES.get(status, Error)
    error = kind(f"{what} ({remedy})" if remedy else what)
    if status in Status._value2member_map_:
        error.status = Status(status)
    error.what, error.remedy = what, remedy
    return error
