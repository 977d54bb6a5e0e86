"""asyncio: several things wait in one thread."""

import asyncio
import os
import threading

import numpy
import pytest

import gpushm


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_frames_and_signals_and_names_in_one_loop(app, peer, broker):
    writer = peer("""
        import gpushm, sys
        ring = gpushm.ring("r", write=True, nbytes=64, policy="block", start_readers=1)
        signal = gpushm.signal("s", write=True)
        print("open", flush=True)
        for number in range(20):
            ring.put(bytes([number]))
        signal.set(20)
        with gpushm.create("x", 100):
            ring.close()
            sys.stdin.readline()
    """)
    assert writer.hear() == "open"
    threads = threading.active_count()

    async def frames():
        return [int(frame.numpy()[0]) async for frame in app.ring("r")]

    async def generation():
        async for info in gpushm.awatch("x", client=app):
            return info.name

    async def everything():
        ticks = asyncio.create_task(ticking())
        got = await asyncio.gather(frames(), app.signal("s").reached(20), generation())
        ticks.cancel()
        assert threading.active_count() == threads
        return got

    async def ticking():
        while True:
            await asyncio.sleep(0.001)

    assert run(everything()) == [list(range(20)), None, "x"]
    writer.say()
    writer.end()


def test_a_frame_returns_if_the_loop_is_left(app, other):
    queue = app.queue("q", write=True, nbytes=64)
    queue.put(numpy.arange(3))
    worker = other.queue("q")

    async def fail():
        items = aiter(worker)
        item = await anext(items)
        assert item.delivery == 1
        await items.aclose()
        return [item.delivery async for item in first(worker)]

    async def first(items):
        async for item in items:
            yield item
            queue.close()

    assert run(fail()) == [2]


def test_a_signal_whose_writer_ends(app, other):
    signal = app.signal("s", write=True)
    seen = other.signal("s")

    async def wait():
        waiting = asyncio.create_task(seen.reached(5))
        await asyncio.sleep(0)
        signal.close()
        await waiting

    with pytest.raises(gpushm.Ended):
        run(wait())


def test_a_cancelled_wait_leaves_nothing(app, other):
    signal = app.signal("s", write=True)
    ring = app.ring("r", write=True, nbytes=64)
    seen = other.signal("s")
    reader = other.ring("r")

    async def cancel():
        before = None
        for round in range(20):
            # The first round opens what the clients keep.
            before = len(os.listdir("/proc/self/fd")) if round == 1 else before
            for waiting in (seen.reached(1), anext(aiter(reader)), anext(gpushm.awatch("x", client=other))):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(waiting, 0.002)
        await asyncio.get_running_loop().shutdown_asyncgens()
        return len(os.listdir("/proc/self/fd")) - before

    assert run(cancel()) <= 0
    ring.close()
    signal.close()
