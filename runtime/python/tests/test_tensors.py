"""gpushm.tensors: publish, open, watch, in several processes."""

import asyncio
import json
import struct
import threading

import numpy
import pytest

import gpushm
import gpushm.tensors
import gpushm.testing
from gpushm import _native


def weights(step=0):
    return {"b.weight": numpy.full((3, 5), step, numpy.float32),
            "a.bias": numpy.arange(7, dtype=numpy.float16) + step,
            "scalar": numpy.int64(step), "empty": numpy.zeros((0, 4), numpy.int8)}


def write_safetensors(path, tensors, metadata=None):
    names = {"float32": "F32", "int8": "I8"}
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": names[array.dtype.name], "shape": array.shape,
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_a_dict(app, other):
    generation = gpushm.tensors.publish("w", weights(3), metadata={"step": "3", "ü": ""}, client=app)
    opened = gpushm.tensors.open("w", client=other)
    assert (opened.generation, opened.name, len(opened), opened.stale) == (generation, "w", 4, False)
    assert list(opened) == ["a.bias", "b.weight", "empty", "scalar"] and "scalar" in opened
    assert opened.metadata == {"step": "3", "ü": ""}
    assert opened.spec("b.weight") == ("float32", (3, 5)) and opened.buffer.readonly
    for name, value in weights(3).items():
        assert opened.offset(name) % gpushm.tensors.ALIGNMENT == 0
        array = opened[name]
        assert array.ptr == opened.buffer.ptr + opened.offset(name) and array.readonly
        assert numpy.array_equal(array.numpy(), value) and array.numpy().dtype == value.dtype
    assert opened.nbytes == sum(value.nbytes for value in weights().values())
    assert set(opened.numpy()) == set(opened) and "4 tensors" in repr(opened)
    with pytest.raises(KeyError, match='did you mean "a.bias"') as caught:
        opened["a.bais"]
    assert isinstance(caught.value, gpushm.NotFound)
    assert not gpushm.tensors.open("w", client=other, unsafe_writable=True)["scalar"].readonly
    with opened:
        array = opened["b.weight"]
    assert array.numpy().sum() == 45
    assert list(gpushm.tensors.open("w", generation=generation, client=other)) == list(opened)


def test_what_publish_refuses(app):
    for bad in ("a\0", 5):
        with pytest.raises(gpushm.InvalidArgument, match="invalid tensor name"):
            gpushm.tensors.publish("w", {bad: numpy.zeros(1)}, client=app)
    with pytest.raises(gpushm.InvalidArgument, match="33 dimensions"):
        gpushm.tensors.publish("w", {"x": numpy.zeros((1,) * 33)}, client=app)
    with pytest.raises(gpushm.InvalidArgument, match="metadata"):
        gpushm.tensors.publish("w", {"x": numpy.zeros(1)}, metadata={"step": 1}, client=app)
    with pytest.raises(gpushm.InvalidArgument, match="no type that GPUs know"):
        gpushm.tensors.publish("w", {"x": numpy.array(["text"])}, client=app)
    with pytest.raises(gpushm.Exhausted):
        gpushm.tensors.publish("w", {"x": numpy.zeros(1 << 29, numpy.int8)}, client=app)
    assert app.list() == []
    app.create("raw", 100).detach()
    with pytest.raises((gpushm.Timeout, gpushm.NotFound)):
        gpushm.tensors.open("raw", client=app, timeout=0)


def test_tensors_of_the_gpu_are_copied_there(app, other):
    first = app.create("source", 1 << 16)
    first.write(numpy.arange(64, dtype=numpy.int32))
    gpushm.tensors.publish("w", {"x": first.view("int32", (8, 8)), "y": first.view("uint8", (3,), 4)},
                           client=app)
    opened = gpushm.tensors.open("w", client=other)
    assert opened["x"].numpy().sum() == 2016 and opened["y"].numpy().tolist() == [1, 0, 0]


def test_files(app, other, tmp_path):
    tensors = {"one": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
               "two": numpy.ones(300, numpy.int8)}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors, {"format": "pt"})
    assert _native.measure(path)[1] == 2
    seen = []
    generation = gpushm.tensors.publish("w", path, client=app, progress=lambda *step: seen.append(step))
    opened = gpushm.tensors.open("w", client=other)
    assert opened.generation == generation and opened.metadata == {"format": "pt"} and seen
    for name, value in tensors.items():
        assert numpy.array_equal(opened[name].numpy(), value)
    write_safetensors(tmp_path / "a-1.safetensors", {"one": tensors["one"]})
    write_safetensors(tmp_path / "a-2.safetensors", {"two": tensors["two"]})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"one": "a-1.safetensors", "two": "a-2.safetensors"}}))
    for shards in (tmp_path / "model.safetensors.index.json", str(tmp_path) + "/"):
        gpushm.tensors.publish("w", shards, client=app)
        assert numpy.array_equal(gpushm.tensors.open("w", client=other)["one"].numpy(), tensors["one"])
    saved = tmp_path / "saved.safetensors"
    other.save("w", saved)
    assert _native.measure(saved) == _native.measure(tmp_path)
    with pytest.raises(gpushm.InvalidArgument, match="metadata"):
        gpushm.tensors.publish("w", path, metadata={}, client=app)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(gpushm.InvalidArgument):
        gpushm.tensors.publish("w", path, client=app)
    with pytest.raises(LookupError):
        gpushm.tensors.publish("w", tmp_path / "none.safetensors", client=app, timeout=0)


def test_a_model_that_is_not_whole_is_waited_for(app, other, tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    first, second = (model / f"m-0000{i}-of-00002.safetensors" for i in (1, 2))
    write_safetensors(first, {"one": numpy.arange(9000, dtype=numpy.float32)})
    with pytest.raises(gpushm.NotFound, match="missing: 2"):
        gpushm.tensors.publish("w", model, client=app, timeout=0)
    with pytest.raises(gpushm.Timeout, match="missing: 2"):
        gpushm.tensors.publish("w", model, client=app, timeout=0.1)
    with pytest.raises(gpushm.InvalidArgument, match="shard 1 of 2"):
        gpushm.tensors.publish("w", first, client=app)
    write_safetensors(second, {"two": numpy.ones(300, numpy.int8)})
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    with pytest.raises(gpushm.Busy, match=f"it has {len(whole) - 1} of the {len(whole)} bytes"):
        gpushm.tensors.publish("w", model, client=app, timeout=0)
    assert app.list() == []
    writer = threading.Timer(0.2, second.write_bytes, [whole])
    writer.start()
    gpushm.tensors.publish("w", model, client=app, timeout=30)
    writer.join()
    assert gpushm.tensors.open("w", client=other)["two"].numpy().sum() == 300


def test_as_many_bytes_as_were_announced(app, tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"12345")
    app.create("w", 100).detach()
    with pytest.raises(gpushm.Busy, match="5 of the 6 bytes"):
        app.load("w", path, nbytes=6, timeout=0)
    with pytest.raises(gpushm.InvalidArgument, match="5 bytes, and 4 were announced"):
        app.load("w", path, nbytes=4)
    assert app.load("w", path, nbytes=5).nbytes == 5


def test_the_digest_is_that_of_the_tensors(app, other, tmp_path):
    tensors = {"one": numpy.arange(6, dtype=numpy.float32), "two": numpy.ones(300, numpy.int8)}
    gpushm.tensors.publish("w", tensors, client=app)
    digest = gpushm.tensors.open("w", client=other).digest
    assert digest.startswith("g1:") and digest == other.lookup("w").digest
    path = tmp_path / "model.safetensors"
    write_safetensors(path, dict(reversed(tensors.items())), {"format": "pt"})
    assert gpushm.file_digest(path) == digest != gpushm.file_digest(path, "raw")
    older = gpushm.tensors.open("w", client=other)
    gpushm.tensors.publish("w", path, client=app)
    assert gpushm.tensors.open("w", client=other).digest == digest == older.digest
    assert app.load("w", path, digest=digest).digest == digest
    gpushm.tensors.publish("w", {**tensors, "two": numpy.zeros(300, numpy.int8)}, client=app)
    assert gpushm.tensors.open("w", client=other).digest not in (None, digest)
    with app.attach("w", write=True) as writer:
        assert writer.digest() and not other.lookup("w").digest
    assert gpushm.tensors.open("w", client=other).digest is None
    with pytest.raises(gpushm.InvalidArgument, match="was announced"):
        app.load("w", path, digest="g1:" + 32 * "1")
    with pytest.raises(gpushm.InvalidArgument, match="digest"):
        app.load("w", path, digest="5")
    with pytest.raises(gpushm.InvalidArgument, match="digest"):
        app.load("w", path, digest="g1:" + 32 * "0")


def test_watch(app, peer):
    rollouts = [peer("""
        import gpushm.tensors
        for weights in gpushm.tensors.watch("policy"):
            step = int(weights["scalar"].numpy())
            assert (weights["b.weight"].numpy() == step).all()
            print(step, flush=True)
            if step == 5:
                break
    """) for _ in range(2)]
    for step in range(6):
        gpushm.tensors.publish("policy", weights(step), client=app)
        for each in rollouts:
            assert each.hear() == str(step)
    for each in rollouts:
        each.end()


def test_old_generations_are_freed():
    """60 generations of 16 MiB, in a pool of 64 MiB with the source: at most three live at a time."""
    with gpushm.testing.broker(pool="64Mi") as broker:
        with broker.connect("app") as app, broker.connect("other") as other:
            follow_generations(app, other)


def follow_generations(app, other):
    steps, seen = 60, []

    def follow():
        for opened in gpushm.tensors.watch("w", client=other):
            array = opened["x"]
            seen.append(int(array.view("int32", (1,)).numpy()[0]))
            del opened, array
            if seen[-1] == steps:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    source = app.create("source", 16 << 20)
    for step in range(1, steps + 1):
        source.write(numpy.int32(step))
        while True:
            try:
                gpushm.tensors.publish("w", {"x": source}, client=app)
                break
            except gpushm.Exhausted:  # The follower still has the last but one.
                app.wait("w")
    follower.join(30)
    assert not follower.is_alive() and seen == sorted(set(seen)) and seen[-1] == steps


def test_watch_in_place(app, other):
    gpushm.tensors.publish("w", weights(0), client=app)
    watching = gpushm.tensors.watch("w", client=other, in_place=True, timeout=10)
    opened = next(watching)
    array = opened["b.weight"]
    address = array.ptr
    for step in (1, 2):
        generation = gpushm.tensors.publish("w", weights(step), metadata={"step": str(step)}, client=app)
        assert next(watching) is opened
        assert (opened.generation, opened.metadata) == (generation, {"step": str(step)})
        assert array.ptr == address and array.numpy().sum() == 15 * step
    gpushm.tensors.publish("w", {"other": numpy.zeros(3)}, client=app)
    with pytest.raises(gpushm.InvalidArgument, match="other tensors"):
        next(watching)
    with pytest.raises(TimeoutError):
        next(gpushm.tensors.watch("none", client=other, timeout=0.01))


def test_awatch(app, other):
    async def follow():
        steps = []
        async for opened in gpushm.tensors.awatch("w", client=other):
            steps.append(int(opened["scalar"].numpy()))
            if steps[-1] == 3:
                return steps
            gpushm.tensors.publish("w", weights(steps[-1] + 1), client=app)

    gpushm.tensors.publish("w", weights(1), client=app)
    assert asyncio.run(asyncio.wait_for(follow(), 30)) == [1, 2, 3]


def test_publish_tensors_one_after_the_other(app, other):
    specs = {"a": ("float32", (2, 3)), "b": ("int8", (5,))}
    arrays = {"a": numpy.arange(6, dtype="float32").reshape(2, 3), "b": numpy.arange(5, dtype="int8")}
    first = gpushm.tensors.publish_each("w", specs, reversed(arrays.items()), metadata={"step": "1"}, client=app)
    opened = gpushm.tensors.open("w", client=other)
    assert list(opened) == ["a", "b"] and opened.metadata == {"step": "1"}
    for name, array in arrays.items():
        assert (opened[name].numpy() == array).all()
    for wrong, text in (([("a", arrays["a"])], "1 tensors are missing"),
                        ([("a", arrays["a"])] * 2, "comes twice"), ([("c", arrays["a"])], "not in specs"),
                        ([("a", arrays["b"])], r"int8 \[5\], and specs say float32 \[2, 3\]")):
        with pytest.raises(gpushm.InvalidArgument, match=text):
            gpushm.tensors.publish_each("w", specs, wrong, client=app)
    assert app.lookup("w").generation == first
