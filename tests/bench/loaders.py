#!/usr/bin/env python3
"""Loaders of safetensors files side by side, from the page cache to the GPU, in one run.

usage: loaders.py BUILD [--out FILE] [--bytes 16Gi] [--folder FOLDER] [--processors 1,2,8] [--turns 3]
                        [--only NAME,...] [--contents large,pieces,small]
                        [--former BUILD] [--check] [--cufile FOLDER]

BUILD: a build with bin/; --former: another one, which takes its turns as `gpushm former`. Each loader is a
process of its own, kept to the first N processors by sched_setaffinity, and loads the same files: `large` with
400 tensors of equal size; `pieces`, the same but written by 1 MiB, so that the page cache has it in smaller
folios; and `small` with tensors of 64 KiB (100,000 of them with 16Gi). Which loader goes first changes from
turn to turn. Per row:
  seconds        from an existing context to the last byte on the GPU (gpushmctl: moving_seconds)
  call_seconds   gpushmctl: with reading the header, a context, the digest and unregistering; otherwise `seconds`
  process_seconds, process_cpu_s   of the whole process, with imports and the context
  cpu_s_per_gib  user and system time between the same two moments; for gpushmctl of the whole
                 process, less that of a load of 4 KiB
Loaders whose package cannot be imported are left out, and the reason stays in the JSON. With --cufile, a folder
with NVIDIA's libcufile.so.0, GPUDirect Storage is driven on that library, too: without nvidia-fs in its
compatibility mode, which copies through the host. On the simulated driver, this only tries the script.
"""

import argparse
import contextlib
import datetime
import filecmp
import importlib.util
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

BLOCK = 1 << 20
SMALL_TENSOR = 64 << 10
OURS = {"gpushm": [], "gpushm copies": ["--file-method", "page-cache"], "gpushm pages": ["--file-method", "pages"]}
FORMER = "gpushm former"
RIVALS = {  # Name: the module that it needs.
    "safetensors": "safetensors", "instanttensor mmap": "instanttensor", "instanttensor buffered": "instanttensor",
    "fastsafetensors": "fastsafetensors", "runai": "runai_model_streamer"}


def size(text):
    units = {"Ki": 10, "Mi": 20, "Gi": 30}
    return int(text[:-2]) << units[text[-2:]] if text[-2:] in units else int(text)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("loaders.json"))
    parser.add_argument("--bytes", type=size, default=16 << 30)
    parser.add_argument("--folder", type=pathlib.Path, help="where the files are made (a temporary folder)")
    parser.add_argument("--processors", default="1,2,8", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--former", type=lambda p: pathlib.Path(p).resolve(), help="another build with bin/")
    parser.add_argument("--check", action="store_true", help="first compare the bytes after a load and a save")
    parser.add_argument("--contents", default="large,pieces,small", type=lambda text: text.split(","))
    parser.add_argument("--cufile", type=pathlib.Path)
    return parser.parse_args()


# ------------------------------------------------------------ one load by a rival, in a process of its own

def by_rival(name, file):
    """Keeps what is loaded until the end of the measured time; returns the number of tensors."""
    if name == "safetensors":
        from safetensors.torch import load_file
        return load_file(file, device="cuda:0")
    if name.startswith("instanttensor"):
        from instanttensor import safe_open
        from instanttensor._impl import Backend, BackendPolicy
        backend = Backend.MMAP if name.endswith("mmap") else BackendPolicy.BUFFERED
        with safe_open(file, framework="pt", device=0, copy=False, backend=backend) as opened:
            return [key for key, _ in opened.tensors()]
    if name == "fastsafetensors":
        import torch
        from fastsafetensors import SafeTensorsFileLoader, SingleGroup
        threads = max(1, 2 * len(os.sched_getaffinity(0)))
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cuda:0"), nogds=True, max_threads=threads)
        loader.add_filenames({0: [file]})
        buffers = loader.copy_files_to_device()
        return {key: buffers.get_tensor(key) for key in loader.get_keys()}
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(file)
        return {key: tensor.to("cuda:0") for key, tensor in streamer.get_tensors()}


def run_rival(name, file):
    import torch
    torch.zeros(1, device="cuda:0")
    torch.cuda.synchronize()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    loaded = by_rival(name, file)
    torch.cuda.synchronize()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"seconds": seconds, "tensors": len(loaded),
                      "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}))


# ------------------------------------------------------------ the bench

def make_model(path, tensors, tensor_bytes, written_bytes):
    """A safetensors file, written through the page cache, which then has it."""
    header = {f"model.layers.{i}.weight": {"dtype": "BF16", "shape": [tensor_bytes // 2],
                                          "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes]}
              for i in range(tensors)}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 8)
    block, left, number = bytearray(os.urandom(written_bytes)), tensors * tensor_bytes, 0
    with open(path, "wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while left > 0:
            block[:8] = number.to_bytes(8, "little")  # No block is like another.
            left -= file.write(block[:left] if left < written_bytes else block)
            number += 1
        os.fsync(file.fileno())
    return path


def keep_in_cache(path):
    with open(path, "rb", buffering=0) as file:
        into = bytearray(16 << 20)
        while file.readinto(into):
            pass


class Bench:

    def __init__(self, arguments, build, folder):
        self._arguments = arguments
        self._folder = folder
        self._tools = build / "bin"
        self._control = [self._tools / "gpushmctl", "--folder", folder / "broker" / "app"]
        self._idle_cpu_s = {}

    def __enter__(self):
        total = self._arguments.bytes + self._arguments.bytes // 2 + (1 << 30)
        config = self._folder / "broker.yaml"
        config.write_text(f"annotations: {{gpushm.io/pool-extra: {(total >> 20) + 64}Mi}}\ncontainers: [app]\n"
                          f"folder: {self._folder / 'broker'}\n")
        with open(self._folder / "broker.log", "w") as log:
            self._broker = subprocess.Popen([self._tools / "gpushm-broker", "--config", config], stdout=log, stderr=log)
        self.control("wait", "--broker", "--timeout", "60s")
        return self

    def __exit__(self, *_):
        self._broker.terminate()
        self._broker.wait(60)

    def control(self, *words, environment=None):
        done = subprocess.run([*self._control, *words], capture_output=True, text=True, check=False,
                              env=os.environ | (environment or {}))
        if done.returncode != 0:
            raise RuntimeError(f"gpushmctl {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def timed(self, words, processors):
        """(standard output, seconds, CPU seconds) of a process on the first `processors` processors."""
        chosen = sorted(os.sched_getaffinity(0))[:processors]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            start = time.perf_counter()
            process = subprocess.Popen(words, stdout=out, stderr=errors, cwd=self._folder,
                                       preexec_fn=lambda: os.sched_setaffinity(0, chosen))
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            errors.seek(0)
            if process.returncode != 0:
                raise RuntimeError(f"{words[:3]}: {errors.read()[-1500:]}")
            return out.read(), seconds, used.ru_utime + used.ru_stime

    def ours(self, options, file, buffer, processors):
        words = [*self._control, "load", file, buffer, "--no-progress", "--output", "json", *options]
        out, seconds, cpu_s = self.timed(words, processors)
        told = json.loads(out)
        return {"seconds": told["moving_seconds"], "call_seconds": told["elapsed_seconds"], "process_seconds": seconds,
                "process_cpu_s": cpu_s, "file_method": told.get("file_method", ""),
                "cpu_s": max(cpu_s - self.idle_cpu_s(processors), 0)}

    def idle_cpu_s(self, processors):
        """What a load costs without its bytes: the process, the driver, a context."""
        if processors not in self._idle_cpu_s:
            tiny = self._folder / "tiny"
            tiny.write_bytes(bytes(4096))
            words = [*self._control, "load", tiny, "tiny", "--no-progress"]
            samples = []
            for _ in range(3):
                samples.append(self.timed(words, processors)[2])
            self._idle_cpu_s[processors] = statistics.median(samples)
        return self._idle_cpu_s[processors]

    def rival(self, name, file, processors):
        out, seconds, cpu_s = self.timed([sys.executable, __file__, "--rival", name, file], processors)
        return {**json.loads(out.splitlines()[-1]), "process_seconds": seconds, "process_cpu_s": cpu_s}

    def rows(self, content, file, buffer, former):
        chosen = self._arguments.only
        ours = {name: (self, options) for name, options in OURS.items()} | ({FORMER: (former, [])} if former else {})
        loaders = [name for name in [*ours, *RIVALS] if not chosen or name in chosen]
        size_bytes = file.stat().st_size
        for bench in [self, former] if former else [self]:
            bench.control("create", buffer, "--from", str(file))
        failed = {}
        for processors in self._arguments.processors:
            if processors > len(os.sched_getaffinity(0)):
                continue
            samples = {name: [] for name in loaders}
            for turn in range(self._arguments.turns):
                keep_in_cache(file)
                for name in loaders[turn % len(loaders):] + loaders[:turn % len(loaders)]:
                    if name in failed:
                        continue
                    try:
                        if name in ours:
                            bench, options = ours[name]
                            samples[name].append(bench.ours(options, file, buffer, processors))
                        else:
                            samples[name].append(self.rival(name, file, processors))
                    except (RuntimeError, ValueError, IndexError) as error:
                        failed[name] = str(error)
            for name, found in samples.items():
                row = {"loader": name, "content": content, "processors": processors, "bytes": size_bytes}
                if name in failed or not found:
                    yield {**row, "left_out": failed.get(name, "no sample")}
                    continue
                best = min(found, key=lambda sample: sample["seconds"])
                median = statistics.median(sample["seconds"] for sample in found)
                yield {**row, "gb_per_s": size_bytes / median / 1e9, "best_gb_per_s": size_bytes / best["seconds"] / 1e9,
                       "cpu_s_per_gib": statistics.median(s["cpu_s"] for s in found) / (size_bytes / 2**30),
                       "process_seconds": statistics.median(s["process_seconds"] for s in found),
                       "call_seconds": statistics.median(s.get("call_seconds", s["seconds"]) for s in found),
                       "file_method": found[0].get("file_method", ""), "samples": found}
        for bench in [self, former] if former else [self]:
            bench.control("rm", buffer)

    def make_checked(self):
        """A file whose bytes are compared after a load and a save."""
        file = self._folder / "checked"
        with open(file, "wb") as made:
            for _ in range(256):
                made.write(os.urandom(BLOCK))
            made.write(b"the last bytes fill no block")
        self.control("create", "checked", "257Mi")
        return file

    def check(self, file):
        """Fails if one of our ways brings other bytes."""
        copy = self._folder / "copy"
        for name, options in OURS.items():
            for threads in ("0", "7"):
                self.control("load", "--format", "raw", str(file), "checked", "--threads", threads, *options)
                self.control("save", "--format", "raw", "checked", str(copy))
                if not filecmp.cmp(file, copy, shallow=False):
                    raise RuntimeError(f"{name}, {threads} threads: the buffer has other bytes than the file")

    def direct_storage(self, file):
        """GPUDirect Storage's code on NVIDIA's own library, and what that is worth here."""
        copy = self._folder / "copy"
        # cuFile learns from udev on what a file lies. Without udevd, root can write the entry:
        # /run/udev/data/bMAJOR:MINOR with E:ID_FS_USAGE=filesystem and E:ID_FS_TYPE=ext4.
        environment = {"GPUSHM_CUFILE": str(self._arguments.cufile.resolve()),
                       "CUFILE_LOGFILE_PATH": str(self._folder / "cufile.log")}
        load = ["load", "--format", "raw", str(file), "checked", "--file-method", "gds", "--no-progress", "-o", "json"]
        found = {"library": str(self._arguments.cufile), "nvidia_fs": os.path.exists("/proc/driver/nvidia-fs")}
        if not os.path.exists("/proc/modules"):  # libcufile 1.20 looks for its module there, for ever.
            return {**found, "failed": "GPUDirect Storage was not tried: libcufile needs /proc/modules."}
        try:
            found["load"] = json.loads(self.control(*load, environment=environment))
        except RuntimeError as error:
            found["refused"] = str(error)
            environment["GPUSHM_CUFILE_COMPAT"] = "1"
            try:
                found["load"] = json.loads(self.control(*load, environment=environment))
            except RuntimeError as of_compat:
                found["failed"] = str(of_compat)
                return found
        found["save"] = json.loads(self.control("save", "--format", "raw", "checked", str(copy), "--file-method", "gds",
                                                "--no-progress", "-o", "json", environment=environment))
        found["same_bytes"] = filecmp.cmp(file, copy, shallow=False)
        found["sentence"] = ("GPUDirect Storage moved the bytes without the host." if "refused" not in found else
                             "nvidia-fs is missing here, so libcufile copied through the host in its compatibility "
                             "mode, which gpushm refuses outside of this test.")
        return found


def machine():
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        gpu = "simulated"
    packages = {}
    for module in sorted({*RIVALS.values(), "torch"}):
        if importlib.util.find_spec(module):
            from importlib import metadata
            packages[module] = metadata.version(module.replace("_", "-"))
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "gpu": gpu,
            "kernel": platform.release(), "cpus": os.cpu_count(), "packages": packages}


HEAD = "| content | processors | loader | GB/s | CPU s per GiB | process, s | how |\n|---|---|---|---|---|---|---|"


def line_of(row):
    start = f"| {row['content']} | {row['processors']} | {row['loader']} | "
    if "left_out" in row:
        return f"{start}left out: {row['left_out'].strip().splitlines()[-1][:90]} | | | |"
    return (f"{start}{row['gb_per_s']:.1f} | {row['cpu_s_per_gib']:.3f} | "
            f"{row['process_seconds']:.2f} | {row['file_method']} |")


def main():
    arguments = parse()
    count = max(arguments.bytes * 100_000 // (16 << 30), 1)
    contents = {"large": ("400 tensors", 400, arguments.bytes // 400 // 256 * 256, 64 << 20),
                "pieces": ("400 tensors, written by 1 MiB", 400, arguments.bytes // 400 // 256 * 256, 1 << 20),
                "small": (f"{count} tensors of 64 KiB", count, SMALL_TENSOR, 64 << 20)}
    with contextlib.ExitStack() as stack:
        benches = []
        for build in [arguments.build] + ([arguments.former] if arguments.former else []):
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
            benches.append(stack.enter_context(Bench(arguments, build, folder)))
            benches[-1].control("create", "tiny", "2Mi")
        bench, former = benches[0], benches[1] if arguments.former else None
        result = {"context": machine(), "rows": []}
        if arguments.check or arguments.cufile:
            checked = bench.make_checked()
            if arguments.check:
                bench.check(checked)
            if arguments.cufile:
                result["direct_storage"] = bench.direct_storage(checked)
                print(result["direct_storage"].get("sentence") or result["direct_storage"]["failed"])
        print(HEAD, flush=True)
        for chosen in arguments.contents:
            content, tensors, tensor_bytes, written_bytes = contents[chosen]
            file = make_model(folder / f"{chosen}.safetensors", tensors, tensor_bytes, written_bytes)
            for row in bench.rows(content, file, chosen, former):
                print(line_of(row), flush=True)
                result["rows"].append(row)
                # Kept as it grows: a run that is ended early leaves what it measured.
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            file.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rival"]:
        run_rival(*sys.argv[2:4])
    else:
        main()
