"""Signals, barriers, rings, queues and waiters, with other processes."""

import gc

import numpy
import pytest

import driver
import gpushm
from conftest import until
from dlpack import Consumed


# ---- signals

def test_a_signal_between_processes(app, peer):
    waiting = peer("""
        import gpushm
        signal = gpushm.signal("ready")
        signal.wait(3)
        print(signal.value, signal.check(3), signal.check(4))
        try:
            signal.wait(5)
        except gpushm.Ended as error:
            print("ended")
    """)
    with app.signal("ready", write=True, writers="all") as signal:
        assert (signal.name, signal.value, signal.state) == ("ready", 0, "live")
        signal.set(3)
        with pytest.raises(ValueError):
            signal.set(3)
        assert (signal.value, signal.recorded) == (3, 3) and signal.generation
        assert waiting.hear() == "3 True False"
        with pytest.raises(TimeoutError):
            app.signal("ready", write=True, timeout=0.01)
    assert waiting.hear() == "ended"
    waiting.end()
    assert signal.closed
    with pytest.raises(gpushm.InvalidArgument, match="closed"):
        signal.value
    with pytest.raises(gpushm.NotFound):
        app.signal("other", timeout=0)


def test_a_signal_of_streams(app, other):
    stream, waiting = driver.Stream(), driver.Stream()
    with app.signal("s", write=True) as signal, other.signal("s") as seen:
        signal.set(1)
        stream.block()
        signal.record(2, stream)
        seen.wait_on_stream(2, waiting)
        assert not seen.check(2)
        with driver.context():
            assert seen.device_address
        stream.go()
        stream.wait()
        waiting.wait()
        assert seen.check(2)
        signal.record(3, gpushm.HOST)
        seen.wait(3)


def test_a_writer_that_dies(peer, other):
    writer = peer("""
        import gpushm
        signal = gpushm.signal("s", write=True)
        signal.set(1)
        ring = gpushm.ring("r", write=True, nbytes=64)
        ring.put(b"last words")
        input()
    """, "app")
    signal, ring = other.signal("s"), other.ring("r", from_oldest=True)
    assert other.sync_lookup("s").kind == "signal"
    writer.kill()
    with pytest.raises(gpushm.PeerDied) as caught:
        signal.wait(2)
    assert isinstance(caught.value, ConnectionError)
    assert signal.state == "died"
    read = []
    with pytest.raises(gpushm.PeerDied):
        for frame in ring:
            read.append(frame.numpy().tobytes())
    assert read in ([b"last words"], [])
    assert ring.writer_state == "died"


def test_an_uncaught_exception_is_a_death(peer, other):
    writer = peer("""
        import gpushm, sys
        ring = gpushm.ring("r", write=True, nbytes=64, keep=True)
        sys.stdin.readline()
        sys.excepthook = lambda *_: None
        raise RuntimeError
    """, "app")
    ring = other.ring("r")
    writer.say()
    with pytest.raises(gpushm.PeerDied):
        ring.read()


# ---- barriers

def test_a_barrier(app, peer):
    dying, staying = [peer(f"""
        import gpushm
        with gpushm.barrier("start", 3) as barrier:
            barrier.wait()
            print("passed", barrier.point, barrier.check())
            {then}
            try:
                barrier.wait()
            except gpushm.PeerDied:
                print("broken")
    """) for then in ("input()", "pass")]
    barrier = app.barrier("start", 3)
    barrier.wait()
    assert (barrier.name, barrier.point, barrier.participants, barrier.joined) == ("start", 1, 3, 3)
    assert barrier.check() and barrier.rank in (0, 1, 2) and barrier.generation
    assert dying.hear() == staying.hear() == "passed 1 True"
    with pytest.raises(TimeoutError):
        app.barrier("start", 3, timeout=0.01)
    with pytest.raises(TimeoutError, match="missing"):
        barrier.wait(timeout=0.01)
    dying.kill()
    assert staying.hear() == "broken"
    with pytest.raises(gpushm.PeerDied):
        barrier.wait()
    barrier.close()
    with pytest.raises(gpushm.InvalidArgument):
        app.barrier("start", 0)


def test_a_barrier_of_a_stream(app, peer):
    peer("""
        import gpushm
        barrier = gpushm.barrier("b", 2)
        barrier.wait()
        barrier.wait()
    """)
    stream = driver.Stream()
    with app.barrier("b", 2) as barrier:
        barrier.wait()
        barrier.wait_on_stream(stream)
        stream.wait()
        assert barrier.check()


# ---- rings

def test_frames_carry_their_type_and_shape(app, peer):
    reader = peer("""
        import gpushm
        for frame in gpushm.ring("video", from_oldest=True):
            array = frame.numpy()
            print(frame.number, frame.lost, array.dtype, array.shape, array.sum())
    """)
    frame = numpy.arange(24, dtype=numpy.int16).reshape(2, 3, 4)
    with app.ring("video", write=True, frames=4, nbytes=1000, policy="block",
                  start_readers=1) as ring:
        for factor in range(1, 11):
            ring.put(frame * factor)
        ring.put(numpy.float64(2.5))
        for factor in range(1, 11):
            assert reader.hear() == f"{factor} 0 int16 (2, 3, 4) {frame.sum() * factor}"
        assert reader.hear() == "11 0 float64 () 2.5"
        assert (ring.name, ring.frames, ring.frame_nbytes, ring.policy) == ("video", 4, 1000, "block")
        assert (ring.newest, ring.dropped, ring.writer_state) == (11, 0, "live") and ring.generation
    reader.end()


def test_a_ring_with_a_type(app, other):
    writer = app.ring("r", write=True, dtype="float32", shape=(2, 4))
    reader = other.ring("r", dtype="float32", shape=(2, 4))
    assert writer.frame_nbytes >= 32
    with writer.begin() as frame:
        assert (frame.nbytes, frame.array.shape, frame.array.readonly) == (32, (2, 4), False)
        frame.write(numpy.full((2, 4), 3, numpy.float32))
        frame.metadata = b"mine"
    with reader.read() as seen:
        assert seen.metadata == b"mine".ljust(64, b"\0")
        assert seen.array.shape == (2, 4) and seen.array.readonly and seen.open
        assert seen.numpy().sum() == 24 and seen.device == 0 and seen.delivery <= 1
        assert seen.capacity_nbytes >= seen.nbytes == 32 and seen.time_ns > 0
        interface = seen.__cuda_array_interface__
        assert interface["data"] == (seen.ptr, True)
        taken = Consumed(seen.__dlpack__(max_version=(1, 0)))
        assert taken.shape == (2, 4) and seen.__dlpack_device__() == (2, 0)
        taken.drop()
    assert not seen.open and "ended" in repr(seen)
    with pytest.raises(gpushm.InvalidArgument, match="has ended"):
        seen.array
    with pytest.raises(gpushm.InvalidArgument, match="has ended"):
        seen.end()
    seen.give_back()
    assert (reader.taken, reader.lost) == (1, 0)
    with pytest.raises(ValueError, match="both"):
        app.ring("q", write=True, dtype="float32")


def test_a_frame_that_has_ended_does_not_keep_its_ring_open(app):
    """A `with` block leaves its name behind, and the next writer must not wait for it."""
    frames = []
    for number in range(3):
        with app.ring("again", write=True, frames=2, nbytes=64, timeout=5) as ring:
            with ring.begin() as frame:
                frames.append(frame)
            given_back = ring.begin()
            given_back.give_back()
            frames.append(given_back)
        assert "ended" in repr(frames[-2]) and not frames[-1].open, number


def test_what_a_ring_refuses(app, other):
    writer = app.ring("r", write=True, nbytes=64)
    reader = other.ring("r")
    with pytest.raises(gpushm.InvalidArgument, match="for reading"):
        reader.begin()
    with pytest.raises(gpushm.InvalidArgument, match="for writing"):
        writer.read()
    with pytest.raises(ValueError, match="a frame of this ring has"):
        writer.put(numpy.zeros(65, numpy.float64))
    with pytest.raises(ValueError, match="7 dimensions"):
        writer.put(numpy.zeros((1,) * 8))
    with pytest.raises(ValueError, match="64 bytes"):
        writer.put(b"1", metadata=bytes(65))
    with pytest.raises(gpushm.InvalidArgument, match="no type that GPUs know"):
        writer.put(["text"])
    writer.put(b"good", metadata=b"m")
    with reader.read() as frame:
        assert frame.number == 1 and frame.numpy().tobytes() == b"good"
        with pytest.raises(gpushm.Denied):
            frame.write(b"1")
    with pytest.raises(TimeoutError):
        reader.read(timeout=0.01)
    with pytest.raises(TimeoutError):
        reader.read(timeout=0)


def test_a_reader_says_when_a_type_does_not_fit(app, other):
    writer = app.ring("r", write=True, nbytes=64)
    reader = other.ring("r", dtype="float32", shape=(100,))
    writer.put(b"small", metadata=b"")
    with pytest.raises(gpushm.Corrupt, match="has 5 bytes"):
        reader.read().array


def test_the_newest_frame_and_lost_ones(app, other):
    writer = app.ring("r", write=True, frames=4, nbytes=64)
    reader = other.ring("r", from_oldest=True)
    for number in range(10):
        writer.put(bytes([number]))
    with reader.read(newest=True) as frame:
        assert frame.number == 10 and frame.numpy()[0] == 9
        assert frame.lost == 9 and reader.lost == 9


def test_frames_wait_for_streams(app, other):
    stream, consumer, further = driver.Stream(), driver.Stream(), driver.Stream()
    writer = app.ring("r", write=True, nbytes=64)
    reader = other.ring("r")
    stream.block()
    frame = writer.begin()
    stream.fill(frame.ptr, 7, 1)
    frame.nbytes = 4
    frame.end(stream)
    with pytest.raises(TimeoutError):
        reader.read(gpushm.HOST, timeout=0.05)
    frame = reader.read(consumer)
    with pytest.raises(TimeoutError):
        frame.end(timeout=0.05)
    assert frame.open
    taken = Consumed(frame.array.__dlpack__(stream=further.cuda_stream, max_version=(1, 0)))
    stream.go()
    assert frame.numpy().tobytes() == b"\7\0\0\0"
    frame.end()
    taken.drop()


def test_device_arrays_are_put_on_their_stream(app, other):
    source = app.create("source", 4096)
    source.write(numpy.arange(4, dtype=numpy.int32))
    writer = app.ring("r", write=True, nbytes=64)
    reader = other.ring("r")
    stream = driver.Stream()
    writer.put(source.view("int32", (2, 2)), stream=stream)
    with reader.read() as frame:
        assert frame.numpy().tolist() == [[0, 1], [2, 3]]
    writer.put(source.view("int32", (4,)))
    with reader.read() as frame:
        assert frame.numpy().tolist() == [0, 1, 2, 3]


def test_a_ring_lives_as_long_as_its_arrays(app, other):
    writer = app.ring("r", write=True, nbytes=64)
    writer.put(b"x")
    with other.ring("r", from_oldest=True) as reader:
        for frame in reader:
            array = frame.array
            break
    assert reader.closed
    assert array.numpy()[0] == ord("x")
    with writer:
        pass
    writer = app.ring("r", write=True, nbytes=64)
    frame = writer.begin()
    with pytest.raises(BufferError):
        writer.close()
    del frame
    gc.collect()
    writer.close()


# ---- queues

def test_a_lent_item_ends_with_its_last_array(app, other):
    """And after the work on the stream that took it."""
    stream = driver.Stream()
    writer = app.queue("work", write=True, frames=2, nbytes=64)
    reader = other.queue("work")
    for number in range(2):
        writer.put(bytes([number]))
    array = reader.read(gpushm.HOST)._lend()
    taken = Consumed(array.__dlpack__(stream=stream.cuda_stream, max_version=(1, 0)))
    assert array.readonly and array.numpy()[0] == 0
    del array
    stream.block()
    with pytest.raises(TimeoutError):
        writer.begin(timeout=0.05)  # A tensor of it lives.
    taken.drop()
    with pytest.raises(TimeoutError):
        writer.begin(timeout=0.05)  # Work that uses it is queued.
    stream.go()
    writer.begin().give_back()
    reader.read(gpushm.HOST)._lend()
    reader.close()
    writer.close()


def test_an_item_returns_if_its_worker_fails_or_dies(app, other, peer):
    queue = app.queue("work", write=True, nbytes=64)
    assert queue.policy == "queue" and isinstance(queue, gpushm.Ring)
    queue.put(b"precious")
    worker = other.queue("work")
    with pytest.raises(RuntimeError):
        for item in worker:
            assert item.delivery == 1
            raise RuntimeError
    del item
    gc.collect()
    dying = peer("""
        import gpushm
        item = gpushm.queue("work").read()
        print(item.delivery)
        input()
    """)
    assert dying.hear() == "2"
    dying.kill()
    with worker.read() as item:
        assert item.delivery == 3 and item.numpy().tobytes() == b"precious"


# ---- waiters

def test_a_waiter(app, other):
    import select

    ring = app.ring("r", write=True, nbytes=64)
    signal = app.signal("s", write=True)
    with other.waiter() as waiter:
        reader, seen = other.ring("r"), other.signal("s")
        waiter.add_name("x", tag=1)
        waiter.add_ring(reader, 2)
        waiter.add_signal(seen, 5, 3)
        assert waiter.wait(0) == [] and waiter.wait(0.05) == []
        buffer = app.create("x", 10)
        assert select.select([waiter], [], [], 10)[0]
        event, = waiter.wait()
        assert (event.tag, event.kind, event.status) == (1, "name", gpushm.Status.OK)
        assert event.generation == buffer.generation
        ring.put(b"1")
        event, = waiter.wait()
        assert (event.tag, event.kind) == (2, "ring")
        reader.read().end()
        signal.set(5)
        until(lambda: any(event.kind == "signal" and event.tag == 3 for event in waiter.wait(0)))
        waiter.remove(1)
        with pytest.raises(LookupError):
            waiter.remove(1)
    assert waiter.closed
    with pytest.raises(gpushm.InvalidArgument):
        waiter.fileno()
    with other.waiter() as waiter, pytest.raises(gpushm.InvalidArgument):
        waiter.add_ring(ring)


def test_sync_lookup(app, other):
    with app.queue("q", write=True, nbytes=64), app.barrier("b", 2) as barrier:
        barrier.check()
        kinds = {info.name: info.transport for info in other.list()}
        assert kinds["b"] == "host"
        info = other.sync_lookup("b")
        assert (info.name, info.kind, info.joined, info.places) == ("b", "barrier", 1, 2)
        assert info.value == 0 and info.generation and info.state
        assert other.sync_lookup("q-ring").kind == "queue"
    app.create("x", 10)
    with pytest.raises(gpushm.Error):
        other.sync_lookup("x")
