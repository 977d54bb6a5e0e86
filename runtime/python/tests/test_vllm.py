"""gpushm.integrations.vllm at work: registered in vLLM's real registries, made by its real factories, with
its real fingerprint, allow list and post-processing loop, all from the pinned wheel (vllm_standin.py). The
model, its loader from files and the parallel groups are made here, and tensors of a GPU are copies on the
host (`on_host`).
"""

import dataclasses
import functools
import json
import logging
import os
import threading
import types

import contract
import pytest
import torch
import vllm_standin

import gpushm
import gpushm._default
import gpushm.tensors
from test_torch import on_host  # noqa: F401  A fixture.


@pytest.fixture(scope="module")
def sources():
    return contract.Sources("vllm")


@pytest.fixture
def vllm(sources, broker, on_host, monkeypatch):  # noqa: F811
    with vllm_standin.installed(sources), broker.connect("app") as client:
        monkeypatch.setattr(gpushm._default, "_client", client)
        from gpushm.integrations import vllm as ours

        ours.register()
        ours.register()  # As vLLM does: in each process, perhaps twice.
        yield ours


# ---- weight transfer

class Model(torch.nn.Module):
    """Takes weights as a model of vLLM does, and remembers the calls."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.a = torch.nn.Parameter(torch.zeros(4, 3))
        self.b = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))

    def load_weights(self, weights):
        for name, tensor in weights:
            getattr(self, name).data.copy_(tensor)
        self.calls.append("load")

    def began(self):
        self.calls.append("begin")

    def finished(self):
        self.calls.append("finish")


def worker(model):
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    config = types.SimpleNamespace(backend="gpushm")
    vllm_config = types.SimpleNamespace(parallel_config=None, model_config=None)
    return WeightTransferEngineFactory.create_engine(config, vllm_config, torch.device("cpu"), model)


class Engine:
    """vLLM's control plane: what HTTP or Ray carry, to a worker here. Plain data only, as over HTTP."""

    def __init__(self, engine):
        self._engine = engine
        self.heard = []

    def init_weight_transfer_engine(self, init_info):
        self._engine.init_transfer_engine(self._engine.parse_init_info(json.loads(json.dumps(init_info))))

    def start_weight_update(self):
        self._engine.start_weight_update()

    def update_weights(self, update_info):
        self.heard.append(update_info)
        self._engine.receive_weights(self._engine.parse_update_info(json.loads(json.dumps(update_info))))

    def finish_weight_update(self, weight_version=None):
        self._engine.finish_weight_update()


def trainer(rank, client, source):
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from gpushm.integrations.vllm.transfer import GpushmTrainerInitInfo

    return WeightTransferTrainerFactory.trainer_init(GpushmTrainerInitInfo("policy", rank=rank), client=client,
                                                     source=source)


def test_rounds_from_a_trainer(vllm, app):
    from vllm.distributed.weight_transfer.base import ModuleSource

    model, policy = Model(), Model()
    client = Engine(worker(model))
    engine = trainer(0, client, ModuleSource(policy))
    for step in (1.0, 2.0):
        torch.nn.init.constant_(policy.a, step)
        torch.nn.init.constant_(policy.b, -step)
        engine.send_weights()
        assert torch.equal(model.a, policy.a) and torch.equal(model.b, policy.b)
    assert model.calls == ["begin", "load", "finish"] * 2
    assert client.heard[0]["generation"] < client.heard[1]["generation"] == app.lookup("policy").generation
    engine.shutdown()


def test_other_ranks_only_gather(vllm, app):
    from vllm.distributed.weight_transfer.base import ModuleSource

    gathered = []

    class Source(ModuleSource):
        def iter_full(self):
            for name, tensor in super().iter_full():
                gathered.append(name)
                yield name, tensor

    engine = trainer(1, None, Source(Model()))
    engine.send_weights()
    assert gathered == ["a", "b"] and not app.list()


def test_a_trainer_of_ones_own(vllm, app):
    model = Model()
    engine = worker(model)
    engine.init_transfer_engine(engine.parse_init_info({"name": "mine", "timeout": 1}))
    first = gpushm.tensors.publish("mine", {"a": torch.ones(4, 3)}, client=app)
    engine.receive_weights(engine.parse_update_info({}))
    assert model.a.sum() == 12
    gpushm.tensors.publish("mine", {"a": torch.zeros(4, 3)}, client=app)
    with pytest.raises(gpushm.Stale):
        engine.receive_weights(engine.parse_update_info({"generation": first}))
    with pytest.raises(ValueError, match="GpushmWeightTransferEngine"):
        engine.parse_update_info({"handles": 1})


def test_sources_that_do_not_fit(vllm, app):
    from vllm.distributed.weight_transfer.base import ModuleSource, ParamMeta

    class Sharded(ModuleSource):
        def owned_names(self, rank):
            return []

    with pytest.raises(gpushm.InvalidArgument, match="ModuleSource"):
        trainer(0, None, None)
    with pytest.raises(gpushm.Unsupported, match="nccl_m2n"):
        trainer(0, None, Sharded(Model()))

    class Lies(ModuleSource):
        @functools.cached_property
        def metadata(self):
            return [ParamMeta("a", torch.float32, (4, 4))]

    with pytest.raises(gpushm.InvalidArgument, match=r"\[4, 3\], and specs say float32 \[4, 4\]"):
        trainer(0, Engine(worker(Model())), Lies(Model())).send_weights()
    assert not app.list()


# ---- the loader

@dataclasses.dataclass
class LoadConfig:
    load_format: str = "gpushm"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    device: str = None


class Served(torch.nn.Module):
    """A model of vLLM: made on any device, post-processed after loading."""

    method = None

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.layer = torch.nn.Linear(4, 6, bias=False)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.layer.quant_method = Served.method
        self.register_buffer("cache", torch.arange(5.0), persistent=False)
        self.temporary = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        self.has_own_head = False

    def forward(self, tokens):
        return self.head(self.embed(tokens) + self.cache[:4]), self.layer.weight.T @ self.layer.scales


def configuration(folder, **changes):
    nothing = types.SimpleNamespace
    model_config = nothing(
        model=str(folder), hf_config=nothing(architectures=["Served"]), hf_text_config=nothing(), dtype=torch.float32,
        quantization=None, quantization_config=None, revision=None, enable_sleep_mode=False)
    given = nothing(
        model_config=model_config, device_config=nothing(device="cpu"), load_config=LoadConfig(),
        speculative_config=None, quant_config=None,
        cache_config=nothing(cache_dtype="auto", kv_cache_dtype_skip_layers=[]), weight_transfer_config=None,
        parallel_config=nothing(enable_expert_parallel=False, expert_placement_strategy="linear",
                                enable_eplb=False),
        kernel_config=nothing(moe_backend="auto", linear_backend="auto", linear_backend_per_quant={}))
    for path, value in changes.items():
        owner, _, leaf = path.rpartition("__")
        setattr(getattr(given, owner) if owner else given, leaf, value)
    return given


@pytest.fixture
def engine(vllm, monkeypatch, tmp_path):
    """vLLM's loaders, for the model `Served` and a folder with its files."""
    from vllm.model_executor import model_loader, utils
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.model_loader import base_loader, utils as loader_utils

    class Method(QuantizeMethodBase):
        """Changes the layout of the weight, adds a tensor and removes one, as real ones do."""

        supports_pre_processed_weights = True

        def create_weights(self, layer, *_, **__):
            raise NotImplementedError

        def apply(self, layer, *_, **__):
            raise NotImplementedError

        def process_weights_after_loading(self, layer):
            layer.rebuilt = True
            if utils.is_weights_pre_processed():
                return
            layer.weight = torch.nn.Parameter(layer.weight.T.contiguous().T, requires_grad=False)
            layer.scales = torch.nn.Parameter(torch.full((6,), 2.0), requires_grad=False)

    class FromFiles(base_loader.BaseModelLoader):
        loads = 0

        def download_model(self, model_config):
            pass

        def load_weights(self, model, model_config):
            FromFiles.loads += 1
            torch.manual_seed(3)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter)
            model.has_own_head = True
            self.hook()

        def hook(self):
            pass

    monkeypatch.setattr(Served, "method", Method())
    monkeypatch.setattr(loader_utils, "get_model_architecture", lambda config: (Served, "Served"))
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    monkeypatch.setitem(model_loader._LOAD_FORMAT_TO_MODEL_LOADER, "auto", FromFiles)
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}1")
    return types.SimpleNamespace(get=model_loader.get_model_loader, files=FromFiles, method=Method, folder=tmp_path)


def load(engine, extra=None, **changes):
    config = configuration(engine.folder, **changes)
    loader = engine.get(LoadConfig(model_loader_extra_config=dict(extra or {})))
    return loader, loader.load_model(vllm_config=config, model_config=config.model_config)


def answers(model):
    with torch.no_grad():
        return [each.tolist() for each in model(torch.arange(8))]


def test_the_first_loads_and_the_others_take(engine, app):
    loader, first = load(engine)
    assert engine.files.loads == 1 and type(loader).__name__ == "GpushmModelLoader"
    name, = [info.name for info in app.list()]  # And not the name of who loads.
    assert name.startswith("vllm-")
    _, second = load(engine)
    assert engine.files.loads == 1 and answers(first) == answers(second)
    for model in (first, second):
        assert model.layer.weight.stride() == (1, 6) and model.layer.rebuilt and model.has_own_head
        assert model.head.weight is model.embed.weight and not model.training
    assert loader.get_external_weight_memory(configuration(engine.folder)) == app.lookup(name).nbytes
    with pytest.raises(gpushm.Unsupported, match="restart the server"):
        loader.load_weights(first, None)


def test_other_configurations_and_other_files_have_copies_of_their_own(engine, app):
    load(engine)
    load(engine, model_config__dtype=torch.bfloat16)
    assert engine.files.loads == 2
    weights = engine.folder / "model.safetensors"
    times = weights.stat()
    weights.write_bytes(b"\x02\0\0\0\0\0\0\0{}2")  # As long and as old as before.
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert engine.get(LoadConfig()).get_external_weight_memory(configuration(engine.folder)) == 0
    load(engine)
    assert engine.files.loads == 3 and len(app.list()) == 3


def test_a_name_of_ones_own(engine, app):
    load(engine, {"name": "weights"})
    assert [info.name for info in app.list()] == ["weights"]
    load(engine, {"name": "weights"})
    with pytest.raises(gpushm.Incompatible, match="dtype is torch.float32, here torch.bfloat16"):
        load(engine, {"name": "weights"}, model_config__dtype=torch.bfloat16)
    gpushm.tensors.publish("other", {"x": torch.ones(1)}, client=app)
    with pytest.raises(gpushm.Incompatible, match="not published by this loader"):
        load(engine, {"name": "other"})
    app.create("raw", 8).detach()
    with pytest.raises(gpushm.Incompatible, match="holds no tensors"):
        load(engine, {"name": "raw"})
    assert not [info.name for info in app.list() if info.name.endswith("-loading")]


def test_what_is_refused(engine, app):
    for change, text in (({"model_config__enable_sleep_mode": True}, "sleep mode"),
                         ({"parallel_config__enable_eplb": True}, "eplb"),
                         ({"weight_transfer_config": object()}, "weight-transfer-config")):
        with pytest.raises(gpushm.Unsupported, match=text):
            load(engine, **change)
    engine.method.supports_pre_processed_weights = False
    with pytest.raises(gpushm.Unsupported, match="layer: Method.*without --load-format gpushm"):
        load(engine)
    assert not app.list()  # Nor does anybody seem to load.


def test_a_leader_that_fails_is_followed(engine, app, monkeypatch):
    def fail(self):
        raise OSError("no such file")

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(engine.files, "hook", fail)
        load(engine)
    assert not app.list()
    load(engine)
    assert engine.files.loads == 2


def test_a_second_server_waits_for_the_first(engine, monkeypatch):
    begun, go_on, done = threading.Event(), threading.Event(), []

    def hook(self):
        begun.set()
        assert go_on.wait(30)

    monkeypatch.setattr(engine.files, "hook", hook)
    threads = [threading.Thread(target=lambda: done.append(load(engine)[1])) for _ in range(2)]
    threads[0].start()
    assert begun.wait(30)
    with pytest.raises(gpushm.Timeout, match="has been loading"):
        load(engine, {"timeout": 0.01})
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert engine.files.loads == 1 and answers(done[0]) == answers(done[1])


def test_a_leader_that_is_killed(engine, app, peer):
    held = peer("""
        import gpushm
        buffer = gpushm.create("weights-loading", 1, on_writer_exit="drop", one_writer=True)
        print("leads", flush=True)
        input()
    """)
    assert held.hear() == "leads"
    with pytest.raises(gpushm.Timeout):
        load(engine, {"name": "weights", "timeout": 0.01})
    held.kill()
    load(engine, {"name": "weights"})
    assert engine.files.loads == 1 and [info.name for info in app.list()] == ["weights"]


def test_a_vllm_that_has_changed_is_a_warning(vllm, monkeypatch, caplog):
    from vllm.distributed.weight_transfer import factory

    monkeypatch.delattr(factory, "WeightTransferTrainerFactory")
    with caplog.at_level(logging.WARNING, "vllm.gpushm"):
        vllm.register()
    assert "weight transfer backend gpushm is not available" in caplog.text and "0.33" in caplog.text
