"""The client of this process: connected at its first use, and anew in a child of fork()."""

import os
import threading

from gpushm import _native

_lock = threading.Lock()
_client = None


def client():
    """The default client."""
    global _client
    found = _client
    if found is not None and not found.closed:
        return found
    with _lock:
        if _client is None or _client.closed:
            _client = _native.Client()
        return _client


def _after_fork():
    global _lock, _client
    _lock = threading.Lock()
    _client = None


os.register_at_fork(after_in_child=_after_fork)
