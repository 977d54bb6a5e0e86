"""gpushm.torch with a PyTorch that has no GPU. Publishing is real; where a tensor of a GPU would be made,
the bytes of the buffer are copied to the host instead, by the same capsules. What needs a GPU is in
gpu_check.py.
"""

import pytest
import torch

import gpushm
import gpushm.tensors
import gpushm.torch
import test_gpus


@pytest.fixture
def on_host(monkeypatch):
    def from_dlpack(array, stream):
        return torch.from_dlpack(array.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))

    monkeypatch.setattr(gpushm.torch, "_from_dlpack", from_dlpack)
    monkeypatch.setattr(gpushm.torch, "_stream_of", lambda device: 1)


def state():
    torch.manual_seed(1)
    narrow = torch.randn(4, 8)
    made = {f"{dtype}".removeprefix("torch."): narrow.to(dtype) for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64,
        torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)}
    made["transposed"] = narrow.T
    made["scalar"] = torch.tensor(3.0)
    made["scalar.f8"] = torch.tensor(3.0).to(torch.float8_e4m3fn)
    made["parameter"] = torch.nn.Parameter(narrow)
    made["f4"] = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
    return made


def equal(one, other):
    return (one.dtype == other.dtype and one.shape == other.shape and
            torch.equal(one.detach().contiguous().reshape(-1).view(torch.uint8),
                        other.detach().contiguous().reshape(-1).view(torch.uint8)))


def test_save_and_load(app, other, on_host):
    tensors = state()
    generation = gpushm.torch.save_file(tensors, "w", {"format": "pt"}, client=app)
    loaded = gpushm.torch.load_file("w", client=other, generation=generation)
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert equal(loaded[name], tensor), name
    with gpushm.tensors.open("w", client=other) as opened:
        assert opened.metadata == {"format": "pt"}
        assert equal(gpushm.torch.tensors_of(opened)["bfloat16"], tensors["bfloat16"])
    with pytest.raises(TimeoutError):
        gpushm.torch.load_file("none", client=other, timeout=0.01)


def test_tensors_whose_memory_has_other_values(app, other, on_host):
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    saved = {"conj": numbers.conj(), "neg": numbers.conj().imag, "grad": torch.ones(2, requires_grad=True)}
    gpushm.torch.save_file(saved, "w", client=app)
    loaded = gpushm.torch.load_file("w", client=other)
    assert all(torch.equal(loaded[name], tensor.detach()) for name, tensor in saved.items())


def test_what_cannot_be_saved(app):
    with pytest.raises(gpushm.InvalidArgument, match="to_dense"):
        gpushm.torch.save_file({"x": torch.eye(3).to_sparse()}, "w", client=app)
    with pytest.raises(gpushm.InvalidArgument, match="meta"):
        gpushm.torch.save_file({"x": torch.zeros(3, device="meta")}, "w", client=app)


def test_types_that_this_pytorch_lacks(app, other, on_host, monkeypatch):
    gpushm.torch.save_file(state(), "w", client=app)
    monkeypatch.delattr(torch, "float8_e5m2")
    with pytest.raises(gpushm.Unsupported, match="float8_e5m2"):
        gpushm.torch.load_file("w", client=other)


class Tied(torch.nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.embed = torch.nn.Embedding(size, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, size, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def test_modules(app, other, on_host):
    torch.manual_seed(2)
    first = Tied().eval()
    gpushm.torch.publish_module(first, "m", metadata={"mine": "1"}, client=app)
    with torch.device("meta"):
        second = Tied().eval()
    assert gpushm.torch.adopt_module(second, "m", client=other) is second
    tokens = torch.arange(8)
    assert torch.equal(first(tokens), second(tokens))
    assert second.head.weight.data_ptr() == second.embed.weight.data_ptr()
    assert not second.head.weight.requires_grad
    opened = gpushm.tensors.open("m", client=other)
    assert "head.weight" not in opened and opened.metadata["mine"] == "1"
    with torch.device("meta"):
        larger, untied = Tied(9), torch.nn.Linear(4, 4)
    for module in (larger, untied):
        with pytest.raises(gpushm.Incompatible, match="another module"):
            gpushm.torch.adopt_module(module, "m", client=other)
    assert gpushm.torch.fingerprint(first) == gpushm.torch.fingerprint(second)


def test_meta_device_and_assign(app, other, on_host):
    first = Tied().eval()
    gpushm.torch.save_file(first.state_dict(), "m", client=app)
    with torch.device("meta"):
        second = Tied().eval()
    second.load_state_dict(gpushm.torch.load_file("m", client=other), assign=True)
    assert torch.equal(first(torch.arange(8)), second(torch.arange(8)))


def test_guard(app, other, on_host):
    gpushm.torch.save_file({"w": torch.ones(4, 4), "v": torch.ones(4)}, "w", client=app)
    loaded = gpushm.torch.load_file("w", client=other)
    tensor, mine = loaded["w"], torch.ones(4, 4)
    with gpushm.torch.guard():
        for write in (lambda: tensor.add_(1), lambda: tensor[0].zero_(), lambda: tensor.T.mul_(2),
                      lambda: torch.add(mine, 1, out=tensor), lambda: tensor.__setitem__((0, 0), 5.0),
                      lambda: tensor.copy_(mine), lambda: torch._foreach_add_([mine, tensor], 1)):
            with pytest.raises(gpushm.Denied, match='shared tensor "w"'):
                write()
        mine.add_(tensor)
        assert torch.equal(tensor @ mine, tensor @ mine)
        clone = tensor.clone()
        clone.zero_()
    assert torch.equal(tensor, torch.ones(4, 4))


def test_no_pool_without_a_gpu():
    with pytest.raises(gpushm.Unsupported, match="GPU"):
        gpushm.torch.pool()


def test_queue(app, other, on_host):
    with gpushm.torch.Queue("q", write=True, nbytes=1024, client=app) as putting:
        with gpushm.torch.Queue("q", client=other) as getting:
            for tensor in (torch.arange(6).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16)):
                putting.put(tensor)
                assert equal(getting.get(), tensor)
                putting.put(tensor)
                assert equal(getting.get(copy=False), tensor)
            with pytest.raises(ValueError):
                putting.put(torch.zeros(1000))
            putting.close()
            with pytest.raises(gpushm.Ended):
                getting.get()
            getting.close()


def test_the_capsule_that_pytorch_gets(app, other):
    """The call that makes a tensor of a GPU, as far as a PyTorch without one carries it: it reads the
    versioned capsule, with its read-only mark, and asks for the device."""
    with app.create("x", 64):
        pass
    array = app.attach("x").view("float32", (4,))
    with pytest.raises(Exception, match="(?i)cuda|device|driver"):
        torch.from_dlpack(array.__dlpack__(stream=1, max_version=(1, 0)))


def test_a_model_has_a_part_for_each_rank():
    test_gpus.run("""
        import torch
        import gpushm.torch
        for rank in (0, 1):
            gpushm.torch.save_file({"w": torch.full((4,), float(rank))}, "weights", rank=rank, client=app)
        for rank in (0, 1):
            with gpushm.tensors.open(f"weights-{rank}", client=other) as opened:
                assert numpy.asarray(opened["w"].numpy()).tolist() == [rank] * 4
                assert opened.buffer.device == rank
        with pytest.raises(TimeoutError, match="weights-7"):
            gpushm.torch.load_file("weights", rank=7, client=other, timeout=0.01)
        for wrong in (-1, "0", True):
            with pytest.raises(gpushm.InvalidArgument, match="rank"):
                gpushm.torch.load_file("weights", rank=wrong, client=other)
    """)
