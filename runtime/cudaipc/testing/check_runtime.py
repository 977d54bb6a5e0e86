"""Checks that cudaipc.c recognises a CUDA runtime: check_runtime.py FILE ...

Each file is a shared CUDA runtime, or a program or library that contains one, for x86-64. In it, the
function that compares PIDs must load the key of the driver's integrity check at most kCodeBytes before
it asks for the PID. It asks by a function that does nothing but jump to getpid. Needs objdump.
"""

import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "cudaipc.c"
TEXT = SOURCE.read_text()
CODE_BYTES = int(re.search(r"kCodeBytes = (\d+),", TEXT).group(1))
KEY = bytes(int(byte, 16) for byte in re.findall(
    r"0x(..)", re.search(r"kKey\[\] = \{(.*?)\};", TEXT, re.DOTALL).group(1)))


def key_addresses(path):
    """The addresses at which the file's read-only data has the key."""
    content = path.read_bytes()
    sections = subprocess.run(["objdump", "-h", path], check=True, capture_output=True, text=True).stdout
    for size, address, offset in re.findall(r"\.rodata +(\w+) +(\w+) +\w+ +(\w+)", sections):
        begin, end = int(offset, 16), int(offset, 16) + int(size, 16)
        at = content.find(KEY, begin, end)
        while at >= 0:
            yield int(address, 16) + at - begin
            at = content.find(KEY, at + 1, end)


def distances(path):
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True,
                          text=True).stdout
    lines = [(int(address, 16), text) for address, text in
             re.findall(r"^ *([0-9a-f]+):\t(.*)$", code, re.MULTILINE)]
    keys = {f"{address:x}" for address in key_addresses(path)}
    loads = [address for address, text in lines
             if text.startswith("lea") and (to := re.search(r"# ([0-9a-f]+)", text)) and to[1] in keys]
    jumps = {f"{address:x}" for address, text in lines if re.match(r"jmp .*<getpid@plt>", text)}
    returns = [following for (_, text), (following, _) in zip(lines, lines[1:])
               if (call := re.match(r"call +([0-9a-f]+)", text)) and call[1] in jumps]
    for back in returns:
        yield min((back - load for load in loads if load < back), default=None)


def main():
    failed = False
    for path in map(pathlib.Path, sys.argv[1:]):
        found = list(distances(path))
        print(f"{path.name}: {found} bytes from the key to the return address; at most {CODE_BYTES}")
        if not found or any(one is None or one > CODE_BYTES for one in found):
            failed = True
            print(f"{path}: CUDA programs with it would fail with error 103 under "
                  "libgpushm-cudaipc.so: change LoadsKey or kCodeBytes in cudaipc.c")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
