"""What needs a real GPU: run it where PyTorch has one, with the wheel installed and a broker's folder in
GPUSHM_DIR, whose pool has 3 GiB. `python gpu_check.py [NAME ...]` prints a line for each check, or for
those of the names, and ends with 1 if one failed. Checks of CuPy and JAX are left out where they are not.
It makes buffers named "gpu-check...".
"""

import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time

import torch
import torch.multiprocessing

import gpushm
import gpushm.tensors
import gpushm.torch
import gpushm.torch.multiprocessing

MIB = 1 << 20


def microseconds(call, times):
    call()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def peer(code, imports="import torch, gpushm, gpushm.tensors, gpushm.torch"):
    """Runs code in another process, and returns its output."""
    done = subprocess.run([sys.executable, "-c", f"{imports}\n{textwrap.dedent(code)}"], capture_output=True,
                          text=True, timeout=120,
                          env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(count=50, seed=1):
    torch.manual_seed(seed)
    made = {f"layer.{i}": torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for i in range(count)}
    made["fp8"] = torch.randn(8, 8, device="cuda").to(torch.float8_e4m3fn)
    made["scalar"] = torch.tensor(3.0, device="cuda")
    return made


def same_bytes():
    tensors = state()
    gpushm.torch.save_file(tensors, "gpu-check")
    loaded = gpushm.torch.load_file("gpu-check")
    for name, tensor in tensors.items():
        assert loaded[name].is_cuda and loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
    total = sum(t.reshape(-1).view(torch.uint8).to(torch.int64).sum().item() for t in tensors.values())
    assert peer("""
print(sum(t.reshape(-1).view(torch.uint8).to(torch.int64).sum().item()
          for t in gpushm.torch.load_file("gpu-check").values()))
""") == str(total)


def from_dlpack_of_everything():
    with gpushm.create("gpu-check-raw", MIB, replace=True) as buffer:
        tensor = torch.from_dlpack(buffer)
        tensor.fill_(7)
        torch.cuda.synchronize()
        assert set(buffer.read(0, 100)) == {7} and tensor.data_ptr() == buffer.ptr
        array = buffer.view("float32", (4, 4))
        assert torch.from_dlpack(array).shape == (4, 4)
        assert torch.as_tensor(array.view("uint8", (4,)), device="cuda").tolist() == [7] * 4


def writes_are_illegal_and_guarded():
    tensor = gpushm.torch.load_file("gpu-check")["layer.0"]
    with gpushm.torch.guard():
        try:
            tensor.add_(1)
            raise AssertionError("the guard is silent")
        except gpushm.Denied as error:
            assert "layer.0" in str(error)


def deleters_do_not_break_a_capture():
    loaded = gpushm.torch.load_file("gpu-check")
    result = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result.copy_(loaded["layer.0"]).mul_(2)
        loaded = {"layer.0": loaded["layer.0"]}  # All others die during the capture.
        gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, loaded["layer.0"] * 2)


class Capturing(threading.Thread):
    """Captures CUDA graphs, one after the other, in PyTorch's default mode, and runs each of them."""

    def __init__(self):
        super().__init__()
        self._end = threading.Event()
        self.failure, self.captured = None, 0

    def run(self):
        stream, one = torch.cuda.Stream(), torch.ones(MIB, device="cuda")
        try:
            while not self._end.is_set():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    two = one + 1
                    self._end.wait(0.01)  # Meanwhile the other thread attaches and unmaps.
                    three = two + one
                with torch.cuda.stream(stream):
                    graph.replay()
                    assert three[0].item() == 3
                self.captured += 1
        except Exception as error:
            self.failure = error

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self.join()
        assert self.failure is None, self.failure
        assert self.captured


def generations(count=1000, **options):
    """`count` generations of 1 GiB go through a pool of 3 GiB. Each tensor dies right after the launch of
    a kernel that reads it, and the value that the kernel read is checked.
    """
    name, size = "gpu-check-w", 1 << 30
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    watching = gpushm.tensors.watch(name, **options)
    start = time.perf_counter()
    for step in range(count):
        source[::size - 1] = step % 251
        gpushm.tensors.publish(name, {"x": source})
        weights = next(watching)
        tensor = gpushm.torch.tensors_of(weights)["x"]
        ends = tensor[::size - 1].clone()
        del weights, tensor
        assert ends.tolist() == [step % 251] * 2, step
    assert gpushm.broker().used_nbytes <= 3 * size
    print(f"  {count} generations in {time.perf_counter() - start:.1f} s", flush=True)
    watching.close()
    del source
    gpushm.delete(name)
    torch.cuda.empty_cache()


def a_thousand_generations():
    generations()


def a_thousand_generations_in_place():
    generations(in_place=True)


def generations_while_another_thread_captures():
    with Capturing() as capturing:
        generations()
    print(f"  {capturing.captured} graphs", flush=True)


def generations_in_place_while_another_thread_captures():
    with Capturing() as capturing:
        generations(in_place=True)
    print(f"  {capturing.captured} graphs", flush=True)


PUBLISHER = """
for step in range(1, 101):
    gpushm.torch.save_file({"x": torch.full((64 << 20,), float(step), device="cuda")}, "gpu-check-p")
    print(step, flush=True)
    input()
"""


def in_place_under_a_graph():
    """A graph is captured once, and runs with each of 100 generations that another process publishes."""
    publisher = subprocess.Popen([sys.executable, "-c", "import torch, gpushm, gpushm.torch" + PUBLISHER],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    watching = gpushm.tensors.watch("gpu-check-p", in_place=True, timeout=60)
    weights = next(watching)
    tensor = gpushm.torch.tensors_of(weights)["x"]
    result, graph = torch.zeros_like(tensor), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.add(tensor, 1, out=result)
    for step in range(1, 101):
        assert publisher.stdout.readline().strip() == str(step)
        if step > 1:
            weights = next(watching)
        graph.replay()
        assert result[::tensor.numel() - 1].tolist() == [step + 1] * 2
        publisher.stdin.write("\n")
        publisher.stdin.flush()
    assert publisher.wait(60) == 0


def has(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


NUMBERS = "numpy.arange(1 << 20, dtype='float32').reshape(1024, 1024)"
# A kernel that runs for a tenth of a second or longer.
SLEEP = """
sleep = cupy.RawKernel("extern \\"C\\" __global__ void sleep() { long long end = clock64() + 200000000LL; "
                       "while (clock64() < end); }", "sleep")
"""


def cupy_takes_arrays():
    """Buffers that are writable, and tensors that are not, by versioned DLPack and by the interface."""
    print(" ", peer(f"""
        gpushm.tensors.publish("gpu-check-n", {{"x": {NUMBERS}}})
        array = gpushm.tensors.open("gpu-check-n")["x"]
        assert array.readonly
        try:
            taken = cupy.from_dlpack(array)
            print("CuPy", cupy.__version__, "takes read-only arrays")
        except BufferError as error:
            taken = cupy.from_dlpack(array.unsafe_writable())
            print("CuPy", cupy.__version__, "refuses read-only arrays:", error)
        for each in (taken, cupy.from_dlpack(array.unsafe_writable()), cupy.asarray(array)):
            assert each.data.ptr == array.ptr and each.shape == array.shape
            assert bool((each == cupy.asarray({NUMBERS})).all())
        with gpushm.create("gpu-check-raw", 1 << 22, replace=True) as buffer:
            written = cupy.from_dlpack(buffer.view("float32", (1024, 1024)))
            written[:] = cupy.asarray({NUMBERS})
            cupy.cuda.get_current_stream().synchronize()
            assert written.data.ptr == buffer.ptr
            assert buffer.read() == {NUMBERS}.tobytes()
            assert cupy.from_dlpack(buffer).dtype == "uint8"
    """, "import cupy, numpy, gpushm, gpushm.tensors"))


def cupy_waits_for_frames_on_its_stream():
    """The stream of a frame is CuPy's present one, or one that is named by __cuda_stream__."""
    assert peer(SLEEP + """
class Named:
    def __init__(self, stream):
        self._stream = stream
    def __cuda_stream__(self):
        return (0, self._stream.ptr)

stream = cupy.cuda.Stream(non_blocking=True)
writer = gpushm.ring("gpu-check-c", write=True, nbytes=1 << 20, policy="block")
reader = gpushm.ring("gpu-check-c", from_oldest=True)
results = []
for number in range(1, 6):
    sleep((1,), (1,), ())  # On the default stream, before the frame is written there.
    writer.put(cupy.full((512, 512), number, dtype="float32"), stream=cupy.cuda.Stream.null)
    with stream, reader.read(stream=Named(stream) if number % 2 else None) as frame:
        results.append(cupy.from_dlpack(frame).sum())
stream.synchronize()
print([int(result) // 512 ** 2 for result in results])
signal = gpushm.signal("gpu-check-cs", write=True)
with stream:
    sleep((1,), (1,), ())
signal.record(1, stream=Named(stream))
assert not signal.check(1)
stream.synchronize()
signal.wait(1)
del frame
reader.close()
writer.close()
""", "import cupy, gpushm") == "[1, 2, 3, 4, 5]"


def nothing_is_unmapped_under_work_of_cupy():
    """The work is queued before the last array dies, and what could unmap the memory runs meanwhile."""
    assert peer(SLEEP + f"""
def held():
    gpushm._native.collect()
    return len(gpushm.holders("gpu-check-n"))

gpushm.tensors.publish("gpu-check-n", {{"x": {NUMBERS}}})
for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null, cupy.cuda.Stream.ptds):
    with stream:
        result = cupy.zeros((1024, 1024), dtype="float32")
        cupy.multiply(result, 2, out=result)  # Compiles the kernel.
        array = cupy.from_dlpack(gpushm.tensors.open("gpu-check-n")["x"].unsafe_writable())
        sleep((1,), (1,), ())
        cupy.multiply(array, 2, out=result)
        del array
        holders = held()
        assert not stream.done, "the work was over too early for this check"
        assert holders == 1, holders
        stream.synchronize()
    assert held() == 0
    assert bool((result == 2 * cupy.asarray({NUMBERS})).all())
print("right")
""", "import cupy, numpy, gpushm, gpushm.tensors") == "right"


def jax_takes_arrays():
    """By DLPack, without a copy, read-only ones as well; work that is queued keeps the memory."""
    print(" ", peer(f"""
        gpushm.tensors.publish("gpu-check-n", {{"x": {NUMBERS}}})
        array = gpushm.tensors.open("gpu-check-n")["x"]
        assert array.readonly
        try:
            taken = jax.dlpack.from_dlpack(array)
            print("JAX", jax.__version__, "takes read-only arrays")
        except BufferError as error:
            taken = jax.dlpack.from_dlpack(array.unsafe_writable())
            print("JAX", jax.__version__, "refuses read-only arrays:", error)
        assert taken.unsafe_buffer_pointer() == array.ptr and taken.shape == array.shape
        assert (numpy.asarray(taken) == {NUMBERS}).all()
        assert jax.dlpack.from_dlpack(array.unsafe_writable()).unsafe_buffer_pointer() == array.ptr

        @jax.jit
        def late(x, large):
            for _ in range(20):
                large = large @ large / 8192
            return x + large[0, 0]

        large = jax.numpy.ones((8192, 8192))
        late(taken, large).block_until_ready()
        del array
        for _ in range(20):
            result = late(taken, large)
            del taken
            gpushm._native.collect()
            assert (numpy.asarray(result) == {NUMBERS} + 1).all()
            taken = jax.dlpack.from_dlpack(gpushm.tensors.open("gpu-check-n")["x"].unsafe_writable())
        del taken, result
        gpushm._native.collect()
        assert not gpushm.holders("gpu-check-n")
    """, "import jax, jax.dlpack, jax.numpy, numpy, gpushm, gpushm.tensors"))


def rings_and_queues():
    ring = gpushm.ring("gpu-check-r", write=True, nbytes=MIB, policy="block", start_readers=1)
    reader = subprocess.Popen([sys.executable, "-c", """
import torch, gpushm
total = 0
for frame in gpushm.ring("gpu-check-r"):
    total += torch.from_dlpack(frame).sum().item()
print(total)
"""], stdout=subprocess.PIPE, text=True)
    for number in range(50):
        ring.put(torch.full((256, 256), float(number), device="cuda"))
    torch.cuda.synchronize()
    with ring:
        pass
    out, _ = reader.communicate(timeout=120)
    assert float(out) == sum(range(50)) * 256 * 256


def items_that_are_not_copied():
    """A queue of two items: each ends when its tensor has died, after the work that reads it."""
    with gpushm.torch.Queue("gpu-check-q", write=True, frames=2, nbytes=64 * MIB) as putting:
        getting = gpushm.torch.Queue("gpu-check-q")
        sums = []
        for number in range(50):
            putting.put(torch.full((16 * MIB,), float(number), device="cuda"))
            torch.cuda._sleep(1_000_000)
            tensor = getting.get(copy=False)
            sums.append(tensor.double().sum())
            del tensor
        assert [each.item() for each in sums] == [number * 16.0 * MIB for number in range(50)]
        getting.close()


def a_tensor_is_offered_where_it_lies():
    """With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, across its blocks."""
    pieces = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    tensor = torch.randint(0, 255, (100 * MIB,), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    for name, offered in (("gpu-check-o1", pieces[1].fill_(7)), ("gpu-check-o2", tensor)):
        torch.cuda.synchronize()
        result = gpushm.client().offer(name, offered, writers="all")
        print(f"  {offered.numel()} bytes: {result.transport}, {result.allocations} allocations, "
              f"{result.mapped_nbytes} bytes in reach", flush=True)
        read = peer(f"""
with gpushm.attach("{name}") as buffer:
    print(torch.from_dlpack(buffer).to(torch.int64).sum().item())
""")
        assert read == str(offered.to(torch.int64).sum().item()), read
        gpushm.delete(name)
        assert gpushm.client().offer_state(name, result.generation).unused


def tensors_are_born_shareable():
    """In a pool of gpushm.torch, whatever allocator the process has else."""
    for options in ({}, {"no_split": True}):
        pool = gpushm.torch.pool(**options)
        with torch.cuda.use_mem_pool(pool):
            small = [torch.full((1000,), i, device="cuda") for i in range(10)]
            large = torch.randint(0, 255, (300 * MIB,), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        for name, offered in (("gpu-check-p1", small[3]), ("gpu-check-p2", large)):
            result = gpushm.client().offer(name, offered, writers="all")
            print(f"  {options} {offered.nbytes} bytes: {result.transport}, {result.allocations} allocations, "
                  f"{result.mapped_nbytes} bytes in reach", flush=True)
            assert result.transport == "vmm" and not result.copied
            code = f"""
with gpushm.attach("{name}") as buffer:
    print(torch.from_dlpack(buffer).to(torch.int64).sum().item())
"""
            assert peer(code) == str(offered.view(torch.uint8).to(torch.int64).sum().item())
            gpushm.delete(name)
            assert gpushm.client().offer_state(name, result.generation).unused
        before = torch.cuda.mem_get_info()[0]
        del small, large, offered, pool
        gc.collect()
        torch.cuda.empty_cache()
        print(f"  given back: {(torch.cuda.mem_get_info()[0] - before) // MIB} MiB", flush=True)
        assert torch.cuda.mem_get_info()[0] - before >= 300 * MIB


def add_one(tensors, answers):
    """In another process: writes to what it gets, and answers with the sum that it read before."""
    while (tensor := tensors.get()) is not None:
        answers.put(tensor.double().sum().item())
        if tensor.dtype.is_floating_point and not tensor.requires_grad:
            tensor.add_(1)
        torch.cuda.synchronize()
        del tensor
        answers.put("gone")


def exchange(sent, warm=0, times=0):
    """Sends tensors to add_one, and returns its answers and the time of one exchange in microseconds."""
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=add_one, args=(tensors, answers))
    process.start()

    def one(tensor):
        tensors.put(tensor)
        answer = answers.get()
        assert answers.get() == "gone"
        return answer

    told = [one(tensor) for tensor in sent]
    taken = [one(sent[0]) for _ in range(warm)]
    start = time.perf_counter()
    taken += [one(sent[0]) for _ in range(times)]
    took = (time.perf_counter() - start) / max(times, 1) * 1e6
    tensors.put(None)
    process.join(60)
    assert process.exitcode == 0
    return told, took


def torchs_queues(settings="expandable_segments:False"):
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(settings)
    gpushm.torch.multiprocessing.install()
    try:
        whole = torch.arange(3 * MIB, dtype=torch.float32, device="cuda").reshape(3, MIB)
        sent = [whole, whole[1, 5:50:7], whole.T[:10].double(), torch.ones(5, dtype=torch.bfloat16, device="cuda"),
                torch.nn.Parameter(torch.full((4,), 2.0, device="cuda")), torch.arange(9, device="cuda")]
        torch.cuda.synchronize()
        wanted = [each.double().sum().item() for each in sent]
        wanted[1] += sent[1].numel()  # A part of the first one, which the receiver has added 1 to.
        told, _ = exchange(sent)
        assert told == wanted, (told, wanted)
        assert whole[0, 0].item() == 1 and whole[1, 5].item() == MIB + 5 + 2
        assert gpushm.torch.multiprocessing.collect() == 0
        assert not [info.name for info in gpushm.list_buffers() if info.name.startswith("torch-mp-")]
    finally:
        gpushm.torch.multiprocessing.uninstall()
        torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def torchs_queues_on_expandable_segments():
    torchs_queues("expandable_segments:True")


def torchs_queues_are_not_slower():
    tensor = torch.zeros(MIB, device="cuda")
    _, over_cuda_ipc = exchange([tensor], 20, 200)
    gpushm.torch.multiprocessing.install()
    try:
        _, over_gpushm = exchange([tensor], 20, 200)
    finally:
        gpushm.torch.multiprocessing.uninstall()
    print(f"  one exchange: CUDA IPC {over_cuda_ipc:.0f} us, gpushm {over_gpushm:.0f} us")


def modules_in_place():
    from gpushm.integrations import _modules

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(64, 32, device="cuda").T, requires_grad=False)
            self.again = self.weight
            self.fp8 = torch.nn.Parameter(torch.randn(16, 8, device="cuda").to(torch.float8_e4m3fn).t(),
                                          requires_grad=False)
            self.register_buffer("scale", torch.ones(4, device="cuda"), persistent=False)

    first, second = Odd(), Odd()
    _modules.publish(first, "gpu-check-m")
    with gpushm.tensors.open("gpu-check-m") as opened:
        assert _modules.adopt(second, opened) == []
        base = opened.buffer.ptr
        assert base <= second.weight.data_ptr() < base + opened.buffer.nbytes
        assert not base <= second.scale.data_ptr() < base + opened.buffer.nbytes
        assert _modules.exchange(first, opened) == 2
    for module in (first, second):
        assert module.again is module.weight and module.weight.stride() == (1, 32)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.fp8.view(torch.uint8), second.fp8.view(torch.uint8))


def times():
    client = gpushm.client()
    tensors = {f"t{i}": torch.zeros(4096, device="cuda") for i in range(1000)}
    gpushm.torch.save_file(tensors, "gpu-check-t")
    kept = client.attach("gpu-check-t")
    print(f"  attach again: {microseconds(lambda: client.attach('gpu-check-t'), 1000):.2f} us (at most 1.5)")
    print(f"  load_file of 1,000 tensors: "
          f"{microseconds(lambda: gpushm.torch.load_file('gpu-check-t'), 10) / 1000:.2f} ms (at most 5)")
    kept.detach()


def main():
    failed = 0
    print(gpushm.about())
    checks = [same_bytes, from_dlpack_of_everything, writes_are_illegal_and_guarded,
              deleters_do_not_break_a_capture, in_place_under_a_graph, a_thousand_generations,
              a_thousand_generations_in_place, generations_while_another_thread_captures,
              generations_in_place_while_another_thread_captures, rings_and_queues,
              items_that_are_not_copied, a_tensor_is_offered_where_it_lies, tensors_are_born_shareable,
              modules_in_place,
              torchs_queues, torchs_queues_on_expandable_segments, torchs_queues_are_not_slower, times]
    if has("cupy"):
        checks += [cupy_takes_arrays, cupy_waits_for_frames_on_its_stream,
                   nothing_is_unmapped_under_work_of_cupy]
    if has("jax"):
        checks.append(jax_takes_arrays)
    for check in [check for check in checks if not sys.argv[1:] or check.__name__ in sys.argv[1:]]:
        try:
            check()
            print(f"ok      {check.__name__}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {check.__name__}: {type(error).__name__}: {error}", flush=True)
    for name in [info.name for info in gpushm.list_buffers() if info.name.startswith("gpu-check")]:
        gpushm.delete(name)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
