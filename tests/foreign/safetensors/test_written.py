"""Files that others write are loaded, and each tensor has the bytes that its writer had."""

import json

import numpy
import pytest
import safetensors
import safetensors.numpy


def by_reference(files):
    """What the reference implementation reads: {name: (dtype, shape, bytes)}."""
    found = {}
    for file in files:
        for name, tensor in safetensors.deserialize(file.read_bytes()):
            found[name] = (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
    return found


def check(pod, path, files=None, expected=None):
    """`expected`: the bytes of each tensor, as its writer has them."""
    wanted = by_reference(files or [path])
    loaded, saved = pod.load(path)
    assert loaded == wanted
    assert by_reference([saved]) == wanted
    if expected is not None:
        assert {name: data for name, (_, _, data) in loaded.items()} == expected


def bits(shape, seed):
    return numpy.random.default_rng(seed).integers(0, 256, shape, numpy.uint8)


def test_numpy(pod, tmp_path):
    import ml_dtypes

    types = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64",
             "int64", "float64", "complex64", ml_dtypes.bfloat16]
    arrays = {f"{numpy.dtype(each)}.{shape}": numpy.arange(numpy.prod(shape)).reshape(shape).astype(each)
              for each in types for shape in ((), (0, 4), (3,), (5, 7))}
    arrays["strided"] = numpy.ascontiguousarray(numpy.arange(24).reshape(4, 6)[:, ::2])
    path = tmp_path / "m.safetensors"
    for metadata in (None, {}, {"format": "np", "ü": "\n"}):
        safetensors.numpy.save_file(arrays, path, metadata)
        check(pod, path, expected={name: array.tobytes() for name, array in arrays.items()})


def test_torch(pod, tmp_path):
    import safetensors.torch
    import torch

    names = ["bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "int16", "float16",
             "bfloat16", "int32", "float32", "complex64", "int64", "float64"]
    tensors = {}
    for number, name in enumerate(names):
        dtype = getattr(torch, name)
        shape = (6, 8 * dtype.itemsize)
        values = bits(shape, number) % (2 if name == "bool" else 256)
        tensors[name] = torch.from_numpy(values.astype(numpy.uint8)).view(dtype)
    expected = {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
    tensors["scalar"], expected["scalar"] = torch.tensor(3.5), numpy.float32(3.5).tobytes()
    tensors["empty"], expected["empty"] = torch.empty(0, 3), b""
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    check(pod, path, expected=expected)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 3))
    model[1].weight = torch.nn.Parameter(model[0].weight.t().contiguous())
    safetensors.torch.save_model(model, path)
    check(pod, path)


@pytest.mark.parametrize("pattern", ["model{suffix}.safetensors", "diffusion_pytorch_model{suffix}.safetensors",
                                     "model.fp16{suffix}.safetensors"])
def test_shards_of_huggingface_hub(pod, tmp_path, pattern):
    import torch
    from huggingface_hub import save_torch_state_dict

    state = {f"layer.{i}": torch.full((1000,), i, dtype=torch.float32) for i in range(12)}
    save_torch_state_dict(state, tmp_path, filename_pattern=pattern, max_shard_size=10_000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    index, = tmp_path.glob("*.json")
    check(pod, tmp_path, shards, {name: tensor.numpy().tobytes() for name, tensor in state.items()})
    check(pod, index, shards)
    # As transformers names the index of a variant.
    variant = tmp_path / "model.safetensors.index.fp16.json"
    index.rename(variant)
    check(pod, variant, shards)
    check(pod, tmp_path, shards)
    # Without an index, the names tell how many shards there are.
    variant.unlink()
    check(pod, tmp_path, shards)
    shards[1].unlink()
    missing = pod.run("load", tmp_path, "w")
    assert missing.returncode == 3 and "missing: 2" in missing.stderr


def test_jax(pod, tmp_path):
    import jax.numpy
    import safetensors.flax

    arrays = {name: jax.numpy.arange(30).reshape(5, 6).astype(name)
              for name in ("bool", "uint8", "int8", "float16", "bfloat16", "int32", "float32", "complex64")}
    path = tmp_path / "m.safetensors"
    safetensors.flax.save_file(arrays, path)
    check(pod, path, expected={name: numpy.asarray(array).tobytes() for name, array in arrays.items()})


def test_mlx(pod, tmp_path):
    import mlx.core

    names = ("bool_", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32",
             "complex64", "uint64", "int64")
    arrays = {name: mlx.core.arange(30).reshape(5, 6).astype(getattr(mlx.core, name)) for name in names}
    expected = {name: bytes(memoryview(array.view(mlx.core.uint8) if name == "bfloat16" else array))
                for name, array in arrays.items()}
    path = tmp_path / "m.safetensors"
    mlx.core.save_safetensors(str(path), arrays)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    assert json.loads(path.read_bytes()[8:8 + size])["__metadata__"] is None, "what this case is about"
    check(pod, path, expected=expected)
    mlx.core.save_safetensors(str(path), arrays, {"format": "mlx"})
    check(pod, path, expected=expected)


def test_paddle(pod, tmp_path):
    import paddle
    import safetensors.paddle

    tensors = {name: paddle.arange(30).reshape([5, 6]).astype(name)
               for name in ("bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64",
                            "float64")}
    path = tmp_path / "m.safetensors"
    safetensors.paddle.save_file(tensors, path)
    check(pod, path, expected={name: tensor.numpy().tobytes() for name, tensor in tensors.items()})


def test_the_rust_crate(pod, tmp_path):
    # The package's own writer is that of the crate.
    names = ["", "a\tb\n", "\x7f", "ü", "/", "..", "__metadata", '"', "x" * 5000]
    arrays = {name: bits((9, 3), number) for number, name in enumerate(names)}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors.serialize({
        name: safetensors.TensorSpec(dtype="uint8", shape=array.shape, data_ptr=array.ctypes.data,
                                     data_len=array.nbytes) for name, array in arrays.items()}))
    check(pod, path, expected={name: array.tobytes() for name, array in arrays.items()})
