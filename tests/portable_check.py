"""Checks the release binaries of `./run portable`: portable_check.py --glibc 2.28 BUILD.

They must start on systems with that glibc: no newer symbol version, and no separate C++ library.
The library must export only the C ABI, because it runs in other programs: an exported operator new
would replace theirs.
"""

import argparse
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "abi"))
import symbols

ALLOWED_NEEDED = re.compile(r"(libc|libm|libpthread|libdl|librt|ld-linux-x86-64)\.so\.\d+$")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version(text):
    return tuple(int(part) for part in text.split("."))


def check_glibc(path, floor):
    found = set(re.findall(r"GLIBC_([0-9.]+)", output_of("objdump", "-T", str(path))))
    newest = max(found, key=version)
    print(f"{path.name}: newest symbol version GLIBC_{newest}")
    if version(newest) > version(floor):
        yield f"{path.name} needs GLIBC_{newest}, newer than {floor}"


def check_needed(path):
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", str(path)))
    print(f"{path.name}: needs {' '.join(needed)}")
    for library in needed:
        if not ALLOWED_NEEDED.match(library):
            yield f"{path.name} needs {library}, which some systems lack"


def check_exports(path):
    exported = symbols.exported(path)
    print(f"{path.name}: exports {len(exported)} symbols")
    for breach in symbols.breaches(exported):
        yield f"{path.name}: {breach}"


def check_preloaded(path):
    """It is loaded into programs that know nothing of gpushm, and may replace nothing but getpid."""
    exported = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", str(path)).splitlines()}
    print(f"{path.name}: exports {' '.join(sorted(exported))}")
    wanted = {"getpid", "gpushm_cudaipc_pid", "sendmsg"}
    if exported != wanted:
        yield f"{path.name} exports {sorted(exported)}, not {sorted(wanted)}"


NAMES = ("libgpushm.so", "libgpushm-cudaipc.so", "gpushmctl")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--glibc", required=True)
    parser.add_argument("build", type=pathlib.Path)
    arguments = parser.parse_args()
    files = {path.name: path for path in sorted(arguments.build.rglob("*"))
             if path.name in NAMES and path.is_file()}
    breaches = [f"{name} was not built" for name in NAMES if name not in files]
    for path in files.values():
        breaches += [*check_glibc(path, arguments.glibc), *check_needed(path)]
    if "libgpushm.so" in files:
        breaches += check_exports(files["libgpushm.so"])
    if "libgpushm-cudaipc.so" in files:
        breaches += check_preloaded(files["libgpushm-cudaipc.so"])
    if "gpushmctl" in files:
        print(output_of(str(files["gpushmctl"]), "--version").strip())
    print("\n".join(breaches) or "portable_check: ok")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
