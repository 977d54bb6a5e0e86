"""SGLang's loader "gpushm": one copy of the weights for all servers of a pod.

The first server loads as SGLang does, publishes the weights as they are after post-processing, and goes on
with the shared copy. Each further one builds its model without memory, and takes the shared weights in
place, for reading. Post-processing does not run again. What it left in Python travels with the tensors, and
each server compares that with what it has built.

Which quantisations can be shared is decided by SGLang's own list for its weight cache, and which weights
fit by that cache's fingerprint, with the options that choose kernels, the files and the GPU added.

Options, as --model-loader-extra-config '{"name": "weights"}':
- name: the buffer; by default "sglang-" and the fingerprint's hash, so each configuration has its own.
- timeout: seconds to wait for a server that is loading (1800).
- load_format: how the first server loads ("auto"). Options that are not ours are passed to that loader.
"""

import functools
import hashlib
import json
import logging
import pkgutil

import torch
from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.managers.io_struct import BeginWeightUpdateReqOutput
from sglang.srt.model_loader.loader import (
    BaseModelLoader, _get_quantization_config, _initialize_model, get_model_loader)
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec, get_model, get_parallel
from sglang.srt.weight_cache.protocol import (
    CacheConfig, compute_env_stamp, get_quant_method_name, hash_quant_config, is_ipc_quant_supported)
from sglang.version import __version__

from gpushm import _default
from gpushm.errors import Status, from_status
from gpushm.integrations import _modules, _shared_loader

logger = logging.getLogger(__name__)

# Groups of options that choose kernels, and with them the layout of weights.
_KERNEL_OPTIONS = ("kernel", "moe", "mamba", "deterministic")
_MODEL_OPTIONS = ("model_impl", "json_model_override_args", "kv_cache_dtype")
_UPDATES = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_SESSIONS = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


class GpushmModelLoader(BaseModelLoader):
    """See the module. One object loads one model, in one thread."""

    def __init__(self, load_config):
        options = dict(load_config.model_loader_extra_config or {})
        self._shared = _shared_loader.SharedWeights("sglang", options, logger)
        # In place: SGLang keeps the object, and loads the files of LoRA adapters by it later.
        load_config.load_format = LoadFormat(options.pop("load_format", "auto"))
        load_config.model_loader_extra_config = options
        super().__init__(load_config)

    def download_model(self, model_config):
        get_model_loader(self.load_config, model_config).download_model(model_config)

    def load_model(self, *, model_config, device_config):
        _refuse()
        client = _default.client()
        name, fields = self._identify(model_config)
        device = device_config.device
        target = torch.device(device.type, device_config.gpu_id) if device.type == "cuda" else device
        model = self._shared.load(
            client, name, target, lambda: self._lead(client, name, fields, model_config, device_config),
            lambda opened: self._adopt(opened, fields, model_config))
        _refuse_updates()
        return model.eval()

    def _identify(self, model_config):
        """The buffer's name, and the fingerprint."""
        method, quantisation = _quantisation(model_config)
        if not is_ipc_quant_supported(method, quantisation):
            raise _shared_loader.cannot_share(
                f"SGLang does not list the quantisation \"{method}\" as one whose state is in its tensors")
        parallel = get_parallel()
        architectures = model_config.hf_config.architectures or [""]
        key = CacheConfig(
            model_path=model_config.model_path, model_arch=architectures[0], tp_size=parallel.tp_size,
            tp_rank=parallel.tp_rank, pp_size=parallel.pp_size, pp_rank=parallel.pp_rank,
            dp_size=parallel.dp_size, ep_size=parallel.moe_ep_size, moe_dp_size=parallel.moe_dp_size,
            moe_dp_rank=parallel.moe_dp_rank, moe_ep_rank=parallel.moe_ep_rank,
            attn_dp_size=parallel.attn_dp_size, enable_dp_lm_head=parallel.enable_dp_lm_head,
            attn_cp_size=parallel.attn_cp_size, moe_dense_tp_size=parallel.moe_dense_tp_size,
            moe_a2a_backend=get_exec().moe.moe_a2a_backend, quant_method=method,
            quant_config_hash=hash_quant_config(quantisation), dtype=str(model_config.dtype),
            revision=model_config.revision or "", **compute_env_stamp())
        commit = getattr(model_config.hf_config, "_commit_hash", None)
        config = json.dumps(model_config.hf_config.to_dict(), sort_keys=True, default=str)
        fields = {each: str(value) for each, value in key.to_dict().items()} | _shared_loader.machine() | {
            "sglang_version": __version__, "config": hashlib.sha256(config.encode()).hexdigest(),
            "draft": f"{model_config.is_draft_model} {self.load_config.draft_model_idx}",
            "load_format": self.load_config.load_format.value,
            "files": _shared_loader.files(model_config.model_path,
                                          f"{model_config.model_path}@{commit or model_config.revision}")}
        fields |= {f"kernels.{group}": _options(getattr(get_exec(), group)) for group in _KERNEL_OPTIONS}
        fields |= {each: str(getattr(get_model(), each)) for each in _MODEL_OPTIONS}
        fields["enable_fp32_lm_head"] = str(get_exec().features.enable_fp32_lm_head)
        draft = f"draft{self.load_config.draft_model_idx or 0}"
        ranks = [f"{what}{rank}" for what, size, rank in (
            ("tp", key.tp_size, key.tp_rank), ("pp", key.pp_size, key.pp_rank)) if size > 1]
        return self._shared.name(fields, [*([draft] if model_config.is_draft_model else []), *ranks]), fields

    def _lead(self, client, name, fields, model_config, device_config):
        model = get_model_loader(self.load_config, model_config).load_model(
            model_config=model_config, device_config=device_config)
        state, cannot = _modules.state(model)
        _check(cannot)
        self._shared.publish(client, name, fields, model, state)
        return model

    def _adopt(self, opened, fields, model_config):
        state = self._shared.attributes(opened, fields)
        quantisation = _get_quantization_config(model_config, self.load_config)
        with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
            model = _initialize_model(model_config, self.load_config, quantisation).eval()
        changed, removed, cannot = _modules.changes(model, state)
        _check(cannot)
        _modules.adopt(model, opened, extend=True)
        _modules.apply(model, changed, removed)
        if missing := _modules.on_meta(model):
            raise from_status(
                Status.INCOMPATIBLE,
                f"\"{opened.name}\" lacks {missing[0]} and {len(missing) - 1} more tensors",
                "serve this model without --load-format gpushm")
        self.preloaded_weights_bytes = opened.buffer.nbytes
        self._shared.tell_adopted(opened)
        return model


def _check(cannot):
    if cannot:
        more = f", and {len(cannot) - 3} more" if len(cannot) > 3 else ""
        raise _shared_loader.cannot_share(
            f"loading leaves more than tensors in the model: {', '.join(cannot[:3])}{more}")


def _quantisation(model_config):
    """The method's name and its configuration, as SGLang's weight cache takes them."""
    config = getattr(model_config.hf_config, "quantization_config", None)
    return get_quant_method_name(model_config.quantization) or get_quant_method_name(config), config


def _options(group):
    return " ".join(f"{name}={value}" for name, value in sorted(vars(group).items())
                    if not name.startswith("_"))


def _refuse():
    model, moe, offload = get_model(), get_exec().moe, get_exec().offload
    _shared_loader.refuse({
        "--enable-memory-saver": get_exec().features.enable_memory_saver,
        "--enable-eplb": moe.enable_eplb,
        "--elastic-ep-backend": moe.elastic_ep_backend is not None,
        "--enable-paged-experts": moe.enable_paged_experts,
        "--cpu-offload-gb": offload.cpu_offload_gb > 0,
        "--offload-group-size": offload.offload_group_size > 0,
        "--weight-cache-mode": model.weight_cache_mode != "off",
        "--checkpoint-engine-wait-weights-before-ready": model.checkpoint_engine_wait_weights_before_ready,
        "--dwdp-size": get_parallel().dwdp_size > 1,
    })


_WHY = ("the weights are shared for reading (--load-format gpushm): restart the server, or serve with "
        "another load format")


@functools.cache
def _refuse_updates():
    """From now on, requests that would write to this process's weights get an error as their answer. A write
    would be an illegal access, which ends the process."""
    for target, answer in (
            (f"{_UPDATES}.update_weights_from_disk", (False, _WHY)),
            (f"{_UPDATES}.update_weights_from_ipc", (False, _WHY)),
            # The other ways to update need a session.
            (f"{_SESSIONS}.begin_weight_update", BeginWeightUpdateReqOutput(success=False, message=_WHY))):
        pkgutil.resolve_name(target)  # HookRegistry would only log that it is missing.
        HookRegistry.register(target, lambda *_, answer=answer, **__: answer, HookType.REPLACE)
    HookRegistry.apply_hooks()
