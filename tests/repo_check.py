"""Rules of the tree that no compiler or formatter knows; run by `./run lint`.

Prints one line for each breach, with what to do about it, and fails if there is one.
"""

import pathlib
import re
import subprocess
import sys

import events_check

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".hpp", ".cc", ".c", ".cu", ".py", ".sh", ".cmake", ""}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
# Inputs, kept byte for byte: corpora of fuzz targets, pictures.
BINARY_IS_FINE = re.compile(r"(^|/)corpus/|\.(png|jpg)$")

FORBIDDEN = [
    (re.compile(r"(?<![\w.$}/-])/(home|work|Users|root|mnt/data)/\w"), "a path of one machine",
     "name it relative to the tree, or take it from an argument"),
    (re.compile(r"\b(pythonhosted\.org|pypi\.org|deb\.debian\.org|proxy\.golang\.org)\b"),
     "the host of a package registry", "name the package; the user's configuration names the host"),
    (re.compile(r"^(<{7}|>{7}) "), "a conflict marker", "resolve it"),
]
# A poll of nothing for less than 10 ms is the step of a loop that looks for something.
SLEEP = re.compile(r"\b((sleep|usleep|nanosleep|sleep_for|sleep_until)\s*\("
                   r"|poll\((nullptr|NULL), 0, (?!\d\)))")
# Where waiting is the thing itself (a GPU's latency, a poll of a growing step), say so in the line.
SLEEP_IS_MEANT = "// sleep:"

NO_FUNCTION = re.compile(r"(namespace|struct|class|enum|union|extern|using|template)\b")


def tree_files():
    """Tracked files and new ones that git does not ignore."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           check=True, capture_output=True).stdout.decode().split("\0")
    return sorted(name for name in set(names) if name and (ROOT / name).is_file())


def check_text(name, lines):
    for number, line in enumerate(lines, 1):
        if name == "tests/repo_check.py":
            break
        for pattern, what, remedy in FORBIDDEN:
            if pattern.search(line):
                yield f"{name}:{number}: {what}: {remedy}"
        if line != line.rstrip() and pathlib.Path(name).suffix in CODE - {""}:
            yield f"{name}:{number}: space at the end of the line: remove it"


def check_size(name, lines):
    if pathlib.Path(name).suffix in CODE and name != "LICENSE" and len(lines) > MAX_FILE_LINES:
        yield f"{name}: {len(lines)} lines: split it, {MAX_FILE_LINES} is the limit"


def check_functions(name, lines):
    """In clang-formatted code a function outside a class begins and ends in the first column."""
    if pathlib.Path(name).suffix not in {".cc", ".c", ".cu"}:
        return
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("}"):
            if start and number - start >= MAX_FUNCTION_LINES:
                yield (f"{name}:{start}: a function of {number - start + 1} lines: split it, "
                       f"{MAX_FUNCTION_LINES} is the limit")
            start = None
        elif re.match(r"[A-Za-z]", line):
            is_function = "(" in line and not line.endswith(";") and not NO_FUNCTION.match(line)
            start = number if is_function else None


def check_header(name, lines):
    if not name.endswith((".h", ".hpp")):
        return
    text = "\n".join(lines)
    if "#pragma once" not in text and not re.search(r"^#ifndef \w+_H\w*_$", text, re.MULTILINE):
        yield f"{name}: no #pragma once"
    if lines and not lines[0].startswith(("//", "/*")):
        yield f"{name}:1: a header begins with what it promises: add a comment"


def check_public_header(name, lines):
    if name != "runtime/include/gpushm/gpushm.h":
        return
    for number, line in enumerate(lines, 1):
        if line.startswith("GPUSHM_API") and not lines[number - 2].rstrip().endswith("*/"):
            yield f"{name}:{number}: a public function without a comment: write its contract"


def check_sleep(name, lines):
    if not name.endswith("_test.cc") and not re.match(r"tests/(?!demo/|bench/).*\.(cc|c|h)$", name):
        return
    for number, line in enumerate(lines, 1):
        if SLEEP.search(line.split("//")[0]) and SLEEP_IS_MEANT not in line:
            yield (f"{name}:{number}: a test that sleeps: wait for an event with a deadline, or say "
                   f"why in the line, after '{SLEEP_IS_MEANT}'")


def check_tree_in_program(name, lines):
    """A test that has the tree's path compiled in fails in a pack, on a machine without the tree."""
    if not name.endswith("CMakeLists.txt"):
        return
    for command in re.finditer(r"compile_(definitions|options)\([^)]*SOURCE_DIR", "\n".join(lines)):
        number = command.string.count("\n", 0, command.end()) + 1
        yield (f"{name}:{number}: the path of the tree in a program: give it to the test in ENV or "
               "COMMAND, where a pack finds it, or label the test `tree`")


CHECKS = [check_text, check_size, check_functions, check_header, check_public_header, check_sleep,
          check_tree_in_program]


def check_file(name):
    data = (ROOT / name).read_bytes()
    if BINARY_IS_FINE.search(name):
        return
    if b"\0" in data:
        yield f"{name}: a binary file: generate it in build/ instead"
        return
    lines = data.decode(errors="replace").splitlines()
    for check in CHECKS:
        yield from check(name, lines)


def main():
    names = tree_files()
    breaches = [breach for name in names for breach in check_file(name)]
    breaches += events_check.check()
    print("\n".join(breaches + [f"repo_check: {len(names)} files, {len(breaches)} breaches"]))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
