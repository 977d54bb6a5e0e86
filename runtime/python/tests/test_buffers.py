"""Buffers: attach in other processes, copies, rights, generations."""

import gc
import os

import numpy
import pytest

import gpushm
from conftest import until

MIB = 1 << 20


def test_another_process_sees_the_bytes(app, peer):
    numbers = numpy.arange(1000, dtype=numpy.float32)
    app.create("weights", MIB).write(numbers, 256)
    reader = peer("""
        import gpushm
        buffer = gpushm.attach("weights")
        print(buffer.readonly, buffer.view("float32", (10, 100), 256).numpy().sum())
    """)
    assert reader.end() == f"True {numbers.sum()}"


def test_properties(app):
    buffer = app.create("x", MIB + 1)
    assert (buffer.name, buffer.nbytes, buffer.readonly, buffer.transport) == (
        "x", MIB + 1, False, "vmm")
    assert (buffer.device, buffer.attached, buffer.state) == (0, True, "ready")
    assert buffer.ptr % 4096 == 0 and buffer.generation > 0
    assert buffer.content_nbytes == buffer.nbytes
    assert "'x'" in repr(buffer)
    buffer.detach()
    assert not buffer.attached and "detached" in repr(buffer)
    buffer.detach()
    with pytest.raises(gpushm.InvalidArgument, match="is detached"):
        buffer.ptr


def test_read_and_write(app):
    buffer = app.create("x", 100)
    buffer.write(b"abc", 97)
    assert buffer.read(97) == b"abc"
    assert buffer.read(96, 2) == b"\0a"
    assert buffer.read(100) == b""
    with pytest.raises(IndexError):
        buffer.write(b"abcd", 97)
    with pytest.raises(IndexError):
        buffer.read(50, 51)
    with pytest.raises(ValueError, match="contiguous"):
        buffer.write(numpy.zeros((4, 4))[:, 1])


def test_a_reader_may_not_write(app, other):
    app.create("x", 100)
    with pytest.raises(gpushm.Denied, match="write=True") as caught:
        other.attach("x").write(b"1")
    assert isinstance(caught.value, PermissionError)
    assert caught.value.status == gpushm.Status.DENIED
    with pytest.raises(gpushm.Denied, match="may not write"):
        other.attach("x", write=True)


def test_publish_shows_a_whole_generation(app, other):
    with app.create("x", 100, publish=False) as buffer:
        with pytest.raises(gpushm.NotFound):
            other.attach("x", timeout=0)
        buffer.write(b"first")
        buffer.set_description(b"what it is")
        buffer.set_content(5)
        buffer.publish()
        with pytest.raises(gpushm.InvalidArgument):
            buffer.publish()
    old = other.attach("x")
    assert (old.read(0, 5), old.check(), old.content_nbytes) == (b"first", "current", 5)
    assert other.description("x") == (b"what it is", old.generation)
    with app.replace("x") as new:
        assert old.check() == "current"
        new.write(b"second")
        new.publish()
    assert old.check() == "stale"
    assert old.read(0, 5) == b"first"
    assert other.wait("x", old.generation).generation == other.lookup("x").generation
    with pytest.raises(gpushm.Stale):
        other.attach("x", generation=old.generation + 100)
    address, generation = old.ptr, old.generation
    assert old.advance() > generation
    assert (old.ptr, old.read(0, 6), old.check()) == (address, b"second", "current")


def test_names(app, other):
    app.create("b", 10)
    made = app.create("a", 20, writers="all", one_writer=True, on_writer_exit="keep")
    assert [info.name for info in app.list()] == ["a", "b"]
    info = other.lookup("a")
    assert (info.nbytes, info.creator, info.state, info.transport) == (20, "app", "ready", "vmm")
    assert info.mapped_nbytes >= info.nbytes and info.created_unix_ns > 0
    assert info.gpu_uuid.startswith("GPU-") and info.description_nbytes == 0
    assert info.loaded_nbytes >= 0 and info.content_nbytes == 20 and "'a'" in repr(info)
    holder, = [each for each in other.holders("a")]
    assert (holder.buffer, holder.container, holder.access) == ("a", "app", "read-write")
    assert holder.generation == info.generation and holder.client_id and holder.since_unix_ns
    assert len(other.holders()) == 1
    made.detach()
    assert other.holders("a") == []
    app.delete("b")
    with pytest.raises(gpushm.NotFound):
        app.lookup("b")
    with pytest.raises(gpushm.AlreadyExists):
        app.create("a", 20)
    assert app.create("a", 30, replace=True).nbytes == 30
    broker = app.broker()
    assert (broker.container, broker.simulated, broker.clients) == ("app", True, 2)
    assert broker.pool_nbytes == 256 * MIB and broker.used_nbytes and broker.leases == 0
    assert broker.epoch and broker.protocol and broker.gpu_uuid == info.gpu_uuid


def test_a_writer_that_exits_is_not_taken_for_dead(app, peer):
    peer("""
        import gpushm
        buffer = gpushm.create("x", 100)
        buffer.write(b"done")
    """).end()
    assert app.attach("x").read(0, 4) == b"done"
    assert app.lookup("x").state == "ready"
    writer = peer("""
        import gpushm
        buffer = gpushm.create("y", 100)
        print("made")
        input()
    """)
    assert writer.hear() == "made"
    writer.kill()
    until(lambda: app.lookup("y").state == "writer-died")


def test_limits_and_bad_arguments(app):
    with pytest.raises(MemoryError, match="left") as caught:
        app.create("x", 1 << 40)
    assert isinstance(caught.value, gpushm.Exhausted) and caught.value.what
    for bad in ("", "A", "-a", "a" * 64):
        with pytest.raises(ValueError):
            app.lookup(bad)
    with pytest.raises(ValueError, match='use one of "creator", "all"'):
        app.create("x", 10, writers="nobody")
    with pytest.raises(ValueError, match="timeout"):
        app.wait("x", timeout=-1)
    with pytest.raises(TypeError):
        app.attach(b"x")
    with pytest.raises(ValueError, match="below 64"):
        app.attach("x", peers=[64])
    app.create("x", 10).detach()
    with pytest.raises(gpushm.InvalidArgument, match="visible GPUs: 1"):
        app.attach("x", peers=[5], timeout=1)


def test_load_and_save(app, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(bytes(range(256)) * 100)
    os.utime(source, (1, 1))  # A load waits until what nothing announces has not changed for 3 s.
    app.create("x", 100_000).detach()
    steps = []
    result = app.load("x", source, progress=lambda done, total: steps.append((done, total)))
    assert result.nbytes == 25600 and result.seconds > 0
    assert steps[0] == (0, 25600) and steps[-1][0] <= 25600
    assert app.save("x", target).nbytes == 25600
    assert target.read_bytes() == source.read_bytes()
    with target.open("wb") as file:
        app.save("x", file.fileno(), whole=True)
    assert target.stat().st_size == 100_000
    with pytest.raises(LookupError):
        app.load("x", tmp_path / "missing", timeout=0)

    def fail(done, total):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        app.load("x", source, progress=fail)


def test_who_waits_for_the_content_is_told_why_there_is_none(app, other, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(bytes(1 << 20))
    app.create("x", 1 << 20, writers="all").detach()

    def fail(done, total):
        if done:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        app.load("x", source, progress=fail)
    for want in (lambda: other.attach("x", timeout=1), lambda: other.wait("x", timeout=1)):
        with pytest.raises(gpushm.SystemCallError, match='loading "x" failed: stopped by the caller after'):
            want()


def test_a_wait_ends_with_a_signal(broker, peer):
    waiting = peer("""
        import gpushm, os, signal, threading
        client = gpushm.client()
        # A process that a shell started in the background ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            gpushm.attach("never", timeout=None)
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert waiting.end() == "interrupted"


def test_clients(broker):
    client = broker.connect("app")
    buffer = client.create("x", 100)
    client.close()
    assert client.closed
    with pytest.raises(gpushm.InvalidArgument, match="closed"):
        client.list()
    buffer.write(b"still there")
    assert buffer.read(0, 11) == b"still there"
    with broker.connect("app") as again:
        del buffer
        gc.collect()
        assert again.broker().clients == 1
    with pytest.raises(gpushm.Unavailable) as caught:
        gpushm.connect(broker.root / "nowhere", timeout=0)
    assert isinstance(caught.value, ConnectionError)


def test_the_broker_dies_and_returns(broker, app):
    buffer = app.create("x", 100)
    buffer.write(b"kept")
    broker.kill()
    with pytest.raises(ConnectionError):
        app.create("y", 100, timeout=0)
    assert buffer.read(0, 4) == b"kept"
    broker.start()
    app.broker()
    assert buffer.check() == "orphaned"
    with pytest.raises(gpushm.Orphaned):
        buffer.set_content(1)
