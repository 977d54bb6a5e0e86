"""gpushm.integrations.sglang at work: found by SGLang's real plugins, registered by its real hooks, made by
its real factory, with its real loader, fingerprint and list of quantisations, all from the pinned wheel
(sglang_standin.py). The model, its files and the options are made here, and tensors of a GPU are copies on
the host (`on_host`).
"""

import enum
import json
import logging
import os
import threading
import types

import contract
import engine_standin
import pytest
import sglang_standin
import torch

import gpushm
import gpushm._default
import gpushm.tensors
from gpushm.integrations import _modules
from test_torch import on_host  # noqa: F401  A fixture.


@pytest.fixture(scope="module")
def sources():
    return contract.Sources("sglang")


class Method:
    """Changes a layer as SGLang's quantisation methods do: its layout, its tensors, and what is in Python."""

    def __init__(self):
        self.interleaved = False
        self.extra = None

    def process_weights_after_loading(self, layer):
        padded = torch.zeros(6, 8)
        padded[:, :4] = layer.weight.data
        layer.weight = torch.nn.Parameter(padded[:, :4], requires_grad=False)
        layer.scales = torch.nn.Parameter(torch.full((6,), 2.0), requires_grad=False)
        layer.scale.format_ue8m0 = True
        layer.made_of = torch.bfloat16
        layer.bounds = (1, -2.5)
        del layer.temporary
        layer.unused = None
        self.interleaved = True
        if self.extra is not None:
            layer.helper = self.extra


class Served(torch.nn.Module):
    """A model of SGLang: made on any device, post-processed after loading."""

    extra, loads, hook = None, 0, None

    def __init__(self, *, config, quant_config):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.layer = torch.nn.Linear(4, 6, bias=False)
        self.head = torch.nn.Linear(4, config.vocabulary, bias=False)
        if config.vocabulary == 8:
            self.head.weight = self.embed.weight
        for name in ("scale", "temporary", "unused"):
            setattr(self.layer, name, torch.nn.Parameter(torch.zeros(2), requires_grad=False))
        self.layer.scale.format_ue8m0, self.layer.scale.output_dim = False, 0
        self.layer.quant_method = Method()
        self.layer.quant_method.extra = Served.extra
        self.register_buffer("cache", torch.arange(5.0), persistent=False)
        self.absorbed = None

    def load_weights(self, weights):
        assert not list(weights)
        Served.loads += 1
        torch.manual_seed(3)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)
        self.absorbed = self.layer.weight.data.T.contiguous().T  # As the absorbed weights of MLA.
        if Served.hook is not None:
            Served.hook()

    def forward(self, tokens):
        logits = self.head(self.embed(tokens) + self.cache[:4])
        return logits, self.layer.weight.T @ self.layer.scales, self.absorbed


@pytest.fixture
def groups():
    return sglang_standin.options()


@pytest.fixture
def sglang(sources, groups, broker, on_host, monkeypatch, tmp_path):  # noqa: F811
    """SGLang, with the plugins that are installed, for the model `Served` and a folder with its files."""
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    for name, value in (("extra", None), ("loads", 0), ("hook", None)):
        monkeypatch.setattr(Served, name, value)
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}1")
    with sglang_standin.installed(sources, groups, Served), broker.connect("app") as client:
        monkeypatch.setattr(gpushm._default, "_client", client)
        from sglang.srt import model_loader, plugins
        from sglang.srt.configs import load_config

        plugins.load_plugins()
        monkeypatch.setattr(model_loader.loader.DefaultModelLoader, "_get_all_weights", lambda *_: iter(()))
        yield types.SimpleNamespace(
            get_model=model_loader.get_model, loader=model_loader.loader, folder=tmp_path,
            LoadConfig=load_config.LoadConfig, LoadFormat=load_config.LoadFormat)


class Config:
    """The configuration of a model, as those of transformers."""

    def __init__(self, vocabulary=8, **more):
        vars(self).update(architectures=["Served"], vocabulary=vocabulary, **more)

    def to_dict(self):
        return vars(self)


def model_config(sglang, **changes):
    given = types.SimpleNamespace(
        model_path=str(sglang.folder), revision=None, dtype=torch.float32, quantization=None,
        is_draft_model=False, hf_config=Config())
    vars(given).update(changes)
    return given


def load(sglang, extra="{}", **changes):
    """What SGLang's ModelRunner does, after --load-format gpushm."""
    config = sglang.LoadConfig(load_format="gpushm", model_loader_extra_config=extra)
    return sglang.get_model(model_config=model_config(sglang, **changes), load_config=config,
                            device_config=types.SimpleNamespace(device=torch.device("cpu"), gpu_id=0))


def answers(model):
    with torch.no_grad():
        return [each.tolist() for each in model(torch.arange(8))]


def test_it_is_a_choice_of_load_format(sglang):
    from sglang.srt.arg_groups import choices
    from gpushm.integrations import sglang as ours

    ours.register()  # Once more.
    assert choices.LOAD_FORMAT_CHOICES.count("gpushm") == 1
    assert sglang.LoadConfig(load_format="pt").load_format is sglang.LoadFormat.PT
    with pytest.raises(ValueError, match="other"):
        sglang.LoadConfig(load_format="other")


def test_the_first_loads_and_the_others_take(sglang, app):
    first = load(sglang)
    assert Served.loads == 1
    name, = [info.name for info in app.list()]  # And not the name of who loads.
    assert name.startswith("sglang-")
    second = load(sglang)
    assert Served.loads == 1 and answers(first) == answers(second)
    for model in (first, second):
        layer = model.layer
        assert layer.weight.stride() == (8, 1) and layer.scale.format_ue8m0 is True
        assert layer.scale.output_dim == 0
        assert layer.quant_method.interleaved
        assert layer.made_of is torch.bfloat16 and layer.bounds == (1, -2.5)
        assert not hasattr(layer, "temporary") and layer.unused is None
        assert model.head.weight is model.embed.weight and not model.training
        assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_what_sglang_is_told(sglang, app):
    """Goal: SGLang sizes its cache with the memory that another process holds, and its LoRA adapters load by
    the configuration that it keeps. Method: the loader as its factory makes it."""
    held, formats = [], []
    for _ in range(2):
        config = sglang.LoadConfig(load_format="gpushm", model_loader_extra_config=(
            '{"load_format": "pt", "num_threads": 2}'))
        loader = sglang.loader.get_model_loader(config, model_config(sglang))
        loader.load_model(model_config=model_config(sglang),
                          device_config=types.SimpleNamespace(device=torch.device("cpu"), gpu_id=0))
        held.append(loader.preloaded_weights_bytes)
        formats.append((config.load_format, config.model_loader_extra_config))
    name, = [info.name for info in app.list()]
    assert held == [0, app.lookup(name).nbytes]
    assert formats == [(sglang.LoadFormat.PT, {"num_threads": 2})] * 2


def test_other_configurations_and_other_files_have_copies_of_their_own(sglang, groups, app):
    load(sglang)
    load(sglang, dtype=torch.bfloat16)
    load(sglang, is_draft_model=True)
    with groups["get_exec"].moe.override(moe_runner_backend="cutlass"):
        load(sglang)
    with groups["get_parallel"].override(tp_size=2, tp_rank=1):
        load(sglang)
    weights = sglang.folder / "model.safetensors"
    times = weights.stat()
    weights.write_bytes(b"\x02\0\0\0\0\0\0\0{}2")  # As long and as old as before.
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    load(sglang)
    assert Served.loads == len(app.list()) == 6


def test_a_name_of_ones_own(sglang, groups, app):
    mine = '{"name": "weights"}'
    load(sglang, mine)
    with groups["get_parallel"].override(tp_size=2, tp_rank=1):
        load(sglang, mine, is_draft_model=True)
    assert {info.name for info in app.list()} == {"weights", "weights-draft0-tp1"}
    with pytest.raises(gpushm.Incompatible, match="dtype is torch.float32, here torch.bfloat16"):
        load(sglang, mine, dtype=torch.bfloat16)
    with pytest.raises(gpushm.Incompatible, match="another configuration: config is"):
        load(sglang, mine, hf_config=Config(vocabulary=9))
    gpushm.tensors.publish("other", {"x": torch.ones(1)}, client=app)
    with pytest.raises(gpushm.Incompatible, match="not published by this loader"):
        load(sglang, '{"name": "other"}')
    assert Served.loads == 2


def test_options_that_are_refused(sglang, groups, app):
    run = groups["get_exec"]
    for group, option, value, text in (
            (run.features, "enable_memory_saver", True, "--enable-memory-saver"),
            (run.moe, "enable_eplb", True, "--enable-eplb"),
            (run.moe, "elastic_ep_backend", "mooncake", "--elastic-ep-backend"),
            (run.moe, "enable_paged_experts", True, "--enable-paged-experts"),
            (run.offload, "cpu_offload_gb", 4, "--cpu-offload-gb"),
            (run.offload, "offload_group_size", 2, "--offload-group-size"),
            (groups["get_model"], "weight_cache_mode", "client", "--weight-cache-mode"),
            (groups["get_model"], "checkpoint_engine_wait_weights_before_ready", True, "checkpoint-engine"),
            (groups["get_parallel"], "dwdp_size", 2, "--dwdp-size")):
        with group.override(**{option: value}), pytest.raises(gpushm.Unsupported, match=text):
            load(sglang)
    for method, config in (("awq", None), ("fp8", {"weight_block_size": None})):
        given = Config(quantization_config=config)
        text = f"the quantisation \"{method}\".*without --load-format gpushm"
        with pytest.raises(gpushm.Unsupported, match=text):
            load(sglang, quantization=method, hf_config=given)
    assert not app.list() and not Served.loads


def test_what_cannot_be_rebuilt_from_tensors_is_refused(sglang, app, monkeypatch):
    monkeypatch.setattr(Served, "extra", [torch.ones(2)])
    with pytest.raises(gpushm.Unsupported, match="layer.helper holds tensors.*without --load-format gpushm"):
        load(sglang)
    assert Served.loads == 1 and not app.list()  # Nor does anybody seem to load.
    monkeypatch.setattr(Served, "extra", object())
    load(sglang)
    with pytest.raises(gpushm.Unsupported, match="layer.helper is a object.*without --load-format gpushm"):
        load(sglang)


def test_a_leader_that_fails_is_followed(sglang, app, monkeypatch):
    def fail():
        raise OSError("no such file")

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(Served, "hook", fail)
        load(sglang)
    assert not app.list()
    load(sglang)
    assert Served.loads == 2


def test_a_second_server_waits_for_the_first(sglang, monkeypatch):
    begun, go_on, done = threading.Event(), threading.Event(), []

    def hook():
        begun.set()
        assert go_on.wait(30)

    monkeypatch.setattr(Served, "hook", hook)
    threads = [threading.Thread(target=lambda: done.append(load(sglang))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(30)
    with pytest.raises(gpushm.Timeout, match="has been loading"):
        load(sglang, '{"timeout": 0.01}')
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert Served.loads == 1 and answers(done[0]) == answers(done[1])


def test_updates_of_shared_weights_are_refused(sglang):
    """Goal: a request to update weights must not write to memory that is mapped for reading. Method: SGLang's
    real updater, before and after a load."""
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    updater, sessions = object.__new__(WeightUpdater), SchedulerWeightUpdaterManager()
    assert sessions.begin_weight_update(None) == "begun"
    load(sglang)
    load(sglang)
    for answer in (updater.update_weights_from_disk("models/other", "auto"),
                   updater.update_weights_from_ipc(None)):
        assert answer[0] is False and "shared for reading" in answer[1]
    answer = sessions.begin_weight_update(None)
    assert not answer.success and "restart the server" in answer.message


def test_an_sglang_that_has_changed(sglang, monkeypatch, caplog):
    from sglang.srt.arg_groups import choices
    from sglang.srt.model_loader import loader
    from gpushm.integrations import sglang as ours

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.delattr(choices, "add_load_format_choices")
        ours.register()
    assert "add_load_format_choices" in caplog.text and "0.5.23" in caplog.text
    monkeypatch.delattr(loader, "_initialize_model")
    with pytest.raises(gpushm.Unsupported, match="_initialize_model.*use SGLang 0.5.23"):
        sglang.LoadConfig(load_format="gpushm")


def test_what_loading_changes():
    """Goal: whatever loading does to a module, another process does the same, or is told that it cannot.
    Method: two modules that are equal, one of which is changed, and the changes given to the other."""
    class Kind(enum.Enum):
        ONE = 1
        TWO = 2

    def make():
        module = torch.nn.Module()
        module.inner = torch.nn.Linear(2, 2)
        module.inner.weight.note = "raw"
        module.register_buffer("scale", torch.ones(1))
        module.kind, module.sizes, module.old, module.same = Kind.ONE, torch.Size([1]), 1, [1]
        return module

    loaded, other = make(), make()
    assert _modules.changes(other, _modules.state(loaded)[0]) == ({}, [], [])
    loaded.inner.bias, loaded.scale, loaded.empty = None, None, []
    del loaded.inner.weight.note, loaded.old
    loaded.inner.weight.form = (1, {"a": -2.0}, b"x")
    loaded.sizes, loaded.type, loaded.same = torch.Size([2]), torch.float8_e4m3fn, True
    state, cannot = _modules.state(loaded)
    changed, removed, differs = _modules.changes(other, json.loads(json.dumps(state)))
    assert not cannot and not differs
    _modules.apply(other, changed, removed)
    assert other.inner.bias is None and other.scale is None and other.empty == []
    assert not hasattr(other, "old")
    assert not hasattr(other.inner.weight, "note") and other.inner.weight.form == (1, {"a": -2.0}, b"x")
    assert other.sizes == (2,) and other.type is torch.float8_e4m3fn and other.same is True
    loaded.kind, loaded.thing, loaded.inner = Kind.TWO, object(), torch.nn.Identity()
    loaded.kept = {"x": [torch.ones(1)]}
    state, cannot = _modules.state(loaded)
    assert cannot == ["kept holds tensors"]
    differs = {each.split(".<locals>.")[-1] for each in _modules.changes(other, state)[2]}
    assert differs == {"Kind.TWO", "thing is a object", "inner is a Identity"}


# ---- the example

SERVE = """
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[1] == "serve" and given["--load-format"] == "gpushm" and given["--model-path"] == "model"
assert given["--dtype"] == "half"

class Handler(Answering):
    def do_GET(self):
        assert self.path == "/health_generate"
        self.answer(b"")

    def do_POST(self):
        asked = self.asked()
        assert self.path == "/generate" and asked["sampling_params"]["temperature"] == 0
        self.answer(json.dumps({{"text": asked["text"].upper() + {end}}}).encode())

serve(given["--port"], Handler)
"""


@pytest.mark.parametrize("end, code", [("''", 0), ("given['--port']", 1)])
def test_the_example(broker, tmp_path, end, code):
    """Goal: the example compares what its servers say. Method: a program named sglang that answers, in place
    of SGLang; in the second case each says something else."""
    done = engine_standin.run_example(broker, tmp_path, {"sglang": SERVE.format(end=end)}, "sglang_servers.py",
                                      "model", "--dtype", "half")
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith(f"answers equal: {[not code] * 2}\n")
