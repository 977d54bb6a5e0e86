"""gpushm: named GPU memory that the containers of a pod share.

    import gpushm, torch
    weights = gpushm.attach("weights")           # waits until somebody has made and loaded it
    tensor = torch.from_dlpack(weights.view("float16", (4096, 4096)))

- `gpushm.tensors`: sets of tensors by name, and new generations of them.
- `gpushm.torch`: the same for PyTorch, as `load_file` and `save_file`.
- `gpushm.testing`: a broker without a GPU, for tests.

The functions of this module use the client of the process, which connects at its first use, to the
broker in $GPUSHM_DIR or /run/gpushm. `connect` makes further ones. Errors are subclasses of
`gpushm.Error`, and of Python's own exceptions.
"""

from gpushm import _library  # Loads libgpushm; before anything else.
from gpushm import _default, _exit, _native, errors
from gpushm._native import (Array, Barrier, BrokerInfo, Buffer, Client, Event, Frame, Gpu, Holder, Info,
                            OfferResult, OfferState, Queue, Ring, Signal, SyncInfo, TransferResult,
                            Waiter, file_digest)
from gpushm._streams import HOST
from gpushm.errors import (AlreadyExists, Busy, Contended, Corrupt, Denied, DeviceLost, DriverError,
                           Ended, Error, Exhausted, Forked, Incompatible, InternalError,
                           InvalidArgument, Loading, NotFound, Orphaned, PeerDied, Stale, Status,
                           SystemCallError, Timeout, Unavailable, Unsupported)

__version__ = "1.0.0rc1"


def connect(folder=None, *, pod_uid=None, driver=None, timeout=10.0):
    """Connects to a broker, and returns a Client. It needs no GPU.

    `folder`: that of the broker's socket; None: $GPUSHM_DIR, or /run/gpushm. `pod_uid`: of another
    pod, for pods with hostIPC. `driver`: folder of libcuda.so.1; None: $GPUSHM_DRIVER, or where the
    dynamic loader finds it. `timeout`: seconds to wait for the broker to come up.

    Raises Unavailable, Denied, Incompatible, Exhausted (256 clients), Timeout.
    """
    return Client(folder, pod_uid=pod_uid, driver=driver, timeout=timeout)


def client():
    """The default client of this process."""
    return _default.client()


def _forward(name):
    method = getattr(Client, name)

    def call(*arguments, **options):
        return getattr(_default.client(), name)(*arguments, **options)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Client.{name} of the default client.\n\n{method.__doc__}"
    return call


attach = _forward("attach")
create = _forward("create")
replace = _forward("replace")
offer = _forward("offer")
offer_state = _forward("offer_state")
lookup = _forward("lookup")
list_buffers = _forward("list")
holders = _forward("holders")
wait = _forward("wait")
delete = _forward("delete")
load = _forward("load")
save = _forward("save")
description = _forward("description")
broker = _forward("broker")
gpus = _forward("gpus")
signal = _forward("signal")
barrier = _forward("barrier")
ring = _forward("ring")
queue = _forward("queue")
waiter = _forward("waiter")
sync_lookup = _forward("sync_lookup")


async def awatch(name, newer_than=0, *, client=None):
    """Yields the Info of each new generation of a buffer that is ready, for asyncio."""
    from gpushm import _aio

    async for info in _aio.awatch(client or _default.client(), name, newer_than):
        yield info


def about():
    """What this package uses and sees, as a dict: for bug reports.

    "version", of the package; "library", "library_version" and "library_origin" ("node", "wheel" or
    "GPUSHM_LIBRARY"); "library_refused", why others were left out; "driver" and "gpus"; "broker". What
    cannot be found out has the error's text instead.
    """
    def found(question):
        try:
            return question()
        except Error as error:
            return f"{type(error).__name__}: {error}"

    def describe_broker():
        info = _default.client().broker()
        return {name: getattr(info, name) for name in (
            "container", "gpu_uuid", "pool_nbytes", "used_nbytes", "clients", "simulated")}

    version, driver = _native.library_version(), found(_native.driver_version)
    return {
        "version": __version__,
        "library": _native.library_file(),
        "library_version": f"{version // 10000}.{version // 100 % 100}.{version % 100}",
        "library_origin": _library.origin,
        "library_refused": _library.refused,
        "driver": f"CUDA {driver // 1000}.{driver % 1000 // 10}" if isinstance(driver, int) else driver,
        "gpus": found(_native.devices),
        "broker": found(describe_broker),
    }
