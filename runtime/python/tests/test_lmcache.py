"""gpushm.integrations.lmcache at work: found by LMCache's real registry of devices, called by its real
functions that wrap an engine's KV cache and make a server's context of it, with its real descriptors, all
from the pinned wheel (lmcache_standin.py). Engine and server are two processes in two containers. What stands
in for the GPU is in mp_standin.py.
"""

import contract
import driver
import engine_standin
import lmcache_standin
import pytest
import torch
from conftest import until

import gpushm
import gpushm._default


@pytest.fixture(scope="module")
def sources():
    return contract.Sources("lmcache")


@pytest.fixture
def lmcache(sources, broker, monkeypatch):
    """LMCache in the engine's process, told to use gpushm."""
    monkeypatch.setenv("LMCACHE_DEVICE_BACKEND", "gpushm")
    with lmcache_standin.installed(sources), broker.connect("app") as client:
        monkeypatch.setattr(gpushm._default, "_client", client)
        from lmcache.v1 import platform
        from gpushm.integrations import lmcache as ours

        lmcache_standin.replace(monkeypatch.setattr)
        yield platform
        ours._Offered._offers.clear()


SERVER = """
    import contract, lmcache_standin, os
    os.environ["LMCACHE_DEVICE_BACKEND"] = "gpushm"
    with lmcache_standin.installed(contract.Sources("lmcache")):
        from lmcache.v1 import platform
        from lmcache.v1.platform import cache_context
        from lmcache.v1.platform.base import event_ipc
        from lmcache.v1.platform.base.ipc_wrapper import DeviceIPCWrapper
        import gpushm._native
        lmcache_standin.replace(setattr)
        gpushm.client()
        events = event_ipc.get_event_ipc_backend("cuda")
        contexts = []
        before = gpushm._native.live_resources()
        while line := input():
            what, *given = line.split()
            given = [bytes.fromhex(each) for each in given]
            try:
                if what == "register":
                    wrappers = [DeviceIPCWrapper.Deserialize(each) for each in given]
                    contexts.append(cache_context.create_cache_context(wrappers))
                    answer = ([each.tolist() for each in contexts[-1].tensors],
                              [each.stride() for each in contexts[-1].tensors])
                elif what == "unregister":
                    contexts.pop().close()
                    answer = gpushm._native.live_resources() - before
                else:
                    event = events.import_event(given[0], "cuda")
                    answer = events.query_event(event)
                    events.wait_event(event, None)
            except Exception as error:
                answer = f"{type(error).__name__} {error}"
            print(answer, flush=True)
"""


def wrapped(caches):
    """What an engine sends, as text."""
    from lmcache.v1.platform import kv_wrap
    from lmcache.v1.platform.base.ipc_wrapper import DeviceIPCWrapper

    return " ".join(DeviceIPCWrapper.Serialize(each).hex() for each in kv_wrap.wrap_kv_caches(caches))


def ask(peer, line):
    peer.say(line)
    return peer.hear()


def test_a_cache_is_handed_to_the_server(lmcache, peer, app):
    """Goal: layers of any layout that LMCache allows reach the server as they lie. Method: heads before
    tokens, padded blocks, a part of a storage, and two layers that share their memory."""
    whole = torch.arange(48.0).reshape(2, 3, 2, 4)
    heads = whole.permute(0, 2, 1, 3)
    padded = torch.arange(40, dtype=torch.int16).as_strided((3, 2, 4), (16, 4, 1))
    caches = {"a": heads, "b": padded, "c": whole[1].to(torch.bfloat16), "d": heads}
    server = peer(SERVER)
    line = f"register {wrapped(caches)}"
    assert len(app.list()) == 3
    sent = [whole.tolist(), padded.tolist(), caches["c"].tolist(), whole.tolist()]
    strides = [whole.stride(), (16, 4, 1), caches["c"].stride(), whole.stride()]
    assert ask(server, line) == f"{(sent, strides)}"
    names = {info.name for info in app.list()}
    assert all(len(app.holders(name)) == 1 for name in names)
    assert ask(server, "unregister") == "0"  # Unmapped.
    until(lambda: not any(app.holders(name) for name in names))


def test_an_engine_that_registers_again(lmcache, peer, app):
    cache = {"a": torch.arange(6.0).reshape(2, 3)}
    first, again = wrapped(cache), wrapped(cache)
    assert first == again  # Nobody has taken it.
    server = peer(SERVER)
    assert ask(server, f"register {first}").startswith("([[[0.0")
    assert wrapped(cache) != first and len(app.list()) == 1
    assert "start the engine again" in ask(server, f"register {first}")


def test_an_engine_that_dies(lmcache, broker, peer, app):
    """Goal: a server must not hang, or go on, when the engine dies before its work is done. Method: an engine
    that is killed between the export of an event and its value."""
    engine = peer("""
        import gpushm
        signal = gpushm.signal("lmcache-0-0", write=True)
        signal.set(1)
        print("ready", flush=True)
        input()
    """, "app")
    server = peer(SERVER)
    assert engine.hear() == "ready"
    name = b"lmcache-0-0".hex()
    assert ask(server, f"wait {1:016x}{name}") == "True"
    server.say(f"wait {2:016x}{name}")
    engine.kill()
    assert server.hear().startswith("PeerDied")


def test_events(lmcache, peer):
    from lmcache.v1.platform.base import event_ipc

    events = event_ipc.get_event_ipc_backend("cuda")
    assert type(events).__name__ == "SignalEvents" and isinstance(events, event_ipc.EventIPCBackend)
    events.check_event_support("cuda")
    server, streams = peer(SERVER), [driver.Stream(), driver.Stream()]
    never = events.create_event("cuda")
    assert ask(server, f"wait {events.export_event(never, 'cuda').hex()}") == "True"
    assert events.query_event(never)
    streams[0].block()
    late, soon = events.create_event("cuda"), events.create_event("cuda")
    events.record_event(late, streams[0])
    events.record_event(soon, streams[1])
    events.synchronize_event(soon, "cuda")
    assert not events.query_event(late)
    handle = events.export_event(late, "cuda")
    assert not events.query_event(events.import_event(handle, "cuda"))  # In the process that records it, too.
    server.say(f"wait {handle.hex()}")
    streams[0].go()
    assert server.hear() in ("True", "False")
    late.wait()
    assert events.query_event(late)


def test_it_is_used_only_where_it_is_asked_for(sources, broker, monkeypatch):
    """Goal: LMCache goes on as before where gpushm is merely installed. Method: its registry, without the
    variable and with the name of its own device."""
    for backend in (None, "cuda"):
        if backend:
            monkeypatch.setenv("LMCACHE_DEVICE_BACKEND", backend)
        with lmcache_standin.installed(sources):
            from lmcache.v1 import platform

            assert "gpushm" in platform._DEVICE_REGISTRY
            assert type(platform.get_device_spec("cuda")).__name__ == "CudaDeviceSpec"
            assert platform.current_device_spec.backend_name == "cuda"
            assert platform.resolve_kv_wrapper_factory("cuda").__self__.__name__ == "CudaIPCWrapper"


def test_memory_that_cannot_be_shared(lmcache, monkeypatch):
    import mp_standin
    from gpushm.integrations import lmcache as ours

    kept = []

    def private(tensor, nbytes):
        kept.append(mp_standin.OnGpu(tensor.untyped_storage(), can_export=False))
        return kept[-1]

    monkeypatch.setattr(ours, "_bytes_of", private)
    with pytest.raises(gpushm.Unsupported):
        wrapped({"a": torch.ones(3)})


# ---- the example

CACHE = """
assert sys.argv[1] == "server" and os.environ["LMCACHE_DEVICE_BACKEND"] == "gpushm"
listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True:
    listening.accept()[0].close()
"""
ENGINE = """
assert sys.argv[1:3] == ["serve", "model"] and os.environ["LMCACHE_DEVICE_BACKEND"] == "gpushm"
assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
given = dict(zip(sys.argv[3::2], sys.argv[4::2]))
assert json.loads(given["--kv-transfer-config"])["kv_connector"] == "LMCacheMPConnector"

class Handler(Answering):
    def do_GET(self):
        counted = b'vllm:external_prefix_cache_hits_total{{engine="0"}} {hits}'
        self.answer({{"/health": b"", "/metrics": counted}}[self.path])

    def do_POST(self):
        asked = self.asked()
        assert self.path == "/v1/completions" and asked["temperature"] == 0
        self.answer(json.dumps({{"choices": [{{"text": asked["prompt"][-9:]}}]}}).encode())

serve(given["--port"], Handler)
"""


@pytest.mark.parametrize("hits, code", [("512.0", 0), ("0.0", 1)])
def test_the_example(broker, tmp_path, hits, code):
    """Goal: the example says whether the second engine used the cache. Method: programs named lmcache and
    vllm that answer, in place of both; in the second case the engine counts no hits."""
    programs = {"lmcache": CACHE, "vllm": ENGINE.format(hits=hits)}
    done = engine_standin.run_example(broker, tmp_path, programs, "lmcache_engines.py", "model", "--wait-s", "0")
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith(
        f"answers equal: True; tokens that engine 1 got from the cache: {float(hits):.0f}\n")
