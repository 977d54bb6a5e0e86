"""asyncio: a waiter's descriptor in the event loop. Nothing here starts a thread."""

import asyncio

from gpushm.errors import Ended, Loading, NotFound, Stale, Status, Timeout, from_status

_CAPACITY = 16


async def _events(waiter):
    """Waits for events. The descriptor is in the loop only meanwhile: it stays readable as long as
    there is an event, and the loop would run in circles while the program works on the last one.
    """
    loop = asyncio.get_running_loop()
    # The descriptor may also be readable without an event.
    while not (found := waiter.wait(0, _CAPACITY)):
        readable = loop.create_future()
        loop.add_reader(waiter.fileno(), _wake, readable)
        try:
            await readable
        finally:
            loop.remove_reader(waiter.fileno())
    return found


def _wake(future):
    if not future.done():
        future.set_result(None)


async def frames(ring):
    """Yields frames until the writer ends; ends each as _ring.frames does, without blocking."""
    with ring._waiter() as waiter:
        waiter.add_ring(ring)
        while True:
            try:
                frame = ring.read(timeout=0)
            except Timeout:
                await _events(waiter)
                continue
            except Ended:
                return
            try:
                yield frame
            except BaseException:
                frame.give_back()
                raise
            if frame.open:
                await _end(frame)


async def _end(frame):
    """Frame.end waits until the frame was complete. Frames of the host are; else it is soon."""
    step_s, longest_s = 50e-6, 2e-3
    while True:
        try:
            return frame.end(timeout=0)
        except Timeout:
            await asyncio.sleep(step_s)
            step_s = min(2 * step_s, longest_s)


async def reached(signal, value):
    with signal._waiter() as waiter:
        waiter.add_signal(signal, value)
        await _events(waiter)
    if not signal.check(value):
        raise from_status(Status.BUSY, f"signal \"{signal.name}\" has not reached {value}", "")


async def awatch(client, name, newer_than=0):
    """Yields the Info of each new generation of a buffer that is ready."""
    with client.waiter() as waiter:
        waiter.add_name(name, newer_than)
        while True:
            for event in await _events(waiter):
                if event.status != Status.OK or event.generation <= newer_than:
                    continue  # Deleted: a later generation may follow.
                try:
                    info = client.wait(name, newer_than, 0)
                except (LookupError, TimeoutError):
                    continue
                newer_than = info.generation
                yield info


async def opened(client, name, since, open_set):
    """Yields each new generation, opened by `open_set`, in a list whose only element the caller takes
    out: nothing here holds its memory."""
    with client.waiter() as waiter:
        waiter.add_name(name, since)
        while True:
            for event in await _events(waiter):
                if event.status != Status.OK or event.generation <= since:
                    continue
                try:
                    handed_over = [open_set(client, name, event.generation, 0)]
                except (NotFound, Loading, Stale, Timeout):
                    continue  # Another event says when it is loaded, or that a newer one is.
                since = event.generation
                yield handed_over
