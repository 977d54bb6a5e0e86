"""The pinned SGLang without its dependencies: the modules that the integration works with come from the wheel
as they are, and the rest of SGLang is empty.
"""

import contextlib
import dataclasses
import json
import logging
import types

import contract
import torch

SRT = "sglang.srt"
# From the wheel, as they are.
REAL = {
    f"{SRT}.plugins", f"{SRT}.plugins.hook_registry", f"{SRT}.arg_groups.choices",
    f"{SRT}.configs.load_config", f"{SRT}.model_loader", f"{SRT}.model_loader.loader",
    f"{SRT}.model_loader.post_load",
    f"{SRT}.weight_cache.protocol", f"{SRT}.model_executor.model_runner_components.weight_updater",
    f"{SRT}.layers.quantization.base_config",
}


class Unset:
    """SGLang's environment variables, none of which is set."""

    def __getattr__(self, name):
        return types.SimpleNamespace(get=lambda: None, is_set=lambda: False)


class Bag:
    """A group of SGLang's options, as its runtime context has them."""

    def __init__(self, **values):
        vars(self).update(values)

    @contextlib.contextmanager
    def override(self, **values):
        kept = dict(vars(self))
        vars(self).update(values)
        yield
        vars(self).clear()
        vars(self).update(kept)


class Struct:
    """msgspec.Struct, as far as it is used: keyword arguments, equality and the names of the fields."""

    def __init_subclass__(cls, **_):
        dataclasses.dataclass(cls)
        cls.__struct_fields__ = tuple(each.name for each in dataclasses.fields(cls))


@contextlib.contextmanager
def _default_type(dtype):
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(kept)


def options():
    """The options of a server with the default settings, by the name of their group."""
    return {
        "get_model": Bag(
            load_format="gpushm", weight_cache_mode="off", checkpoint_engine_wait_weights_before_ready=False,
            model_impl="auto", json_model_override_args="{}", kv_cache_dtype="auto", shared_experts=None,
            model_checksum=None),
        "get_exec": Bag(
            features=Bag(enable_memory_saver=False, enable_fp32_lm_head=False),
            kernel=Bag(attention_backend="fa3"), mamba=Bag(), deterministic=Bag(),
            moe=Bag(moe_a2a_backend="none", moe_runner_backend="auto", enable_eplb=False,
                    elastic_ep_backend=None, enable_paged_experts=False),
            offload=Bag(cpu_offload_gb=0, offload_group_size=0)),
        "get_parallel": Bag(
            tp_size=1, tp_rank=0, pp_size=1, pp_rank=0, dp_size=1, moe_ep_size=1, moe_dp_size=1,
            moe_dp_rank=0, moe_ep_rank=0, attn_dp_size=1, enable_dp_lm_head=False, attn_cp_size=1,
            moe_dense_tp_size=None, dwdp_size=1),
    }


def _reply(**fields):
    return types.SimpleNamespace(**fields)


def given(groups, model_class):
    """What code that runs calls in modules that are not from the wheel."""
    return {
        "orjson": {"loads": json.loads},
        "msgspec": {"Struct": Struct},
        "sglang.version": {"__version__": contract.PINNED["sglang"]},
        f"{SRT}.environ": {"envs": Unset()},
        f"{SRT}.platforms": {"current_platform": types.SimpleNamespace(
            get_device_capability=lambda: None, is_cuda=lambda: False, is_out_of_tree=lambda: False)},
        f"{SRT}.utils": {
            "is_hip": lambda: False, "is_npu": lambda: False, "is_pin_memory_available": lambda: False,
            "get_bool_env_var": lambda *_: False, "get_device_capability": lambda: (None, None)},
        f"{SRT}.utils.common": {"is_cuda_alike": lambda: False, "is_npu": lambda: False},
        f"{SRT}.runtime_context": {name: (lambda group=group: group) for name, group in groups.items()},
        f"{SRT}.kernel_plugins.amd.binding": {"monokernel_weights_iterator": lambda model, weights: weights},
        f"{SRT}.layers.layer_boundary.stage": {"check_stage_producers": lambda model: None},
        f"{SRT}.configs.shared_experts": {"resolve_shared_experts_config": lambda *_: None},
        f"{SRT}.layers.moe.utils": {"resolve_shared_experts_config": lambda *_: None},
        f"{SRT}.layers.modelopt_utils": {"QUANT_CFG_CHOICES": {}},
        f"{SRT}.configs.modelopt_config": {"ModelOptConfig": types.SimpleNamespace},
        f"{SRT}.model_loader.utils": {
            "get_model_architecture": lambda config: (model_class, model_class.__name__),
            "set_default_torch_dtype": _default_type},
        f"{SRT}.managers.io_struct": {"BeginWeightUpdateReqOutput": _reply},
        f"{SRT}.managers.scheduler_components.weight_updater": {"SchedulerWeightUpdaterManager": type(
            "SchedulerWeightUpdaterManager", (), {"begin_weight_update": lambda self, request: "begun"})},
    }


def installed(sources, groups, model_class):
    """While it is active, `import sglang` gives the stand-in."""
    logging.getLogger("sglang").setLevel(logging.INFO)
    return contract.standin(sources, "sglang", REAL, given(groups, model_class))
