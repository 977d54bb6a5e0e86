"""vLLM's loader "gpushm": one copy of the weights for all servers of a pod.

The first server loads as vLLM does, publishes the weights as they are after post-processing, and goes on
with the shared copy. Each further one builds its model without memory, and takes the shared weights in
place, for reading. Which weights fit is decided by vLLM's own fingerprint of its weight cache, and which
quantisations can be shared by vLLM's own list, `supports_pre_processed_weights`.

Options, as --model-loader-extra-config '{"name": "weights"}':
- name: the buffer; by default "vllm-" and the fingerprint's hash, so each configuration has its own.
- timeout: seconds to wait for a server that is loading (1800).
- load_format: how the first server loads ("auto"). Options that are not ours are passed to that loader.
"""

import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import pathlib
import time

import torch
from vllm.distributed.parallel_state import (get_dp_group, get_pp_group, get_tensor_model_parallel_rank,
                                             get_tensor_model_parallel_world_size)
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.model_loader.weight_cache.protocol import (
    UnsupportedQuantForIPCError, WeightCacheKey, check_ipc_quant_support)
from vllm.model_executor.model_loader.weight_cache.utils import export_model_attrs
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

from gpushm import _default, tensors as _tensors
from gpushm.errors import AlreadyExists, Loading, NotFound, Status, Timeout, from_status
from gpushm.integrations import _modules

# In vLLM's hierarchy of loggers, so that its settings apply.
logger = init_logger("vllm.gpushm.loader")

_KEY, _ATTRIBUTES = "vllm.key", "vllm.attributes"
_WAIT_STEP_S = 1.0
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class GpushmModelLoader(BaseModelLoader):
    """See the module. One object loads one model, in one thread."""

    def __init__(self, load_config):
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self._name = extra.pop("name", None)
        self._timeout = float(extra.pop("timeout", 1800))
        self._held = None
        self._inner = dataclasses.replace(load_config, load_format=extra.pop("load_format", "auto"),
                                          model_loader_extra_config=extra)

    def download_model(self, model_config):
        get_model_loader(self._inner).download_model(model_config)

    def load_weights(self, model, model_config):
        """For a reload in place, which cannot be: the memory is shared, and mapped for reading."""
        raise from_status(
            Status.UNSUPPORTED, "weights that were loaded by --load-format gpushm cannot be reloaded in place",
            "restart the server, or serve with another load format and the weight transfer backend gpushm")

    def get_external_weight_memory(self, vllm_config):
        """Bytes that the broker holds for this server. If another server is loading, it waits for it: the
        memory that vLLM measures next must not change under it."""
        client = _default.client()
        name, _ = self._identify(vllm_config, vllm_config.model_config)
        found = self._wait_or_lead(client, name, lead=False)
        return 0 if found is None else client.lookup(name).nbytes

    def load_model(self, vllm_config, model_config, prefix=""):
        _refuse(vllm_config, model_config)
        client = _default.client()
        name, key = self._identify(vllm_config, model_config)
        opened = self._wait_or_lead(client, name, lead=True)
        target = torch.device(self.load_config.device or vllm_config.device_config.device)
        if opened is not None:
            _check_device(opened.buffer, target)
            return self._adopt(opened, key, vllm_config, model_config, prefix, target)
        try:
            _check_device(self._held, target)
            return self._lead(client, name, key, vllm_config, model_config, prefix)
        finally:
            self._end_lead(client, name)

    # ---- who loads

    def _wait_or_lead(self, client, name, lead):
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
                logger.info("waiting for the server that loads the weights \"%s\"", name)
                told = True
            if time.monotonic() > end:
                raise from_status(
                    Status.TIMEOUT, f"another server has been loading \"{name}\" for {self._timeout:g} s",
                    "check that server's log, or raise \"timeout\" in --model-loader-extra-config")
            with contextlib.suppress(Timeout):
                client.wait(name, 0, min(self._timeout, _WAIT_STEP_S))

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

    # ---- what fits

    def _identify(self, vllm_config, model_config):
        """The buffer's name, and the fingerprint. vLLM's own has no content of the files: fine-tuned models
        differ in nothing else, so size and time of each file are added."""
        parallel = vllm_config.parallel_config
        pp_group, dp_group = get_pp_group(), get_dp_group()
        speculative = vllm_config.speculative_config
        key = WeightCacheKey.from_model_config(
            model_config, get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank(),
            cache_config=vllm_config.cache_config, pp_size=pp_group.world_size,
            pp_rank=pp_group.rank_in_group, dp_size=dp_group.world_size, dp_rank=dp_group.rank_in_group,
            is_draft=speculative is not None and model_config is speculative.draft_model_config,
            enable_expert_parallel=parallel.enable_expert_parallel,
            expert_placement_strategy=parallel.expert_placement_strategy,
            kernel_config=vllm_config.kernel_config)
        fields = {field: str(value) for field, value in dataclasses.asdict(key).items()}
        fields["files"] = _files(model_config)
        fields["torch_version"] = torch.__version__
        fields["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        if self._name is None:
            digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
            return f"vllm-{digest[:24]}", fields
        ranks = [f"{what}{rank}" for what, size, rank in (
            ("tp", key.tp_size, key.tp_rank), ("pp", key.pp_size, key.pp_rank),
            ("dp", key.dp_size, key.dp_rank)) if size > 1]
        return "-".join([self._name, *(["draft"] if key.is_draft else []), *ranks]), fields

    # ---- the first server

    def _lead(self, client, name, key, vllm_config, model_config, prefix):
        model = get_model_loader(self._inner).load_model(vllm_config=vllm_config, model_config=model_config,
                                                         prefix=prefix)
        _check_quantisation(model)
        attributes = json.dumps(export_model_attrs(model))
        _modules.publish(model, name, client=client, timeout=self._timeout,
                         metadata={_KEY: json.dumps(key), _ATTRIBUTES: attributes})
        opened = _tensors.open(name, client=client)
        shared = _modules.exchange(model, opened)
        gc.collect()
        torch.accelerator.empty_cache()
        logger.info("published the weights as \"%s\": %d tensors, %.2f GiB", name, shared,
                    opened.nbytes / 2**30)
        return model

    # ---- the others

    def _adopt(self, opened, key, vllm_config, model_config, prefix, target):
        _check_key(opened, key)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            _check_quantisation(model)
            _modules.adopt(model, opened, extend=True)
            for attribute, value in json.loads(opened.metadata[_ATTRIBUTES]).items():
                setattr(model, attribute, value)
            # The quantisations rebuild what they keep in Python, and leave the tensors alone.
            with weights_already_processed():
                process_weights_after_loading(model, model_config, target)
            _fill_rest(model, target)
        logger.info("took the weights \"%s\", generation %d: %d tensors, %.2f GiB shared", opened.name,
                    opened.generation, len(opened), opened.nbytes / 2**30)
        return model.eval()


def _look(client, name):
    """The set of that name; None if nobody has published it yet."""
    for _ in range(2):  # It may be published between the two calls.
        with contextlib.suppress(NotFound, Loading, Timeout):
            return _tensors.open(name, timeout=0)
        try:
            info = client.lookup(name)
        except NotFound:
            return None
        if info.state == "loading":
            return None  # The pod declares it, and nobody has filled it.
    raise from_status(Status.INCOMPATIBLE, f"the buffer \"{name}\" exists, and holds no tensors",
                      "give \"name\" in --model-loader-extra-config another value, or delete the buffer")


def _check_device(buffer, target):
    """One broker serves one GPU."""
    if target.type != "cuda":
        return
    index = torch.cuda.current_device() if target.index is None else target.index
    if buffer.device != index:
        raise from_status(
            Status.UNSUPPORTED, f"the broker's memory is on GPU {buffer.device}, and this worker on GPU {index}",
            "use --load-format gpushm with one GPU for each server")


def _leader_name(name):
    return f"{name[:48]}-loading"


def _is_led(client, name):
    try:
        client.lookup(_leader_name(name))
    except NotFound:
        return False
    return True


def _files(model_config):
    folder = pathlib.Path(model_config.model)
    if not folder.is_dir():
        commit = getattr(model_config.hf_config, "_commit_hash", None)
        return f"{model_config.model}@{commit or model_config.revision}"
    found = sorted(each for each in folder.iterdir() if each.suffix in _WEIGHT_FILES)
    return " ".join(f"{each.name}:{each.stat().st_size}:{each.stat().st_mtime_ns}" for each in found)


def _check_key(opened, key):
    theirs = opened.metadata.get(_KEY)
    if theirs is None:
        raise from_status(Status.INCOMPATIBLE, f"\"{opened.name}\" was not published by this loader",
                          "give \"name\" in --model-loader-extra-config another value, or delete the buffer")
    theirs = json.loads(theirs)
    if differ := sorted(each for each in {*theirs, *key} if theirs.get(each) != key.get(each)):
        shown = "; ".join(f"{each} is {theirs.get(each)}, here {key.get(each)}" for each in differ[:3])
        raise from_status(
            Status.INCOMPATIBLE, f"\"{opened.name}\" has weights of another configuration: {shown}",
            "start this server with the same options and the same files, or without \"name\" in "
            "--model-loader-extra-config")


def _check_quantisation(model):
    try:
        check_ipc_quant_support(model)
    except UnsupportedQuantForIPCError as error:
        raise from_status(Status.UNSUPPORTED, f"these weights cannot be shared: {error}",
                          "serve this model without --load-format gpushm") from error


def _refuse(vllm_config, model_config):
    """What would write to shared weights, or move them."""
    refused = {
        "sleep mode (--enable-sleep-mode)": getattr(model_config, "enable_sleep_mode", False),
        "expert load balancing (--enable-eplb)": vllm_config.parallel_config.enable_eplb,
        "a weight transfer (--weight-transfer-config)": vllm_config.weight_transfer_config is not None,
    }
    for what, used in refused.items():
        if used:
            raise from_status(Status.UNSUPPORTED, f"--load-format gpushm does not go with {what}: it changes "
                              "weights that are shared for reading", "leave one of the two out")


def _fill_rest(model, device):
    """Parameters and buffers that the publisher's post-processing removed. Nothing reads them; zeros rather
    than what is left in memory. Plain attributes stay on the device meta, where reading them is an error."""
    rest = []
    for owner_name, owner in model.named_modules():
        for kept, wrap in ((owner._parameters, lambda t: torch.nn.Parameter(t, requires_grad=False)),
                           (owner._buffers, lambda t: t)):
            for leaf in [leaf for leaf, tensor in kept.items() if tensor is not None and tensor.is_meta]:
                kept[leaf] = wrap(torch.zeros_like(kept[leaf], device=device))
                rest.append(f"{owner_name}.{leaf}".removeprefix("."))
    if rest:
        logger.warning("%d tensors are not among the shared ones and are zeros now: %s", len(rest),
                       ", ".join(rest[:5]))
