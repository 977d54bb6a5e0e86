"""The pinned release of LMCache has what gpushm.integrations.lmcache relies on."""

import ast

import contract
import pytest

PLATFORM = "lmcache/v1/platform"
DETECT = f"{PLATFORM}/_device_detect.py"
WIRE = f"{PLATFORM}/base/ipc_wire.py"
WRAPPERS = f"{PLATFORM}/devices/cuda/ipc_wrapper.py"
EVENTS = f"{PLATFORM}/base/event_ipc.py"
SPEC = f"{PLATFORM}/base/device_spec.py"


@pytest.fixture(scope="module")
def lmcache():
    return contract.Sources("lmcache")


def test_the_entry_point(lmcache):
    group = "lmcache.device_plugins"
    assert contract.entry_points(group)["gpushm"] == "gpushm.integrations.lmcache:GpushmDeviceSpec"
    assert ast.literal_eval(lmcache.find(DETECT, "DEVICE_PLUGIN_ENTRY_POINT_GROUP").value) == group
    assert ast.literal_eval(lmcache.find(DETECT, "DEVICE_BACKEND_ENV_VAR").value) == "LMCACHE_DEVICE_BACKEND"


def test_what_we_import_is_there(lmcache):
    contract.check_imports(lmcache, "lmcache.py", "lmcache", at_least=5)


def test_the_device(lmcache):
    cuda = f"{PLATFORM}/devices/cuda/__init__.py"
    for name in ("is_available", "ipc_wrapper_cls", "event_ipc_backend", "create_cache_context"):
        lmcache.find(cuda, f"CudaDeviceSpec.{name}")
    lmcache.find(SPEC, "DeviceSpec.backend_name")
    # LMCache asks the device for each of them.
    assert "spec.create_cache_context(" in lmcache.text(f"{PLATFORM}/cache_context.py")
    assert "spec.event_ipc_backend" in lmcache.text(EVENTS)
    factory = ast.unparse(lmcache.find(f"{PLATFORM}/__init__.py", "resolve_kv_wrapper_factory"))
    assert "spec.ipc_wrapper_cls" in factory and "getattr(wrapper_cls, 'wrap', wrapper_cls)" in factory
    assert "getattr(type(w), 'device_type', None)" in ast.unparse(
        lmcache.find(f"{PLATFORM}/cache_context.py", "_detect_device_type"))
    context = lmcache.text(f"{PLATFORM}/devices/cuda/cache_context.py")
    assert "ipc_wrapper.to_tensor()" in context and "wrapper.close()" in context
    # We add an attribute.
    assert "__slots__" not in context + lmcache.text(f"{PLATFORM}/base/cache_context.py")


def test_the_descriptor(lmcache):
    """Goal: what we send is LMCache's own descriptor, and LMCache itself sends nothing beside it."""
    assert lmcache.fields(WIRE, "TensorMetadata") == [
        "dtype", "shape", "stride", "storage_offset", "device_uuid"]
    assert lmcache.fields(WIRE, "IPCData") == ["version", "metadata"]
    assert lmcache.fields(WIRE, "VmmCudaIPCData") == [
        "export_id", "kind", "fabric_blob", "alloc_size", "alloc_offset", "nbytes"]
    annotations = {each.target.id: ast.unparse(each.annotation)
                   for each in lmcache.find(WIRE, "VmmCudaIPCData").body if isinstance(each, ast.AnnAssign)}
    assert "min_length=16, max_length=16" in annotations["export_id"] and "'posix_fd'" in annotations["kind"]
    lmcache.find(WIRE, "DTYPES")
    lmcache.accepts(WRAPPERS, "VmmCudaIPCWrapper.from_wire", "data")
    lmcache.accepts(WRAPPERS, "VmmCudaIPCWrapper.to_wire")
    lmcache.accepts(f"{PLATFORM}/base/ipc_wrapper.py", "DeviceIPCWrapper._get_device_uuid", "device_index")
    lmcache.accepts("lmcache/v1/gpu_connector/kv_format/contiguity.py", "attempt_permute_to_contiguous_view",
                    "kv_caches")
    users = [path for path in lmcache.files() if "set_vmm_fd_resolver" in lmcache.text(path)]
    assert users == [WRAPPERS]


def test_the_events(lmcache):
    def methods(defined):
        return {each.name: [argument.arg for argument in each.args.args] for each in defined.body
                if isinstance(each, ast.FunctionDef)}

    protocol = methods(lmcache.find(EVENTS, "EventIPCBackend"))
    ours = methods(next(each for each in ast.parse(contract.installed("lmcache.py").read_text()).body
                        if getattr(each, "name", None) == "SignalEvents"))
    assert len(protocol) == 8 and {name: ours.get(name) for name in protocol} == protocol
    path = "lmcache/v1/multiprocess/transfer_context/worker_transfer.py"
    assert "self, stream: object | None=None" in ast.unparse(lmcache.find(path, "IPCEvent.wait"))


def test_a_wait_comes_before_anything_is_kept(lmcache):
    """Goal: a wait that raises, as the engine died, must leave nothing in the cache. Method: its place in the
    source of the handler."""
    path = "lmcache/v1/multiprocess/modules/lmcache_driven_transfer.py"
    store = ast.unparse(lmcache.find(path, "LMCacheDrivenTransferModule.store_with_chunk_mask"))
    assert 0 < store.index("event_backend.wait_event(") < store.index("reserve_write(") < store.index(
        "'finish_write_by_owner'")


def test_it_is_small():
    assert len(contract.installed("lmcache.py").read_text().splitlines()) < 300
