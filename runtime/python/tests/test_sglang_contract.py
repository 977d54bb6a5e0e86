"""The pinned release of SGLang has what gpushm.integrations.sglang relies on."""

import ast

import contract
import pytest

SRT = "sglang/srt"
LOADER = f"{SRT}/model_loader/loader.py"
PROTOCOL = f"{SRT}/weight_cache/protocol.py"
UPDATER = f"{SRT}/model_executor/model_runner_components/weight_updater.py"
SESSIONS = f"{SRT}/managers/scheduler_components/weight_updater.py"


@pytest.fixture(scope="module")
def sglang():
    return contract.Sources("sglang")


def test_the_entry_point(sglang):
    assert contract.entry_points("sglang.srt.plugins")["gpushm"] == "gpushm.integrations.sglang:register"
    group = sglang.find(f"{SRT}/plugins/__init__.py", "GENERAL_PLUGINS_GROUP")
    assert ast.literal_eval(group.value) == "sglang.srt.plugins"
    for path in ("sglang/cli/serve.py", "sglang/launch_server.py", f"{SRT}/entrypoints/engine.py",
                 f"{SRT}/managers/scheduler.py"):
        assert "load_plugins()" in sglang.text(path), path


@pytest.mark.parametrize("file", ["__init__.py", "loader.py"])
def test_what_we_import_is_there(sglang, file):
    contract.check_imports(sglang, f"sglang/{file}", "sglang")


def test_the_choice_and_the_hook(sglang):
    choices = f"{SRT}/arg_groups/choices.py"
    assert ast.unparse(sglang.find(choices, "add_load_format_choices").value) == "LOAD_FORMAT_CHOICES.extend"
    for path in (f"{SRT}/arg_groups/fields/model.py", f"{SRT}/arg_groups/fields/spec.py"):
        assert "choices=LOAD_FORMAT_CHOICES" in sglang.text(path)
    hooks = f"{SRT}/plugins/hook_registry.py"
    sglang.accepts(hooks, "HookRegistry.register", "target", "hook", "hook_type")
    sglang.accepts(hooks, "HookRegistry.apply_hooks")
    for name in ("AROUND", "REPLACE"):
        sglang.find(hooks, f"HookType.{name}")
    config = f"{SRT}/configs/load_config.py"
    assert sglang.parameters(config, "LoadConfig._verify_load_format")[0] == ["self"]
    assert "self._verify_load_format()" in ast.unparse(sglang.find(config, "LoadConfig.__post_init__"))
    assert {"load_format", "model_loader_extra_config", "draft_model_idx"} <= set(
        sglang.fields(config, "LoadConfig"))
    assert "return load_config.load_format(load_config)" in ast.unparse(
        sglang.find(LOADER, "get_model_loader"))


def test_the_loader(sglang):
    assert sglang.abstract(LOADER, "BaseModelLoader") == {"download_model", "load_model"}
    assert sglang.parameters(LOADER, "BaseModelLoader.load_model")[0] == [
        "self", "model_config", "device_config"]
    assert sglang.parameters(LOADER, "BaseModelLoader.download_model")[0] == ["self", "model_config"]
    assert ast.literal_eval(sglang.find(LOADER, "BaseModelLoader.preloaded_weights_bytes").value) == 0
    runner = sglang.text(f"{SRT}/model_executor/model_runner.py")
    assert "self.loader.preloaded_weights_bytes" in runner
    sglang.accepts(LOADER, "get_model_loader", "load_config", "model_config")
    sglang.accepts(LOADER, "_get_quantization_config", "model_config", "load_config")
    sglang.accepts(LOADER, "_initialize_model", "model_config", "load_config", "quant_config")
    sglang.accepts(f"{SRT}/model_loader/utils.py", "set_default_torch_dtype", "dtype")
    made = ast.unparse(sglang.find(f"{SRT}/configs/device_config.py", "DeviceConfig.__init__"))
    assert "self.device = torch.device(" in made and "self.gpu_id = gpu_id" in made
    made = ast.unparse(sglang.find(f"{SRT}/configs/model_config.py", "ModelConfig.__init__"))
    for name in ("model_path", "revision", "quantization", "hf_config", "is_draft_model", "dtype"):
        assert f"self.{name}" in made, name


def test_the_fingerprint_and_the_allow_list(sglang):
    ours = next(node for node in ast.walk(ast.parse((contract.installed("sglang") / "loader.py").read_text()))
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CacheConfig")
    stamp = ast.unparse(sglang.find(PROTOCOL, "compute_env_stamp"))
    stamped = {"device_capability", "torch_version"}
    assert all(f"'{name}'" in stamp for name in stamped)
    given = {each.arg for each in ours.keywords if each.arg}
    assert given | stamped == set(sglang.fields(PROTOCOL, "CacheConfig"))
    sglang.accepts(PROTOCOL, "CacheConfig.to_dict")
    sglang.accepts(PROTOCOL, "compute_env_stamp")
    sglang.accepts(PROTOCOL, "get_quant_method_name", "quant_config")
    sglang.accepts(PROTOCOL, "hash_quant_config", "quant_config")
    sglang.accepts(PROTOCOL, "is_ipc_quant_supported", "quant_method", "quant_config")
    # SGLang's own loader of shared weights makes models without memory, too, and takes the same names.
    loader = sglang.text(f"{SRT}/weight_cache/ipc_loader.py")
    assert 'torch.device("meta")' in loader and "_initialize_model(" in loader


def test_the_options(sglang):
    fields = f"{SRT}/arg_groups/fields"
    for path, name, options in (
            ("exec_.py", "ExecFeatures", {"enable_memory_saver", "enable_fp32_lm_head"}),
            ("exec_.py", "ExecKernel", set()), ("exec_.py", "ExecMamba", set()),
            ("exec_.py", "ExecDeterministic", set()),
            ("exec_.py", "ExecMoe", {"moe_a2a_backend", "enable_eplb", "elastic_ep_backend",
                                     "enable_paged_experts"}),
            ("exec_.py", "ExecOffload", {"cpu_offload_gb", "offload_group_size"}),
            ("model.py", "Model", {"weight_cache_mode", "checkpoint_engine_wait_weights_before_ready",
                                   "model_impl", "json_model_override_args", "kv_cache_dtype"})):
        assert options <= set(sglang.fields(f"{fields}/{path}", name)), name
        space = ast.literal_eval(sglang.find(f"{fields}/{path}", f"{name}._NS_PATH").value)
        assert space.split(".")[-1] == name.removeprefix("Exec").lower()
    parallel = sglang.text(f"{fields}/parallel.py")
    for name in ("tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "moe_ep_size", "moe_dp_size",
                 "moe_dp_rank", "moe_ep_rank", "attn_dp_size", "enable_dp_lm_head", "attn_cp_size",
                 "moe_dense_tp_size", "dwdp_size"):
        assert f"    {name}: A[" in parallel or f"    {name} = Derived(" in parallel, name
    for name in ("_fields", "_subs"):  # What a group of options has besides them begins with "_".
        assert name in ast.unparse(sglang.find(f"{SRT}/runtime_context.py", "_ConfigBag.__init__"))
    assert "object.__setattr__(self, name, value)" in ast.unparse(
        sglang.find(f"{SRT}/runtime_context.py", "_ConfigBag._set"))


def test_the_updates_that_are_refused(sglang):
    """Goal: every way to write to a server's weights is behind one of the three methods that we replace."""
    for name in ("update_weights_from_disk", "update_weights_from_ipc"):
        sglang.find(UPDATER, f"WeightUpdater.{name}")
        assert f"success, message = runner.weight_updater.{name}(" in ast.unparse(
            sglang.find(SESSIONS, f"SchedulerWeightUpdaterManager.{name}"))
    sglang.find(SESSIONS, "SchedulerWeightUpdaterManager.begin_weight_update")
    for name in ("update_weights_from_tensor", "update_weights_from_distributed", "end_weight_update"):
        assert "if self._session is None:" in ast.unparse(
            sglang.find(SESSIONS, f"SchedulerWeightUpdaterManager.{name}"))
    assert {"success", "message"} <= set(
        sglang.fields(f"{SRT}/managers/io_struct.py", "BeginWeightUpdateReqOutput"))


def test_how_memory_is_counted(sglang):
    """What the guide says of --mem-fraction-static and --max-total-tokens."""
    path = f"{SRT}/mem_cache/kv_cache_configurator.py"
    assert "slack_gb = pre_model_load_memory * (1 - get_schedule().mem_fraction_static)" in sglang.text(path)
    assert "rest_memory = available_gpu_memory - slack_gb - mm_reservation_gb" in sglang.text(path)
    assert "user_limit = get_schedule().max_total_tokens" in sglang.text(path)
    counted = sglang.text(f"{SRT}/model_executor/model_runner.py")
    assert "self.pre_model_load_memory += preloaded_weights_bytes / (1 << 30)" in counted


def test_it_is_small():
    lines = sum(len(each.read_text().splitlines()) for each in contract.installed("sglang").glob("*.py"))
    assert lines < 400
