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

import dataclasses

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

from gpushm import _default
from gpushm.errors import Status, from_status
from gpushm.integrations import _modules, _shared_loader

# In vLLM's hierarchy of loggers, so that its settings apply.
logger = init_logger("vllm.gpushm.loader")


class GpushmModelLoader(BaseModelLoader):
    """See the module. One object loads one model, in one thread."""

    def __init__(self, load_config):
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self._shared = _shared_loader.SharedWeights("vllm", extra, logger)
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
        found = self._shared.find(client, name)
        return 0 if found is None else client.lookup(name).nbytes

    def load_model(self, vllm_config, model_config, prefix=""):
        _refuse(vllm_config, model_config)
        client = _default.client()
        name, key = self._identify(vllm_config, model_config)
        target = torch.device(self.load_config.device or vllm_config.device_config.device)
        return self._shared.load(
            client, name, target, lambda: self._lead(client, name, key, vllm_config, model_config, prefix),
            lambda opened: self._adopt(opened, key, vllm_config, model_config, prefix, target))

    # ---- what fits

    def _identify(self, vllm_config, model_config):
        """The buffer's name, and the fingerprint. vLLM's own has no content of the files: fine-tuned models
        differ in nothing else, so the digest of each file is added."""
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
        commit = getattr(model_config.hf_config, "_commit_hash", None)
        fields["files"] = _shared_loader.files(model_config.model,
                                               f"{model_config.model}@{commit or model_config.revision}")
        fields |= _shared_loader.machine()
        ranks = [f"{what}{rank}" for what, size, rank in (
            ("tp", key.tp_size, key.tp_rank), ("pp", key.pp_size, key.pp_rank),
            ("dp", key.dp_size, key.dp_rank)) if size > 1]
        return self._shared.name(fields, [*(["draft"] if key.is_draft else []), *ranks]), fields

    # ---- the first server

    def _lead(self, client, name, key, vllm_config, model_config, prefix):
        model = get_model_loader(self._inner).load_model(vllm_config=vllm_config, model_config=model_config,
                                                         prefix=prefix)
        _check_quantisation(model)
        self._shared.publish(client, name, key, model, export_model_attrs(model))
        return model

    # ---- the others

    def _adopt(self, opened, key, vllm_config, model_config, prefix, target):
        attributes = self._shared.attributes(opened, key)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            _check_quantisation(model)
            _modules.adopt(model, opened, extend=True)
            for attribute, value in attributes.items():
                setattr(model, attribute, value)
            # The quantisations rebuild what they keep in Python, and leave the tensors alone.
            with weights_already_processed():
                process_weights_after_loading(model, model_config, target)
            _fill_rest(model, target)
        self._shared.tell_adopted(opened)
        return model.eval()


def _check_quantisation(model):
    try:
        check_ipc_quant_support(model)
    except UnsupportedQuantForIPCError as error:
        raise _shared_loader.cannot_share(error) from error


def _refuse(vllm_config, model_config):
    _shared_loader.refuse({
        "sleep mode (--enable-sleep-mode)": getattr(model_config, "enable_sleep_mode", False),
        "expert load balancing (--enable-eplb)": vllm_config.parallel_config.enable_eplb,
        "a weight transfer (--weight-transfer-config)": vllm_config.weight_transfer_config is not None,
    })


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
