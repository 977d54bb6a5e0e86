"""Which libgpushm this process uses.

The node puts its own libgpushm.so.0 into each container, where the dynamic loader finds it, and an
update of gpushm replaces it. So that one is preferred, if it has every function that this package
calls. The copy in the wheel is for containers without it, and for nodes that are older than the
wheel.
"""

import os
import pathlib

from gpushm import _native

OWN = pathlib.Path(__file__).with_name("lib") / "libgpushm.so.0"


def candidates():
    """Pairs of where a library comes from and its file, in the order of preference."""
    if chosen := os.environ.get("GPUSHM_LIBRARY"):
        return [("GPUSHM_LIBRARY", chosen)]
    return [("node", "libgpushm.so.0"), ("wheel", str(OWN))]


def load():
    """Loads the library to use, and returns where it comes from and why others were left out."""
    refused = []
    for origin, file in candidates():
        why = _native.load_library(file)
        if not why:
            return origin, refused
        refused.append(f"{file}: {why}")
    raise ImportError(
        "no libgpushm can be used: " + "; ".join(refused) + ". Run in a container that gpushm's "
        "plugin serves, install a wheel that carries the library, or set GPUSHM_LIBRARY to its path")


origin, refused = load()
