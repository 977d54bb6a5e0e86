"""What the loaders of vLLM and SGLang share: one server loads and publishes, the others wait and take.

A loader of an engine says how a model is loaded or made, and which facts make two servers' weights equal
(its fingerprint). This module finds out who loads, and refuses a set that does not fit.
"""

import concurrent.futures
import contextlib
import functools
import gc
import hashlib
import json
import os
import pathlib
import time

import torch

from gpushm import _native, tensors as _tensors
from gpushm.errors import AlreadyExists, Loading, NotFound, Status, Timeout, from_status
from gpushm.integrations import _modules

_WAIT_STEP_S = 1.0
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_OTHER_NAME = "give \"name\" in --model-loader-extra-config another value, or delete the buffer"


class SharedWeights:
    """The weights of one model that the servers of a pod share. One object loads one model, in one thread.

    `engine`: "vllm" or "sglang". `options`: those of --model-loader-extra-config; "name" and "timeout" are
    taken out of it. `logger`: the engine's.
    """

    def __init__(self, engine, options, logger):
        self._engine, self._logger = engine, logger
        self._name = options.pop("name", None)
        self._timeout = float(options.pop("timeout", 1800))
        self._held = None

    def name(self, fields, parts):
        """The buffer's name: the user's with `parts`, or one that belongs to this fingerprint alone."""
        if self._name is not None:
            return "-".join([self._name, *parts])
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        return f"{self._engine}-{digest[:24]}"

    def load(self, client, name, target, lead, adopt):
        """Returns `adopt(set)` if somebody has published the weights, and else `lead()`, which publishes."""
        opened = self.find(client, name, lead=True)
        if opened is not None:
            _check_device(opened.buffer, target)
            return adopt(opened)
        try:
            _check_device(self._held, target)
            return lead()
        finally:
            self._end_lead(client, name)

    def find(self, client, name, *, lead=False):
        """The set, when it is there; None if this process is to load, as nobody does: with `lead` it then
        holds the name of who loads."""
        end = time.monotonic() + self._timeout
        told = False
        while True:
            if (opened := _look(client, name)) is not None:
                return opened
            if lead and self._try_to_lead(client, name):
                # Another server may have published, and ended its lead, since the first look.
                if (opened := _look(client, name)) is not None:
                    self._end_lead(client, name)
                return opened
            if not lead and not _is_led(client, name):
                return None
            if not told:
                self._logger.info("waiting for the server that loads the weights \"%s\"", name)
                told = True
            if time.monotonic() > end:
                raise from_status(
                    Status.TIMEOUT, f"another server has been loading \"{name}\" for {self._timeout:g} s",
                    "check that server's log, or raise \"timeout\" in --model-loader-extra-config")
            with contextlib.suppress(Timeout):
                client.wait(name, 0, min(self._timeout, _WAIT_STEP_S))

    def publish(self, client, name, fields, model, attributes):
        """Publishes a model that is ready to serve, with its fingerprint and what the engine keeps beside
        the tensors, and lets the model go on with the shared copy."""
        _modules.publish(model, name, client=client, timeout=self._timeout,
                         metadata={self._key("key"): json.dumps(fields),
                                   self._key("attributes"): json.dumps(attributes)})
        opened = _tensors.open(name, client=client)
        shared = _modules.exchange(model, opened)
        gc.collect()
        torch.accelerator.empty_cache()
        self._logger.info("published the weights as \"%s\": %d tensors, %.2f GiB", name, shared,
                          opened.nbytes / 2**30)

    def attributes(self, opened, fields):
        """What `publish` was given beside the tensors. Raises Incompatible for another fingerprint."""
        theirs = opened.metadata.get(self._key("key"))
        if theirs is None:
            raise from_status(Status.INCOMPATIBLE, f"\"{opened.name}\" was not published by this loader",
                              _OTHER_NAME)
        theirs = json.loads(theirs)
        if differ := sorted(each for each in {*theirs, *fields} if theirs.get(each) != fields.get(each)):
            shown = "; ".join(f"{each} is {theirs.get(each)}, here {fields.get(each)}" for each in differ[:3])
            raise from_status(
                Status.INCOMPATIBLE, f"\"{opened.name}\" has weights of another configuration: {shown}",
                "start this server with the same options and the same files, or without \"name\" in "
                "--model-loader-extra-config")
        return json.loads(opened.metadata[self._key("attributes")])

    def tell_adopted(self, opened):
        self._logger.info("took the weights \"%s\", generation %d: %d tensors, %.2f GiB shared", opened.name,
                          opened.generation, len(opened), opened.nbytes / 2**30)

    def _key(self, name):
        return f"{self._engine}.{name}"

    def _try_to_lead(self, client, name):
        """Makes the buffer that says who loads. It goes with this process, also if that is killed."""
        try:
            self._held = client.create(_leader_name(name), 1, on_writer_exit="drop", one_writer=True)
        except AlreadyExists:
            return False
        return True

    def _end_lead(self, client, name):
        with contextlib.suppress(NotFound):
            client.delete(_leader_name(name))
        self._held.detach()


def files(folder, otherwise):
    """The digest of each file of weights in a folder: fine-tuned models may differ in nothing else, not even
    in time, as those of an image. For the name of a model on a hub, what `otherwise` says."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        return otherwise
    found = sorted(each for each in folder.iterdir() if each.suffix in _WEIGHT_FILES)
    with concurrent.futures.ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        digests = pool.map(lambda each: _digest(each, _stamp(each)), found)
        return " ".join(f"{each.name}:{digest}" for each, digest in zip(found, digests, strict=True))


def _stamp(path):
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@functools.cache
def _digest(path, _):
    """Reads all of the file, once for as long as its stamp stays the same."""
    return _native.file_digest(path, "raw")


def machine():
    """The facts of a fingerprint that no engine adds: what made the weights as they are."""
    return {"torch_version": torch.__version__,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none"}


def refuse(options):
    """Raises Unsupported for the first option that is in use: what would write to shared weights, or move
    them. `options`: its name, to whether it is in use."""
    for what, used in options.items():
        if used:
            raise from_status(Status.UNSUPPORTED, f"--load-format gpushm does not go with {what}: it changes "
                              "weights that are shared for reading", "leave one of the two out")


def cannot_share(why):
    """The error for a model that other servers could not take."""
    return from_status(Status.UNSUPPORTED, f"these weights cannot be shared: {why}",
                       "serve this model without --load-format gpushm")


def _look(client, name):
    """The set of that name; None if nobody has published it yet."""
    for _ in range(2):  # It may be published between the two calls.
        with contextlib.suppress(NotFound, Loading, Timeout):
            return _tensors.open(name, timeout=0, client=client)
        try:
            info = client.lookup(name)
        except NotFound:
            return None
        if info.state == "loading":
            return None  # The pod declares it, and nobody has filled it.
    raise from_status(Status.INCOMPATIBLE, f"the buffer \"{name}\" exists, and holds no tensors", _OTHER_NAME)


def _check_device(buffer, target):
    """One broker serves one GPU."""
    if target.type != "cuda":
        return
    index = torch.cuda.current_device() if target.index is None else target.index
    if buffer.device != index:
        raise from_status(
            Status.UNSUPPORTED,
            f"the broker's memory is on GPU {buffer.device}, and this worker on GPU {index}",
            "use --load-format gpushm with one GPU for each server")


def _leader_name(name):
    return f"{name[:48]}-loading"


def _is_led(client, name):
    try:
        client.lookup(_leader_name(name))
    except NotFound:
        return False
    return True
