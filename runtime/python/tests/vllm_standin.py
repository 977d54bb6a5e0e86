"""The pinned vLLM without its dependencies: the modules that the integration works with come from the wheel
as they are, and the rest of vLLM is empty.
"""

import contextlib
import hashlib
import logging
import types

import contract

LOADER = "vllm.model_executor.model_loader"
# From the wheel, as they are.
REAL = {
    "vllm.distributed.weight_transfer.base", "vllm.distributed.weight_transfer.factory",
    "vllm.model_executor.layers.quantization.base_config", "vllm.model_executor.utils",
    LOADER, f"{LOADER}.base_loader", f"{LOADER}.utils", f"{LOADER}.weight_cache.protocol",
}


class _Logger(logging.Logger):
    info_once = logging.Logger.info
    debug_once = logging.Logger.debug
    warning_once = logging.Logger.warning


@contextlib.contextmanager
def _nothing(*_, **__):
    yield


def _group():
    return types.SimpleNamespace(world_size=1, rank_in_group=0)


# What code that runs calls in modules that are not from the wheel.
GIVEN = {
    "vllm.envs": {"VLLM_LOG_MODEL_INSPECTION": False},
    "vllm.logger": {"init_logger": _Logger},
    "vllm.tracing": {"instrument": lambda **_: lambda function: function},
    "vllm.version": {"__version__": "0.33.0"},
    "vllm.config": {"set_current_vllm_config": _nothing},
    "vllm.config.utils": {"normalize_value": lambda value: value},
    "vllm.platforms": {"current_platform": types.SimpleNamespace(
        is_cuda_alike=lambda: False, is_xpu=lambda: False, is_cuda=lambda: False, is_cpu=lambda: True)},
    "vllm.distributed.parallel_state": {
        "get_dp_group": _group, "get_pp_group": _group, "get_tensor_model_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_world_size": lambda: 1},
    "vllm.model_executor.layers.attention": {"is_deferred_attention_layer": lambda module: False},
    "vllm.model_executor.models.expert_substitution": {"as_expert_substitution_model": lambda kind, _: kind},
    f"{LOADER}.weight_tying": {"maybe_retie_word_embeddings": lambda *_: None},
    f"{LOADER}.mtp_validation": {"disable_mtp_completeness_check": _nothing},
    f"{LOADER}.reload": {"record_metadata_for_reloading": lambda model: None,
                         "initialize_layerwise_reload": lambda model: model.began(),
                         "finalize_layerwise_reload": lambda model, _: model.finished()},
    f"{LOADER}.weight_cache.utils": {"export_model_attrs": lambda model: {"has_own_head": model.has_own_head}},
    "vllm.utils.hashing": {"safe_hash": lambda data, usedforsecurity=True: hashlib.sha256(data)},
    "vllm.utils.mem_utils": {"release_device_memory_under_pressure": lambda device: None,
                             "format_gib": lambda size: str(size)},
    "vllm.utils.torch_utils": {"set_default_torch_dtype": _nothing},
}


def installed(sources):
    """While it is active, `import vllm` gives the stand-in."""
    return contract.standin(sources, "vllm", REAL, GIVEN)
