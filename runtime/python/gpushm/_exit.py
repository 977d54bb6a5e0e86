"""What writes, or takes part, is closed when the interpreter exits, so that other processes learn
that it has ended and do not take it for dead. After an uncaught exception it stays open: then they
learn that the process died, which is what a reader must know.
"""

import atexit
import sys
import weakref

from gpushm import _native
from gpushm.errors import Error

_open = weakref.WeakSet()


def remember(thing):
    _open.add(thing)


@atexit.register
def _close_all():
    if hasattr(sys, "last_value"):
        return
    for thing in list(_open):
        try:
            thing.detach() if isinstance(thing, _native.Buffer) else thing.close()
        except (BufferError, Error):
            pass  # Arrays of it are alive, or the GPU is at work: the process's end ends both.
    _native.collect()
