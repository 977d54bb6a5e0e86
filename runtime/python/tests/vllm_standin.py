"""The pinned vLLM without its dependencies: the modules that the integration works with come from the wheel
as they are, and the rest of vLLM is empty.
"""

import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
import types

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


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of vLLM: from a contract.Sources, or empty."""

    def __init__(self, sources):
        self._sources = sources

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        vars(module).update(GIVEN.get(name, {}))
        if name in REAL:
            path = self._sources.path(name)
            exec(compile(self._sources.text(path), path, "exec"), vars(module))
            return

        def missing(attribute):
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            if any(f"{each}.".startswith(f"{name}.{attribute}.") for each in [*REAL, *GIVEN]):
                return importlib.import_module(f"{name}.{attribute}")
            made = type(attribute, (), {})  # For annotations and isinstance: nothing is one.
            setattr(module, attribute, made)
            return made

        module.__getattr__ = missing


@contextlib.contextmanager
def installed(sources):
    """While it is active, `import vllm` gives the stand-in."""
    ours = [name for name in sys.modules if name.startswith("gpushm.integrations.vllm")]
    kept = {name: sys.modules.pop(name) for name in ours}
    finder = Finder(sources)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"
                     or name.startswith("gpushm.integrations.vllm")]:
            del sys.modules[name]
        sys.modules.update(kept)
