"""The pinned release of vLLM has what gpushm.integrations.vllm relies on."""

import ast

import contract
import pytest

PACKAGE = "vllm"
BASE = "vllm/distributed/weight_transfer/base.py"
FACTORY = "vllm/distributed/weight_transfer/factory.py"
LOADERS = "vllm/model_executor/model_loader"


@pytest.fixture(scope="module")
def vllm():
    return contract.Sources(PACKAGE)


def test_the_entry_point():
    assert contract.entry_points("vllm.general_plugins")["gpushm"] == "gpushm.integrations.vllm:register"


@pytest.mark.parametrize("file", ["__init__.py", "loader.py", "transfer.py"])
def test_what_we_import_is_there(vllm, file):
    contract.check_imports(vllm, f"vllm/{file}", "vllm")


def test_plugins_are_loaded_in_the_processes_that_need_them(vllm):
    assert ast.literal_eval(vllm.find("vllm/plugins/__init__.py", "DEFAULT_PLUGINS_GROUP").value) == (
        "vllm.general_plugins")
    for path in ("vllm/engine/arg_utils.py", "vllm/v1/engine/core.py", "vllm/v1/worker/worker_base.py"):
        assert "load_general_plugins()" in vllm.text(path), path


def test_the_registries(vllm):
    for factory in ("WeightTransferEngineFactory", "WeightTransferTrainerFactory"):
        vllm.accepts(FACTORY, f"{factory}.register_engine", "gpushm", "module", "class")
        vllm.find(FACTORY, f"{factory}._registry")
    vllm.accepts(f"{LOADERS}/__init__.py", "register_model_loader", "gpushm")
    vllm.find(f"{LOADERS}/__init__.py", "_LOAD_FORMAT_TO_MODEL_LOADER")
    vllm.accepts(f"{LOADERS}/__init__.py", "get_model_loader", "load_config")
    # Both fields admit names that vLLM does not know itself.
    for path, field in (("vllm/config/weight_transfer.py", "WeightTransferConfig.backend"),
                        ("vllm/config/load.py", "LoadConfig.load_format")):
        annotation = ast.unparse(vllm.find(path, field).annotation)
        assert "str" in [each.strip() for each in annotation.split("|")], annotation


def test_the_workers_engine(vllm):
    assert vllm.abstract(BASE, "WeightTransferEngine") == {
        "init_transfer_engine", "start_weight_update", "finish_weight_update", "receive_weights", "shutdown"}
    known, _ = vllm.parameters(BASE, "WeightTransferEngine.__init__")
    assert known == ["self", "config", "vllm_config", "device", "model"]
    assert "engine_cls(config, vllm_config, device, model)" in vllm.text(FACTORY)
    for call, names in (("init_transfer_engine", ["self", "init_info"]), ("receive_weights", ["self", "update_info"]),
                        ("start_weight_update", ["self"]), ("finish_weight_update", ["self"]), ("shutdown", ["self"])):
        assert vllm.parameters(BASE, f"WeightTransferEngine.{call}")[0] == names
    sets = ast.unparse(vllm.find(BASE, "WeightTransferEngine.__init__"))
    for attribute in ("self.model =", "self.device =", "self.model_config ="):
        assert attribute in sets
    reload = f"{LOADERS}/reload/layerwise.py"
    vllm.accepts(reload, "initialize_layerwise_reload", "model")
    vllm.accepts(reload, "finalize_layerwise_reload", "model", "model_config")
    vllm.accepts(f"{LOADERS}/mtp_validation.py", "disable_mtp_completeness_check")


def test_the_trainers_engine(vllm):
    assert vllm.abstract(BASE, "TrainerWeightTransferEngine") == {"trainer_init", "send_weights"}
    vllm.accepts(BASE, "TrainerWeightTransferEngine.__init__", client=0, source=0, is_sender=0, rank=0)
    assert vllm.parameters(BASE, "TrainerWeightTransferEngine.trainer_init")[0] == [
        "cls", "init_info", "client", "source"]
    assert {"name", "dtype", "shape"} <= set(vllm.fields(BASE, "ParamMeta"))
    assert vllm.fields(BASE, "TrainerInitInfo") == ["backend", "rank"]
    vllm.find(BASE, "TrainerInitInfo.is_sender")
    for name in ("metadata", "owned_names", "implements_iter_full", "iter_full"):
        vllm.find(BASE, f"WeightSource.{name}")
    for call, positional in (("init_weight_transfer_engine", ["init_info"]), ("start_weight_update", []),
                             ("update_weights", ["update_info"]), ("finish_weight_update", [])):
        vllm.accepts(BASE, f"VLLMWeightSyncClient.{call}", *positional)


def test_the_loader(vllm):
    assert vllm.abstract(f"{LOADERS}/base_loader.py", "BaseModelLoader") == {"download_model", "load_weights"}
    assert vllm.parameters(f"{LOADERS}/base_loader.py", "BaseModelLoader.load_model")[0] == [
        "self", "vllm_config", "model_config", "prefix"]
    assert vllm.parameters(f"{LOADERS}/base_loader.py", "BaseModelLoader.load_weights")[0] == [
        "self", "model", "model_config"]
    assert vllm.parameters(f"{LOADERS}/base_loader.py", "BaseModelLoader.get_external_weight_memory")[0] == [
        "self", "vllm_config"]
    assert "get_external_weight_memory(self.vllm_config)" in vllm.text("vllm/v1/worker/gpu_worker.py")
    vllm.accepts(f"{LOADERS}/utils.py", "initialize_model", vllm_config=0, model_config=0, prefix=0)
    vllm.accepts(f"{LOADERS}/utils.py", "process_weights_after_loading", "model", "model_config", "device")
    assert "is_weights_pre_processed()" in ast.unparse(vllm.find(f"{LOADERS}/utils.py",
                                                                 "process_weights_after_loading"))
    vllm.accepts("vllm/model_executor/utils.py", "weights_already_processed")
    vllm.accepts("vllm/utils/torch_utils.py", "set_default_torch_dtype", "dtype")
    assert {"load_format", "model_loader_extra_config", "device"} <= set(
        vllm.fields("vllm/config/load.py", "LoadConfig"))


def test_the_fingerprint_and_the_allow_list(vllm):
    protocol = f"{LOADERS}/weight_cache/protocol.py"
    vllm.accepts(protocol, "WeightCacheKey.from_model_config", "model_config", "tp_size", "tp_rank",
                 cache_config=0, pp_size=0, pp_rank=0, is_draft=0, dp_size=0, dp_rank=0,
                 enable_expert_parallel=0, expert_placement_strategy=0, kernel_config=0)
    assert {"checkpoint", "model_arch", "dtype", "quantization", "vllm_version", "tp_size", "tp_rank", "pp_size",
            "pp_rank", "dp_size", "dp_rank", "is_draft"} <= set(vllm.fields(protocol, "WeightCacheKey"))
    vllm.accepts(protocol, "check_ipc_quant_support", "model")
    vllm.find(protocol, "UnsupportedQuantForIPCError")
    allowed = vllm.find("vllm/model_executor/layers/quantization/base_config.py",
                        "QuantizeMethodBase.supports_pre_processed_weights")
    assert ast.unparse(allowed.value) == "False"
    vllm.accepts(f"{LOADERS}/weight_cache/utils.py", "export_model_attrs", "model")


def test_the_configuration(vllm):
    configuration = vllm.fields("vllm/config/vllm.py", "VllmConfig")
    assert {"model_config", "cache_config", "parallel_config", "load_config", "kernel_config", "device_config",
            "speculative_config", "weight_transfer_config"} <= set(configuration)
    assert {"enable_expert_parallel", "expert_placement_strategy", "enable_eplb"} <= set(
        vllm.fields("vllm/config/parallel.py", "ParallelConfig"))
    assert {"enable_sleep_mode", "model", "revision", "dtype"} <= set(
        vllm.fields("vllm/config/model.py", "ModelConfig"))
    assert "draft_model_config" in vllm.fields("vllm/config/speculative.py", "SpeculativeConfig")


def test_it_is_small():
    lines = sum(len(each.read_text().splitlines()) for each in contract.installed("vllm").glob("*.py"))
    assert lines < 1000
