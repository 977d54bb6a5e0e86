"""gpushm.integrations.transformers with the real transformers, small models made here, and a PyTorch without
a GPU: `on_host` replaces the access to the GPU's memory by a copy, and nothing else.
"""

import inspect
import pathlib
import subprocess
import sys

import pytest
import torch
import transformers

import gpushm
import gpushm.tensors
from gpushm.integrations import _modules, transformers as shared
from test_torch import on_host  # noqa: F401  A fixture.

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama, tied, bfloat16": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True, dtype="bfloat16"),
    "llama, dynamic rope": lambda: transformers.LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen3 moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=16),
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=64,
                                            bos_token_id=1, eos_token_id=2),
    "mamba": lambda: transformers.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=96, state_size=4),
}
TOKENS = torch.tensor([[1, 5, 9, 3, 17]])


def model_of(kind, seed=1):
    torch.manual_seed(seed)
    config = CONFIGS[kind]()
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def logits(model, tokens=TOKENS):
    with torch.no_grad():
        return model(tokens).logits


def same(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("kind", CONFIGS)
def test_outputs_are_equal_bit_for_bit(app, other, on_host, kind):  # noqa: F811
    model = model_of(kind)
    generation = shared.publish(model, "m", metadata={"mine": "1"}, client=app)
    taken = shared.from_shared(transformers.AutoModelForCausalLM, "m", client=other)
    assert type(taken) is type(model) and not taken.training
    assert same(logits(taken), logits(model))
    longer = torch.arange(80).reshape(1, 80) % 96  # Beyond the positions for which rope was made.
    if kind != "gpt2":
        assert same(logits(taken, longer), logits(model, longer))
    assert torch.equal(taken.generate(TOKENS, max_new_tokens=8, do_sample=False),
                       model.generate(TOKENS, max_new_tokens=8, do_sample=False))
    assert taken.dtype == model.dtype and taken.config.to_dict()["vocab_size"] == 96
    assert not any(each.requires_grad for each in taken.parameters())
    assert set(taken.state_dict()) == set(model.state_dict())
    with gpushm.tensors.open("m", client=other) as opened:
        assert opened.generation == generation and opened.metadata["mine"] == "1"


def test_what_is_shared_and_what_is_copied(app, other, on_host, monkeypatch):  # noqa: F811
    shared.publish(model_of("llama, tied, bfloat16"), "m", client=app)
    mapped = {}

    def remember(opened):
        mapped.update(tensors_of(opened))
        return dict(mapped)

    tensors_of = gpushm.torch.tensors_of
    monkeypatch.setattr(_modules._torch, "tensors_of", remember)
    taken = shared.from_shared(transformers.LlamaForCausalLM, "m", client=other)
    memory = {tensor.data_ptr() for tensor in mapped.values()}
    assert {"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"} <= {
        name for name, _ in taken.named_buffers()}
    assert "lm_head.weight" not in gpushm.tensors.open("m", client=other)
    assert taken.lm_head.weight is taken.model.embed_tokens.weight
    assert memory >= {parameter.data_ptr() for parameter in taken.parameters()}
    assert not any(buffer.data_ptr() in memory for buffer in taken.buffers())
    assert "model.rotary_emb.inv_freq" not in taken.state_dict()


def test_a_configuration(app, other, on_host):  # noqa: F811
    model = model_of("llama")
    shared.publish(model, "m", client=app)
    config = CONFIGS["llama"]()
    assert same(logits(shared.from_shared(config, "m", client=other)), logits(model))
    config.num_hidden_layers = 3
    with pytest.raises(gpushm.Incompatible, match="layers.2.*missing"):
        shared.from_shared(config, "m", client=other)
    with pytest.raises(gpushm.Incompatible, match="bfloat16"):
        shared.from_shared(transformers.LlamaConfig(**SMALL, dtype="bfloat16"), "m", client=other)
    with pytest.raises(gpushm.Incompatible, match=r"\[96, 32\], here float32 \[97, 32\]"):
        shared.from_shared(transformers.LlamaConfig(**{**SMALL, "vocab_size": 97}), "m", client=other)


@pytest.mark.parametrize("kind", ["llama", "llama, tied, bfloat16", "qwen3 moe"])
def test_the_tensors_of_a_checkpoint(app, other, on_host, tmp_path, kind):  # noqa: F811
    model = model_of(kind)
    model.save_pretrained(tmp_path)
    gpushm.tensors.publish("m", tmp_path, client=app)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    taken = shared.from_shared(config, "m", client=other)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert taken.dtype == plain.dtype and same(logits(taken), logits(plain))
    with pytest.raises(gpushm.InvalidArgument, match="no configuration is given"):
        shared.from_shared(transformers.AutoModelForCausalLM, "m", client=other)
    config.num_hidden_layers = 3
    with pytest.raises(gpushm.Incompatible, match="layers.2"):
        shared.from_shared(config, "m", client=other)


def test_a_checkpoint_is_not_copied(app, other, on_host, tmp_path, monkeypatch):  # noqa: F811
    model_of("llama").save_pretrained(tmp_path)
    gpushm.tensors.publish("m", tmp_path, client=app)
    loaded = {}

    def remember(opened):
        loaded.update(tensors_of(opened))
        return dict(loaded)

    tensors_of = gpushm.torch.tensors_of
    monkeypatch.setattr(shared._torch, "tensors_of", remember)
    taken = shared.from_shared(transformers.AutoConfig.from_pretrained(tmp_path), "m", client=other)
    for name, parameter in taken.named_parameters():
        assert parameter.data_ptr() == loaded[name].data_ptr(), name


def test_what_is_refused(app, other, on_host):  # noqa: F811
    model = model_of("llama")
    with pytest.raises(gpushm.InvalidArgument, match="publish_module"):
        shared.publish(torch.nn.Linear(2, 2), "m", client=app)
    with torch.device("meta"), pytest.raises(gpushm.InvalidArgument, match="meta"):
        shared.publish(transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]()), "m", client=app)
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(gpushm.Unsupported, match="quantised"):
        shared.publish(model, "m", client=app)
    del model.config.quantization_config
    shared.publish(model, "m", client=app)
    for wanted, error, text in (
            (transformers.Qwen2ForCausalLM, gpushm.Incompatible, "not a Qwen2ForCausalLM"),
            (transformers.AutoModelForSequenceClassification, gpushm.Incompatible, "does not make"),
            (torch.nn.Linear, gpushm.InvalidArgument, "not a class of transformers"),
            ("llama", gpushm.InvalidArgument, "neither a class")):
        with pytest.raises(error, match=text):
            shared.from_shared(wanted, "m", client=other)
    gpushm.torch.publish_module(torch.nn.Linear(2, 2), "x", client=app)
    with pytest.raises(gpushm.InvalidArgument, match="no configuration"):
        shared.from_shared(transformers.LlamaForCausalLM, "x", client=other)
    with pytest.raises(gpushm.Timeout):
        shared.from_shared(transformers.LlamaForCausalLM, "none", client=other, timeout=0.01)


def test_strides_attributes_and_wrapped_tensors(app, other, on_host):  # noqa: F811
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).T, requires_grad=False)
            self.again = self.weight
            self.part = torch.nn.Parameter(torch.arange(40.0).reshape(5, 8)[1:3, 2:5])
            self.plain = torch.arange(3)
            self.register_buffer("kept", torch.ones(2), persistent=False)
            self.register_buffer("absent", None)

    module = Odd()
    _modules.publish(module, "m", client=app)
    with torch.device("meta"):
        taken = Odd()
    assert _modules.adopt(taken, gpushm.tensors.open("m", client=other)) == [] == _modules.on_meta(taken)
    assert taken.weight.stride() == module.weight.stride() == (1, 4) and taken.again is taken.weight
    for name in ("weight", "part", "plain", "kept"):
        assert torch.equal(getattr(taken, name), getattr(module, name)), name
    assert taken.state_dict().keys() == module.state_dict().keys()
    assert _modules.exchange(module, gpushm.tensors.open("m", client=other)) == 2
    assert module.weight is module.again and torch.equal(module.weight, taken.weight)


def test_what_we_rely_on_in_transformers():
    """The public and the private names, with the parameters that are passed."""
    known = inspect.signature(transformers.PreTrainedModel.from_pretrained).parameters
    assert {"pretrained_model_name_or_path", "config"} <= set(known)
    assert "state_dict" in inspect.getsource(transformers.PreTrainedModel.from_pretrained)
    assert "kwargs" in inspect.signature(transformers.PreTrainedModel._from_config).parameters
    assert "attn_implementation" in inspect.getsource(transformers.PreTrainedModel._from_config)
    for call in (transformers.PreTrainedConfig.to_json_string, transformers.GenerationConfig.to_json_string):
        assert "use_diff" in inspect.signature(call).parameters
    assert transformers.AutoModelForCausalLM._model_mapping.get(
        transformers.LlamaConfig, None) is transformers.LlamaForCausalLM
    assert transformers.LlamaForCausalLM.config_class is transformers.LlamaConfig


def test_the_example_says_what_it_needs():
    example = pathlib.Path(__file__).parent.parent / "examples/transformers_servers.py"
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run the example")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "needs a GPU" in done.stderr
