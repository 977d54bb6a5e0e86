"""Checks the symbols that libgpushm.so exports: symbols.py LIBRARY.

Programs that run in pods for years ask for symbols by name and version, so what a release exported
stays, and a released node of versions gets nothing new. What the public headers declare is exported.
"""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = HERE.parent.parent / "runtime" / "include" / "gpushm"
# For each released node, the file with its symbols. A release adds a line.
RELEASED = {"GPUSHM_1.0": "symbols_1_0.txt"}


def exported(library):
    """Each symbol that the library defines, with its version."""
    lines = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", str(library)],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    return {tuple(re.split("@+", line.split()[-1])) for line in lines if " A " not in line}


def declared():
    for header in sorted(HEADERS.glob("*.h")):
        for function in re.findall(r"GPUSHM_API [^;(]*?\b(gpushm_\w+)\(", header.read_text()):
            yield header.name, function


def breaches(symbols):
    for node, name in RELEASED.items():
        released = set((HERE / name).read_text().split())
        found = {symbol[0] for symbol in symbols if symbol[1:] == (node,)}
        for symbol in sorted(released - found):
            yield f"{symbol}@{node} is not exported: programs of that version need it"
        for symbol in sorted(found - released):
            yield f"{symbol} is new in {node}, which is released: move it to the newest node"
    names = {symbol[0] for symbol in symbols}
    for header, function in declared():
        if function not in names:
            yield f"{function} of {header} is not exported: add it to gpushm.map"
    for symbol in sorted(symbols):
        if not symbol[0].startswith("gpushm_"):
            yield f"{symbol[0]} is exported; only gpushm_* may be visible"
        elif len(symbol) == 1:
            yield f"{symbol[0]} has no version: add it to gpushm.map"


def main():
    symbols = exported(sys.argv[1])
    found = list(breaches(symbols))
    print("\n".join(found) or f"symbols: {len(symbols)} exported, all in place")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
