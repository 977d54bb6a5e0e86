"""The package in a process: fork and spawn, garbage collection, exit, leaks, the library in use."""

import gc
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
import textwrap

import numpy
import pytest

import gpushm
import gpushm.tensors
import gpushm.testing
from gpushm import _native, errors


def run(broker, code, *options, **variables):
    """Runs Python code in a process of its own, and returns its output. It must be quiet."""
    done = subprocess.run([sys.executable, "-X", "dev", *options, "-c", textwrap.dedent(code)],
                          env={**broker.environment("app"), **variables}, capture_output=True,
                          text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


# ---- fork and spawn

def test_a_child_of_fork_connects_anew(broker):
    assert run(broker, """
        import gpushm, multiprocessing
        def child(_):
            return [info.name for info in gpushm.list_buffers()]
        with multiprocessing.get_context("fork").Pool(2) as pool:  # Only imported so far.
            assert pool.map(child, range(3)) == [[]] * 3
        gpushm.list_buffers()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(child, range(3)) == [[]] * 3
        print("ok")
    """, "-W", "ignore::DeprecationWarning") == "ok"


def test_a_child_of_fork_cannot_use_what_its_parent_opened(broker):
    assert run(broker, """
        import gc, gpushm, os
        client = gpushm.client()
        buffer = client.create("x", 100)
        ring = client.ring("r", write=True, nbytes=64)
        array = buffer.view("uint8", (100,))
        if not (pid := os.fork()):
            for use in (client.list, lambda: ring.put(b"1"), lambda: client.attach("x"),
                        lambda: gpushm.attach("x")):  # CUDA was initialised before the fork.
                try:
                    use()
                except gpushm.Forked as error:
                    assert "spawn" in error.remedy or "exec" in error.remedy or error.remedy, error
                else:
                    os._exit(1)
            del client, buffer, ring, array
            gc.collect()
            gpushm.client()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        buffer.write(b"parent")
        assert buffer.read(0, 6) == b"parent" and buffer.check() == "current"
        ring.put(b"1")
        print("ok")
    """, "-W", "ignore::DeprecationWarning") == "ok"


def publish_in_child(folder, name):
    client = gpushm.connect(folder)
    gpushm.tensors.publish(name, {"pid": numpy.int64(os.getpid())}, client=client)
    return os.getpid()


def test_spawn(broker):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pid = pool.apply(publish_in_child, (broker.folder("app"), "w"))
    with broker.connect("other") as client:
        assert int(gpushm.tensors.open("w", client=client)["pid"].numpy()) == pid


def test_errors_travel_between_processes():
    for kind in errors.Error.__subclasses__():
        error = errors.from_status(kind.status, "the cause", "the remedy")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) is kind
        assert (str(again), again.what, again.remedy, again.status) == (
            "the cause (the remedy)", "the cause", "the remedy", kind.status)
    assert type(errors.from_status(99, "new", "")) is gpushm.Error


# ---- lifetimes

def test_any_order_of_destruction(broker):
    """References die in random order, with cycles; in the end nothing is left."""
    with broker.connect("app") as client:
        client.create("x", 4096).detach()
        ring = client.ring("r", write=True, nbytes=64)
    gc.collect()
    _native.collect()
    before = _native.live_resources()
    for seed in range(50):
        reader = broker.connect("other")
        buffer = reader.attach("x")
        frames = reader.ring("r", from_oldest=True)
        ring.put(b"1")
        frame = frames.read()
        things = [reader, buffer, buffer.view("uint8", (8,)), frames, frame, frame.array,
                  buffer.__dlpack__(max_version=(1, 0)), reader.waiter()]
        things.append(things if seed % 2 else None)
        del reader, buffer, frames, frame
        random.Random(seed).shuffle(things)
        while things:
            if things.pop() is things:
                break
        del things
        gc.collect()
        _native.collect()
        assert _native.live_resources() == before
    with broker.connect("app") as client:
        assert {holder.container for holder in client.holders()} == {"app"}
    ring.close()


@pytest.mark.parametrize("kept", ["client", "client, buffer", "buffer, array", "array", "capsule",
                                  "client, ring, frame", "signal, waiter, client"])
def test_exit_with_live_objects(broker, kept):
    with broker.connect("app") as client:
        client.create("x", 100).detach()
        writer = client.ring("r", write=True, nbytes=64)
        writer.put(b"1")
        signal = client.signal("s", write=True)
        assert run(broker, f"""
            import gpushm
            client = gpushm.client()
            buffer = client.attach("x")
            array = buffer.view("uint8", (8,))
            capsule = array.__dlpack__(max_version=(1, 0))
            ring = client.ring("r", from_oldest=True)
            frame = ring.read()
            signal, waiter = client.signal("s"), client.waiter()
            waiter.add_name("x")
            kept = [{kept}]
            kept.append(kept)
            gpushm.kept = kept
            del client, buffer, array, capsule, ring, frame, signal, waiter, kept
            print("ok")
        """) == "ok"
        assert {holder.container for holder in client.holders("x")} == set()
        writer.close()
        signal.close()


def test_no_leaks(broker):
    """Opens and closes everything many times: descriptors, threads and references stay as they were."""
    client = broker.connect("app")
    kept = client.create("x", 4096)
    gpushm.tensors.publish("w", {"a": numpy.zeros(8)}, client=client)
    writer = client.ring("r", write=True, nbytes=64)

    def once():
        client.attach("w").view("uint8", (8,)).__dlpack__(max_version=(1, 0))
        dict(gpushm.tensors.open("w", client=client))
        client.list()
        client.holders()
        with client.waiter() as waiter:
            waiter.add_name("x")
        try:
            client.attach("none", timeout=0)
        except gpushm.NotFound:
            pass
        with client.signal("s", write=True), broker.connect("other") as other:
            other.signal("s").close()
            with other.ring("r") as reader:
                writer.put(b"1")
                reader.read().end()

    def state():
        gc.collect()
        _native.collect()
        # The pool of threads of the simulated driver has its final size after the first round.
        return (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
                _native.live_resources(), sys.getrefcount(client))

    for _ in range(20):
        once()
    before = state()
    for _ in range(200):
        once()
    assert state() == before
    for _ in range(20_000):
        kept.view("uint8", (8,)).__dlpack__(max_version=(1, 0))
    assert state() == before
    writer.close()
    client.close()


def test_a_hundred_thousand_opens(broker):
    """Goal: an open of a buffer and of a set leaves nothing behind, not even one block of malloc.

    Method: this process and the broker after 10^4 opens, when their caches have their size, and after
    10^5. One block of 32 bytes for each open would be 2.7 MiB.
    """
    client = broker.connect("app")
    client.create("x", 4096).detach()
    gpushm.tensors.publish("w", {"a": numpy.zeros(8)}, client=client)
    # A debug build of Python counts all references, but not those of a module for the other build.
    references = getattr(sys, "gettotalrefcount", int)
    if not re.search(r"cpython-3\d+d-|abi3", _native.__file__):
        references = int

    def opens(count):
        for _ in range(count):
            with client.attach("x"):
                dict(gpushm.tensors.open("w", client=client))
        gc.collect()
        _native.collect()
        counts, pages = [_native.live_resources(), sys.getrefcount(client)], []
        for pid in (os.getpid(), broker.pid):
            counts += [len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))]
            with open(f"/proc/{pid}/statm") as file:
                pages.append(int(file.read().split()[1]))
        return counts, [sys.getallocatedblocks(), references()], pages

    counts, objects, pages = opens(10_000)
    counts_then, objects_then, pages_then = opens(90_000)
    assert counts_then == counts
    assert all(then - before < 100 for before, then in zip(objects, objects_then))
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # It keeps what is freed for a while.
        for before, then in zip(pages, pages_then):
            assert (then - before) * os.sysconf("SC_PAGE_SIZE") < 1 << 20
    client.close()


# ---- the library

def test_about(broker):
    text = run(broker, """
        import gpushm, json
        print(json.dumps(gpushm.about()))
    """)
    import json

    about = json.loads(text)
    assert about["version"] == gpushm.__version__ and about["library"].endswith(".so.0")
    assert about["library_version"].count(".") == 2 and about["library_origin"]
    assert about["driver"].startswith("CUDA ") and about["gpus"] == ["Simulated GPU"]
    assert about["broker"]["container"] == "app" and about["broker"]["simulated"]
    nowhere = run(broker, "import gpushm; print(gpushm.about()['broker'])", GPUSHM_DIR="/nowhere")
    assert nowhere.startswith(("Unavailable: ", "Timeout: "))


def test_a_library_that_lacks_functions_is_left_out(broker, tmp_path):
    old = tmp_path / "libgpushm.so.0"
    source = tmp_path / "old.c"
    source.write_text("int gpushm_version(void) { return 100; }\n")
    # A sanitizer of this process (`run`) would report what the compiler leaks.
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libgpushm.so.0", "-o", old, source], check=True,
                   env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})
    assert "it lacks gpushm_attach" in _native.load_library(str(old))
    assert "cannot open" in _native.load_library(str(tmp_path / "none"))
    assert _native.library_file() != str(old)
    done = subprocess.run([sys.executable, "-c", "import gpushm"], capture_output=True, text=True,
                          env={**os.environ, "GPUSHM_LIBRARY": str(old)}, timeout=60)
    assert "ImportError: no libgpushm can be used" in done.stderr and "it lacks" in done.stderr


def test_two_copies_of_the_library_in_one_process(broker, tmp_path):
    """An application that links libgpushm by itself, and the package with its own copy."""
    import shutil

    second = shutil.copy(_native.library_file(), tmp_path / "libgpushm.so.0")
    assert run(broker, f"""
        import ctypes, gpushm
        other = ctypes.CDLL({str(second)!r}, ctypes.RTLD_GLOBAL)
        client = ctypes.c_void_p()
        assert other.gpushm_open(None, ctypes.byref(client)) == 0
        buffer = gpushm.create("x", 100)
        attachment = ctypes.c_void_p()
        assert other.gpushm_attach(client, b"x", None, ctypes.byref(attachment)) == 0
        other.gpushm_attachment_address.restype = ctypes.c_uint64
        assert other.gpushm_attachment_address(attachment) not in (0, buffer.ptr)
        assert gpushm.about()["library"] != {str(second)!r}
        assert {{holder.access for holder in gpushm.holders("x")}} == {{"read", "read-write"}}
        other.gpushm_close(client)
        print("ok")
    """) == "ok"


# ---- the module's functions

def test_the_default_client(broker, monkeypatch):
    monkeypatch.setenv("GPUSHM_DIR", broker.folder("app"))
    with gpushm.create("x", 100) as buffer:
        buffer.write(b"1")
    assert gpushm.attach("x").read(0, 1) == b"1"
    assert gpushm.lookup("x").name == gpushm.wait("x").name == gpushm.list_buffers()[0].name
    with gpushm.replace("x", 200) as buffer:
        buffer.publish()
    assert gpushm.holders("x") == [] and gpushm.description("x")[0] == b""
    assert gpushm.broker().container == "app"
    with gpushm.signal("s", write=True), gpushm.barrier("b", 1), gpushm.waiter():
        assert gpushm.sync_lookup("s").kind == "signal"
    with gpushm.ring("r", write=True, nbytes=64), gpushm.queue("q", write=True, nbytes=64):
        pass
    for name in ("offer", "offer_state", "load", "save"):
        assert "default client" in getattr(gpushm, name).__doc__
    gpushm.delete("x")
    first = gpushm.client()
    first.close()
    assert gpushm.client() is not first
    gpushm.client().close()


def test_streams():
    from gpushm._streams import handle

    class Protocol:
        def __cuda_stream__(self):
            return (0, 77)

    class Cupy:
        ptr = 0

    assert (handle(5), handle(0), handle(Protocol()), handle(Cupy())) == (5, 1, 77, 1)
    assert handle(gpushm.HOST) == handle(None) == 2**64 - 1 and "HOST" in repr(gpushm.HOST)
    with pytest.raises(TypeError, match="not a stream"):
        handle("stream")


def test_every_public_name_is_documented():
    import inspect

    for name, thing in vars(gpushm).items():
        if name.startswith("_") or inspect.ismodule(thing):
            continue
        assert thing.__doc__, name
        for attribute, member in vars(thing).items() if inspect.isclass(thing) else ():
            if not attribute.startswith("_") and thing.__module__ == "gpushm._native":
                assert member.__doc__, f"{name}.{attribute}"
