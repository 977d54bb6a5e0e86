"""What needs a real GPU: run it where PyTorch has one, with the wheel installed and a broker's folder in
GPUSHM_DIR. `python gpu_check.py` prints a line for each check, and ends with 1 if one failed. It makes
buffers named "gpu-check..." in the pool, of up to 3 GiB.
"""

import gc
import subprocess
import sys
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


def peer(code):
    """Runs code in another process, and returns its output."""
    done = subprocess.run([sys.executable, "-c", "import torch, gpushm, gpushm.tensors, gpushm.torch\n" + code],
                          capture_output=True, text=True, timeout=120)
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


def old_generations_are_freed(count=200, size=256 * MIB):
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    watching = gpushm.tensors.watch("gpu-check-w")
    for step in range(count):
        source[0] = step % 251
        gpushm.tensors.publish("gpu-check-w", {"x": source})
        weights = next(watching)
        tensor = gpushm.torch.tensors_of(weights)["x"]
        result = tensor[:1].clone()  # Queued work; the tensor dies right after its launch.
        del weights, tensor
        assert result.item() == step % 251
    assert gpushm.broker().used_nbytes <= 3 * size + 512 * MIB


def in_place_under_a_graph():
    gpushm.torch.save_file({"x": torch.full((MIB,), 1.0, device="cuda")}, "gpu-check-p")
    watching = gpushm.tensors.watch("gpu-check-p", in_place=True)
    tensor = gpushm.torch.tensors_of(next(watching))["x"]
    result, graph = torch.zeros(MIB, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.add(tensor, 1, out=result)
    for value in (2.0, 3.0):
        gpushm.torch.save_file({"x": torch.full((MIB,), value, device="cuda")}, "gpu-check-p")
        torch.cuda.synchronize()
        next(watching)
        graph.replay()
        torch.cuda.synchronize()
        assert result[0].item() == value + 1


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
        gpushm.torch.multiprocessing.collect()
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
    for check in (same_bytes, from_dlpack_of_everything, writes_are_illegal_and_guarded,
                  deleters_do_not_break_a_capture, old_generations_are_freed, in_place_under_a_graph,
                  rings_and_queues, a_tensor_is_offered_where_it_lies, tensors_are_born_shareable,
                  modules_in_place, torchs_queues, torchs_queues_on_expandable_segments,
                  torchs_queues_are_not_slower, times):
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
